"""The compiled inner loops, nothing else. tests/naive.py holds the slow twin of each.

Words: `clean` is α_p, the clean votes; members are the labels the promise is about (the true label, or the
labels of today's list); rivals are all other labels. Labels are renumbered per image into slots, members
first, so that labels without votes cost nothing: they are counted, not listed.

Kernels allocate nothing, because np.empty and its like take long to compile: callers pass `blank_image` and
other scratch, which a kernel may overwrite.

All kernels share one file because numba renews its cache on disk when the file of the entry point changes,
and only then.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numba import types
from numba.extending import intrinsic

from costcert.compiled import compiled, inlined

# A 64-bit integer once compiled, whatever Python calls it before.
Int: TypeAlias = Any

CHEAPEST_FIRST = 0
PAIRWISE = 1

# Zero and one of the type of a variable: numba compiles a function once more for a literal number.
ZERO: Int = np.int64(0)
ONE: Int = np.int64(1)

# The shortfall where no rival is left to lift; larger than any cost.
NEVER = 1 << 62

# What is known of the votes that a rival loses outside T_p: nothing since a flip, a lower bound, all.
FLIPPED = 0
AT_LEAST = 1
EXACT = 2


class Unlisted(NamedTuple):
    """Rivals without a vote: `count` of them lack `gap`, and `late_count` lack `late_gap`.

    Late are those that lose a tie with the true label, where ties go to the lowest label: one vote more.
    """

    gap: Int
    count: Int
    late_gap: Int
    late_count: Int


@inlined
def _affordable(each: Int, count: Int, lifted: Int, cost: Int, budget: Int, found: Int) -> Int:
    """How many of `count` rivals that lack `each` are lifted; the first `found` in any case."""
    if each == 0:
        return count
    certain = min(count, max(found - lifted, 0))
    if cost + certain * each > budget:
        return certain
    return min(count, (budget - cost) // each)


@compiled
def cheapest_first(gaps: Any, unlisted: Unlisted, budget: Int, found: Int, lacking: Any) -> tuple[Int, Int]:
    """Eq. 1 of the paper for hard ballots: lift rivals cheapest first while the budget lasts.

    Hard gaps are small integers, so they are counted instead of sorted: lacking[gap] rivals lack `gap`.

    Args:
        gaps: what each listed rival lacks, none more than `unlisted.late_gap`.
        budget: q_p.
        found: what another position has lifted already.
        lacking: scratch of at least `unlisted.late_gap + 1` cells.

    Returns:
        lifted(p), or `found` if that is larger; and the shortfall, by which the cost of lifting one rival
        more exceeds the budget (NEVER where none is left).
    """
    for gap in range(unlisted.late_gap + 1):
        lacking[gap] = 0
    for i in range(len(gaps)):
        lacking[gaps[i]] += 1
    lacking[unlisted.gap] += unlisted.count
    lacking[unlisted.late_gap] += unlisted.late_count
    lifted = 0
    cost = 0
    for gap in range(unlisted.late_gap + 1):
        count = lacking[gap]
        if count > 0:
            paid = _affordable(gap, count, lifted, cost, budget, found)
            lifted += paid
            cost += paid * gap
            if paid < count:
                return lifted, cost + gap - budget
    return lifted, NEVER


@compiled
def _sift(heap: Any, root: Int, size: Int) -> None:
    """Move the value at `root` down until none of the two below it is smaller."""
    value = heap[root]
    below = 2 * root + 1
    while below < size:
        if below + 1 < size and heap[below + 1] < heap[below]:
            below += 1
        if heap[below] >= value:
            break
        heap[root] = heap[below]
        root = below
        below = 2 * root + 1
    heap[root] = value


@compiled
def cheapest_first_soft(gaps: Any, unlisted: Unlisted, budget: Int, found: Int) -> tuple[Int, Int]:
    """Eq. 1 for soft ballots, whose gaps are too large to count: taken from a heap while the budget lasts.

    Arguments and result as for `cheapest_first`; the budget is cap·q_p. `gaps` is overwritten.
    """
    left = len(gaps)
    for root in range(left // 2 - 1, -1, -1):
        _sift(gaps, root, left)
    lifted = 0
    cost = 0
    for late in range(2):
        # Listed rivals one by one, the unlisted together where they come in the order of gaps.
        gap = unlisted.late_gap if late else unlisted.gap
        while left > 0 and gaps[0] <= gap:
            if _affordable(gaps[0], ONE, lifted, cost, budget, found) == 0:
                return lifted, cost + gaps[0] - budget
            lifted += 1
            cost += gaps[0]
            left -= 1
            gaps[0] = gaps[left]
            _sift(gaps, ZERO, left)
        count = unlisted.late_count if late else unlisted.count
        paid = _affordable(gap, count, lifted, cost, budget, found)
        lifted += paid
        cost += paid * gap
        if paid < count:
            return lifted, cost + gap - budget
    return lifted, NEVER


@compiled
def pairwise(gaps: Any, unlisted: Unlisted, budget: Int, found: Int) -> tuple[Int, Int]:
    """CBN: every rival whose gap is within the budget, each compared alone; result as `cheapest_first`."""
    count = 0
    nearest = NEVER
    for i in range(len(gaps)):
        if gaps[i] <= budget:
            count += 1
        else:
            nearest = min(nearest, gaps[i])
    if unlisted.gap <= budget:
        count += unlisted.count
    elif unlisted.count > 0:
        nearest = min(nearest, unlisted.gap)
    if unlisted.late_gap <= budget:
        count += unlisted.late_count
    elif unlisted.late_count > 0:
        nearest = min(nearest, unlisted.late_gap)
    return max(count, found), nearest if nearest == NEVER else nearest - budget


class Image(NamedTuple):
    """The votes of one image, with labels renumbered into slots; refilled for every image.

    slot_of: [L], the slot of each label, -1 where it has none.
    label, total: [S], of each slot.
    slots, units: [B·j], where the units of each mutant go; slot -1 marks an unknown ballot.
    """

    slot_of: Any
    label: Any
    total: Any
    slots: Any
    units: Any


class Counts(NamedTuple):
    """Of one image: slots of members, slots in use, unknown ballots."""

    members: Int
    listed: Int
    unknown: Int


def blank_image(num_mutants: int, labels_each: int, members: int, num_classes: int) -> Image:
    most = num_mutants * labels_each + members
    return Image(
        np.full(num_classes, -1, dtype=np.int32),
        np.empty(most, dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty(num_mutants * labels_each, dtype=np.int32),
        np.empty(num_mutants * labels_each, dtype=np.int64),
    )


@compiled
def _read(image: Image, labels: Any, units: Any, members: Any) -> Counts:
    """Number the labels of one image and add up their votes.

    Args:
        labels: [B, j]; a mutant whose first label is negative is unknown.
        units: [B, j], or [0, 0] where each label counts one.
        members: [M], padded with -1.
    """
    slot_of, label, total, slots, amounts = image
    listed = 0
    for m in range(len(members)):
        if members[m] >= 0:
            slot_of[members[m]] = listed
            label[listed] = members[m]
            total[listed] = 0
            listed += 1
    num_members = listed
    unknown = 0
    soft = units.size > 0
    for i in range(len(labels)):
        first = i * labels.shape[1]
        if labels[i, 0] < 0:
            unknown += 1
            slots[first] = -1
            continue
        for s in range(labels.shape[1]):
            amount: Int = units[i, s] if soft else 1
            amounts[first + s] = amount
            if amount == 0:
                # Nothing is added for this slot: any that exists will do.
                slots[first + s] = 0
                continue
            slot = slot_of[labels[i, s]]
            if slot < 0:
                slot = listed
                slot_of[labels[i, s]] = slot
                label[slot] = labels[i, s]
                total[slot] = 0
                listed += 1
            slots[first + s] = slot
            total[slot] += amount
    return Counts(num_members, listed, unknown)


@inlined
def _forget(image: Image, counts: Counts) -> None:
    """Make `slot_of` blank again, at the cost of the labels in use."""
    for slot in range(counts.listed):
        image.slot_of[image.label[slot]] = -1


class Terms(NamedTuple):
    """What is certified, the same for all images.

    cap: U, units the attacker gains per mutant.
    tau: units by which a clean ballot may be off, per label.
    lowest: whether ties go to the lowest label.
    rule: CHEAPEST_FIRST or PAIRWISE.
    """

    num_classes: Int
    cap: Int
    tau: Int
    lowest: bool
    rule: Int


class Walks(NamedTuple):
    """The walks of several patches end to end: `geometry.touch.Touched` for `flips` and `offsets`.

    starts: [K + 1], patch k takes the steps starts[k] … starts[k + 1] - 1.
    """

    flips: Any
    offsets: Any
    starts: Any


class Scratch(NamedTuple):
    """Per slot: clean votes when last priced, change since then, gaps. `lacking`: see `cheapest_first`."""

    clean: Any
    moved: Any
    gaps: Any
    lacking: Any
    order: Any


@inlined
def _lift(
    image: Image,
    counts: Counts,
    scratch: Scratch,
    star: Int,
    slack: Int,
    terms: Terms,
    budget: Int,
    found: Int,
) -> tuple[Int, Int]:
    """How many rivals get past the member in slot `star`, by the rule of `terms`.

    Clean ballots may be off by `slack` units in all, per label.
    """
    clean, label = scratch.clean, image.label
    threshold = max(clean[star] - slack, 0) - slack
    gaps = scratch.gaps[: counts.listed - counts.members]
    after = 0
    for slot in range(counts.members):
        after += label[slot] > label[star]
    for slot in range(counts.members, counts.listed):
        loses_ties = label[slot] > label[star]
        after += loses_ties
        gaps[slot - counts.members] = max(threshold - clean[slot] + (terms.lowest and loses_ties), 0)
    late = terms.num_classes - 1 - label[star] - after if terms.lowest else 0
    unlisted = Unlisted(
        max(threshold, 0),
        terms.num_classes - counts.listed - late,
        max(threshold + terms.lowest, 0),
        late,
    )
    if terms.rule == PAIRWISE:
        return pairwise(gaps, unlisted, budget, found)
    if len(scratch.lacking) > 0:
        return cheapest_first(gaps, unlisted, budget, found, scratch.lacking)
    return cheapest_first_soft(gaps, unlisted, budget, found)


@inlined
def _strongest(image: Image, counts: Counts, clean: Any) -> Int:
    """The slot of the member with the most clean votes, ties to the lowest label."""
    best = 0
    for slot in range(1, counts.members):
        if clean[slot] > clean[best] or (
            clean[slot] == clean[best] and image.label[slot] < image.label[best]
        ):
            best = slot
    return best


@inlined
def _lift_past_strongest(
    image: Image, counts: Counts, scratch: Scratch, slack: Int, terms: Terms, budget: Int, found: Int
) -> tuple[Int, Int]:
    """How many rivals get past the member with the most clean votes."""
    star = _strongest(image, counts, scratch.clean)
    return _lift(image, counts, scratch, star, slack, terms, budget, found)


@compiled
def _expel(
    image: Image, counts: Counts, scratch: Scratch, slack: Int, terms: Terms, budget: Int, found: Int
) -> tuple[Int, Int]:
    """How many members can be pushed out of the list they form: j rivals must pass the j-th weakest."""
    clean, label, order = scratch.clean, image.label, scratch.order
    for slot in range(counts.members):
        i = slot
        while i > 0 and (
            clean[slot] < clean[order[i - 1]]
            or (clean[slot] == clean[order[i - 1]] and label[slot] > label[order[i - 1]])
        ):
            order[i] = order[i - 1]
            i -= 1
        order[i] = slot
    expelled = found
    while expelled < counts.members and expelled < terms.num_classes - counts.members:
        # One less than the number wanted is passed on as found, so that the cost of all is added up.
        lifted, shortfall = _lift(image, counts, scratch, order[expelled], slack, terms, budget, expelled)
        if lifted <= expelled:
            return expelled, shortfall
        expelled += 1
    return expelled, NEVER


@inlined
def _flip_hard(
    flips: Any, start: Int, stop: Int, slots: Any, members: Int, moved: Any
) -> tuple[Int, Int, Int]:
    """Flip mutants in one step of the walk.

    `moved` holds how far each label is from where it was priced; moving on adds to what members have fallen
    or rivals have risen since then, moving back subtracts from it.

    Returns:
        How many mutants became clean (negative: touched), and by how much members fell and rivals rose.
    """
    back: Int = 0
    fell: Int = 0
    rose: Int = 0
    for f in range(start, stop):
        flip = flips[f]
        slot = slots[flip ^ (flip >> 31)]
        if slot < 0:
            continue
        sign = 1 if flip < 0 else -1
        now = moved[slot] + sign
        moved[slot] = now
        back += sign
        # No branch depends on the ballots: processors could not predict it.
        is_member = slot < members
        fell -= sign * (is_member & (now < (sign + 1) >> 1))
        rose += sign * ((not is_member) & (now > (sign - 1) >> 1))
    return back, fell, rose


@inlined
def _flip_soft(
    flips: Any, start: Int, stop: Int, image: Image, labels_each: Int, members: Int, moved: Any
) -> tuple[Int, Int, Int]:
    """The same for mutants that spread units over several labels."""
    back: Int = 0
    fell: Int = 0
    rose: Int = 0
    for f in range(start, stop):
        flip = flips[f]
        first = (flip ^ (flip >> 31)) * labels_each
        if image.slots[first] < 0:
            continue
        sign = 1 if flip < 0 else -1
        back += sign
        for i in range(first, first + labels_each):
            slot = image.slots[i]
            before = moved[slot]
            now = before + sign * image.units[i]
            moved[slot] = now
            if slot < members:
                fell += max(-now, 0) - max(-before, 0)
            else:
                rose += max(now, 0) - max(before, 0)
    return back, fell, rose


@inlined
def _worst_position(
    price: Any,
    image: Image,
    labels_each: Int,
    counts: Counts,
    scratch: Scratch,
    flips: Any,
    offsets: Any,
    extra: Int,
    terms: Terms,
) -> Int:
    """The most rivals lifted (members expelled) at one position of the patch, over all its positions.

    Walks from one T_p to the next, keeping clean votes and budget. A position is priced only if it could
    beat the worst so far; the skipping rule is the lemma "Positions that need no pricing" in docs/theory.md.

    Args:
        price: `_lift_past_strongest` or `_expel`, named where this is inlined: each kernel compiles one.
    """
    clean, moved, slots = scratch.clean, scratch.moved, image.slots
    num_mutants, hard = len(slots) // labels_each, len(scratch.lacking) > 0
    for slot in range(counts.listed):
        clean[slot] = image.total[slot]
        moved[slot] = 0
    known = num_mutants - counts.unknown
    clean_mutants = priced_mutants = known
    found = ZERO
    weight = ONE
    limit: Int = -NEVER
    fallen: Int = 0
    risen: Int = 0
    for p in range(len(offsets) - 1):
        if hard:
            back, fell, rose = _flip_hard(flips, offsets[p], offsets[p + 1], slots, counts.members, moved)
        else:
            back, fell, rose = _flip_soft(
                flips, offsets[p], offsets[p + 1], image, labels_each, counts.members, moved
            )
        clean_mutants += back
        fallen += fell
        risen += rose
        budget = extra + terms.cap * (num_mutants - clean_mutants)
        off = 2 * terms.tau * max(clean_mutants - priced_mutants, 0)
        if limit - budget - weight * (fallen + off) - risen > 0:
            continue
        for slot in range(counts.listed):
            clean[slot] += moved[slot]
            moved[slot] = 0
        fallen = risen = 0
        priced_mutants = clean_mutants
        slack = terms.tau * clean_mutants
        found, shortfall = price(image, counts, scratch, slack, terms, budget, found)
        if shortfall == NEVER:
            break
        limit = shortfall + budget
        if terms.rule != PAIRWISE:
            weight = found + 1
    return found


def blank_scratch(num_mutants: int, labels_each: int, members: int, *, hard: bool) -> Scratch:
    slots = num_mutants * labels_each + members
    return Scratch(
        np.empty(slots, dtype=np.int64),
        np.empty(slots, dtype=np.int64),
        np.empty(slots, dtype=np.int64),
        np.empty(num_mutants + 2 if hard else 0, dtype=np.int64),
        np.empty(members, dtype=np.int64),
    )


@compiled
def worst(
    labels: Any,
    units: Any,
    members: Any,
    walks: Walks,
    extras: Any,
    terms: Terms,
    image: Image,
    scratch: Scratch,
    out: Any,
) -> None:
    """The worst case over all positions, for each patch and image.

    Args:
        labels: [N, B, j]; a mutant whose first label is negative is unknown: always the attacker's.
        units: [N, B, j], or [N, 0, 0] where each label counts one.
        members: [N, M] labels, the first ones >= 0, padded with -1.
        extras: [K], budget the attacker has from the start.
        out: [N, K], the number of rivals lifted.
    """
    num_images, _, labels_each = labels.shape
    for n in range(num_images):
        counts = _read(image, labels[n], units[n], members[n])
        for k in range(len(walks.starts) - 1):
            offsets = walks.offsets[walks.starts[k] : walks.starts[k + 1] + 1]
            out[n, k] = _worst_position(
                _lift_past_strongest,
                image,
                labels_each,
                counts,
                scratch,
                walks.flips,
                offsets,
                extras[k],
                terms,
            )
        _forget(image, counts)


@compiled
def most_expelled(
    labels: Any,
    units: Any,
    members: Any,
    walks: Walks,
    extras: Any,
    terms: Terms,
    image: Image,
    scratch: Scratch,
    out: Any,
) -> None:
    """For stability: the most members of a list that a patch can push out of it; arguments as for `worst`."""
    num_images, _, labels_each = labels.shape
    for n in range(num_images):
        counts = _read(image, labels[n], units[n], members[n])
        for k in range(len(walks.starts) - 1):
            offsets = walks.offsets[walks.starts[k] : walks.starts[k + 1] + 1]
            out[n, k] = _worst_position(
                _expel, image, labels_each, counts, scratch, walks.flips, offsets, extras[k], terms
            )
        _forget(image, counts)


@compiled
def fewest_ahead(
    labels: Any,
    units: Any,
    members: Any,
    flips: Any,
    offsets: Any,
    terms: Terms,
    image: Image,
    clean: Any,
    out: Any,
) -> None:
    """For exclusion: the fewest labels that stay ahead of a label although it gets the whole budget.

    Arguments as for `worst`, with one member per image and one patch; clean is [S], scratch; out is [N].
    """
    num_images, num_mutants, labels_each = labels.shape
    for n in range(num_images):
        counts = _read(image, labels[n], units[n], members[n])
        for slot in range(counts.listed):
            clean[slot] = image.total[slot]
        clean_mutants = num_mutants - counts.unknown
        unlisted_before = image.label[0]
        for slot in range(1, counts.listed):
            unlisted_before -= image.label[slot] < image.label[0]
        fewest = terms.num_classes
        for p in range(len(offsets) - 1):
            for f in range(offsets[p], offsets[p + 1]):
                flip = flips[f]
                first = (flip ^ (flip >> 31)) * labels_each
                if image.slots[first] < 0:
                    continue
                sign = 1 if flip < 0 else -1
                clean_mutants += sign
                for i in range(first, first + labels_each):
                    clean[image.slots[i]] += sign * image.units[i]
            budget = terms.cap * (num_mutants - clean_mutants)
            reach = clean[0] + budget + 2 * terms.tau * clean_mutants
            ahead = unlisted_before if terms.lowest and reach == 0 else 0
            for slot in range(1, counts.listed):
                wins_ties = terms.lowest and image.label[slot] < image.label[0]
                ahead += clean[slot] + wins_ties > reach
            fewest = min(fewest, ahead)
        out[n] = fewest
        _forget(image, counts)


@intrinsic
def _set_bits(typing_context: Any, word: Any) -> Any:
    """How many bits of a word are set, as one machine instruction."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), generate


_ones: Any = _set_bits


class Windows(NamedTuple):
    """Per slot, of one image: its voters as bits, and the window that holds most of its votes.

    voters: [S, W].
    best, where: [S], votes in the best window of each label, and which window that is.
    outside, state: [S], votes in its best window outside the present T_p, and how far that is known.
    clean: [S], clean votes at the present position.
    late: [S], 1 where a rival loses its ties with the true label and needs one vote more.
    """

    voters: Any
    best: Any
    where: Any
    outside: Any
    state: Any
    clean: Any
    late: Any


class MaskScratch(NamedTuple):
    """Of the true label, votes in each window, and windows by falling votes; of rivals, see the fields.

    reach: [2, B + 2], reach[late, v] rivals have at least v clean votes.
    contenders: [S], slots of rivals that can pass at some position.
    """

    held: Any
    order: Any
    starts: Any
    reach: Any
    contenders: Any
    gaps: Any
    lacking: Any


def blank_windows(num_mutants: int, positions: int) -> tuple[Windows, MaskScratch]:
    most = num_mutants + 1
    windows = Windows(
        np.empty((most, -(-num_mutants // 64)), dtype=np.uint64),
        np.empty(most, dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty(most, dtype=np.int8),
        np.empty(most, dtype=np.int64),
        np.empty(most, dtype=np.int64),
    )
    scratch = MaskScratch(
        np.empty(positions, dtype=np.int64),
        np.empty(positions, dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty((2, num_mutants + 2), dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty(most, dtype=np.int64),
        np.empty(num_mutants + 2, dtype=np.int64),
    )
    return windows, scratch


@inlined
def _mark_voters(slots: Any, listed: Int, voters: Any) -> None:
    """The mutants that vote for each label, as bits."""
    voters[:listed] = 0
    for i in range(len(slots)):
        if slots[i] >= 0:
            voters[slots[i], i >> 6] |= np.uint64(1) << np.uint64(i & 63)


@compiled
def _best_windows(
    flips: Any, offsets: Any, image: Image, labels_each: Int, listed: Int, held: Any, best: Any, where: Any
) -> None:
    """For each label the most of its votes that one T_p holds, and that p.

    In each step `flips` has the mutants that become clean first, so that on the way no label has more votes
    in T than it has in one of the T_p.
    """
    held[:listed] = 0
    best[:listed] = 0
    where[:listed] = 0
    for p in range(len(offsets) - 1):
        for f in range(offsets[p], offsets[p + 1]):
            flip = flips[f]
            first = (flip ^ (flip >> 31)) * labels_each
            if image.slots[first] < 0:
                continue
            for i in range(first, first + labels_each):
                slot = image.slots[i]
                held[slot] += image.units[i] if flip >= 0 else -image.units[i]
                if held[slot] > best[slot]:
                    best[slot] = held[slot]
                    where[slot] = p


@inlined
def _by_votes(words: Any, voters: Any, held: Any, order: Any, starts: Any) -> None:
    """How many of `voters` (bits) each T_p holds, and the p in order of falling numbers."""
    starts[:] = 0
    for p in range(len(words)):
        count: Int = 0
        for w in range(len(voters)):
            count += np.int64(_ones(words[p, w] & voters[w]))
        held[p] = count
        starts[count] += 1
    place = 0
    for count in range(len(starts) - 1, -1, -1):
        place += starts[count]
        starts[count] = place - starts[count]
    for p in range(len(words)):
        order[starts[held[p]]] = p
        starts[held[p]] += 1


@compiled
def _held_outside(words: Any, voters: Any, window: Int, p: Int) -> Int:
    """How many of `voters` lie in T_window but not in T_p."""
    count: Int = 0
    for w in range(len(voters)):
        count += np.int64(_ones(words[window, w] & ~words[p, w] & voters[w]))
    return count


@compiled
def _best_window_of_truth(
    words: Any, voters: Any, votes: Int, held: Any, order: Any, p: Int, guess: Int
) -> tuple[Int, Int]:
    """max over p' of the `voters` in T_p' but not in T_p, likeliest windows first; and that p'."""
    best = _held_outside(words, voters, guess, p)
    for window in order:
        if held[window] <= best or best == votes - held[p]:
            break
        count = _held_outside(words, voters, window, p)
        if count > best:
            best = count
            guess = window
    return best, guess


@compiled
def _best_window_of_rival(words: Any, voters: Any, p: Int, most: Int, guess: Int) -> tuple[Int, Int]:
    """The same in no order, done once a window holds `most`, which none exceeds."""
    best = _held_outside(words, voters, guess, p)
    window = ZERO
    while best < most and window < len(words):
        count = _held_outside(words, voters, window, p)
        if count > best:
            best = count
            guess = window
        window += 1
    return best, guess


@inlined
def _passing(
    reach: Any, floor: Int, unmasked: Int, unlisted: Int, unlisted_late: Int
) -> tuple[Int, Int, Int]:
    """How many rivals may reach `floor`: listed ones, unlisted ones, and unlisted ones that lose ties."""
    listed = reach[0, max(floor - unmasked, 0)] + reach[1, max(floor + 1 - unmasked, 0)]
    return listed, unlisted if unmasked >= floor else 0, unlisted_late if unmasked > floor else 0


@inlined
def _masked_rank(image: Image, counts: Counts, best: Any, unlisted_before: Int) -> Int:
    """The position of the true label by masked score, ties to the lowest label."""
    score = image.total[0] - best[0]
    rank = 1 + (unlisted_before if score == 0 else 0)
    for slot in range(1, counts.listed):
        rival = image.total[slot] - best[slot]
        rank += rival > score or (rival == score and image.label[slot] < image.label[0])
    return rank


@compiled
def _masked_price(
    words: Any, windows: Windows, contenders: Any, p: Int, floor: Int, unmasked: Int, exact: bool, gaps: Any
) -> Int:
    """What each contender that can reach `floor` lacks of it, as far as its best window is known.

    Not `exact`: from the window that was best when last looked at, which holds no more than the best one.

    Returns:
        The number of gaps.
    """
    count = 0
    for slot in contenders:
        need = floor + windows.late[slot]
        if windows.clean[slot] + unmasked < need:
            continue
        if windows.state[slot] == FLIPPED:
            windows.outside[slot] = _held_outside(words, windows.voters[slot], windows.where[slot], p)
            windows.state[slot] = AT_LEAST
        if exact and windows.state[slot] == AT_LEAST:
            most = min(windows.clean[slot], windows.best[slot])
            windows.outside[slot], windows.where[slot] = _best_window_of_rival(
                words, windows.voters[slot], p, most, windows.where[slot]
            )
            windows.state[slot] = EXACT
        gaps[count] = max(0, need - windows.clean[slot] + windows.outside[slot])
        count += 1
    return count


@inlined
def _masked_rivals(
    image: Image,
    counts: Counts,
    words: Any,
    flips: Any,
    offsets: Any,
    windows: Windows,
    scratch: MaskScratch,
    unlisted: Int,
    unlisted_late: Int,
    priced: bool,
) -> Int:
    """The most rivals that may pass the true label at one position, over all positions.

    Walks from one T_p to the next, keeping for each label its clean votes, and for each number of votes how
    many rivals have as many left. A flip changes one of either, so that a position costs what changes in it,
    however many labels there are.
    """
    clean, late, state, reach = windows.clean, windows.late, windows.state, scratch.reach
    slots = image.slots
    truth, votes, unmasked = windows.voters[0], image.total[0], counts.unknown
    _by_votes(words, truth, scratch.held, scratch.order, scratch.starts)
    guess: Int = scratch.order[0]
    # Two windows at most are taken from the true label; labels with fewer votes than that leaves never pass.
    needed = votes - 2 * scratch.held[guess]
    reach[:] = 0
    num_contenders = 0
    for slot in range(1, counts.listed):
        clean[slot] = image.total[slot]
        state[slot] = FLIPPED
        for v in range(clean[slot] + 1):
            reach[late[slot], v] += 1
        if clean[slot] + unmasked >= needed:
            scratch.contenders[num_contenders] = slot
            num_contenders += 1
    contenders = scratch.contenders[:num_contenders]
    found = ZERO
    touched = 0
    floor: Int = -NEVER
    for p in range(len(words)):
        for f in range(offsets[p], offsets[p + 1]):
            flip = flips[f]
            slot = slots[flip ^ (flip >> 31)]
            sign = 1 if flip >= 0 else -1
            touched += sign
            if slot < 0:
                unmasked -= sign
            elif slot == 0:
                # The floor is v[y0] - max over p' of its voters in T_p ∪ T_p': none that becomes clean
                # lowers it, and each that is touched by one at most.
                floor -= flip >= 0
            else:
                # From v clean votes to v - 1 or the other way: one rival less, or more, has v.
                v = clean[slot] + (flip < 0)
                reach[late[slot], v] -= sign
                clean[slot] -= sign
                state[slot] = FLIPPED
        # First with the floor at its lowest since it was last worked out, then with the floor itself.
        passing, early, behind = _passing(reach, floor, unmasked, unlisted, unlisted_late)
        if passing + early + behind <= found:
            continue
        taken, guess = _best_window_of_truth(words, truth, votes, scratch.held, scratch.order, p, guess)
        floor = votes - scratch.held[p] - taken
        passing, early, behind = _passing(reach, floor, unmasked, unlisted, unlisted_late)
        if passing + early + behind <= found:
            continue
        if not priced:
            found = passing + early + behind
            continue
        # First with a lower bound on what rivals lack: mostly this alone shows that no more can be paid for.
        pools = Unlisted(max(floor, 0), early, max(floor + 1, 0), behind)
        lifted = found
        for exact in (False, True):
            passing = _masked_price(words, windows, contenders, p, floor, unmasked, exact, scratch.gaps)
            budget = touched + unmasked
            lifted, _ = cheapest_first(scratch.gaps[:passing], pools, budget, found, scratch.lacking)
            if lifted == found:
                break
        found = lifted
    return found


@compiled
def masked(
    labels: Any,
    units: Any,
    members: Any,
    num_classes: Int,
    words: Any,
    flips: Any,
    offsets: Any,
    lowest: bool,
    priced: bool,
    image: Image,
    windows: Windows,
    scratch: MaskScratch,
    rank: Any,
    out: Any,
) -> None:
    """PatchGuard's masks: every label loses its best window, in the prediction and in the bound.

    Args:
        labels: [N, B, 1] hard ballots; a negative one is unknown: always the attacker's.
        units: [N, 0, 0].
        members: [N, 1], the true labels.
        words: [P, W], T_p as bits.
        flips, offsets: the same as a walk: `Touched.clean_first` and `Touched.offsets`.
        priced: whether rivals share the budget (CostCert over masks) or each has it all (PatchGuard).
        rank: [N], the position of the true label by masked score, or [0] if not requested.
        out: [N], the number of rivals that may pass the true label, or [0] if not requested.
    """
    num_images = len(labels)
    for n in range(num_images):
        counts = _read(image, labels[n], units[n], members[n])
        truth = image.label[0]
        unlisted_late = num_classes - 1 - truth
        for slot in range(1, counts.listed):
            loses_ties = image.label[slot] > truth
            unlisted_late -= loses_ties
            windows.late[slot] = lowest and loses_ties
        unlisted = num_classes - counts.listed - unlisted_late
        if priced or len(rank) > 0:
            _best_windows(
                flips, offsets, image, ONE, counts.listed, windows.clean, windows.best, windows.where
            )
        if len(rank) > 0:
            rank[n] = _masked_rank(image, counts, windows.best, unlisted)
        if len(out) > 0:
            if not lowest:
                unlisted += unlisted_late
                unlisted_late = 0
            _mark_voters(image.slots, counts.listed, windows.voters)
            out[n] = _masked_rivals(
                image, counts, words, flips, offsets, windows, scratch, unlisted, unlisted_late, priced
            )
        _forget(image, counts)


class SoftWindows(NamedTuple):
    """Of one image: per slot as in `Windows`, and what the true label has in each window.

    moved: [S], change of clean votes since rivals were last counted.
    contenders: [S], slots of rivals that can pass at some position.
    own: [B], the units of the true label.
    touched, counted: [B], whether the present T_p holds a mutant; whether the one that `outside` is of does.
    outside: [P], the units of the true label in each window outside that T_p.
    """

    best: Any
    where: Any
    clean: Any
    late: Any
    moved: Any
    contenders: Any
    own: Any
    touched: Any
    counted: Any
    outside: Any


def blank_soft_windows(num_mutants: int, labels_each: int, positions: int) -> SoftWindows:
    most = num_mutants * labels_each + 1
    return SoftWindows(
        best=np.empty(most, dtype=np.int64),
        where=np.empty(most, dtype=np.int64),
        clean=np.empty(most, dtype=np.int64),
        late=np.empty(most, dtype=np.int64),
        moved=np.empty(most, dtype=np.int64),
        contenders=np.empty(most, dtype=np.int64),
        own=np.empty(num_mutants, dtype=np.int64),
        touched=np.empty(num_mutants, dtype=np.bool_),
        counted=np.empty(num_mutants, dtype=np.bool_),
        outside=np.empty(positions, dtype=np.int64),
    )


@inlined
def _largest(values: Any) -> Int:
    most: Int = 0
    for value in values:
        most = max(most, value)
    return most


@inlined
def _units_of_truth(image: Image, labels_each: Int, walk: Walks, windows: SoftWindows) -> None:
    """What each mutant gives to the true label, and each window holds of it."""
    own, outside = windows.own, windows.outside
    for i in range(len(own)):
        own[i] = 0
        if image.slots[i * labels_each] >= 0:
            for at in range(i * labels_each, (i + 1) * labels_each):
                own[i] += image.units[at] if image.slots[at] == 0 else 0
    held: Int = 0
    for p in range(len(outside)):
        for f in range(walk.offsets[p], walk.offsets[p + 1]):
            flip = walk.flips[f]
            held += own[flip] if flip >= 0 else -own[flip ^ (flip >> 31)]
        outside[p] = held


@inlined
def _largest_outside(holders: Walks, windows: SoftWindows) -> Int:
    """The most units of the true label that a window holds outside the present T_p."""
    own, touched, counted, outside = windows.own, windows.touched, windows.counted, windows.outside
    for i in range(len(own)):
        if touched[i] != counted[i]:
            counted[i] = touched[i]
            units = -own[i] if touched[i] else own[i]
            if units != 0:
                for h in range(holders.offsets[i], holders.offsets[i + 1]):
                    outside[holders.flips[h]] += units
    return _largest(outside)


@inlined
def _soft_passing(
    clean: Any, late: Any, contenders: Any, reach: Int, unlisted: Int, unlisted_late: Int
) -> tuple[Int, Int]:
    """How many rivals reach `reach`, and what the nearest of the others lacks; NEVER where there is none."""
    passing: Int = 0
    nearest: Int = NEVER
    if reach <= 0:
        passing += unlisted
    elif unlisted > 0:
        nearest = reach
    if reach < 0:
        passing += unlisted_late
    elif unlisted_late > 0:
        nearest = min(nearest, reach + 1)
    for slot in contenders:
        gap = reach + late[slot] - clean[slot]
        passing += gap <= 0
        nearest = min(nearest, gap if gap > 0 else NEVER)
    return passing, nearest


@compiled
def _soft_masked_rivals(
    image: Image,
    counts: Counts,
    labels_each: Int,
    walk: Walks,
    holders: Walks,
    windows: SoftWindows,
    terms: Terms,
    unlisted: Int,
    unlisted_late: Int,
) -> Int:
    """The most rivals that may pass the true label at one position, over all positions.

    Finding the window that takes most from the true label outside T_p is the costly part. `ceiling` bounds
    what it takes: all that the best window holds, or what was found last and all that became clean since.
    Rivals are counted against that bound first, and only at positions that the lemma "Positions that need no
    pricing" in docs/theory.md does not skip.

    Args:
        holders: the windows that hold mutant i are `flips[offsets[i]:offsets[i + 1]]`.
    """
    clean, moved, slots, touched = windows.clean, windows.moved, image.slots, windows.touched
    num_mutants = len(windows.own)
    _units_of_truth(image, labels_each, walk, windows)
    most = _largest(windows.outside)
    unmasked: Int = counts.unknown
    known = num_mutants - unmasked
    # Two windows at most are taken from the true label; labels with fewer votes than that leaves never pass.
    needed = image.total[0] - 2 * most - 2 * terms.tau * known - terms.cap * unmasked
    num_contenders = 0
    for slot in range(counts.listed):
        moved[slot] = 0
        clean[slot] = image.total[slot]
        if slot > 0 and clean[slot] >= needed:
            windows.contenders[num_contenders] = slot
            num_contenders += 1
    contenders = windows.contenders[:num_contenders]
    touched[:] = False
    windows.counted[:] = False
    votes: Int = image.total[0]
    ceiling = most
    risen: Int = 0
    found = ZERO
    # When rivals were last counted: the reach, what the nearest one lacked, and how many more beat `found`.
    reach_then: Int = 0
    nearest: Int = -NEVER
    lacking = ONE
    for p in range(len(windows.outside)):
        for f in range(walk.offsets[p], walk.offsets[p + 1]):
            flip = walk.flips[f]
            i = flip ^ (flip >> 31)
            sign = 1 if flip < 0 else -1
            touched[i] = flip >= 0
            first = i * labels_each
            if slots[first] < 0:
                unmasked += sign
                continue
            known += sign
            votes += sign * windows.own[i]
            ceiling += max(sign, 0) * windows.own[i]
            for at in range(first, first + labels_each):
                slot = slots[at]
                before = moved[slot]
                moved[slot] = before + sign * image.units[at]
                risen += max(moved[slot], 0) - max(before, 0) if slot > 0 else 0
        ceiling = min(ceiling, most)
        slack, unknown = terms.tau * known, terms.cap * unmasked
        reach = max(votes - ceiling - slack, 0) - slack - unknown
        if lacking * (reach_then - reach) + risen < lacking * nearest:
            continue
        for slot in range(counts.listed):
            clean[slot] += moved[slot]
            moved[slot] = 0
        risen = 0
        passing, nearest = _soft_passing(clean, windows.late, contenders, reach, unlisted, unlisted_late)
        if passing > found:
            ceiling = _largest_outside(holders, windows)
            reach = max(votes - ceiling - slack, 0) - slack - unknown
            passing, nearest = _soft_passing(clean, windows.late, contenders, reach, unlisted, unlisted_late)
            found = max(found, passing)
        if nearest == NEVER:
            break
        reach_then = reach
        lacking = found + 1 - passing
    return found


@compiled
def masked_soft(
    labels: Any,
    units: Any,
    members: Any,
    flips: Any,
    offsets: Any,
    holders: Walks,
    terms: Terms,
    image: Image,
    windows: SoftWindows,
    rank: Any,
    out: Any,
) -> None:
    """PatchGuard's masks over soft ballots; arguments as for `masked` and `_soft_masked_rivals`."""
    num_images, _, labels_each = labels.shape
    for n in range(num_images):
        counts = _read(image, labels[n], units[n], members[n])
        truth = image.label[0]
        unlisted_late = terms.num_classes - 1 - truth
        for slot in range(1, counts.listed):
            loses_ties = image.label[slot] > truth
            unlisted_late -= loses_ties
            windows.late[slot] = terms.lowest and loses_ties
        unlisted = terms.num_classes - counts.listed - unlisted_late
        if len(rank) > 0:
            _best_windows(
                flips, offsets, image, labels_each, counts.listed, windows.clean, windows.best, windows.where
            )
            rank[n] = _masked_rank(image, counts, windows.best, unlisted)
        if len(out) > 0:
            if not terms.lowest:
                unlisted += unlisted_late
                unlisted_late = 0
            out[n] = _soft_masked_rivals(
                image,
                counts,
                labels_each,
                Walks(flips, offsets, offsets),
                holders,
                windows,
                terms,
                unlisted,
                unlisted_late,
            )
        _forget(image, counts)


class PairTables(NamedTuple):
    """Of one image, for pairs of windows; the last slot in use stands for every label without votes.

    clean, left: [S], votes outside T_p, and outside both windows of a pair.
    held: [B], whether T_p holds a mutant.
    least, most: [P, S], the smallest lead in the pairs of a window; and the largest, not counting the pair of
        the window with itself, with what clean ballots may be off and unknown ones may add.
    sure: [P], the smallest lead of the true label in the pairs of a window, less the same.
    score: [S], the largest of `least`.
    """

    clean: Any
    left: Any
    held: Any
    least: Any
    most: Any
    sure: Any
    score: Any


def blank_pair_tables(num_mutants: int, labels_each: int, num_classes: int, positions: int) -> PairTables:
    # The true label, and one slot for labels without votes.
    most = min(num_mutants * labels_each, num_classes) + 2
    return PairTables(
        clean=np.empty(most, dtype=np.int64),
        left=np.empty(most, dtype=np.int64),
        held=np.empty(num_mutants, dtype=np.bool_),
        least=np.empty((positions, most), dtype=np.int64),
        most=np.empty((positions, most), dtype=np.int64),
        sure=np.empty(positions, dtype=np.int64),
        score=np.empty(most, dtype=np.int64),
    )


@inlined
def _add_mutant(image: Image, labels_each: Int, mutant: Int, sign: Int, votes: Any) -> None:
    for at in range(mutant * labels_each, (mutant + 1) * labels_each):
        votes[image.slots[at]] += sign * image.units[at]


@inlined
def _leads(left: Any, slack: Int, least: Any, others_least: Any, most: Any, others_most: Any) -> Int:
    """Enter the lead of every slot over all others into the rows of both windows; returns that of slot 0."""
    best: Int = 0
    second: Int = 0
    leader: Int = 0
    for slot in range(len(left)):
        votes = left[slot]
        if votes > best:
            second = best
            best = votes
            leader = slot
        elif votes > second:
            second = votes
    # The leader's own entries are of its lead over the second.
    left[leader] += best - second
    for slot in range(len(left)):
        lead = left[slot] - best
        least[slot] = min(least[slot], lead)
        others_least[slot] = min(others_least[slot], lead)
        most[slot] = max(most[slot], lead + slack)
        others_most[slot] = max(others_most[slot], lead + slack)
    lead = left[0] - best
    left[leader] -= best - second
    return lead


@compiled
def _fill_pair_tables(
    image: Image, labels_each: Int, slots: Int, walk: Walks, tables: PairTables, terms: Terms
) -> None:
    """The tables of all pairs of windows.

    Args:
        slots: in use, and one more for labels without votes.
    """
    clean, left = tables.clean[:slots], tables.left[:slots]
    least, most = tables.least[:, :slots], tables.most[:, :slots]
    held = tables.held
    positions = len(tables.sure)
    least[:] = NEVER
    most[:] = -NEVER
    tables.sure[:] = NEVER
    for slot in range(slots - 1):
        clean[slot] = image.total[slot]
    clean[slots - 1] = 0
    held[:] = False
    unknown: Int = 0
    for mutant in range(len(held)):
        unknown += image.slots[mutant * labels_each] < 0
    known = len(held) - unknown
    for p in range(positions):
        for f in range(walk.offsets[p], walk.offsets[p + 1]):
            mutant = walk.flips[f] ^ (walk.flips[f] >> 31)
            held[mutant] = walk.flips[f] >= 0
            sign = -1 if walk.flips[f] >= 0 else 1
            if image.slots[mutant * labels_each] < 0:
                unknown += sign
            else:
                known += sign
                _add_mutant(image, labels_each, mutant, sign, clean)
        for slot in range(slots):
            left[slot] = clean[slot]
        unmasked: Int = unknown
        counted: Int = known
        for j in range(positions):
            for f in range(walk.offsets[j], walk.offsets[j + 1]):
                mutant = walk.flips[f] ^ (walk.flips[f] >> 31)
                if held[mutant]:
                    continue
                sign = -1 if walk.flips[f] >= 0 else 1
                if image.slots[mutant * labels_each] < 0:
                    unmasked += sign
                else:
                    counted += sign
                    _add_mutant(image, labels_each, mutant, sign, left)
            if j < p:
                continue
            slack = 2 * terms.tau * counted + terms.cap * unmasked
            # In the pair of window p with itself no rival does better than in another pair of p.
            apart = positions == 1 or j > p
            lead = _leads(left, slack if apart else -NEVER, least[p], least[j], most[p], most[j])
            tables.sure[p] = min(tables.sure[p], lead - slack)
            tables.sure[j] = min(tables.sure[j], lead - slack)


@compiled
def double_masked(
    labels: Any,
    units: Any,
    members: Any,
    flips: Any,
    offsets: Any,
    terms: Terms,
    image: Image,
    tables: PairTables,
    scores: Any,
    rank: Any,
    out: Any,
) -> None:
    """Double masking: labels are ranked by the window under which they lead, whatever else is masked.

    Args:
        labels, units, members, flips, offsets, rank, out: as for `masked`; units may be [N, B, j].
        scores: [N, L], S, or [0, 0] if not requested.
    """
    num_images, _, labels_each = labels.shape
    positions = len(tables.sure)
    for n in range(num_images):
        counts = _read(image, labels[n], units[n], members[n])
        truth = image.label[0]
        listed = counts.listed
        _fill_pair_tables(image, labels_each, listed + 1, Walks(flips, offsets, offsets), tables, terms)
        score = tables.score
        for slot in range(listed + 1):
            score[slot] = -NEVER
            for p in range(positions):
                score[slot] = max(score[slot], tables.least[p, slot])
        if len(scores) > 0:
            scores[n, :] = score[listed]
            for slot in range(listed):
                scores[n, image.label[slot]] = score[slot]
        late_unlisted: Int = terms.num_classes - 1 - truth
        for slot in range(1, listed):
            late_unlisted -= image.label[slot] > truth
        unlisted = terms.num_classes - listed - late_unlisted
        if len(rank) > 0:
            ahead: Int = 0
            for slot in range(1, listed):
                ahead += score[slot] >= score[0] + (image.label[slot] > truth)
            ahead += unlisted if score[listed] >= score[0] else 0
            ahead += late_unlisted if score[listed] > score[0] else 0
            rank[n] = 1 + ahead
        if len(out) > 0:
            found: Int = 0
            for p in range(positions):
                sure = tables.sure[p]
                passing: Int = 0
                for slot in range(1, listed):
                    late = terms.lowest and image.label[slot] > truth
                    passing += tables.most[p, slot] >= sure + late
                passing += unlisted if tables.most[p, listed] >= sure else 0
                passing += late_unlisted if tables.most[p, listed] >= sure + terms.lowest else 0
                found = max(found, passing)
            out[n] = found
        _forget(image, counts)
