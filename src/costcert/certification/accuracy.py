"""Clean and certified accuracy at k, with confidence intervals.

clean accuracy(k) = share of images with rank ≤ k; certified accuracy(k) = share with min-k ≤ k.
Counts of ranks add up, so a data set of any size is summed shard by shard.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from costcert.errors import CostcertError
from costcert.geometry.sizes import positive_int

if TYPE_CHECKING:
    import pandas as pd

    from costcert.certification.certificates import Certificates

Counts = npt.NDArray[np.int64]


def wilson(hits: int, images: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's interval for a share: stays within 0 and 1 and holds for shares near either."""
    if not 0 < confidence < 1:
        raise CostcertError(f"a confidence is between 0 and 1, got {confidence}")
    z2 = NormalDist().inv_cdf((1 + confidence) / 2) ** 2
    share = hits / images
    middle = share + z2 / (2 * images)
    half = (z2 * (share * (1 - share) / images + z2 / (4 * images**2))) ** 0.5
    scale = 1 + z2 / images
    # At the ends rounding would leave the share just outside its own interval.
    return min((middle - half) / scale, share), max((middle + half) / scale, share)


class Tally:
    """How many images have each rank and each min-k, per defender and patch.

    `ranks[defender, patch][r]` images have rank r, `min_ks[defender, patch][k]` have min-k k; a patch is
    named by its spelling.
    """

    def __init__(self) -> None:
        self.images = 0
        self.ranks: dict[tuple[str, str], Counts] = {}
        self.min_ks: dict[tuple[str, str], Counts] = {}

    def add(self, certificates: Certificates) -> None:
        self.images += len(certificates)
        longest = certificates.num_classes + 1
        for case in certificates.cases:
            rank, min_k = certificates.rank(*case), certificates.min_k(*case)
            key = (case[0], str(case[1]))
            for counts, values in ((self.ranks, rank), (self.min_ks, min_k)):
                counted = np.bincount(values, minlength=longest)
                counts[key] = counts[key] + counted if key in counts else counted

    def accuracy(self, k: int | Iterable[int] = range(1, 6), *, confidence: float = 0.95) -> pd.DataFrame:
        """A tidy table: defender, patch, k, images, and clean and certified shares with their intervals."""
        import pandas as pd

        if self.images == 0:
            raise CostcertError("no image was certified, so there is no accuracy")
        ks = [positive_int(each, "k") for each in ([k] if isinstance(k, int) else k)]
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
        return pd.DataFrame(rows)
