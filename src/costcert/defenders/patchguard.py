"""PatchGuard: the prediction itself masks what a patch could have written.

Each label loses its best window, a window being a touched set T_p:

    score s[y] = v[y] - max over p of #{i in T_p : b_i = y}

Under patch p a rival scores at most α_p[y], because window p removes all that the attacker wrote, and the
true label at least t = α_p[y0] - max over p' of #{i in T_p' \\ T_p : b_i = y0}. So

    rivals(p) = #{y ≠ y0 : α_p[y] ≥ t}        min-k = 1 + max over p of rivals(p)

The proof nowhere uses how much a mutant may give, so soft ballots are masked in the same way: read units for
ballots. At k = 1, where all windows have one size, this certifies all that CostCert does on the same soft
ballots, because the true label gives away only what it holds in a window, not everything a window could hold.

Windows wrap where mutants wrap. In the published code they do not, and it certifies what a patch at the
border breaks (tests/defenders/test_peers_mistakes.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from costcert.compiled import ready, side_by_side
from costcert.defenders import kernels
from costcert.defenders.base import Defender, votes_within
from costcert.defenders.worst_case import Arrays, Counts, known_ties
from costcert.errors import CostcertError
from costcert.geometry.touch import Touched
from costcert.votes.table import Votes, read_only

# Limit on the mutants in all windows together, which are listed where ballots are soft (256 MB).
_MOST_HELD = 1 << 26


class PatchGuard(Defender):
    name = "patchguard"
    title = "PatchGuard"
    meaning = (
        "Before labels are ranked, each one loses the votes of the window where it has most, so that a patch "
        "cannot keep what it wrote."
    )
    reads_unknown = True
    masks = True
    priced: ClassVar[bool] = False

    def scores(self, votes: Votes, touched: Touched) -> npt.NDArray[np.int64]:
        scores = votes_within(votes)
        best_window = np.zeros_like(scores)
        for window in touched.sets():
            np.maximum(best_window, votes_within(votes, window), out=best_window)
        return scores - best_window

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
        not_requested = np.empty(0, dtype=np.int64)
        lowest = known_ties(ties)
        num_mutants, labels_each = labels.shape[1:]
        flips, offsets = touched.clean_first, touched.offsets
        terms: tuple[Any, ...]
        if votes.is_soft:
            kernel: Any = kernels.masked_soft
            told = kernels.Terms(votes.num_classes, votes.cap, votes.tau, lowest, kernels.CHEAPEST_FIRST)
            terms = flips, offsets, _holders(touched), told
        else:
            kernel = kernels.masked
            terms = votes.num_classes, touched.words, flips, offsets, lowest, self.priced

        def scratch() -> tuple[Any, ...]:
            image = kernels.blank_image(num_mutants, labels_each, 1, votes.num_classes)
            if votes.is_soft:
                return image, kernels.blank_soft_windows(num_mutants, labels_each, len(touched))
            return image, *kernels.blank_windows(num_mutants, len(touched))

        def work(first: int, last: int) -> None:
            images = slice(first, last)
            kernel(
                labels[images],
                units[images],
                members[images],
                *terms,
                *scratch(),
                not_requested if rank is None else rank[images],
                not_requested if passing is None else passing[images],
            )

        ready(kernel, lambda: work(0, 0))
        side_by_side(work, len(votes))


def _holders(touched: Touched) -> kernels.Walks:
    held = int(touched.budgets.sum(dtype=np.int64))
    if max(held, len(touched) * touched.num_mutants // 8) > _MOST_HELD:
        raise CostcertError(
            f"{len(touched):,} windows of {touched.num_mutants:,} mutants are too many to mask in soft "
            "ballots: use costcert, hard ballots, or a larger stride"
        )
    found, offsets = touched.holders
    return kernels.Walks(found, offsets, offsets)
