"""Certificates once more, the slow and plain way, for whoever does not want to trust the fast one.

Nothing of the package is imported: spellings, pixels and votes are read and counted here, with the integers
of Python, to be read in one sitting beside docs/theory.md. Bit i of a set of mutants stands for mutant i.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping
from functools import cache, reduce
from itertools import accumulate, groupby
from operator import or_
from typing import Any

# Above these the plain way takes hours: mutants times pixels, and pairs of touched sets.
MOST_PIXELS, MOST_PAIRS = 1 << 28, 1 << 17


Sets = list[int]
Ballot = list[tuple[int, int]]


@cache
def mutants(ablation: str, height: int, width: int) -> list[tuple[int, int, int, int]]:
    """What each mutant keeps: first row, rows, first column, columns; both go round the ends of the image."""
    kept = []
    for family in ablation.split("+"):
        found = re.fullmatch(r"(columns|rows|blocks):(\d{1,6})((?:/(?:stride|wrap|span)=[\w-]+)*)", family)
        if not found:
            raise ValueError(f"cannot read the ablation {family!r}")
        size, options = int(found[2]), dict(option.split("=") for option in found[3].split("/")[1:])
        axes = []
        for side, whole in ((height, found[1] == "columns"), (width, found[1] == "rows")):
            last = side - size if options.get("wrap") == "no" else side - 1
            first, stop = map(int, options.get("span", f"0-{last}").split("-")) if not whole else (0, 0)
            if not whole and (size > side or stop > last):
                raise ValueError(f"{family} does not fit an image of {height}x{width}")
            starts = range(first, stop + 1, int(options.get("stride", 1)))
            axes.append([(0, side)] if whole else [(start, size) for start in starts])
        kept += [(*down, *across) for down in axes[0] for across in axes[1]]
    return kept


def patch_pixels(patch: str) -> tuple[int, list[tuple[int, ...]], int]:
    """How many patches at once; for each row of one patch, where its pixels are; and its width."""
    times, _, single = patch.rpartition("*")
    if found := re.fullmatch(r"square:(\d{1,6})|rectangle:(\d{1,6})x(\d{1,6})", single):
        tall, wide = int(found[1] or found[2]), int(found[1] or found[3])
        return int(times or 1), [tuple(range(wide))] * tall, wide
    if found := re.fullmatch(r"shape:([01]+(?:/[01]+)*)", single):
        mask = found[1].split("/")
        pixels = [tuple(x for x, pixel in enumerate(row) if pixel == "1") for row in mask]
        return int(times or 1), pixels, len(mask[0])
    raise ValueError(f"cannot read the patch {patch!r}")


@cache
def touched(ablation: str, patch: str, height: int, width: int) -> Sets:
    """T_p for every place p of the patch, the mutants that keep a pixel of it; none that lies in another."""
    kept = mutants(ablation, height, width)
    if len(kept) * height * width > MOST_PIXELS:
        raise ValueError(f"{len(kept):,} mutants are too many for the plain way: certify fewer (--ablation)")
    keepers = [[0] * width for _ in range(height)]
    for number, (top, tall, left, wide) in enumerate(kept):
        for y in range(top, top + tall):
            for x in range(left, left + wide):
                keepers[y % height][x % width] |= 1 << number
    times, rows, breadth = patch_pixels(patch)
    tops, lefts = range(height - len(rows) + 1), range(width - breadth + 1)
    if not tops or not lefts or times < 1:
        raise ValueError(f"{patch} does not fit an image of {height}x{width}")
    # What one row of the patch touches in every line of the image, then all of its rows together.
    of = {r: [[union(line[at + x] for x in r) for at in lefts] for line in keepers] for r in set(rows)}
    sets = single = maximal({union(of[r][y + d][x] for d, r in enumerate(rows)) for y in tops for x in lefts})
    for _ in range(min(times, len(kept)) - 1):  # more patches than mutants touch nothing new
        if len(sets) * len(single) > MOST_PAIRS:
            raise ValueError(f"{patch} may touch too many sets of mutants for the plain way")
        sets = maximal({one | other for one in sets for other in single})
    return sets


def union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


def maximal(sets: set[int]) -> Sets:
    """Whoever controls a set can do all that a part of it allows: parts are left out."""
    found: Sets = []
    for _, equal in groupby(sorted(sets, key=int.bit_count, reverse=True), key=int.bit_count):
        found += [one for one in equal if not any(one & other == one for other in found)]
    return found


# What certificates may be derived for, and which of it predicts by masking.
MASKING = ("patchguard", "costcert-masks")
DEFENDERS = ("costcert", "cbn", "drs", *MASKING)


def classifier_of(votes: Mapping[str, Any]) -> dict[str, Any]:
    """What votes with this manifest are the ballots of: ablation, hide, soft."""
    if votes.get("version") != 1:
        return {key: votes["classifier"][key] for key in ("ablation", "hide", "soft")}
    made, soft = votes["made"], votes["soft"]  # as 0.1.0 wrote it
    soft = soft and {**made["soft"], "best": soft["labels"], "cap": soft["cap"]}
    return {"ablation": votes["ablation"], "hide": made["model"]["hide"], "soft": soft}


class Question:
    """What certificates say they answer, held against the votes, which say for themselves what they are."""

    def __init__(self, manifest: Mapping[str, Any], votes: Mapping[str, Any]) -> None:
        asked, cast = manifest["classifier"], classifier_of(votes)
        self.size = tuple(_whole(side, "a side of the image", 1) for side in votes["image_size"])
        self.classes = _whole(votes["num_classes"], "the number of classes", 1)
        self.ablation, self.soft, self.mask = asked["ablation"], asked["soft"], asked["mask"]
        if asked["hide"] != cast["hide"] or self.soft not in (None, cast["soft"]):
            raise ValueError(f"{asked} is certified, but the votes are of {cast}")
        masking = [defender for defender in manifest["defenders"] if defender in MASKING]
        if asked["defender"] is not None or (self.mask is not None and not masking):
            raise ValueError("certificates are of all their defenders, and only some of these mask")
        given = mutants(cast["ablation"], *self.size)
        where = {kept: number for number, kept in reversed(list(enumerate(given)))}
        wanted = mutants(self.ablation, *self.size)
        if not set(wanted) <= set(where):
            raise ValueError(f"{self.ablation} is certified, but mutants of {cast['ablation']} voted")
        self.voted = len(given)
        self.chosen = [where[kept] for kept in wanted] if wanted != given else list(range(len(given)))
        self.best = _whole(self.soft["best"], "the labels of a ballot", 1) if self.soft else 1
        self.cap = _whole(self.soft["cap"], "the cap of a ballot", 1) if self.soft else 1
        self.tau = _whole(manifest["tau"], "tau", 0)
        self.ties, self.epsilon = asked["ties"], manifest["epsilon"]
        if self.ties not in ("against", "lowest") or (self.tau and not self.soft):
            raise ValueError(f"there are no such certificates: ties {self.ties!r}, tau {self.tau}")
        if self.epsilon is not None:  # distances are numbers of 32 bits, and are compared with one
            if isinstance(self.epsilon, bool | str) or not self.epsilon >= 0:
                raise ValueError(f"epsilon is {self.epsilon!r}, expected a number that is not negative")
            (self.epsilon,) = struct.unpack("f", struct.pack("f", self.epsilon))
        self.cases = [
            (defender, patch) for defender in manifest["defenders"] for patch in manifest["patches"]
        ]
        if not self.cases or len(set(self.cases)) < len(self.cases):
            raise ValueError(f"not one certificate for each defender and patch: {self.cases}")

    def answer(self, row: Mapping[str, Any], defender: str, patch: str) -> tuple[int, int]:
        """Rank and min-k of one image."""
        if defender not in DEFENDERS or (self.soft and defender in MASKING):
            raise ValueError(f"{defender!r} is no defender that can be checked")
        if row.get("unread"):
            return self.classes, self.classes
        sets = touched(self.ablation, patch, *self.size)
        if self.mask is not None and defender in MASKING:
            # Who holds a window can do all that a part of it allows.
            windows = touched(self.ablation, self.mask, *self.size)
            if not all(any(one & window == one for window in windows) for one in sets):
                raise ValueError(f"{patch} touches more than what is masked for {self.mask}")
            sets = windows
        ballots = [self.ballot(row, number) for number in self.chosen]
        truth = _whole(row["truth"], "the true label", 0)
        election = Election(ballots, truth, self.classes, self.cap, self.ties == "lowest")
        # Version 1 had another name for what was evaluated.
        cast = row.get("known") or row.get("asked") or [1] * self.voted
        near = [False] * self.voted if self.epsilon is None else self.near(row)
        unasked = union(1 << bit for bit, n in enumerate(self.chosen) if cast[n] != 1)
        unknown = union(1 << bit for bit, n in enumerate(self.chosen) if near[n])
        if unasked and defender in MASKING:
            raise ValueError(f"{defender} predicts nothing where mutants were not evaluated")
        min_k = election.min_k(defender, sets, unknown | unasked, min(self.tau, self.cap))
        return election.rank(defender, sets, unasked), min_k

    def near(self, row: Mapping[str, Any]) -> list[bool]:
        """Mutants whose ballot another machine may see otherwise: labels are hardly told apart."""
        if self.soft and "cuts" not in row and self.best >= self.classes:
            return [False] * self.voted
        return [distance <= self.epsilon for distance in row["cuts" if self.soft else "margins"]]

    def ballot(self, row: Mapping[str, Any], number: int) -> Ballot:
        """Labels and the units that a mutant gives them."""
        if len(row["ballots"]) != self.voted:
            raise ValueError(f"{len(row['ballots'])} ballots of an image, not {self.voted}")
        if not self.soft:
            return [(row["ballots"][number], 1)]
        part = slice(number * self.best, (number + 1) * self.best)
        labels, units = row["soft_labels"][part], row["soft_units"][part]
        if sum(units) > self.cap or min(units) < 0 or len(units) != self.best:
            raise ValueError(f"a mutant gives {sum(units)} units to {len(units)} labels, cap {self.cap}")
        return list(zip(labels, units, strict=True))


def _whole(value: Any, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}, expected a whole number of at least {least}")
    return value


class Election:
    """One image. `given[y]` lists every mutant, as a bit, that gives units to label y, and how many."""

    def __init__(self, ballots: list[Ballot], truth: int, classes: int, cap: int, lowest: bool) -> None:
        self.truth, self.cap, self.size = truth, cap, len(ballots)
        self.given: list[Ballot] = [[] for _ in range(classes)]
        if not 0 <= truth < classes:
            raise ValueError(f"the true label {truth} is none of {classes} classes")
        for number, ballot in enumerate(ballots):
            for label, units in ballot:
                self.given[label if label >= 0 else classes].append((1 << number, units))
        self.rivals = [label for label in range(classes) if label != truth]
        # Where ties go to the lowest label, a higher one must win outright.
        self.more = [int(lowest and label > truth) for label in range(classes)]

    def votes(self, label: int, inside: int = -1) -> int:
        return sum(units for mutant, units in self.given[label] if mutant & inside)

    def window(self, label: int, sets: Sets, held: int = 0) -> int:
        """The most votes for a label within one T_p, those in `held` not counted."""
        mine = union(mutant for mutant, _ in self.given[label])
        return max(self.votes(label, part) for part in {one & mine & ~held for one in sets}) if mine else 0

    def rank(self, defender: str, sets: Sets, unasked: int = 0) -> int:
        """Ties go to the lowest label. Mutants that were not asked may yet vote for anybody."""
        masks = defender in MASKING
        score = [self.votes(y, ~unasked) - masks * self.window(y, sets) for y in range(len(self.given))]
        gaps = [max(0, score[self.truth] + (y > self.truth) - score[y]) for y in self.rivals]
        return 1 + cheapest_first(gaps, self.cap * unasked.bit_count())

    def min_k(self, defender: str, sets: Sets, unknown: int, tau: int) -> int:
        """1 + the most rivals that pass the true label under some T_p; every T_p has the unknown mutants."""
        if defender == "drs":
            extra = 2 * self.cap * max(one.bit_count() for one in sets)
            return 1 + self.passing("cbn", 0, sets, unknown, tau, extra)
        return 1 + max(self.passing(defender, one, sets, unknown, tau) for one in sets)

    def passing(self, defender: str, one: int, sets: Sets, unknown: int, tau: int, extra: int = 0) -> int:
        held = one | unknown
        budget = self.cap * held.bit_count() + extra
        clean = [self.votes(label, ~held) for label in range(len(self.given))]
        if defender in ("costcert", "cbn"):
            doubt = tau * (self.size - held.bit_count())
            least = max(0, clean[self.truth] - doubt) - doubt
            gaps = [max(0, least + self.more[y] - clean[y]) for y in self.rivals]
            return cheapest_first(gaps, budget) if defender == "costcert" else sum(g <= budget for g in gaps)
        least = clean[self.truth] - self.window(self.truth, sets, held)
        needs = {y: least + self.more[y] - clean[y] for y in self.rivals}
        # A window masks all that was written into it, but no unknown mutant outside.
        able = [y for y in self.rivals if needs[y] <= (unknown & ~one).bit_count()]
        if defender == "patchguard":
            return len(able)
        return cheapest_first([max(0, needs[y] + self.window(y, sets, held)) for y in able], budget)


def cheapest_first(gaps: list[int], budget: int) -> int:
    """The largest j such that the j smallest gaps sum to at most the budget."""
    return sum(total <= budget for total in accumulate(sorted(gaps)))
