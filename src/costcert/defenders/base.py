"""What a defender is: a way to rank labels, and a bound on the true label's position under attack."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from costcert.defenders import kernels
from costcert.defenders.worst_case import Counts, worst_case
from costcert.geometry.touch import Touched
from costcert.votes import Votes


@dataclass(frozen=True)
class Doubt:
    """Which ballots another machine might count differently (theory: numerical soundness).

    Args:
        unknown: [N, B], mutants that every patch is taken to touch.
        tau: units by which any other soft ballot may be off, per label.
    """

    unknown: npt.NDArray[np.bool_] | None = None
    tau: int = 0

    def take(self, images: slice) -> Doubt:
        return Doubt(None if self.unknown is None else self.unknown[images], self.tau)


class Defender(ABC):
    """Gives rank and min-k of each image. The prediction it certifies is the one it makes."""

    name: ClassVar[str]
    title: ClassVar[str]
    reads_soft: ClassVar[bool] = True
    # Whether it can do without some of the ballots.
    reads_part: ClassVar[bool] = True
    # Whether the prediction ranks labels by their votes, whatever the patch.
    ranks_by_votes: ClassVar[bool] = True

    def scores(self, votes: Votes, touched: Touched) -> npt.NDArray[np.int64]:
        """[N, L], what labels are ranked by on the image as it is: here the votes."""
        scores = np.zeros((len(votes), votes.num_classes), dtype=np.int64)
        images = np.arange(len(votes))[:, None]
        if votes.labels is None or votes.units is None:
            np.add.at(scores, (images, votes.ballots), 1)
        else:
            np.add.at(scores, (images[..., None], votes.labels), votes.units)
        return scores

    def predict(self, votes: Votes, touched: Touched, k: int) -> npt.NDArray[np.int64]:
        """[N, k], the top-k labels, best first, ties to the lowest label."""
        best_first = np.argsort(-self.scores(votes.whole("a prediction"), touched), axis=1, kind="stable")
        return np.asarray(best_first[:, :k])

    def rank(self, votes: Votes, touched: Touched) -> Counts:
        """[N], position of the true label in the prediction: the min-k against nobody, with known ties."""
        nobody = [Touched.nothing(votes.num_mutants)]
        rank: Counts = 1 + self.passing(kernels.CHEAPEST_FIRST, votes, nobody, "lowest", None)[0]
        return rank

    def passing(
        self,
        rule: int,
        votes: Votes,
        cases: Sequence[Touched],
        ties: str,
        doubt: Doubt | None,
        extras: Sequence[int] | None = None,
    ) -> Counts:
        """[P, N], how many rivals get past the true label by a rule of `kernels`, at the worst place."""
        doubt = doubt or Doubt()
        return worst_case(
            rule,
            votes,
            cases,
            members=votes.truth[:, np.newaxis],
            ties=ties,
            unknown=doubt.unknown,
            tau=doubt.tau,
            extras=extras,
        )

    @abstractmethod
    def min_k(
        self, votes: Votes, cases: Sequence[Touched], *, ties: str = "against", doubt: Doubt | None = None
    ) -> Counts:
        """[P, N], for each of P patches the smallest k for which the true label always stays in the top k."""
