"""What a defender is: a way to rank labels, and a bound on the true label's position under attack."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from costcert.defenders import kernels
from costcert.defenders.worst_case import Counts, worst_case
from costcert.errors import CostcertError
from costcert.geometry.ablations import Ablation
from costcert.geometry.footprints import Footprint
from costcert.geometry.patches import OnePatch, Several
from costcert.geometry.sizes import ImageSize
from costcert.geometry.touch import Touched
from costcert.votes.table import Votes


class Defender(ABC):
    """Gives rank and min-k of each image. The prediction it certifies is the one it makes.

    A subclass defines `rivals`, and `scores` and `position` where it does not rank labels by their votes.
    Callers use `rank` and `min_k`, which give the last position for images with unknown ballots unless the
    defender declares that it handles them.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    # What it does, in one sentence for readers of pages and tables.
    meaning: ClassVar[str] = "A defender from an installed package, without a description."
    reads_soft: ClassVar[bool] = True
    # Whether `rivals` counts a ballot that is not known (`Votes.known`, `Votes.tau`) as the attacker's.
    reads_unknown: ClassVar[bool] = False
    # Whether `position` does, too.
    ranks_unknown: ClassVar[bool] = False
    # Whether the prediction masks what a patch could have written, so that it is another for each patch.
    masks: ClassVar[bool] = False
    # Whether it is certified only if named, and `all` leaves it out.
    by_name_only: ClassVar[bool] = False
    # Whether it reads votes of `Masks`, and those alone; other defenders read them if named.
    reads_masks: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for method, instead in (("min_k", "rivals"), ("rank", "position")):
            if method in cls.__dict__:
                raise CostcertError(
                    f"{cls.__name__} must not define {method}, which handles unknown ballots: define "
                    f"{instead} (docs/extending.md)"
                )

    def scores(self, votes: Votes, touched: Touched) -> npt.NDArray[np.int64]:
        """[N, L], what labels are ranked by on the image as it is: here the votes.

        Args:
            touched: the patch that a masking defender masks for.
        """
        return votes_within(votes)

    def predict(self, votes: Votes, touched: Touched, k: int) -> npt.NDArray[np.int64]:
        """[N, k], the top-k labels, best first, ties to the lowest label."""
        scores = self.scores(votes.require_complete("a prediction"), touched)
        return np.asarray(np.argsort(-scores, axis=1, kind="stable")[:, :k])

    def rank(self, votes: Votes, touched: Touched) -> Counts:
        """[N], position of the true label in the prediction; at worst, where ballots are unknown."""
        self._refuse_soft(votes)
        return _without_promise(self.position(votes, touched), votes, self.ranks_unknown)

    def min_k(self, votes: Votes, patches: Sequence[Touched], *, ties: str = "against") -> Counts:
        """[P, N], for each of P patches the smallest k for which the true label always stays in the top k."""
        self._refuse_soft(votes)
        return _without_promise(1 + self.rivals(votes, patches, ties), votes, self.reads_unknown)

    @property
    def ranks_by_votes(self) -> bool:
        """Whether the prediction ranks labels by their votes, as most do."""
        return type(self).position is Defender.position

    @property
    def predicts_by_votes(self) -> bool:
        """Whether the prediction is the labels with the most votes, so that some ballots may decide it."""
        mine = type(self)
        return mine.scores is Defender.scores and mine.predict is Defender.predict and self.ranks_by_votes

    def position(self, votes: Votes, touched: Touched) -> Counts:
        """[N], the rank: min-k with an empty touched set, and ties as the prediction breaks them."""
        nothing = [Touched.nothing(votes.num_mutants)]
        rank: Counts = 1 + self.passing(kernels.CHEAPEST_FIRST, votes, nothing, "lowest")[0]
        return rank

    @abstractmethod
    def rivals(self, votes: Votes, patches: Sequence[Touched], ties: str) -> Counts:
        """[P, N], for each of P patches the most rivals that can get past the true label."""

    def passing(
        self,
        rule: int,
        votes: Votes,
        patches: Sequence[Touched],
        ties: str,
        extras: Sequence[int] | None = None,
    ) -> Counts:
        """[P, N], how many rivals get past the true label by a rule of `kernels`, at the worst position."""
        return worst_case(rule, votes, patches, members=votes.truth[:, np.newaxis], ties=ties, extras=extras)

    def refusal(self, soft: bool, partial: bool) -> str | None:
        """Why such ballots are not for this defender."""
        if soft and not self.reads_soft:
            return (
                f"{self.name} reads one label per ballot, but these votes are soft: "
                "certify their hard ballots, or use costcert, cbn or drs"
            )
        if partial and not (self.reads_unknown and self.ranks_unknown):
            return (
                f"{self.name} needs the ballots of all mutants, but some were not evaluated: vote in full, "
                "or use costcert, cbn or drs"
            )
        return None

    def refuse(
        self, ablation: Ablation, patch: OnePatch | Several | Footprint, image_size: ImageSize
    ) -> None:
        """Raise where this defender has nothing to say about such mutants and such a patch: here nowhere."""
        return

    def _refuse_soft(self, votes: Votes) -> None:
        if votes.is_soft and not self.reads_soft:
            raise CostcertError(self.refusal(soft=True, partial=False))


def votes_within(votes: Votes, mutants: Any = slice(None)) -> npt.NDArray[np.int64]:
    """[N, L], the votes, or units of soft ballots, that these mutants give to each label."""
    scores = np.zeros((len(votes), votes.num_classes), dtype=np.int64)
    images = np.arange(len(votes))[:, None]
    if votes.labels is None or votes.units is None:
        np.add.at(scores, (images, votes.ballots[:, mutants]), 1)
    else:
        np.add.at(scores, (images[..., None], votes.labels[:, mutants]), votes.units[:, mutants])
    return scores


def _without_promise(positions: Counts, votes: Votes, reads_unknown: bool) -> Counts:
    """The last position for images with unknown ballots, unless the positions account for those."""
    if reads_unknown or (votes.known is None and not votes.tau):
        return positions
    some = np.ones(len(votes), np.bool_) if votes.tau or votes.known is None else ~votes.known.all(axis=1)
    return np.where(some, votes.num_classes, positions)
