"""The attack behind a missing certificate: where the patch lies, and how the touched mutants vote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costcert.certification.certify import AnyPatch
from costcert.certification.max_min import Attack, MaxMin
from costcert.defenders import find
from costcert.defenders.worst_case import known_ties
from costcert.errors import VotesError
from costcert.geometry.ablations import Masks
from costcert.geometry.patches import Certified, Piece, certified_patch
from costcert.geometry.sizes import positive_int
from costcert.geometry.touch import Touched
from costcert.votes.originals import on_input, reached, touched_by
from costcert.votes.table import Votes, check_votes

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class Witness:
    """One patch and one set of rewritten ballots that push the true label down.

    Args:
        places: (top, left) of the patch, or of each of several; in the original if the patch is on that.
        touched: the mutants it touches, all of which the attacker rewrites.
        mutants: the new ballots: `mutants[i]` gives `units[i]` units to `labels[i]`.
        labels: see `mutants`.
        units: see `mutants`; one for a hard ballot.
        scores: [L], votes (or units) after the attack; for masks the best row of each label, S.
        position: of the true label after the attack, with ties as requested.
        truth: the true label.
        votes: of this image alone, before the attack.
    """

    patch: Certified
    places: tuple[tuple[int, int], ...]
    touched: Indices
    mutants: Indices
    labels: Indices
    units: Indices
    scores: Indices
    position: int
    truth: int
    votes: Votes

    def __repr__(self) -> str:
        names = self.votes.class_names
        label = f"label {self.truth}" if names is None else repr(names[self.truth])
        places = " and ".join(f"({top}, {left})" for top, left in self.places)
        return (
            f"Witness({self.patch} at {places} touches {len(self.touched)} of {self.votes.num_mutants} "
            f"mutants: {label} ends at place {self.position})"
        )

    def _repr_html_(self) -> str:
        from costcert.notebook import witness_html

        return witness_html(self)

    def rectangles(self) -> list[Piece]:
        """The rectangles of the input that the patch, or one of several, can change."""
        return reached(self.votes, self.patch, self.places)


def witness(votes: Votes, image: int, patch: AnyPatch, k: int, *, ties: str = "against") -> Witness | None:
    """The attack on image number `image` that breaks the top k, or None where CostCert certifies it.

    CostCert is exact, so one of the two always exists. Votes of masks are ranked by PatchCleanser's rule, in
    which equal scores count as lost whatever `ties` are. It is exact at k = 1. For a larger k its bound need
    not be attained: there None is no proof, and certificates are made by `certify` alone.
    """
    k = positive_int(k, "k")
    target = _Target(votes, image, patch, ties)
    if k >= votes.num_classes:
        return None
    if isinstance(votes.ablation, Masks):
        attacks = target.on_masks(most=k)
        return next((target.rewriting(*each) for each in attacks if each[2].position > k), None)
    for p, (clean, held) in enumerate(target.walk()):
        gaps = target.gaps(clean)
        lifted = np.argsort(gaps, kind="stable")[:k]
        if gaps[lifted].sum() <= target.budget(p):
            return target.attacked(p, clean, held, lifted, gaps[lifted])
    return None


def strongest(votes: Votes, image: int, patch: AnyPatch, *, ties: str = "against") -> Witness:
    """The attack that lifts the most rivals past the true label, and comes nearest to lifting one more.

    The rest of the budget goes to the next rival. The true label ends at CostCert's min-k. For votes of masks
    see `witness`: the true label ends at PatchCleanser's min-k, or nearer to the top.
    """
    target = _Target(votes, image, patch, ties)
    if isinstance(votes.ablation, Masks):
        worst = max(target.on_masks(), key=lambda each: (each[2].position, -each[2].short))
        return target.rewriting(*worst)
    best: tuple[int, int] | None = None
    for p, (clean, held) in enumerate(target.walk()):
        gaps = target.gaps(clean)
        order = np.argsort(gaps, kind="stable")[:-1]
        left = target.budget(p) - np.cumsum(gaps[order])
        lifted = int((left >= 0).sum())
        short = int(left[lifted]) if lifted < len(order) else 0
        if best is None or (lifted, short) > best:
            best = (lifted, short)
            found = p, clean.copy(), held.copy(), order[:lifted], order[lifted : lifted + 1]
    p, clean, held, raised, following = found
    gaps = target.gaps(clean)
    paid = gaps[raised]
    if len(following):
        rest = target.budget(p) - int(paid.sum())
        raised, paid = np.append(raised, following), np.append(paid, rest)
    return target.attacked(p, clean, held, raised, paid)


class _Target:
    """One image, one patch and a rule for ties."""

    def __init__(self, votes: Votes, image: int, patch: AnyPatch, ties: str) -> None:
        check_votes(votes)
        image = positive_int(image, "the number of an image", at_least=-len(votes))
        if image >= len(votes):
            raise VotesError(f"image {image} is not one of the {len(votes)} images")
        if votes.unread is not None and votes.unread[image]:
            raise VotesError(f"image {image} could not be read, so there are no ballots to rewrite")
        self.image = image
        self.votes = votes.require_complete("an attack")
        self.patch = certified_patch(patch, votes.image_size)
        alone = votes.take([image])
        if isinstance(votes.ablation, Masks):
            find("patchcleanser").refuse(votes.ablation, on_input(alone, self.patch), votes.image_size)
        self.positions = touched_by(alone, self.patch)
        self.truth = int(votes.truth[image])
        self.labels, self.units = units_given(votes, image)
        # A rival that loses ties needs one more vote.
        self.handicap = known_ties(ties) & (np.arange(votes.num_classes) > self.truth)

    def walk(self) -> Iterator[tuple[Indices, npt.NDArray[np.bool_]]]:
        return _walk(self.positions, self.labels, self.units, self.votes.num_classes)

    def budget(self, p: int) -> int:
        return self.votes.cap * int(self.positions.budgets[p])

    def gaps(self, clean: Indices) -> Indices:
        """[L], the votes each label lacks to pass the true one; infinite for the true label itself."""
        gaps: Indices = np.maximum(clean[self.truth] - clean + self.handicap, 0)
        gaps[self.truth] = np.iinfo(np.int64).max
        return gaps

    def attacked(
        self, p: int, clean: Indices, held: npt.NDArray[np.bool_], lifted: Indices, paid: Indices
    ) -> Witness:
        """The attack at position p that gives each of the `lifted` rivals the units in `paid`."""
        mutants, given, amount = _spend(np.flatnonzero(held), lifted, paid, self.votes)
        scores = clean.copy()
        np.add.at(scores, given, amount)
        position = int((scores - self.handicap >= scores[self.truth]).sum())
        return self._witness(p, held, (mutants, given, amount), scores, position)

    def on_masks(self, most: int | None = None) -> Iterator[tuple[int, npt.NDArray[np.bool_], Attack]]:
        """The position, the touched mutants and the attack there, for every position."""
        image = MaxMin(self.votes, self.image)
        for p, held in enumerate(self.positions.sets()):
            yield p, held, image.attack(held, most)

    def rewriting(self, p: int, held: npt.NDArray[np.bool_], attack: Attack) -> Witness:
        ballots = attack.mutants, attack.labels, attack.units
        return self._witness(p, held, ballots, attack.scores, attack.position)

    def _witness(
        self,
        p: int,
        held: npt.NDArray[np.bool_],
        ballots: tuple[Indices, Indices, Indices],
        scores: Indices,
        position: int,
    ) -> Witness:
        return Witness(
            self.patch,
            tuple((int(top), int(left)) for top, left in self.positions.places[p]),
            np.flatnonzero(held),
            *ballots,
            scores,
            position,
            self.truth,
            self.votes.take([self.image]),
        )


def units_given(votes: Votes, image: int) -> tuple[Indices, Indices]:
    """Labels and units of every mutant, both [B, j]; one unit per hard ballot."""
    if votes.labels is None or votes.units is None:
        labels = votes.ballots[image][:, None].astype(np.int64)
        return labels, np.ones_like(labels)
    return votes.labels[image].astype(np.int64), votes.units[image].astype(np.int64)


def _walk(
    positions: Touched, labels: Indices, units: Indices, num_classes: int
) -> Iterator[tuple[Indices, npt.NDArray[np.bool_]]]:
    """Clean votes [L] and touched mutants [B] at every position; both arrays are updated in place."""
    clean = np.zeros(num_classes, dtype=np.int64)
    np.add.at(clean, labels, units)
    held = np.zeros(len(labels), dtype=np.bool_)
    for start, stop in zip(positions.offsets[:-1], positions.offsets[1:], strict=True):
        step = positions.flips[start:stop]
        enters = step >= 0
        mutants = np.where(enters, step, ~step)
        np.add.at(clean, labels[mutants], np.where(enters, -1, 1)[:, None] * units[mutants])
        held[mutants] = enters
        yield clean, held


def _spend(
    mutants: Indices, lifted: Indices, gaps: Indices, votes: Votes
) -> tuple[Indices, Indices, Indices]:
    """Pay the gap of each lifted rival with the touched ballots; the rest of the budget goes to the first."""
    wanted = gaps.copy()
    # The slice is empty if there is only one class, and so no rival.
    wanted[:1] += votes.cap * len(mutants) - int(gaps.sum())
    # Split the budget wherever a rival has its gap, and wherever a ballot ends.
    ends = np.cumsum(wanted)
    cuts = np.union1d(ends, votes.cap * np.arange(1, len(mutants) + 1)) if len(wanted) else ends
    starts = np.concatenate([[0], cuts[:-1]]).astype(np.int64)
    amount = cuts - starts
    some = amount > 0
    rival = np.searchsorted(ends, starts, side="right")
    return mutants[starts[some] // votes.cap], lifted[rival[some]], amount[some]
