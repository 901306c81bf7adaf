"""PatchGuard: the prediction itself masks what a patch could have written.

Each label loses its best window, a window being a touched set T_p:

    score s[y] = v[y] - max over p of #{i in T_p : b_i = y}

Under patch p a rival scores at most α_p[y], because window p removes all that the attacker wrote, and the
true label at least t = α_p[y0] - max over p' of #{i in T_p' \\ T_p : b_i = y0}. So

    rivals(p) = #{y ≠ y0 : α_p[y] ≥ t}        min-k = 1 + max over p of rivals(p)

Windows wrap where mutants wrap. In the published code they do not, and it certifies what a patch at the
border breaks (tests/defenders/test_peers_mistakes.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from costcert.compiled import ready, side_by_side
from costcert.defenders import kernels
from costcert.defenders.base import Defender
from costcert.defenders.worst_case import Arrays, Counts, known_ties
from costcert.geometry.touch import Touched
from costcert.votes.table import Votes, read_only


class PatchGuard(Defender):
    name = "patchguard"
    title = "PatchGuard"
    meaning = (
        "Before labels are ranked, each one loses the votes of the window where it has most, so that a patch "
        "cannot keep what it wrote."
    )
    reads_soft = False
    reads_unknown = True
    masks = True
    priced: ClassVar[bool] = False

    def scores(self, votes: Votes, touched: Touched) -> npt.NDArray[np.int64]:
        images = np.arange(len(votes))[:, None]
        best_window = np.zeros((len(votes), votes.num_classes), dtype=np.int64)
        for window in touched.sets():
            held = np.zeros_like(best_window)
            np.add.at(held, (images, votes.ballots[:, window]), 1)
            np.maximum(best_window, held, out=best_window)
        return super().scores(votes, touched) - best_window

    def position(self, votes: Votes, touched: Touched) -> Counts:
        rank = np.empty(len(votes), dtype=np.int64)
        self._run(votes, touched, "lowest", rank=rank)
        return rank

    def rivals(self, votes: Votes, patches: Sequence[Touched], ties: str) -> Counts:
        passing = np.empty((len(patches), len(votes)), dtype=np.int64)
        for touched, row in zip(patches, passing, strict=True):
            self._run(votes, touched, ties, passing=row)
        return passing

    def _run(
        self,
        votes: Votes,
        touched: Touched,
        ties: str,
        *,
        rank: Counts | None = None,
        passing: Counts | None = None,
    ) -> None:
        labels, units = Arrays.of(votes)
        members = read_only(np.asarray(votes.truth[:, None], dtype=np.int32))
        lowest = known_ties(ties)
        not_requested = np.empty(0, dtype=np.int64)

        def work(first: int, last: int) -> None:
            images = slice(first, last)
            kernels.masked(
                labels[images],
                units[images],
                members[images],
                votes.num_classes,
                touched.words,
                lowest,
                self.priced,
                not_requested if rank is None else rank[images],
                not_requested if passing is None else passing[images],
            )

        ready(kernels.masked, lambda: work(0, 0))
        side_by_side(work, len(votes))
