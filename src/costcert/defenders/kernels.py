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
def _passing(
    p: Int,
    floor: Int,
    free: Int,
    contenders: Int,
    name: Any,
    votes: Any,
    counts: Any,
    lowest: bool,
    unlisted_before: Int,
    unlisted_after: Int,
) -> tuple[Int, Int, Int]:
    """How many labels may reach `floor`: listed ones, unlisted at that price, unlisted at one more."""
    star = name[0]
    listed = 0
    for slot in range(1, contenders):
        need = floor + (1 if lowest and name[slot] > star else 0)
        listed += votes[slot] - counts[slot, p] + free >= need
    early = unlisted_before + (0 if lowest else unlisted_after)
    late = unlisted_after if lowest else 0
    return listed, early if free >= floor else 0, late if free >= floor + 1 else 0


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

    Args:
        ballots: [N, B]; a negative one is unknown: always the attacker's.
        words: [P, W], T_p as bits.
        priced: whether rivals share the budget (CostCert over masks) or each has it all (PatchGuard).
        rank: [N], the position of the true label by masked score, or [0] if not asked for.
        out: [N], the number of rivals that may pass the true label, or [0] if not asked for.
    """
    count, num_mutants = ballots.shape
    cases, width = words.shape
    slot_of = np.full(num_classes, -1, dtype=np.int32)
    name = np.empty(num_mutants + 1, dtype=np.int64)
    votes = np.empty(num_mutants + 1, dtype=np.int64)
    voters = np.empty((num_mutants + 1, width), dtype=np.uint64)
    unknown = np.zeros(width, dtype=np.uint64)
    starts = np.empty(num_mutants + 1, dtype=np.int64)
    budgets = np.zeros(cases, dtype=np.int64)
    for p in range(cases):
        for w in range(width):
            budgets[p] += np.int64(_ones(words[p, w]))
    for n in range(count):
        star = truth[n]
        slot_of[star] = 0
        name[0] = star
        votes[0] = 0
        voters[0] = 0
        listed = 1
        for i in range(num_mutants):
            label = ballots[n, i]
            bit = np.uint64(1) << np.uint64(i & 63)
            if label < 0:
                unknown[i >> 6] |= bit
                continue
            slot = slot_of[label]
            if slot < 0:
                slot = listed
                slot_of[label] = slot
                name[slot] = label
                votes[slot] = 0
                voters[slot] = 0
                listed += 1
            votes[slot] += 1
            voters[slot, i >> 6] |= bit

        counts = np.empty((listed, cases), dtype=np.int32)
        order = np.empty((listed, cases), dtype=np.int32)
        _windows(words, voters[0], counts[0], order[0], starts)
        most = counts[0, order[0, 0]]
        score = votes[0] - most

        # Two windows at most are taken from the true label, one in the prediction itself, so labels with
        # fewer votes than that leaves never pass; the others come first from here on.
        needed = score - most if len(out) > 0 else score
        num_unknown: Int = 0
        for w in range(width):
            num_unknown += np.int64(_ones(unknown[w]))
        contenders = 1
        for slot in range(1, listed):
            if votes[slot] + num_unknown >= needed:
                _swap(slot, contenders, name, votes, voters)
                _windows(words, voters[contenders], counts[contenders], order[contenders], starts)
                contenders += 1
        listed_after = 0
        for slot in range(1, listed):
            listed_after += name[slot] > star
        unlisted_after = num_classes - 1 - star - listed_after
        unlisted_before = num_classes - listed - unlisted_after

        if len(rank) > 0:
            ahead = unlisted_before if score == 0 else 0
            for slot in range(1, contenders):
                rival = votes[slot] - counts[slot, order[slot, 0]]
                ahead += rival > score or (rival == score and name[slot] < star)
            rank[n] = 1 + ahead

        found = 0
        floor: Int = -FOREVER
        guess = order[0, 0]
        gaps = np.empty(contenders, dtype=np.int64)
        for p in range(cases if len(out) > 0 else 0):
            free: Int = 0
            for w in range(width):
                free += np.int64(_ones(unknown[w] & ~words[p, w]))
                # The floor is v[y0] - max over p' of the voters in T_p ∪ T_p': a flip moves it by one.
                if p > 0:
                    floor -= np.int64(_ones((words[p, w] ^ words[p - 1, w]) & voters[0, w]))
            listed_passing, early, late = _passing(
                p, floor, free, contenders, name, votes, counts, lowest, unlisted_before, unlisted_after
            )
            if listed_passing + early + late <= found:
                continue
            outside, guess = _best_window_outside(words, voters[0], votes[0], counts[0], order[0], p, guess)
            floor = votes[0] - counts[0, p] - outside
            listed_passing, early, late = _passing(
                p, floor, free, contenders, name, votes, counts, lowest, unlisted_before, unlisted_after
            )
            if listed_passing + early + late <= found:
                continue
            if not priced:
                found = listed_passing + early + late
                continue
            passing = 0
            for slot in range(1, contenders):
                need = floor + (1 if lowest and name[slot] > star else 0)
                clean = votes[slot] - counts[slot, p]
                if clean + free >= need:
                    own, _ = _best_window_outside(
                        words, voters[slot], votes[slot], counts[slot], order[slot], p, order[slot, 0]
                    )
                    gaps[passing] = max(0, need - clean + own)
                    passing += 1
            rivals = gaps[:passing]
            _sort(rivals)
            found, _ = cheapest_first(
                rivals,
                passing,
                max(0, floor),
                early,
                max(0, floor + 1),
                late,
                budgets[p] + free,
                found,
            )
        if len(out) > 0:
            out[n] = found
        for slot in range(listed):
            slot_of[name[slot]] = -1
        unknown[:] = 0


@compiled
def _swap(a: Int, b: Int, name: Any, votes: Any, voters: Any) -> None:
    if a != b:
        name[a], name[b] = name[b], name[a]
        votes[a], votes[b] = votes[b], votes[a]
        for w in range(voters.shape[1]):
            voters[a, w], voters[b, w] = voters[b, w], voters[a, w]
