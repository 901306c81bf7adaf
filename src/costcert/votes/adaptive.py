"""Adaptive stopping: evaluate the mutants of an image only until bounds from the known ballots decide."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from costcert.certification.certify import AnyPatch, concrete_patches
from costcert.certification.guarantees import bounds
from costcert.defenders import find
from costcert.geometry.ablations import Ablation, Masks
from costcert.geometry.patches import OnePatch, Several
from costcert.geometry.sizes import ImageSize, positive_ints
from costcert.votes.rows import TopRows as TopRows
from costcert.votes.rows import next_row
from costcert.votes.table import Votes

# Numbers of mutants, one per image.
Mutants = npt.NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class StoppingRule:
    """Stop when it is decided whether the true label is in the top k, and stays there under these patches.

    For these patches and these k, certificates of the evaluated ballots equal those of all ballots:
    CostCert's, or PatchCleanser's for votes of masks. For others they are sound, but may be weaker.
    """

    patches: tuple[OnePatch | Several, ...]
    ks: tuple[int, ...]
    ties: str = "against"

    # The most parts in which the mutants of an image are evaluated, one after the other.
    steps: ClassVar[int] = 16

    def __repr__(self) -> str:
        patches, ks = (", ".join(map(str, each)) for each in (self.patches, self.ks))
        return f"StoppingRule(patches {patches}; k {ks}; ties {self.ties})"

    @classmethod
    def parse(
        cls, patches: AnyPatch | Iterable[AnyPatch], k: int | Iterable[int], image_size: ImageSize
    ) -> StoppingRule:
        return cls(tuple(concrete_patches(patches, image_size)), tuple(positive_ints(k, "k")))

    def refuse(self, ablation: Ablation, image_size: ImageSize) -> None:
        """Raise where masks do not cover a patch, about which their votes can decide nothing."""
        if isinstance(ablation, Masks):
            for patch in self.patches:
                find("patchcleanser").refuse(ablation, patch, image_size)

    def decided(self, votes: Votes) -> npt.NDArray[np.bool_]:
        """[N], whether the known ballots of each image decide, whatever the others are."""
        done = np.ones(len(votes), dtype=np.bool_)
        for patch in self.patches:
            found = bounds(votes, patch, ties=self.ties)
            for k in self.ks:
                done &= (found.rank_high <= k) | (found.rank_low > k)
                done &= (found.min_k_high <= k) | (found.min_k_low > k)
        return done

    def lacking(self, votes: Votes) -> Mutants:
        """[N], 0 if the known ballots decide, and 1 otherwise: at least one more has to be evaluated."""
        return np.where(self.decided(votes), 0, 1)

    def to_json(self) -> dict[str, Any]:
        return {"patches": [str(patch) for patch in self.patches], "k": list(self.ks), "ties": self.ties}


@dataclass(frozen=True)
class TopK:
    """Stop when the first k labels of a prediction by votes, in order, are those of all ballots.

    The remaining ballots are worth R units together. A label stays ahead of the next one if it leads by more
    than R, or by R with ties in its favour. No other pair has to be compared: whoever is further behind needs
    more.
    """

    k: int

    # A step on one image costs time of its own, and half of the mutants at least are in the first.
    steps: ClassVar[int] = 4

    def lacking(self, votes: Votes) -> Mutants:
        """[N], 0 if the known ballots decide; otherwise how many more have to be evaluated, at least."""
        leads, ties_won = self._leads(counted(votes))
        known = np.full(len(votes), votes.num_mutants) if votes.known is None else votes.known.sum(axis=1)
        remaining = (votes.num_mutants - known) * votes.cap
        decided = ((leads > remaining[:, None]) | ((leads == remaining[:, None]) & ties_won)).all(axis=1)
        # With each ballot R falls by a cap U, a lead grows by U at most, and so does the sum of i times the
        # i-th lead: it is what the first k have, minus k times what the next one has.
        places = np.arange(1, leads.shape[1] + 1)
        by_lead = -(-(remaining[:, None] - leads) // (2 * votes.cap)).max(axis=1, initial=0)
        total = places.sum()
        by_sum = -(-(total * remaining - leads @ places) // (votes.cap * (total + 1)))
        return np.where(decided, 0, np.maximum(1, np.maximum(by_lead, by_sum)))

    def predict(self, votes: Votes) -> npt.NDArray[np.int64]:
        """[N, k], the first labels by the known ballots."""
        return _best_first(counted(votes))[:, : self.k]

    def _leads(self, scores: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """[N, k], by how much each of the first k labels leads the next, and whether it wins a tie."""
        listed = _best_first(scores)[:, : self.k + 1]
        leads = -np.diff(np.take_along_axis(scores, listed, axis=1), axis=1)
        return leads, listed[:, :-1] < listed[:, 1:]


def counted(votes: Votes) -> npt.NDArray[np.int64]:
    """[N, L], the units that the known ballots give to each label."""
    scores = np.zeros((len(votes), votes.num_classes), dtype=np.int64)
    labels = votes.ballots[..., None] if votes.labels is None else votes.labels
    units = np.ones_like(labels) if votes.units is None else votes.units
    known = True if votes.known is None else votes.known[..., None]
    np.add.at(scores, (np.arange(len(votes))[:, None, None], labels), units * known)
    return scores


def _best_first(scores: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """[N, L], the labels by their scores, ties to the lowest."""
    return np.argsort(-scores, axis=1, kind="stable")


def spread_out(mutants: int) -> list[int]:
    """All mutants: first some spread over the whole image, then those halfway between them."""
    order: list[int] = []
    step = 1 << max(0, (mutants - 1).bit_length())
    while step:
        order += [mutant for mutant in range(0, mutants, step) if mutant % (2 * step) or not order]
        step //= 2
    return order


class Turn(NamedTuple):
    """Mutants that are evaluated next, of these images."""

    images: npt.NDArray[np.int64]
    mutants: list[int]


def next_turns(votes: Votes, lacking: Mutants, until: StoppingRule | TopK | TopRows) -> list[Turn]:
    """What to evaluate next of undecided images: the same mutants of all, or of masks a row of each."""
    images = np.arange(len(votes))
    assert votes.known is not None
    if isinstance(votes.ablation, Masks):
        rows = [
            next_row(votes, image, of_truth=isinstance(until, StoppingRule)) for image in range(len(votes))
        ]
        together = all(row == rows[0] for row in rows)
        return (
            [Turn(images, rows[0])] if together else [Turn(images[[at]], row) for at, row in enumerate(rows)]
        )
    assert not isinstance(until, TopRows)
    order = [mutant for mutant in spread_out(votes.num_mutants) if not votes.known[0, mutant]]
    return [Turn(images, order[: next_step(lacking, votes.num_mutants, until.steps)])]


def next_step(lacking: Mutants, mutants: int, steps: int) -> int:
    """How many mutants to evaluate next: what every undecided image lacks, and not too few."""
    return max(1, int(lacking.min()), -(-mutants // steps))
