"""A second derivation of certificates: slow and plain, independent of the code that certifies.

Nothing of the package is imported but pixels.py and elections.py, which import nothing else of it. Here the
manifests are read: what was voted, and what is claimed about it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from costcert.verification.elections import DEFENDERS, MASKING, Ballot, Election, Pairs
from costcert.verification.pixels import Sets, mutants, num_masks, touched, touched_from_original, union


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
