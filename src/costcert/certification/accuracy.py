"""Clean and certified accuracy at k, with confidence intervals.

clean accuracy(k) = share of images with rank ≤ k; certified accuracy(k) = share with min-k ≤ k.
Counts of ranks add up, so a dataset of any size is processed shard by shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from costcert.errors import CostcertError
from costcert.geometry.sizes import positive_ints

if TYPE_CHECKING:
    import pandas as pd

    from costcert.certification.certificates import Certificates

Counts = npt.NDArray[np.int64]


def wilson(hits: int, images: int, confidence: float = 0.95) -> tuple[float, float]:
    """The Wilson score interval of a proportion: it stays within 0 and 1, and is accurate near both."""
    if not isinstance(confidence, float) or not 0 < confidence < 1:
        raise CostcertError(f"the confidence must be between 0 and 1, got {confidence!r}")
    z2 = NormalDist().inv_cdf((1 + confidence) / 2) ** 2
    share = hits / images
    middle = share + z2 / (2 * images)
    half = (z2 * (share * (1 - share) / images + z2 / (4 * images**2))) ** 0.5
    scale = 1 + z2 / images
    # At 0 and 1 rounding could leave the share just outside its own interval.
    return min((middle - half) / scale, share), max((middle + half) / scale, share)


def list_lengths(k: int | Iterable[int], num_classes: int) -> list[int]:
    """One k, or several; the top k of more than all classes is refused, as it says nothing."""
    ks = positive_ints(k, "k")
    if max(ks) > num_classes:
        raise CostcertError(
            f"got k {max(ks)}, but there are {num_classes:,} classes, and the top {num_classes:,} already "
            f"lists every label: pass k below {num_classes:,}"
        )
    return ks


class Tally:
    """Counts of images by rank and by min-k, for each defender and patch.

    `ranks[defender, patch][r]` images have rank r, `min_ks[defender, patch][k]` have min-k k; the patch is
    given by its spelling.
    """

    def __init__(self) -> None:
        self.images = 0
        self.ranks: dict[tuple[str, str], Counts] = {}
        self.min_ks: dict[tuple[str, str], Counts] = {}

    def add(self, certificates: Certificates) -> None:
        self.images += len(certificates)
        longest = certificates.num_classes + 1
        for defender, patch in certificates.keys:
            key = (defender, str(patch))
            rank, min_k = certificates.rank(defender, patch), certificates.min_k(defender, patch)
            for counts, values in ((self.ranks, rank), (self.min_ks, min_k)):
                counted = np.bincount(values, minlength=longest)
                counts[key] = counts[key] + counted if key in counts else counted

    def accuracy(self, k: int | Iterable[int] = range(1, 6), *, confidence: float = 0.95) -> pd.DataFrame:
        """A tidy table: defender, patch, k, images, and clean and certified shares with their intervals."""
        from costcert.certification.accuracy_table import AccuracyTable

        if self.images == 0:
            raise CostcertError("accuracy needs at least one certified image, got none")
        ks = positive_ints(k, "k")
        rows = []
        for (defender, patch), ranks in self.ranks.items():
            for each in ks:
                row: dict[str, object] = {
                    "defender": defender,
                    "patch": patch,
                    "k": each,
                    "images": self.images,
                }
                for name, counts in (("clean", ranks), ("certified", self.min_ks[defender, patch])):
                    hits = int(counts[: each + 1].sum())
                    row[name] = hits / self.images
                    row[f"{name}_low"], row[f"{name}_high"] = wilson(hits, self.images, confidence)
                rows.append(row)
        return AccuracyTable(rows)
