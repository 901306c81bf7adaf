"""The slow twins: every definition of the theory as sets, dicts and loops.

Pixels are (y, x), mutants are numbered from 0, T_p is a frozenset of mutants. A ballot is a dict from
labels to units, so that a hard ballot is {label: 1} and a soft one holds at most `cap` units. No code is
shared with the library, and none is optimised.
"""

from fractions import Fraction
from itertools import combinations_with_replacement, product
from typing import NamedTuple


class Strips(NamedTuple):
    """One family of mutants, kind "columns", "rows" or "blocks"."""

    kind: str
    width: int
    stride: int = 1
    wrap: bool = True
    span: tuple[int, int] | None = None


def segments(length, family):
    """Kept positions along one axis: `width` from each start, wrapping at the end if the family wraps."""
    last = length - 1 if family.wrap else length - family.width
    first, last = family.span or (0, last)
    starts = []
    start = first
    while start <= last:
        starts.append(start)
        start += family.stride
    return [{(start + step) % length for step in range(family.width)} for start in starts]


def kept(families, height, width):
    """Kept pixels of each mutant; pooled families are concatenated, blocks are in row-major order."""
    all_rows, all_columns = [set(range(height))], [set(range(width))]
    mutants = []
    for family in families:
        rows = all_rows if family.kind == "columns" else segments(height, family)
        columns = all_columns if family.kind == "rows" else segments(width, family)
        mutants += [frozenset(product(ys, xs)) for ys in rows for xs in columns]
    return mutants


def rectangle(height, width):
    """The pixels of a rectangle, relative to its top left corner."""
    return frozenset(product(range(height), range(width)))


def shape(mask):
    """The pixels of a mask of 0 and 1."""
    return frozenset((y, x) for y, row in enumerate(mask) for x, pixel in enumerate(row) if pixel)


def places(pixels, height, width, times=1):
    """Every set of pixels that `times` patches can cover: each is completely inside the image, none wraps."""
    single = []
    for down in range(-height, height):
        for right in range(-width, width):
            moved = frozenset((y + down, x + right) for y, x in pixels)
            if all(0 <= y < height and 0 <= x < width for y, x in moved):
                single.append(moved)
    return [frozenset().union(*chosen) for chosen in combinations_with_replacement(single, times)]


def touched(mutants, place):
    """T_p: the mutants whose kept region intersects p."""
    return frozenset(i for i, region in enumerate(mutants) if region & place)


def distinct(sets):
    """Each set once: positions with the same T_p count once."""
    return list(dict.fromkeys(sets))


def maximal(sets):
    """The distinct sets that are not subsets of another."""
    return [one for one in distinct(sets) if not any(one < other for other in sets)]


def hard(labels):
    """Hard ballots as dicts."""
    return [{label: 1} for label in labels]


def tally(ballots, mutants, num_classes):
    """Units for each label from these mutants."""
    votes = [0] * num_classes
    for i in mutants:
        for label, units in ballots[i].items():
            votes[label] += units
    return votes


def votes(ballots, num_classes):
    """v[y]: ballots for y."""
    return tally(ballots, range(len(ballots)), num_classes)


def clean_votes(ballots, attacked, num_classes):
    """α_p[y]: ballots for y from mutants outside T_p."""
    return tally(ballots, [i for i in range(len(ballots)) if i not in attacked], num_classes)


def order(scores):
    """Labels sorted by score, ties to the lowest label."""
    return sorted(range(len(scores)), key=lambda label: (-scores[label], label))


def rank(scores, truth):
    """The position of the true label in the prediction."""
    return order(scores).index(truth) + 1


def predictions(ballots, remaining, possible, num_classes, k):
    """Every list of the first k labels, whichever of the `possible` ballots the remaining mutants cast."""
    return {
        tuple(order(votes([*ballots, *rest], num_classes))[:k])
        for rest in product(possible, repeat=remaining)
    }


def extra(rival, truth, ties):
    """Units a rival needs beyond a tie: one if ties go to the lowest label and the rival's is higher."""
    return 1 if ties == "lowest" and rival > truth else 0


def cheapest_first(gaps, budget):
    """The largest j such that the j smallest gaps sum to at most the budget."""
    lifted = 0
    for gap in sorted(gaps):
        budget -= gap
        if budget < 0:
            break
        lifted += 1
    return lifted


def floor(alpha, truth, tau, num_clean):
    """Votes of the true label minus gains of a rival, when each clean ballot shifts by tau per label."""
    return max(0, alpha[truth] - tau * num_clean) - tau * num_clean


def costcert(ballots, sets, truth, num_classes, ties="against", cap=1, tau=0):
    """min-k of CostCert: 1 + the most rivals that the budget of some T_p lifts, cheapest first."""
    worst = 0
    for attacked in sets:
        alpha = clean_votes(ballots, attacked, num_classes)
        threshold = floor(alpha, truth, tau, len(ballots) - len(attacked))
        gaps = [
            max(0, threshold + extra(y, truth, ties) - alpha[y]) for y in range(num_classes) if y != truth
        ]
        worst = max(worst, cheapest_first(gaps, cap * len(attacked)))
    return 1 + worst


def cbn(ballots, sets, truth, num_classes, ties="against", cap=1, tau=0):
    """min-k of CBN: 1 + the most rivals that reach the true label, each with all of some T_p's budget."""
    worst = 0
    for attacked in sets:
        alpha = clean_votes(ballots, attacked, num_classes)
        threshold = floor(alpha, truth, tau, len(ballots) - len(attacked))
        budget = cap * len(attacked)
        rivals = [y for y in range(num_classes) if y != truth]
        worst = max(worst, sum(alpha[y] + budget >= threshold + extra(y, truth, ties) for y in rivals))
    return 1 + worst


def drs(ballots, sets, truth, num_classes, ties="against", cap=1):
    """min-k of DRS: one Δ for all positions, added to every rival and subtracted from the true label."""
    total = votes(ballots, num_classes)
    delta = cap * max(len(attacked) for attacked in sets)
    rivals = [y for y in range(num_classes) if y != truth]
    return 1 + sum(total[y] + delta >= total[truth] - delta + extra(y, truth, ties) for y in rivals)


def most_in_a_window(ballots, windows, label, outside=frozenset()):
    """The largest number of ballots for `label` in one window, without those in `outside`."""
    return max(sum(ballots[i].get(label, 0) for i in window - outside) for window in windows)


def masked_scores(ballots, windows, num_classes):
    """s[y] of PatchGuard: each label loses its best window."""
    total = votes(ballots, num_classes)
    return [total[y] - most_in_a_window(ballots, windows, y) for y in range(num_classes)]


def masked_floor(ballots, windows, window, truth, num_classes, uncertain, tau):
    """What window p leaves: clean votes, the votes the true label must keep, and units that stay unmasked.

    The window of p removes all ballots of T_p, but not those of uncertain mutants outside it. Each clean
    ballot may be off by tau per label.
    """
    attacked = window | uncertain
    alpha = clean_votes(ballots, attacked, num_classes)
    shift = tau * (len(ballots) - len(attacked))
    kept = alpha[truth] - most_in_a_window(ballots, windows, truth, outside=attacked)
    return attacked, alpha, max(0, kept - shift) - shift, len(uncertain - window)


def patchguard(ballots, windows, truth, num_classes, ties="against", uncertain=frozenset(), cap=1, tau=0):
    """min-k of PatchGuard: 1 + the most rivals whose clean votes reach what the true label must keep."""
    worst = 0
    for window in windows:
        _, alpha, threshold, unmasked = masked_floor(
            ballots, windows, window, truth, num_classes, uncertain, tau
        )
        rivals = [y for y in range(num_classes) if y != truth]
        able = [y for y in rivals if alpha[y] + cap * unmasked >= threshold + extra(y, truth, ties)]
        worst = max(worst, len(able))
    return 1 + worst


def costcert_masks(ballots, windows, truth, num_classes, ties="against", uncertain=frozenset(), cap=1, tau=0):
    """min-k of CostCert over PatchGuard's masks: PatchGuard's rivals, lifted cheapest first."""
    worst = 0
    for window in windows:
        attacked, alpha, threshold, unmasked = masked_floor(
            ballots, windows, window, truth, num_classes, uncertain, tau
        )
        gaps = []
        for y in range(num_classes):
            needed = threshold + extra(y, truth, ties)
            if y != truth and alpha[y] + cap * unmasked >= needed:
                masked = most_in_a_window(ballots, windows, y, outside=attacked)
                gaps.append(max(0, needed - alpha[y] + masked))
        worst = max(worst, cheapest_first(gaps, cap * len(attacked)))
    return 1 + worst


def lead(ballots, masked, label, num_classes):
    """By how much a label leads all others in the votes of mutants outside `masked`."""
    left = clean_votes(ballots, masked, num_classes)
    return left[label] - max((left[y] for y in range(num_classes) if y != label), default=0)


def double_masked_scores(ballots, windows, num_classes):
    """S[y] of double masking: the lead of a label under the window that suits it, whichever is the second."""
    return [
        max(min(lead(ballots, one | two, y, num_classes) for two in windows) for one in windows)
        for y in range(num_classes)
    ]


def double_masking(ballots, windows, truth, num_classes, ties="against", uncertain=frozenset(), cap=1, tau=0):
    """min-k of double masking: 1 + the most rivals that lead under window p and another as the truth does."""
    worst = 0
    for window in windows:
        # What a pair's clean ballots may be off by, and the uncertain ones outside it may add.
        off = {
            two: 2 * tau * (len(ballots) - len(window | two | uncertain))
            + cap * len(uncertain - window - two)
            for two in windows
        }

        def led(label, two, window=window):
            return lead(ballots, window | two | uncertain, label, num_classes)

        sure = min(led(truth, two) - off[two] for two in windows)
        others = [two for two in windows if two != window] or [window]
        rivals = [y for y in range(num_classes) if y != truth]
        able = [
            y for y in rivals if max(led(y, two) + off[two] for two in others) >= sure + extra(y, truth, ties)
        ]
        worst = max(worst, len(able))
    return 1 + worst


def axis_masks(length, patch, count):
    """Sets of positions on one axis, such that any `patch` neighbouring positions lie inside one of them."""
    stride = 0
    while stride * count < length - patch + 1:
        stride += 1
    side = stride + patch - 1
    return [{min(t * stride, length - side) + step for step in range(side)} for t in range(count)]


def masks(count, patch, height, width):
    """The pixels that each of count² masks hides, row by row; `patch` is (height, width)."""
    rows, columns = axis_masks(height, patch[0], count), axis_masks(width, patch[1], count)
    return [frozenset(product(ys, xs)) for ys in rows for xs in columns]


def pairs_of(masks):
    """The mutants: pairs of numbers of masks (i, j), i <= j."""
    return [(i, j) for i in range(len(masks)) for j in range(i, len(masks))]


def unhidden(masks, height, width):
    """The pixels that each mutant keeps."""
    everything = set(product(range(height), range(width)))
    return [frozenset(everything - masks[i] - masks[j]) for i, j in pairs_of(masks)]


def rows_of(num_masks):
    """The mutants of each row: row i holds all mutants that hide mask i."""
    pairs = [(i, j) for i in range(num_masks) for j in range(i, num_masks)]
    return [[m for m, pair in enumerate(pairs) if i in pair] for i in range(num_masks)]


def max_min(ballots, rows, num_classes):
    """S[y]: the best row, each row being worth the least that its mutants give."""
    return [max(min(ballots[m].get(y, 0) for m in row) for row in rows) for y in range(num_classes)]


def pair_order(ballots, rows, num_classes):
    """Labels by S, then by votes, then by the lowest label."""
    scores, total = max_min(ballots, rows, num_classes), votes(ballots, num_classes)
    return sorted(range(num_classes), key=lambda y: (-scores[y], -total[y], y))


def patchcleanser(ballots, sets, rows, truth, num_classes, cap=1, tau=0):
    """min-k of PatchCleanser: 1 + the most rivals whose score may reach what the true label keeps."""
    worst = 0
    for attacked in sets:
        safe = [row for row in rows if not attacked.intersection(row)]
        if not safe:
            return num_classes
        sure = max(min(ballots[m].get(truth, 0) for m in row) for row in safe)
        rivals = 0
        for y in range(num_classes):
            reach = max(min([ballots[m].get(y, 0) for m in row if m not in attacked] + [cap]) for row in rows)
            rivals += y != truth and reach + tau >= sure - tau
        worst = max(worst, rivals)
    return 1 + worst


def min_k_all(ballots, sets, truths, num_classes, ties="against", cap=1):
    """The k for which all of the true labels are in the top-k: the largest of their min-k."""
    return max(costcert(ballots, sets, truth, num_classes, ties, cap) for truth in truths)


def min_k_any(ballots, sets, truths, num_classes, ties="against", cap=1):
    """The k for which at least one true label is in the top-k: outsiders must pass the best of them."""
    worst = 0
    for attacked in sets:
        alpha = clean_votes(ballots, attacked, num_classes)
        best = min(truths, key=lambda label: (-alpha[label], label))
        gaps = [
            max(0, alpha[best] + extra(y, best, ties) - alpha[y])
            for y in range(num_classes)
            if y not in truths
        ]
        worst = max(worst, cheapest_first(gaps, cap * len(attacked)))
    return 1 + worst


def excluded(ballots, sets, label, num_classes, k, ties="against", cap=1):
    """Whether `label` can never enter the top-k: for every T_p, k others stay above it."""
    for attacked in sets:
        alpha = clean_votes(ballots, attacked, num_classes)
        reach = alpha[label] + cap * len(attacked)
        above = 0
        for y in range(num_classes):
            wins_ties = ties == "lowest" and y < label
            if y != label and (alpha[y] > reach or (alpha[y] == reach and wins_ties)):
                above += 1
        if above < k:
            return False
    return True


def stability(ballots, sets, num_classes, k, ties="against", cap=1):
    """How many labels of the clean top-k always stay: lifting j others to the j-th weakest expels j."""
    listed = order(votes(ballots, num_classes))[:k]
    outsiders = [y for y in range(num_classes) if y not in listed]
    expelled = 0
    for attacked in sets:
        alpha = clean_votes(ballots, attacked, num_classes)
        weakest = sorted(listed, key=lambda label: (alpha[label], -label))
        for j in range(1, min(len(listed), len(outsiders)) + 1):
            mark = weakest[j - 1]
            gaps = [max(0, alpha[mark] + extra(y, mark, ties) - alpha[y]) for y in outsiders]
            if sum(sorted(gaps)[:j]) <= cap * len(attacked):
                expelled = max(expelled, j)
    return len(listed) - expelled


def min_k_bounds(ballots, known, sets, truth, num_classes, ties="against", cap=1):
    """Lower and upper bound of CostCert's min-k when only the ballots in `known` have been counted.

    In the best case every unknown mutant votes for the true label; in the worst the attacker controls it.
    """
    unknown = frozenset(range(len(ballots))) - known
    best_case = [{truth: cap} if i in unknown else ballots[i] for i in range(len(ballots))]
    low = costcert(best_case, sets, truth, num_classes, ties, cap)
    high = costcert(ballots, [attacked | unknown for attacked in sets], truth, num_classes, ties, cap)
    return low, high


def rank_bounds(ballots, known, truth, num_classes, cap=1):
    """Lower and upper bound of the rank when only the ballots in `known` have been counted."""
    unknown = frozenset(range(len(ballots))) - known
    return min_k_bounds(ballots, known, [frozenset()], truth, num_classes, "lowest", cap)[0], costcert(
        ballots, [unknown], truth, num_classes, "lowest", cap
    )


def position(scores, truth, ties):
    """The position of the true label: behind all it ties with, or its `rank` if ties go to the lowest."""
    if ties == "lowest":
        return rank(scores, truth)
    return 1 + sum(scores[y] >= scores[truth] for y in range(len(scores)) if y != truth)


def spreads(num_classes, cap):
    """Every way for one mutant to spread at most `cap` units over the labels."""
    return [units for units in product(range(cap + 1), repeat=num_classes) if sum(units) <= cap]


def single_labels(num_classes):
    """Every way for one mutant to vote for one label."""
    return [tuple(int(y == label) for y in range(num_classes)) for label in range(num_classes)]


def reachable_votes(ballots, sets, num_classes, ways):
    """All vote counts that attacks reach: each touched mutant casts each of the ballots in `ways`."""
    reached = set()
    for attacked in sets:
        counts = {tuple(clean_votes(ballots, attacked, num_classes))}
        for _ in attacked:
            counts = {
                tuple(a + b for a, b in zip(count, way, strict=True)) for count in counts for way in ways
            }
        reached |= counts
    return reached


def reachable_shifted(ballots, sets, num_classes, cap, tau):
    """All vote counts reached when touched mutants cast any ballot and clean ones shift by tau per label.

    A shifted ballot is a valid ballot: no label has fewer than 0 units, and all together at most `cap`.
    """
    anything = spreads(num_classes, cap)
    near = [
        [way for way in anything if all(abs(way[y] - given.get(y, 0)) <= tau for y in range(num_classes))]
        for given in ballots
    ]
    reached = set()
    for attacked in sets:
        counts = {(0,) * num_classes}
        for i in range(len(ballots)):
            pairs = product(counts, anything if i in attacked else near[i])
            counts = {tuple(a + b for a, b in zip(count, way, strict=True)) for count, way in pairs}
        reached |= counts
    return reached


def rewritten(ballots, attacked, ways):
    """Ballots after each possible attack: each mutant in `attacked` casts each of the ballots in `ways`."""
    attacked = sorted(attacked)
    for chosen in product(ways, repeat=len(attacked)):
        result = list(ballots)
        for i, units in zip(attacked, chosen, strict=True):
            result[i] = dict(enumerate(units))
        yield result


def reachable_masked(ballots, sets, windows, num_classes, ways=None):
    """All lists of PatchGuard scores that attacks reach; touched mutants vote for one label by default."""
    return {
        tuple(masked_scores(after, windows, num_classes))
        for attacked in sets
        for after in rewritten(ballots, attacked, ways or single_labels(num_classes))
    }


def reachable_double_masked(ballots, sets, windows, num_classes, ways=None):
    """All lists of double masking's scores that attacks reach; see `reachable_masked`."""
    return {
        tuple(double_masked_scores(after, windows, num_classes))
        for attacked in sets
        for after in rewritten(ballots, attacked, ways or single_labels(num_classes))
    }


def worst_position(reached, truth, ties):
    """The worst position that an attack reaches for the true label."""
    return max(position(scores, truth, ties) for scores in reached)


def worst_of_all(reached, truths, ties):
    """The worst position that an attack reaches for any of the true labels."""
    return max(position(scores, truth, ties) for scores in reached for truth in truths)


def worst_of_any(reached, truths, ties):
    """The worst position that an attack reaches for the best of the true labels."""
    worst = 0
    for scores in reached:
        best = min(truths, key=lambda label: (-scores[label], label))
        outsiders = [y for y in range(len(scores)) if y not in truths]
        if ties == "lowest":
            ahead = sum((-scores[y], y) < (-scores[best], best) for y in outsiders)
        else:
            ahead = sum(scores[y] >= scores[best] for y in outsiders)
        worst = max(worst, 1 + ahead)
    return worst


def can_enter(reached, label, k, ties):
    """Whether an attack brings `label` into the top-k; it wins ties unless they go to the lowest label."""
    for scores in reached:
        if ties == "lowest":
            place = rank(scores, label)
        else:
            place = 1 + sum(scores[y] > scores[label] for y in range(len(scores)) if y != label)
        if place <= k:
            return True
    return False


def fewest_staying(ballots, reached, num_classes, k, ties):
    """The smallest number of labels of the clean top-k that an attack leaves in the top-k."""
    listed = set(order(votes(ballots, num_classes))[:k])
    fewest = len(listed)
    for scores in reached:
        if ties == "lowest":
            after = order(scores)[:k]
        else:
            after = sorted(range(num_classes), key=lambda label: (-scores[label], label in listed))[:k]
        fewest = min(fewest, len(listed.intersection(after)))
    return fewest


def completions(ballots, known, num_classes):
    """All ballots in which the mutants outside `known` vote for any label."""
    return rewritten(ballots, frozenset(range(len(ballots))) - known, single_labels(num_classes))


def unions(sets, times):
    """All unions of `times` of these sets, with repetition."""
    return distinct(frozenset().union(*chosen) for chosen in combinations_with_replacement(sets, times))


def weight(interpolation, x):
    """The value of a resampling kernel at a distance, which is 0 exactly where the kernel is."""
    x = abs(x)
    if interpolation in ("bilinear", "hamming"):
        return max(0, 1 - x)  # hamming is another curve with the same zeros
    if interpolation == "bicubic":
        return (x - 1) * (x - 2) ** 2 if 1 <= x < 2 else (3 * x**3 - 5 * x**2 + 2 if x < 1 else 0)
    if interpolation == "lanczos":
        return 0 if x >= 3 or (x and x.denominator == 1) else 1
    return int(x <= Fraction(1, 2))  # box, with both ends


def reads(length, n, m, start, interpolation):
    """Pairs of input pixel and picture pixel with a weight, along an axis resized from n to m pixels.

    The input's pixels are those from `start` on.
    """
    found = set()
    for i in range(length):
        at = i + start
        if not 0 <= at < m:
            continue
        middle = (at + Fraction(1, 2)) * Fraction(n, m)
        if interpolation == "nearest":
            found.add((i, int(middle)))
            if middle.denominator == 1 and Fraction(n, m).denominator.bit_count() > 1:
                found.add((i, int(middle) - 1))
            continue
        wide = max(Fraction(n, m), 1)
        found |= {(i, y) for y in range(n) if weight(interpolation, (y + Fraction(1, 2) - middle) / wide)}
    return found


def mask_bounds(ballots, known, sets, rows, truth, num_classes, cap=1):
    """Lower and upper bound of rank and of PatchCleanser's min-k, from the ballots in `known` alone.

    In the best case every unknown mutant gives all to the true label; in the worst the attacker holds it.
    """
    unknown = frozenset(range(len(ballots))) - known
    best = [{truth: cap} if m in unknown else ballot for m, ballot in enumerate(ballots)]
    low = pair_order(best, rows, num_classes).index(truth) + 1
    high = patchcleanser(ballots, [unknown], rows, truth, num_classes, cap) if unknown else low
    return (
        low,
        high,
        patchcleanser(best, sets, rows, truth, num_classes, cap),
        patchcleanser(ballots, [attacked | unknown for attacked in sets], rows, truth, num_classes, cap),
    )
