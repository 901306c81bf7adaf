"""The attack that a missing certificate stands for: where the patch lies, and how its mutants then vote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costcert.certification import AnyPatch
from costcert.defenders.worst_case import known_ties
from costcert.errors import VotesError
from costcert.geometry.patches import OnePatch, Several, concrete
from costcert.geometry.sizes import whole
from costcert.geometry.touch import Touched, touched
from costcert.votes import Votes

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Witness:
    """One patch and one set of rewritten ballots that push the true label out of the top k.

    Args:
        places: (top, left) of the patch, or of each of several.
        touched: the mutants it touches, all of which the attacker rewrites.
        mutants, labels, units: the new ballots: a mutant gives so many units to a label. Equally long.
        scores: [L], votes (or units) after the attack.
        position: of the true label then; larger than k.
    """

    patch: OnePatch | Several
    places: tuple[tuple[int, int], ...]
    touched: Indices
    mutants: Indices
    labels: Indices
    units: Indices
    scores: Indices
    position: int


def witness(votes: Votes, image: int, patch: AnyPatch, k: int, *, ties: str = "against") -> Witness | None:
    """The attack on image number `image` that breaks the top k, or None where CostCert certifies it.

    CostCert is exact, so one of the two always exists.
    """
    k = whole(k, "k")
    if not -len(votes) <= image < len(votes):
        raise VotesError(f"image {image} is not one of the {len(votes)} images")
    if votes.unread is not None and votes.unread[image]:
        raise VotesError(f"image {image} could not be read, so there are no ballots to rewrite")
    lowest = known_ties(ties)
    wanted = concrete(patch, votes.image_size)
    cases = touched(votes.ablation, wanted, votes.image_size)
    if k >= votes.num_classes:
        return None
    truth = int(votes.truth[image])
    labels, units = _ballots(votes, image)
    handicap = lowest & (np.arange(votes.num_classes) > truth)
    for p, (clean, held) in enumerate(_walk(cases, labels, units, votes.num_classes)):
        gaps = np.maximum(clean[truth] - clean + handicap, 0)
        gaps[truth] = np.iinfo(np.int64).max
        lifted = np.argsort(gaps, kind="stable")[:k]
        if gaps[lifted].sum() > votes.cap * int(cases.budgets[p]):
            continue
        mutants, given, amount = _spend(np.flatnonzero(held), lifted, gaps[lifted], votes)
        scores = clean.copy()
        np.add.at(scores, given, amount)
        return Witness(
            wanted,
            tuple((int(top), int(left)) for top, left in cases.places[p]),
            np.flatnonzero(held),
            mutants,
            given,
            amount,
            scores,
            int((scores - handicap >= scores[truth]).sum()),
        )
    return None


def _ballots(votes: Votes, image: int) -> tuple[Indices, Indices]:
    """Labels and units of every mutant, [B, j]."""
    if votes.labels is None or votes.units is None:
        labels = votes.ballots[image][:, None].astype(np.int64)
        return labels, np.ones_like(labels)
    return votes.labels[image].astype(np.int64), votes.units[image].astype(np.int64)


def _walk(
    cases: Touched, labels: Indices, units: Indices, num_classes: int
) -> Iterator[tuple[Indices, npt.NDArray[np.bool_]]]:
    """Clean votes [L] and touched mutants [B] of every case; both change from one to the next."""
    clean = np.zeros(num_classes, dtype=np.int64)
    np.add.at(clean, labels, units)
    held = np.zeros(len(labels), dtype=np.bool_)
    for start, stop in zip(cases.offsets[:-1], cases.offsets[1:], strict=True):
        step = cases.flips[start:stop]
        enters = step >= 0
        mutants = np.where(enters, step, ~step)
        np.add.at(clean, labels[mutants], np.where(enters, -1, 1)[:, None] * units[mutants])
        held[mutants] = enters
        yield clean, held


def _spend(
    mutants: Indices, lifted: Indices, gaps: Indices, votes: Votes
) -> tuple[Indices, Indices, Indices]:
    """Give each lifted rival its gap out of the touched ballots; what is left goes to the first."""
    left = votes.cap * len(mutants) - int(gaps.sum())
    wanted = gaps.copy()
    wanted[0] += left
    # Cut the budget where one rival is served and where one ballot ends.
    ends = np.cumsum(wanted)
    cuts = np.union1d(ends, votes.cap * np.arange(1, len(mutants) + 1))
    starts = np.concatenate([[0], cuts[:-1]]).astype(np.int64)
    amount = cuts - starts
    some = amount > 0
    rival = np.searchsorted(ends, starts, side="right")
    return mutants[starts[some] // votes.cap], lifted[rival[some]], amount[some]
