"""PatchCleanser's masks, for every k: a label needs one mask under which it stands whatever else is hidden.

With c_ij[y] what the mutant that hides masks i and j gives to label y (c_ij = c_ji), labels are ranked by

    S[y] = max over i of min over j of c_ij[y]

then by votes, then by the lowest label. A mutant (i, j) is clean for p if masks i and j together hide all of
p. A row i is safe for p, i in R_p, if every (i, j) is clean: mask i alone covers p. Whatever is written at p,

    S[y0] ≥ L_p    = max over i in R_p of min over j of c_ij[y0]
    S[y]  ≤ U_p[y] = max over i of min over j with (i, j) clean of c_ij[y]

because the attacker can only lower what y0 has in rows that are not safe, and only raise what a rival has
in mutants that are not clean. So

    rivals(p) = #{y ≠ y0 : U_p[y] ≥ L_p}        min-k = 1 + max over p of rivals(p)

and min-k = L where no row is safe. Equal scores count against y0 whatever the rule for ties: the votes that
would break them are partly the attacker's. With hard ballots and k = 1 this is PatchCleanser's published
condition, that all mutants agree (Xiang et al., USENIX Security 2022). Larger k and soft ballots are not in
that paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from costcert.compiled import ready, side_by_side
from costcert.defenders import pair_kernels
from costcert.defenders.base import Defender, votes_within
from costcert.defenders.worst_case import Arrays, Counts
from costcert.errors import CostcertError
from costcert.geometry.ablations import Ablation, Masks
from costcert.geometry.footprints import Footprint
from costcert.geometry.masks import shown_sides
from costcert.geometry.patches import OnePatch, Several
from costcert.geometry.sizes import ImageSize
from costcert.geometry.touch import Touched, touched
from costcert.votes.table import Votes


class PatchCleanser(Defender):
    name = "patchcleanser"
    title = "PatchCleanser"
    meaning = (
        "Hides what a patch could cover, and ranks a label by the mask under which it stands best, whatever "
        "else is hidden; it needs votes of masks."
    )
    reads_unknown = True
    ranks_unknown = True
    reads_masks = True

    def scores(self, votes: Votes, touched: Touched) -> npt.NDArray[np.int64]:
        """[N, L], S."""
        rows = masks_of(votes).table()
        best = np.empty((len(votes), votes.num_classes), dtype=np.int64)
        for image in range(len(votes)):
            best[image] = gifts(votes, image)[rows].min(axis=1).max(axis=0)
        return best

    def predict(self, votes: Votes, touched: Touched, k: int) -> npt.NDArray[np.int64]:
        """[N, k], labels by S, then by votes, then the lowest."""
        complete = votes.require_complete("a prediction")
        labels = np.broadcast_to(np.arange(votes.num_classes), (len(votes), votes.num_classes))
        order = np.lexsort((labels, -votes_within(complete), -self.scores(complete, touched)), axis=1)
        return order[:, :k].astype(np.int64)

    def position(self, votes: Votes, touched: Touched) -> Counts:
        rank = np.empty(len(votes), dtype=np.int64)
        labels, units = Arrays.of(votes)
        truth, rows = votes.truth.astype(np.int64), masks_of(votes).table()

        def work(first: int, last: int) -> None:
            images = slice(first, last)
            pair_kernels.pair_ranks(
                labels[images], units[images], truth[images], rows, votes.num_classes, rank[images]
            )

        ready(pair_kernels.pair_ranks, lambda: work(0, 0))
        if votes.known is None:
            side_by_side(work, len(votes))
            return rank
        # At worst: unknown ballots are the attacker's, also where nothing else is.
        nothing = Touched.nothing(votes.num_mutants)
        at_worst: Counts = 1 + self.rivals(votes, [nothing], "against")[0]
        complete = np.flatnonzero(votes.known.all(axis=1))
        at_worst[complete] = self.position(votes.take(complete), touched) if len(complete) else 1
        return at_worst

    def rivals(self, votes: Votes, patches: Sequence[Touched], ties: str) -> Counts:
        labels, units = Arrays.of(votes)
        truth = votes.truth.astype(np.int64)
        passing = np.empty((len(patches), len(votes)), dtype=np.int64)
        for touched_sets, out in zip(patches, passing, strict=True):
            geometry = _geometry(masks_of(votes), touched_sets)

            def work(
                first: int, last: int, geometry: pair_kernels.Geometry = geometry, out: Counts = out
            ) -> None:
                images = slice(first, last)
                pair_kernels.pairs(
                    labels[images],
                    units[images],
                    truth[images],
                    geometry,
                    votes.num_classes,
                    votes.cap,
                    votes.tau,
                    out[images],
                )

            ready(pair_kernels.pairs, lambda: work(0, 0))
            side_by_side(work, len(votes))
        return passing

    def refuse(
        self, ablation: Ablation, patch: OnePatch | Several | Footprint, image_size: ImageSize
    ) -> None:
        if not isinstance(ablation, Masks):
            raise CostcertError(
                f"{self.name} needs votes of masks, but these are of {ablation}: vote with --ablation "
                "masks:6/patch=5, or use costcert"
            )
        safe = _geometry(ablation, touched(ablation, patch, image_size)).num_clean == ablation.num_masks
        if safe.any(axis=1).all():
            return
        height, width = ablation.sides
        if isinstance(patch, Several):
            raise CostcertError(
                f"{ablation} cover one patch of up to {height}x{width} pixels, but {patch} is several at "
                "once: vote with columns, or certify against one patch"
            )
        if isinstance(patch, Footprint):
            raise CostcertError(
                f"{ablation} cover patches of up to {height}x{width} pixels, but {patch} changes up to "
                f"{patch.height}x{patch.width} pixels of the input: vote with masks for that, as in masks:"
                f"{ablation.per_axis}/patch={shown_sides((patch.height, patch.width))}"
            )
        raise CostcertError(
            f"{ablation} cover patches of up to {height}x{width} pixels, but {patch} has {patch.height}x"
            f"{patch.width}: vote with masks for it, as in "
            f"{Masks(ablation.per_axis, patch=(patch.height, patch.width))}"
        )


def masks_of(votes: Votes) -> Masks:
    """The masks that cast these votes; votes of others are refused."""
    if not isinstance(votes.ablation, Masks):
        raise CostcertError(f"patchcleanser needs votes of masks, but these are of {votes.ablation}")
    return votes.ablation


def gifts(votes: Votes, image: int) -> npt.NDArray[np.int64]:
    """[B, L], what each mutant gives to each label, whether or not it is known."""
    given = np.zeros((votes.num_mutants, votes.num_classes), dtype=np.int64)
    mutants = np.arange(votes.num_mutants)
    if votes.labels is None or votes.units is None:
        given[mutants, votes.ballots[image]] = 1
    else:
        np.add.at(given, (mutants[:, None], votes.labels[image]), votes.units[image])
    return given


@lru_cache(maxsize=32)
def _geometry(masks: Masks, touched: Touched) -> pair_kernels.Geometry:
    rows = masks.table()
    attacked = np.stack(list(touched.sets()))[:, rows]
    # Clean mutants first, in their order.
    order = np.argsort(attacked, axis=2, kind="stable")
    clean = np.take_along_axis(np.broadcast_to(rows, attacked.shape), order, axis=2)
    num_clean = (~attacked).sum(axis=2, dtype=np.int64)
    return pair_kernels.Geometry(rows, np.ascontiguousarray(clean, dtype=np.int32), num_clean)
