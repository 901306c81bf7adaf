"""Double masking: PatchCleanser's rule over votes, for every k.

PatchCleanser hides pairs of masks in the picture. Here pairs of windows are hidden among the votes, a window
being a touched set T_p: the votes outside windows i and j say what a picture without both would be called,
and a mutant is evaluated once for all pairs. With the lead of a label in a pair,

    c_ij[y] = v_ij[y] - max over z ≠ y of v_ij[z]        v_ij: the votes outside T_i and T_j

labels are ranked by S[y] = max over i of min over j of c_ij[y]. Under patch p all pairs with window p are
what they were. So the true label keeps S'[y0] ≥ L_p = min over j of c_pj[y0]; every row i holds the pair
(i, p), so a rival has at most U_p[y] = max over i ≠ p of c_ip[y]; and

    rivals(p) = #{y ≠ y0 : U_p[y] ≥ L_p}        min-k = 1 + max over p of rivals(p)

At k = 1 this certifies all that PatchGuard does on the same votes (docs/theory.md#double-masking), and more:
PatchGuard compares the true label without both windows to rivals without one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from costcert.compiled import ready, side_by_side
from costcert.defenders import kernels
from costcert.defenders.base import Defender
from costcert.defenders.patchguard import PatchGuard
from costcert.defenders.worst_case import Arrays, Counts, known_ties
from costcert.errors import CostcertError
from costcert.geometry.ablations import Ablation
from costcert.geometry.footprints import Footprint
from costcert.geometry.patches import OnePatch, Several
from costcert.geometry.sizes import ImageSize
from costcert.geometry.touch import Touched
from costcert.geometry.touch import touched as touched_by
from costcert.votes.table import Votes, read_only

# Limit on windows, whose pairs are all looked at: about 100 ms for an image with 50 labels.
_MOST_WINDOWS = 1 << 11


class DoubleMasking(Defender):
    name = "double-masking"
    title = "Double masking"
    meaning = (
        "Ranks a label by the window without whose votes it leads most, whatever second window is left out "
        "as well: PatchCleanser's rule over votes."
    )
    reads_unknown = True
    masks = True
    # Its time grows with the square of the number of windows: milliseconds per image at 224 columns.
    by_name_only = True

    def scores(self, votes: Votes, touched: Touched) -> npt.NDArray[np.int64]:
        scores = np.empty((len(votes), votes.num_classes), dtype=np.int64)
        self._run(votes, touched, "lowest", scores=scores)
        return scores

    def position(self, votes: Votes, touched: Touched) -> Counts:
        return self._contested(votes, touched, "lowest", "rank", decided=1)

    def rivals(self, votes: Votes, patches: Sequence[Touched], ties: str) -> Counts:
        return np.stack([self._contested(votes, touched, ties, "passing", decided=0) for touched in patches])

    def refuse(
        self, ablation: Ablation, patch: OnePatch | Several | Footprint, image_size: ImageSize
    ) -> None:
        _refuse_many(touched_by(ablation, patch, image_size))

    def _contested(self, votes: Votes, touched: Touched, ties: str, wanted: str, decided: int) -> Counts:
        """What `_run` finds; `decided` where PatchGuard shows that the true label leads in all pairs."""
        counts = np.full(len(votes), decided, dtype=np.int64)
        contested = np.flatnonzero(PatchGuard().rivals(votes, [touched], "against")[0])
        if len(contested):
            found = np.empty(len(contested), dtype=np.int64)
            self._run(votes.take(contested), touched, ties, **{wanted: found})
            counts[contested] = found
        return counts

    def _run(
        self,
        votes: Votes,
        touched: Touched,
        ties: str,
        *,
        scores: npt.NDArray[np.int64] | None = None,
        rank: Counts | None = None,
        passing: Counts | None = None,
    ) -> None:
        _refuse_many(touched)
        labels, units = Arrays.of(votes)
        members = read_only(np.asarray(votes.truth[:, None], dtype=np.int32))
        terms = kernels.Terms(
            votes.num_classes, votes.cap, votes.tau, known_ties(ties), kernels.CHEAPEST_FIRST
        )
        num_mutants, labels_each = labels.shape[1:]

        def work(first: int, last: int) -> None:
            images = slice(first, last)
            kernels.double_masked(
                labels[images],
                units[images],
                members[images],
                touched.flips,
                touched.offsets,
                terms,
                kernels.blank_image(num_mutants, labels_each, 1, votes.num_classes),
                kernels.blank_pair_tables(num_mutants, labels_each, votes.num_classes, len(touched)),
                np.empty((0, 0), dtype=np.int64) if scores is None else scores[images],
                np.empty(0, dtype=np.int64) if rank is None else rank[images],
                np.empty(0, dtype=np.int64) if passing is None else passing[images],
            )

        ready(kernels.double_masked, lambda: work(0, 0))
        side_by_side(work, len(votes), at_least=1)


def _refuse_many(touched: Touched) -> None:
    if len(touched) > _MOST_WINDOWS:
        raise CostcertError(
            f"{len(touched):,} windows have too many pairs to mask: use costcert or patchguard, or a larger "
            f"stride (double-masking takes up to {_MOST_WINDOWS:,})"
        )
