"""A second derivation of certificates: slow and plain, independent of the code that certifies.

Nothing of the package is imported but pixels.py, which imports nothing of it. Spellings are parsed and pixels
and votes are counted with Python's integers, to be read next to docs/theory.md. A set of mutants is an
integer: bit i stands for mutant i.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate, combinations_with_replacement
from typing import Any

from costcert.verification.pixels import Sets, mutants, num_masks, touched, touched_from_original, union

Ballot = list[tuple[int, int]]

# The defenders that can be checked, and those of them that predict by masking windows.
MASKING = ("patchguard", "costcert-masks")
DEFENDERS = ("costcert", "cbn", "drs", *MASKING, "patchcleanser")


def classifier_of(votes: Mapping[str, Any]) -> dict[str, Any]:
    """Ablation, hide and soft of the classifier that cast the votes with this manifest."""
    if votes.get("version") != 1:
        return {key: votes["classifier"][key] for key in ("ablation", "hide", "soft")}
    provenance, soft = votes["made"], votes["soft"]  # the format of 0.1.0
    soft = soft and {**provenance["soft"], "best": soft["labels"], "cap": soft["cap"]}
    return {"ablation": votes["ablation"], "hide": provenance["model"]["hide"], "soft": soft}


class Question:
    """What a manifest of certificates claims to certify, compared with the manifest of the votes."""

    def __init__(self, manifest: Mapping[str, Any], votes: Mapping[str, Any]) -> None:
        claimed, cast = manifest["classifier"], classifier_of(votes)
        self.size = tuple(_integer(side, "a side of the image", 1) for side in votes["image_size"])
        self.classes = _integer(votes["num_classes"], "the number of classes", 1)
        self.prepared = ((votes.get("made") or {}).get("model") or {}).get("preprocessing")
        self.ablation, self.soft, self.mask = claimed["ablation"], claimed["soft"], claimed["mask"]
        if claimed["hide"] != cast["hide"] or self.soft not in (None, cast["soft"]):
            raise ValueError(f"{claimed} is certified, but the votes were cast by {cast}")
        masking = [defender for defender in manifest["defenders"] if defender in MASKING]
        if claimed["defender"] is not None or (self.mask is not None and not masking):
            raise ValueError("the classifier names a defender, or a mask that none of the defenders uses")
        voted = mutants(cast["ablation"], *self.size)
        where = {kept: number for number, kept in reversed(list(enumerate(voted)))}
        counted = mutants(self.ablation, *self.size)
        if not set(counted) <= set(where):
            raise ValueError(f"{self.ablation} is certified, but mutants of {cast['ablation']} voted")
        self.voted = len(voted)
        self.chosen = [where[kept] for kept in counted] if counted != voted else list(range(len(voted)))
        self.best = _integer(self.soft["best"], "the labels of a ballot", 1) if self.soft else 1
        self.cap = _integer(self.soft["cap"], "the cap of a ballot", 1) if self.soft else 1
        self.tau = _integer(manifest["tau"], "tau", 0)
        self.ties, self.epsilon = claimed["ties"], manifest["epsilon"]
        if self.ties not in ("against", "lowest") or (self.tau and not self.soft):
            raise ValueError(f"such certificates do not exist: ties {self.ties!r}, tau {self.tau}")
        if self.epsilon is not None:  # margins and cuts are 32-bit floats, and are compared with one
            if isinstance(self.epsilon, bool | str) or not self.epsilon >= 0:
                raise ValueError(f"epsilon is {self.epsilon!r}, expected a number of at least 0")
            (self.epsilon,) = struct.unpack("f", struct.pack("f", self.epsilon))
        self.keys = [(defender, patch) for defender in manifest["defenders"] for patch in manifest["patches"]]
        if not self.keys or len(set(self.keys)) < len(self.keys):
            raise ValueError(f"expected one certificate per defender and patch, got {self.keys}")

    def answer(self, row: Mapping[str, Any], defender: str, patch: str) -> tuple[int, int]:
        """Rank and min-k of one image."""
        if defender not in DEFENDERS:
            raise ValueError(f"{defender!r} is not a defender that can be checked")
        if row.get("unread"):
            return self.classes, self.classes
        sets = self.touched(row, patch)
        if self.mask is not None and defender in MASKING:
            # Controlling a window allows all that controlling a subset of it does.
            windows = self.touched(row, self.mask)
            if not all(any(one & window == one for window in windows) for one in sets):
                raise ValueError(f"{patch} touches mutants that a mask for {self.mask} does not cover")
            sets = windows
        ballots = [self.ballot(row, number) for number in self.chosen]
        truth = _integer(row["truth"], "the true label", 0)
        world = (ballots, truth, self.classes, self.soft and self.cap, self.ties == "lowest")
        if defender == "patchcleanser":
            election: Election = Pairs(*world, num_masks(self.ablation))
        else:
            election = Election(*world)
        # Version 1 called this column `asked`.
        known = row.get("known") or row.get("asked") or [1] * self.voted
        near = [False] * self.voted if self.epsilon is None else self.near(row)
        missing = union(1 << bit for bit, n in enumerate(self.chosen) if known[n] != 1)
        unsure = union(1 << bit for bit, n in enumerate(self.chosen) if near[n])
        if missing and defender in MASKING:
            raise ValueError(f"{defender} predicts nothing where mutants were not evaluated")
        min_k = election.min_k(defender, sets, unsure | missing, min(self.tau, self.cap))
        return election.rank(defender, sets, missing), min_k

    def touched(self, row: Mapping[str, Any], patch: str) -> Sets:
        """The maximal T_p; those of a patch on the original depend on the size of that picture."""
        if not patch.startswith("original:"):
            return touched(self.ablation, patch, *self.size)
        if not (prepared := self.prepared) or list(prepared["image_size"]) != list(self.size):
            raise ValueError("these votes do not record how pictures became the model's input")
        sides = row.get("original_height"), row.get("original_width")
        if None in sides:
            raise ValueError("these votes do not record how large the originals were")
        height, width = (_integer(side, "a side of the original", 1) for side in sides)
        how = (prepared["crop_pct"], prepared["crop_mode"], prepared["interpolation"])
        return touched_from_original(self.ablation, patch, *self.size, (height, width), how)

    def near(self, row: Mapping[str, Any]) -> list[bool]:
        """Mutants whose ballot may differ on another machine: their margin or cut is at most epsilon."""
        if self.soft and "cuts" not in row and self.best >= self.classes:
            return [False] * self.voted
        return [distance <= self.epsilon for distance in row["cuts" if self.soft else "margins"]]

    def ballot(self, row: Mapping[str, Any], number: int) -> Ballot:
        """The labels that a mutant votes for, and the units it gives each."""
        if len(row["ballots"]) != self.voted:
            raise ValueError(f"an image has {len(row['ballots'])} ballots, expected {self.voted}")
        if not self.soft:
            return [(row["ballots"][number], 1)]
        part = slice(number * self.best, (number + 1) * self.best)
        labels, units = row["soft_labels"][part], row["soft_units"][part]
        if sum(units) > self.cap or min(units) < 0 or len(units) != self.best:
            raise ValueError(f"a mutant gives {sum(units)} units to {len(units)} labels, cap {self.cap}")
        return list(zip(labels, units, strict=True))


def _integer(value: Any, name: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}, expected an integer of at least {least}")
    return value


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
        masks = defender in MASKING
        score = [self.votes(y, ~missing) - masks * self.window(y, sets) for y in range(len(self.given))]
        gaps = [max(0, score[self.truth] + (y > self.truth) - score[y]) for y in self.rivals]
        return 1 + cheapest_first(gaps, self.cap * missing.bit_count())

    def min_k(self, defender: str, sets: Sets, unknown: int, tau: int) -> int:
        """1 + the most rivals that pass the true label under some T_p, to which unknown mutants are added."""
        if defender == "drs":
            extra = 2 * self.cap * max(one.bit_count() for one in sets)
            return 1 + self.passing("cbn", 0, sets, unknown, tau, extra)
        return 1 + max(self.passing(defender, one, sets, unknown, tau) for one in sets)

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
