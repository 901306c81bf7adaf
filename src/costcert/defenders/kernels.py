"""The compiled inner loops, nothing else. tests/naive.py holds the slow twin of each.

Words: `clean` is α_p, the clean votes; a member is a label the promise is about (the true label, the labels
of today's list, the label that must stay out); a rival is any other label. Labels are numbered afresh for
each image, members first, so that labels nobody votes for cost nothing: they are counted, not listed.

All kernels share one file because the compiled cache is renewed when the file of its entry point changes.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numba import types
from numba.extending import intrinsic

from costcert.compiled import compiled, inlined

# A whole number of 64 bits once compiled, whatever Python calls it before.
Int: TypeAlias = Any

CHEAPEST_FIRST = 0
PAIRWISE = 1
EXPEL = 2
ENTER = 3

FOREVER = 1 << 62

# Insertion beats the general sorting routine up to so many values, picking beats it for so few, and
# counting how many rivals lack how much beats them all if no rival lacks more than this.
FEW = 64
PICKED = 6
COUNTED = 1023

# What is known of the votes that a rival loses outside T_p: nothing since a flip, a lower bound, all.
FLIPPED = 0
AT_LEAST = 1
EXACT = 2


@inlined
def _affordable(each: Int, count: Int, lifted: Int, cost: Int, budget: Int, known: Int) -> Int:
    """How many more of `count` rivals are lifted at `each`; those known to be, even beyond the budget."""
    if each == 0:
        return count
    sure = min(count, max(known - lifted, 0))
    if cost + sure * each > budget:
        return sure
    return min(count, (budget - cost) // each)


@inlined
def _cheapest_counted(
    gaps: Any, price: Int, unlisted: Int, late_price: Int, late: Int, budget: Int, known: Int, lacking: Any
) -> tuple[Int, Int]:
    """`cheapest_first` for small gaps, which need not be sorted: `lacking[gap]` counts those who lack it."""
    for gap in range(late_price + 1):
        lacking[gap] = 0
    for i in range(len(gaps)):
        lacking[gaps[i]] += 1
    lacking[price] += unlisted
    lacking[late_price] += late
    lifted = 0
    cost = 0
    for gap in range(late_price + 1):
        count = lacking[gap]
        if count == 0:
            continue
        pay = _affordable(gap, count, lifted, cost, budget, known)
        cost += pay * gap
        lifted += pay
        if pay < count:
            return lifted, cost + gap - budget
    return lifted, FOREVER


@compiled
def cheapest_first(
    gaps: Any, listed: Int, price: Int, unlisted: Int, late_price: Int, late: Int, budget: Int, known: Int
) -> tuple[Int, Int]:
    """Eq. 1 of the paper: lift rivals cheapest first while the budget lasts.

    `gaps[:listed]` are sorted; besides them `unlisted` rivals cost `price` each and `late` cost
    `late_price` >= `price` each.

    Returns:
        The number of rivals lifted, or `known` if that is not less; and by how much the cost of one rival
        more exceeds the budget (FOREVER where none is left).
    """
    lifted = 0
    cost = 0
    i = 0
    for pool in range(3):
        # Listed rivals up to the pool's price, then the pool; after both pools, the listed rest.
        while i < listed and (pool == 2 or gaps[i] <= (price if pool == 0 else late_price)):
            cost += gaps[i]
            if cost > budget and lifted >= known:
                return lifted, cost - budget
            lifted += 1
            i += 1
        if pool == 2:
            break
        each = price if pool == 0 else late_price
        count = unlisted if pool == 0 else late
        pay = _affordable(each, count, lifted, cost, budget, known)
        cost += pay * each
        lifted += pay
        if pay < count:
            return lifted, cost + each - budget
    return lifted, FOREVER


@inlined
def _cheapest(gaps: Any, count: Int) -> tuple[Int, Int]:
    """The largest and the sum of the `count` smallest gaps, which are brought to the front."""
    for place in range(count):
        least = place
        for i in range(place + 1, len(gaps)):
            if gaps[i] < gaps[least]:
                least = i
        gaps[place], gaps[least] = gaps[least], gaps[place]
    cost: Int = 0
    for place in range(count):
        cost += gaps[place]
    return gaps[count - 1], cost


@inlined
def _sort(values: Any) -> None:
    """In place; a few values are sorted quicker by insertion than by the general routine."""
    if len(values) > FEW:
        values.sort()
        return
    for place in range(1, len(values)):
        value = values[place]
        i = place
        while i > 0 and values[i - 1] > value:
            values[i] = values[i - 1]
            i -= 1
        values[i] = value


@inlined
def _gaps(
    clean: Any, name: Any, members: Int, listed: Int, threshold: Int, star: Int, lowest: bool, gaps: Any
) -> Int:
    """What each listed rival lacks of `threshold`; returns how many listed labels come before `star`.

    With known ties a rival that comes after `star` must win outright: one more.
    """
    before = 0
    for slot in range(members):
        before += name[slot] < star
    for slot in range(members, listed):
        after = name[slot] > star
        before += not after
        gap = threshold - clean[slot] + (1 if lowest and after else 0)
        gaps[slot - members] = max(gap, 0)
    return before


@inlined
def _strongest(clean: Any, name: Any, members: Int) -> Int:
    """The slot of the member with the most clean votes, ties to the lowest label."""
    best = 0
    for slot in range(1, members):
        if clean[slot] > clean[best] or (clean[slot] == clean[best] and name[slot] < name[best]):
            best = slot
    return best


@compiled
def _lift(
    rule: Int,
    clean: Any,
    name: Any,
    members: Int,
    listed: Int,
    num_classes: Int,
    votes: Int,
    star: Int,
    doubt: Int,
    lowest: bool,
    budget: Int,
    known: Int,
    gaps: Any,
    lacking: Any,
) -> tuple[Int, Int]:
    """How many rivals get past `votes` clean votes of `star` (see `cheapest_first` for what it returns)."""
    threshold = max(votes - doubt, 0) - doubt
    before = _gaps(clean, name, members, listed, threshold, star, lowest, gaps)
    unlisted = num_classes - listed
    late = num_classes - 1 - star - (listed - 1 - before) if lowest else 0
    price = max(threshold, 0)
    late_price = max(threshold + 1, 0) if lowest else price
    if rule == PAIRWISE:
        count = 0
        short = FOREVER
        for i in range(listed - members):
            if gaps[i] <= budget:
                count += 1
            else:
                short = min(short, gaps[i] - budget)
        if price <= budget:
            count += unlisted - late
        elif unlisted > late:
            short = min(short, price - budget)
        if late_price <= budget:
            count += late
        elif late > 0:
            short = min(short, late_price - budget)
        return max(count, known), short
    rivals = gaps[: listed - members]
    if late_price <= COUNTED:
        return _cheapest_counted(rivals, price, unlisted - late, late_price, late, budget, known, lacking)
    if known < PICKED and known < len(rivals):
        # Most often the next rival is out of reach, and then nothing need be sorted.
        dearest, cost = _cheapest(rivals, known + 1)
        if cost > budget and (dearest <= price or unlisted == late):
            return known, cost - budget
    _sort(rivals)
    return cheapest_first(rivals, listed - members, price, unlisted - late, late_price, late, budget, known)


@compiled
def _expel(
    clean: Any,
    name: Any,
    members: Int,
    listed: Int,
    num_classes: Int,
    doubt: Int,
    lowest: bool,
    budget: Int,
    known: Int,
    gaps: Any,
    lacking: Any,
    order: Any,
) -> tuple[Int, Int]:
    """How many members can be pushed out of the list they form: j rivals must pass the j-th weakest."""
    for slot in range(members):
        i = slot
        while i > 0 and (
            clean[slot] < clean[order[i - 1]]
            or (clean[slot] == clean[order[i - 1]] and name[slot] > name[order[i - 1]])
        ):
            order[i] = order[i - 1]
            i -= 1
        order[i] = slot
    expelled = known
    while expelled < members and expelled < num_classes - members:
        star = order[expelled]
        # `known` is one less than the number wanted, so that its whole cost is added up.
        lifted, short = _lift(
            CHEAPEST_FIRST,
            clean,
            name,
            members,
            listed,
            num_classes,
            clean[star],
            name[star],
            doubt,
            lowest,
            budget,
            expelled,
            gaps,
            lacking,
        )
        if lifted <= expelled:
            return expelled, short
        expelled += 1
    return expelled, FOREVER


@compiled
def _ahead(
    clean: Any, name: Any, listed: Int, doubt: Int, lowest: bool, budget: Int, known: Int
) -> tuple[Int, Int]:
    """How many labels stay ahead of member 0 although it gets the whole budget, `known` if not fewer."""
    reach = clean[0] + budget + 2 * doubt
    count = 0
    short = FOREVER
    unlisted_before = name[0]
    for slot in range(1, listed):
        before = name[slot] < name[0]
        unlisted_before -= before
        lead = clean[slot] - reach + (1 if lowest and before else 0)
        if lead > 0:
            count += 1
            short = min(short, lead)
    if lowest and reach == 0 and unlisted_before > 0:
        count += unlisted_before
        short = 1
    return min(count, known), short


@compiled
def _flip_soft(
    flips: Any,
    start: Int,
    stop: Int,
    unknown: Any,
    slot_of: Any,
    given: Any,
    moved: Any,
    members: Int,
    reverse: bool,
) -> tuple[Int, Int, Int]:
    """Flip mutants that spread units; returns how many became clean, and what labels fell and rose.

    `moved` holds how far each label is from where it was priced: moving on adds to what it fell or rose,
    moving back takes it off.
    """
    back = 0
    fallen: Int = 0
    risen: Int = 0
    for f in range(start, stop):
        flip = flips[f]
        sign = 1 if flip < 0 else -1
        i = flip ^ (flip >> 31)
        if unknown[i]:
            continue
        back += sign
        for s in range(slot_of.shape[1]):
            slot = slot_of[i, s]
            before = moved[slot]
            after = before + sign * given[i, s]
            moved[slot] = after
            if (slot < members) != reverse:
                fallen += max(-after, 0) - max(-before, 0)
            else:
                risen += max(after, 0) - max(before, 0)
    return back, fallen, risen


@compiled
def worst(
    labels: Any,
    units: Any,
    members: Any,
    cap: Int,
    num_classes: Int,
    flips: Any,
    offsets: Any,
    walks: Any,
    extras: Any,
    tau: Int,
    lowest: bool,
    rule: Int,
    out: Any,
) -> None:
    """The worst case over all T_p, for each walk and image.

    Walks from one T_p to the next, keeping clean votes and budget. A case is priced only if it could beat
    the worst so far: each pricing tells by how much the attacker was short of doing better, and since then
    he gained at most what the budget grew, what labels he fights fell (`weight` rivals have to pass them)
    and what labels he lifts rose.

    Args:
        labels: [N, B, j]; a mutant whose first label is negative is unknown: always the attacker's.
        units: [N, B, j], or [0, 0, 0] where each label counts one.
        members: [N, M] labels, the first ones >= 0, padded with -1.
        cap: U, units the attacker gains per mutant.
        walks: [K + 1], walk k is the steps walks[k] … walks[k + 1] - 1 of `offsets`.
        extras: [K], budget the attacker has from the start.
        tau: units by which any clean ballot may be off, per label.
        out: [K, N], the number of rivals lifted (members expelled, labels always ahead, as `rule` says).
    """
    count, num_mutants, spread = labels.shape
    soft = units.size > 0
    # Where a label is to be kept out, the members are what the attacker lifts.
    reverse = rule == ENTER
    most = num_mutants * spread + members.shape[1]
    slot_of = np.full(num_classes, -1, dtype=np.int32)
    name = np.empty(most, dtype=np.int64)
    total = np.empty(most, dtype=np.int64)
    clean = np.empty(most, dtype=np.int64)
    # By how much clean votes have changed since a case was priced.
    moved = np.empty(most, dtype=np.int64)
    gaps = np.empty(most, dtype=np.int64)
    lacking = np.empty(COUNTED + 1, dtype=np.int64)
    order = np.empty(members.shape[1], dtype=np.int64)
    local = np.empty((num_mutants, spread), dtype=np.int32)
    # Of a hard ballot, which has one.
    first_slot = np.empty(num_mutants, dtype=np.int32)
    given = np.ones((num_mutants, spread), dtype=np.int64)
    unknown = np.empty(num_mutants, dtype=np.bool_)
    for n in range(count):
        listed = 0
        for m in range(members.shape[1]):
            if members[n, m] >= 0:
                slot_of[members[n, m]] = listed
                name[listed] = members[n, m]
                total[listed] = 0
                listed += 1
        num_members = listed
        num_unknown = 0
        for i in range(num_mutants):
            unknown[i] = labels[n, i, 0] < 0
            if unknown[i]:
                num_unknown += 1
                first_slot[i] = -1
                continue
            for s in range(spread):
                label = labels[n, i, s]
                amount = np.int64(units[n, i, s]) if soft else np.int64(1)
                if amount == 0:
                    # Its slot is never used: point at a member, which is always there.
                    local[i, s] = 0
                    given[i, s] = 0
                    continue
                slot = slot_of[label]
                if slot < 0:
                    slot = listed
                    slot_of[label] = slot
                    name[slot] = label
                    total[slot] = 0
                    listed += 1
                local[i, s] = slot
                first_slot[i] = slot
                given[i, s] = amount
                total[slot] += amount

        for k in range(len(walks) - 1):
            for slot in range(listed):
                clean[slot] = total[slot]
                moved[slot] = 0
            all_clean = clean_mutants = priced_mutants = num_mutants - num_unknown
            begun = extras[k] + cap * num_unknown
            found = num_classes if rule == ENTER else 0
            weight = 1
            limit: Int = -FOREVER
            fallen = risen = 0
            for p in range(walks[k], walks[k + 1]):
                if soft:
                    back, fell, rose = _flip_soft(
                        flips, offsets[p], offsets[p + 1], unknown, local, given, moved, num_members, reverse
                    )
                    clean_mutants += back
                    fallen += fell
                    risen += rose
                else:
                    # Written out here because a call per step would cost more than the step. No branch
                    # depends on the ballots, which no processor could foresee.
                    for f in range(offsets[p], offsets[p + 1]):
                        flip = flips[f]
                        sign = 1 if flip < 0 else -1
                        slot = first_slot[flip ^ (flip >> 31)]
                        if slot < 0:
                            continue
                        clean_mutants += sign
                        now = moved[slot] + sign
                        moved[slot] = now
                        fought = (slot < num_members) != reverse
                        fallen -= sign * (fought & (now < (sign + 1) >> 1))
                        risen += sign * ((not fought) & (now > (sign - 1) >> 1))
                budget = begun + cap * (all_clean - clean_mutants)
                doubted = 2 * tau * max(clean_mutants - priced_mutants, 0)
                if limit - budget - weight * (fallen + doubted) - risen > 0:
                    continue
                for slot in range(listed):
                    clean[slot] += moved[slot]
                    moved[slot] = 0
                fallen = risen = 0
                priced_mutants = clean_mutants
                doubt = tau * clean_mutants
                if rule == ENTER:
                    found, short = _ahead(clean, name, listed, doubt, lowest, budget, found)
                elif rule == EXPEL:
                    found, short = _expel(
                        clean,
                        name,
                        num_members,
                        listed,
                        num_classes,
                        doubt,
                        lowest,
                        budget,
                        found,
                        gaps,
                        lacking,
                        order,
                    )
                    weight = found + 1
                else:
                    star = _strongest(clean, name, num_members)
                    found, short = _lift(
                        rule,
                        clean,
                        name,
                        num_members,
                        listed,
                        num_classes,
                        clean[star],
                        name[star],
                        doubt,
                        lowest,
                        budget,
                        found,
                        gaps,
                        lacking,
                    )
                    if rule == CHEAPEST_FIRST:
                        weight = found + 1
                if short >= FOREVER:
                    break
                limit = short + budget
            out[k, n] = found
        for slot in range(listed):
            slot_of[name[slot]] = -1


@intrinsic
def _set_bits(typing_context: Any, word: Any) -> Any:
    """How many bits of a word are set, as one machine instruction."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), generate


_ones: Any = _set_bits


@compiled
def _steps(words: Any) -> tuple[Any, Any]:
    """The walk through T_p given as bits: flips and offsets as in `Touched`.

    In each step those that become clean come first, so that on the way no label has more votes in T than it
    has in one of the T_p.
    """
    cases, width = words.shape
    before = np.zeros(width, dtype=np.uint64)
    offsets = np.zeros(cases + 1, dtype=np.int64)
    for p in range(cases):
        changed: Int = 0
        for w in range(width):
            changed += np.int64(_ones(words[p, w] ^ before[w]))
            before[w] = words[p, w]
        offsets[p + 1] = offsets[p] + changed
    flips = np.empty(offsets[cases], dtype=np.int32)
    before[:] = 0
    place = 0
    for p in range(cases):
        for becomes_touched in (False, True):
            for w in range(width):
                bits = words[p, w] & ~before[w] if becomes_touched else before[w] & ~words[p, w]
                while bits:
                    lowest = bits & (~bits + np.uint64(1))
                    bits ^= lowest
                    i = 64 * w + np.int64(_ones(lowest - np.uint64(1)))
                    flips[place] = i if becomes_touched else ~i
                    place += 1
        before[:] = words[p]
    return flips, offsets


@compiled
def _best_windows(
    flips: Any, offsets: Any, voted: Any, listed: Int, held: Any, best: Any, where: Any
) -> None:
    """For each label the most of its votes that one T_p holds, and that p."""
    held[:listed] = 0
    best[:listed] = 0
    where[:listed] = 0
    for p in range(len(offsets) - 1):
        for f in range(offsets[p], offsets[p + 1]):
            flip = flips[f]
            slot = voted[flip ^ (flip >> 31)]
            if slot < 0:
                continue
            held[slot] += 1 if flip >= 0 else -1
            if held[slot] > best[slot]:
                best[slot] = held[slot]
                where[slot] = p


@compiled
def _windows(words: Any, ballots: Any, counts: Any, order: Any, starts: Any) -> None:
    """How many of `ballots` (bits) each T_p holds, and the p in order of falling counts."""
    starts[:] = 0
    for p in range(len(words)):
        held: Int = 0
        for w in range(len(ballots)):
            held += np.int64(_ones(words[p, w] & ballots[w]))
        counts[p] = held
        starts[held] += 1
    place = 0
    for held in range(len(starts) - 1, -1, -1):
        place += starts[held]
        starts[held] = place - starts[held]
    for p in range(len(words)):
        order[starts[counts[p]]] = p
        starts[counts[p]] += 1


@compiled
def _held(words: Any, ballots: Any, window: Int, p: Int) -> Int:
    """How many of `ballots` lie in T_window but not in T_p."""
    held: Int = 0
    for w in range(len(ballots)):
        held += np.int64(_ones(words[window, w] & ~words[p, w] & ballots[w]))
    return held


@compiled
def _best_window_outside(
    words: Any, ballots: Any, votes: Int, counts: Any, order: Any, p: Int, guess: Int
) -> tuple[Int, Int]:
    """max over p' of the `ballots` in T_p' but not in T_p, likeliest windows first; and that p'."""
    best = _held(words, ballots, guess, p)
    for window in order:
        if counts[window] <= best or best == votes - counts[p]:
            break
        held = _held(words, ballots, window, p)
        if held > best:
            best = held
            guess = window
    return best, guess


@compiled
def _best_window_at_most(words: Any, ballots: Any, p: Int, most: Int, guess: Int) -> tuple[Int, Int]:
    """The same in no order, done once a window holds `most`, which none exceeds."""
    best = _held(words, ballots, guess, p)
    window = 0
    while best < most and window < len(words):
        held = _held(words, ballots, window, p)
        if held > best:
            best = held
            guess = window
        window += 1
    return best, guess


@inlined
def _passing(reach: Any, floor: Int, free: Int, before: Int, behind: Int) -> tuple[Int, Int, Int]:
    """How many labels may reach `floor`: listed ones, unlisted at that price, unlisted at one more."""
    listed = reach[0, max(floor - free, 0)] + reach[1, max(floor + 1 - free, 0)]
    return listed, before if free >= floor else 0, behind if free > floor else 0


@compiled
def _lifted(gaps: Any, floor: Int, early: Int, late: Int, budget: Int, known: Int, lacking: Any) -> Int:
    """How many rivals are lifted to `floor`, no listed one costing more than one without votes."""
    price = max(floor, 0)
    late_price = max(floor + 1, 0)
    if late_price <= COUNTED:
        lifted, _ = _cheapest_counted(gaps, price, early, late_price, late, budget, known, lacking)
    else:
        _sort(gaps)
        lifted, _ = cheapest_first(gaps, len(gaps), price, early, late_price, late, budget, known)
    return lifted


@compiled
def masked(
    ballots: Any,
    truth: Any,
    num_classes: Int,
    words: Any,
    lowest: bool,
    priced: bool,
    rank: Any,
    out: Any,
) -> None:
    """PatchGuard's masks: every label loses its best window, in the prediction and in the bound.

    Walks from one T_p to the next, keeping for each label its clean votes, and for each number of votes how
    many rivals have as many left. A flip changes one of either, so that a case costs what changes in it,
    however many labels there are.

    Args:
        ballots: [N, B]; a negative one is unknown: always the attacker's.
        words: [P, W], T_p as bits.
        priced: whether rivals share the budget (CostCert over masks) or each has it all (PatchGuard).
        rank: [N], the position of the true label by masked score, or [0] if not asked for.
        out: [N], the number of rivals that may pass the true label, or [0] if not asked for.
    """
    count, num_mutants = ballots.shape
    cases, width = words.shape
    flips, offsets = _steps(words)
    slot_of = np.full(num_classes, -1, dtype=np.int32)
    voted = np.empty(num_mutants, dtype=np.int32)
    name = np.empty(num_mutants + 1, dtype=np.int64)
    votes = np.empty(num_mutants + 1, dtype=np.int64)
    clean = np.empty(num_mutants + 1, dtype=np.int64)
    # A rival that loses its ties with the true label comes after it: it needs one vote more.
    after = np.empty(num_mutants + 1, dtype=np.int64)
    voters = np.empty((num_mutants + 1, width), dtype=np.uint64)
    # The window that holds most of a label's votes, how many, and how many of those outside T_p; the last
    # is counted when it is asked for, and again after a flip.
    best = np.empty(num_mutants + 1, dtype=np.int64)
    where = np.empty(num_mutants + 1, dtype=np.int64)
    outside = np.empty(num_mutants + 1, dtype=np.int64)
    stale = np.empty(num_mutants + 1, dtype=np.int8)
    counts = np.empty(cases, dtype=np.int32)
    order = np.empty(cases, dtype=np.int32)
    starts = np.empty(num_mutants + 1, dtype=np.int64)
    # reach[after, v]: rivals with at least v clean votes.
    reach = np.empty((2, num_mutants + 2), dtype=np.int64)
    contenders = np.empty(num_mutants + 1, dtype=np.int64)
    gaps = np.empty(num_mutants + 1, dtype=np.int64)
    lacking = np.empty(COUNTED + 1, dtype=np.int64)
    for n in range(count):
        star = truth[n]
        slot_of[star] = 0
        name[0] = star
        votes[0] = 0
        voters[0] = 0
        listed = 1
        num_unknown = 0
        for i in range(num_mutants):
            label = ballots[n, i]
            if label < 0:
                voted[i] = -1
                num_unknown += 1
                continue
            slot = slot_of[label]
            if slot < 0:
                slot = listed
                slot_of[label] = slot
                name[slot] = label
                votes[slot] = 0
                voters[slot] = 0
                listed += 1
            voted[i] = slot
            votes[slot] += 1
            voters[slot, i >> 6] |= np.uint64(1) << np.uint64(i & 63)
        listed_after = 0
        for slot in range(1, listed):
            after[slot] = name[slot] > star
            listed_after += after[slot]
        unlisted_after = num_classes - 1 - star - listed_after
        unlisted_before = num_classes - listed - unlisted_after

        if priced or len(rank) > 0:
            _best_windows(flips, offsets, voted, listed, clean, best, where)
        if len(rank) > 0:
            score = votes[0] - best[0]
            ahead = unlisted_before if score == 0 else 0
            for slot in range(1, listed):
                rival = votes[slot] - best[slot]
                ahead += rival > score or (rival == score and not after[slot])
            rank[n] = 1 + ahead
        if len(out) > 0:
            _windows(words, voters[0], counts, order, starts)
            # Two windows at most are taken from the true label; labels with fewer votes than that leaves
            # never pass.
            needed = votes[0] - 2 * counts[order[0]]
            reach[:] = 0
            num_contenders = 0
            for slot in range(1, listed):
                clean[slot] = votes[slot]
                stale[slot] = FLIPPED
                after[slot] = after[slot] and lowest
                for v in range(votes[slot] + 1):
                    reach[after[slot], v] += 1
                if votes[slot] + num_unknown >= needed:
                    contenders[num_contenders] = slot
                    num_contenders += 1
            if not lowest:
                unlisted_before += unlisted_after
                unlisted_after = 0
            found = 0
            budget = 0
            free = num_unknown
            floor: Int = -FOREVER
            guess = order[0]
            for p in range(cases):
                for f in range(offsets[p], offsets[p + 1]):
                    flip = flips[f]
                    slot = voted[flip ^ (flip >> 31)]
                    sign = 1 if flip >= 0 else -1
                    budget += sign
                    if slot < 0:
                        free -= sign
                    elif slot == 0:
                        # The floor is v[y0] - max over p' of its voters in T_p ∪ T_p': none that becomes
                        # clean lowers it, and each that is touched by one at most.
                        floor -= flip >= 0
                    else:
                        # From v clean votes to v - 1 or the other way: one rival less, or more, has v.
                        v = clean[slot] + (flip < 0)
                        reach[after[slot], v] -= sign
                        clean[slot] -= sign
                        stale[slot] = FLIPPED
                listed_passing, early, late = _passing(reach, floor, free, unlisted_before, unlisted_after)
                if listed_passing + early + late <= found:
                    continue
                taken, guess = _best_window_outside(words, voters[0], votes[0], counts, order, p, guess)
                floor = votes[0] - counts[p] - taken
                listed_passing, early, late = _passing(reach, floor, free, unlisted_before, unlisted_after)
                if listed_passing + early + late <= found:
                    continue
                if not priced:
                    found = listed_passing + early + late
                    continue
                # First with what the last best window of each rival holds now, no more than its best window:
                # mostly this alone shows that no more rivals can be paid for.
                lifted = found
                for exact in (False, True):
                    passing = 0
                    for c in range(num_contenders):
                        slot = contenders[c]
                        need = floor + after[slot]
                        if clean[slot] + free < need:
                            continue
                        if stale[slot] == FLIPPED:
                            outside[slot] = _held(words, voters[slot], where[slot], p)
                            stale[slot] = AT_LEAST
                        if exact and stale[slot] == AT_LEAST:
                            outside[slot], where[slot] = _best_window_at_most(
                                words, voters[slot], p, min(clean[slot], best[slot]), where[slot]
                            )
                            stale[slot] = EXACT
                        gaps[passing] = max(0, need - clean[slot] + outside[slot])
                        passing += 1
                    lifted = _lifted(gaps[:passing], floor, early, late, budget + free, found, lacking)
                    if lifted == found:
                        break
                found = lifted
            out[n] = found
        for slot in range(listed):
            slot_of[name[slot]] = -1
