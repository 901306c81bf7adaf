"""The ballots of one image, counted again with Python's integers: rank and min-k by every defender's formula.

To be read next to docs/theory.md. A set of mutants is an integer: bit i stands for mutant i.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate, combinations_with_replacement

from costcert.verification.pixels import Sets, union

Ballot = list[tuple[int, int]]

# The defenders that predict by masking windows, and all that can be checked.
MASKING = ("patchguard", "costcert-masks", "double-masking")
DEFENDERS = ("costcert", "cbn", "drs", *MASKING, "patchcleanser")


class Election:
    """The ballots of one image. `given[y][u]` is the set of mutants that give u units to label y."""

    def __init__(
        self, ballots: list[Ballot], truth: int, classes: int, cap: int | None, lowest: bool
    ) -> None:
        self.truth, self.cap, self.soft, self.size = truth, cap or 1, cap is not None, len(ballots)
        self.given: list[Counter[int]] = [Counter() for _ in range(classes)]
        if not 0 <= truth < classes:
            raise ValueError(f"the true label {truth} is not one of {classes} classes")
        for number, ballot in enumerate(ballots):
            for label in {label for label, _ in ballot}:
                units = sum(each for to, each in ballot if to == label)
                self.given[label if label >= 0 else classes][units] |= 1 << number
        self.rivals = [label for label in range(classes) if label != truth]
        # Where ties go to the lowest label, a higher label needs one vote more.
        self.more = [int(lowest and label > truth) for label in range(classes)]

    def votes(self, label: int, inside: int = -1) -> int:
        return sum(units * (mutants & inside).bit_count() for units, mutants in self.given[label].items())

    def window(self, label: int, sets: Sets, held: int = 0) -> int:
        """The most votes for a label within any one T_p, not counting mutants in `held`."""
        mine = union(self.given[label].values())
        return max(self.votes(label, part) for part in {one & mine & ~held for one in sets}) if mine else 0

    def rank(self, defender: str, sets: Sets, missing: int = 0) -> int:
        """Ties go to the lowest label; mutants that were not evaluated may vote for any label."""
        if defender == "double-masking":
            least, _, _ = self.pairs_of_windows(sets, 0, 0)
            order = {y: (-max(row[y] for row in least), y) for y in (self.truth, *self.rivals)}
            return sum(place <= order[self.truth] for place in order.values())
        masks = defender in MASKING
        score = [self.votes(y, ~missing) - masks * self.window(y, sets) for y in range(len(self.given))]
        gaps = [max(0, score[self.truth] + (y > self.truth) - score[y]) for y in self.rivals]
        return 1 + cheapest_first(gaps, self.cap * missing.bit_count())

    def min_k(self, defender: str, sets: Sets, unknown: int, tau: int) -> int:
        """1 + the most rivals that pass the true label under some T_p, to which unknown mutants are added."""
        if defender == "double-masking":
            _, most, sure = self.pairs_of_windows(sets, unknown, tau)
            return 1 + max(
                sum(row[y] >= kept + self.more[y] for y in self.rivals)
                for row, kept in zip(most, sure, strict=True)
            )
        if defender == "drs":
            extra = 2 * self.cap * max(one.bit_count() for one in sets)
            return 1 + self.passing("cbn", 0, sets, unknown, tau, extra)
        return 1 + max(self.passing(defender, one, sets, unknown, tau) for one in sets)

    def leads(self, hidden: int) -> list[int]:
        """By how much each label leads all others in the votes outside a set of mutants."""
        left = [self.votes(y, ~hidden) if given else 0 for y, given in enumerate(self.given)]
        second, best = sorted([0, *left])[-2:]
        return [votes - (second if votes == best else best) for votes in left]

    def pairs_of_windows(
        self, sets: Sets, unknown: int, tau: int
    ) -> tuple[list[list[int]], list[list[int]], list[int]]:
        """For each window, over its pairs with the others: the least lead of every label; the most that a
        rival can have; and the least that the true label is sure of, whatever unknown mutants vote."""
        windows = list(dict.fromkeys(sets))
        infinite = self.cap * self.size * 8 + 1
        least = [[infinite] * len(self.given) for _ in windows]
        most = [[-infinite] * len(self.given) for _ in windows]
        sure = [infinite] * len(windows)
        for one, two in combinations_with_replacement(range(len(windows)), 2):
            hidden = windows[one] | windows[two]
            leads = self.leads(hidden | unknown)
            counted = self.size - (hidden | unknown).bit_count()
            off = 2 * tau * counted + self.cap * (unknown & ~hidden).bit_count()
            for window in {one, two}:
                least[window] = list(map(min, least[window], leads))
                sure[window] = min(sure[window], leads[self.truth] - off)
                if one != two or len(windows) == 1:
                    most[window] = [
                        max(old, lead + off) for old, lead in zip(most[window], leads, strict=True)
                    ]
        return least, most, sure

    def passing(self, defender: str, one: int, sets: Sets, unknown: int, tau: int, extra: int = 0) -> int:
        """The most rivals that pass the true label if the attacker controls the T_p `one`."""
        held = one | unknown
        budget = self.cap * held.bit_count() + extra
        clean = [self.votes(y, ~held) if given else 0 for y, given in enumerate(self.given)]
        shift = tau * (self.size - held.bit_count())
        kept = clean[self.truth] - (self.window(self.truth, sets, held) if defender in MASKING else 0)
        least = max(0, kept - shift) - shift
        needs = {y: least + self.more[y] - clean[y] for y in self.rivals}
        if defender in ("costcert", "cbn"):
            gaps = [max(0, need) for need in needs.values()]
            return cheapest_first(gaps, budget) if defender == "costcert" else sum(g <= budget for g in gaps)
        # A window masks every ballot inside it, but unknown mutants outside still vote.
        able = [y for y in self.rivals if needs[y] <= self.cap * (unknown & ~one).bit_count()]
        if defender == "patchguard" or self.soft:
            return len(able)
        return cheapest_first([max(0, needs[y] + self.window(y, sets, held)) for y in able], budget)


class Pairs(Election):
    """The ballots of mutants that hide two of n masks; `rows[i]` is the set of those that hide mask i."""

    def __init__(
        self, ballots: list[Ballot], truth: int, classes: int, cap: int | None, lowest: bool, masks: int
    ) -> None:
        super().__init__(ballots, truth, classes, cap, lowest)
        hidden = combinations_with_replacement(range(masks), 2)
        self.rows = [0] * masks
        for number, pair in enumerate(hidden):
            for mask in set(pair):
                self.rows[mask] |= 1 << number
        self.named = [union(given.values()) for given in self.given]
        self.units = [
            {number: units for units, mutants in given.items() for number in members(mutants)}
            for given in self.given
        ]

    def stands(self, label: int, row: int, clean: int) -> int:
        """The least that the clean mutants of a row give to a label; the cap where there are none."""
        row &= clean
        if row & ~self.named[label]:
            return 0
        return min((self.units[label][number] for number in members(row)), default=self.cap)

    def score(self, label: int, clean: int) -> int:
        """The row that serves a label best, if every mutant that is not clean gave it all."""
        return max(self.stands(label, row, clean) for row in self.rows)

    def rank(self, defender: str, sets: Sets, missing: int = 0) -> int:
        """By the best row, then votes, then the lowest label; at worst, where mutants were not evaluated."""
        if missing:
            return self.min_k(defender, [0], missing, 0)
        order = {y: (-self.score(y, -1), -self.votes(y), y) for y in (self.truth, *self.rivals)}
        return sum(place <= order[self.truth] for place in order.values())

    def passing(self, defender: str, one: int, sets: Sets, unknown: int, tau: int, extra: int = 0) -> int:
        """The rivals whose best row may reach that of the true label, of which only safe rows are sure."""
        if all(row & one for row in self.rows):
            raise ValueError("these masks do not cover the patch")
        clean = ~(one | unknown)
        sure = max((self.stands(self.truth, row, -1) for row in self.rows if row & clean == row), default=0)
        if sure <= 2 * tau:
            return len(self.rivals)
        voted = [y for y in self.rivals if self.given[y]]
        silent = len(self.rivals) - len(voted)
        able = sum(self.score(y, clean) + tau >= sure - tau for y in voted)
        return able + silent * any(not row & clean for row in self.rows)


def members(mutants: int) -> Iterator[int]:
    """The numbers in a set."""
    while mutants:
        yield mutants.bit_length() - 1
        mutants ^= 1 << mutants.bit_length() - 1


def cheapest_first(gaps: list[int], budget: int) -> int:
    """The largest j such that the j smallest gaps sum to at most the budget."""
    return sum(total <= budget for total in accumulate(sorted(gaps)))
