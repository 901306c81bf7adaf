"""Certificates (table 2): the rank and the min-k of every image, for each defender and patch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from costcert.certification.accuracy import Tally
from costcert.errors import CostcertError, nearest
from costcert.geometry.patches import Patch, certified_patch
from costcert.geometry.sizes import ImageSize, several
from costcert.votes.defence import Defence

if TYPE_CHECKING:
    import pandas as pd

Counts = npt.NDArray[np.int64]
# The name of a defender, and a patch in pixels.
Key = tuple[str, Patch]


class Certificates:
    """What was proved: `min_k(defender, patch)[n] = 5` means that image n keeps its true label in the top 5.

    Args:
        results: (rank, min_k), both [N], for each (defender name, patch in pixels).
        classifier: the classifier that is certified, once with each of the defenders.
        metadata: further options of `certify`, for the manifest.
    """

    def __init__(
        self,
        results: Mapping[Key, tuple[Counts, Counts]],
        *,
        image_ids: npt.NDArray[np.str_],
        num_classes: int,
        image_size: ImageSize,
        classifier: Defence,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._results = dict(results)
        self.image_ids = image_ids
        self.num_classes = num_classes
        self.image_size = image_size
        self.classifier = classifier
        self.metadata: Mapping[str, Any] = MappingProxyType(dict(metadata or {}))

    @classmethod
    def joined(cls, parts: Sequence[Certificates]) -> Certificates:
        """Certificates of the images of all parts, in order; all have the same defenders and patches."""
        parts = several(parts)
        for part in parts:
            if not isinstance(part, Certificates):
                raise CostcertError(f"certificates must be what certify returns, got {part!r}")
        if not parts:
            raise CostcertError("joining certificates needs at least one part, got none")
        first: Certificates = parts[0]
        if len(parts) == 1:
            return first
        return cls(
            {
                key: (
                    np.concatenate([part._results[key][0] for part in parts]),
                    np.concatenate([part._results[key][1] for part in parts]),
                )
                for key in first.keys
            },
            image_ids=np.concatenate([part.image_ids for part in parts]),
            num_classes=first.num_classes,
            image_size=first.image_size,
            classifier=first.classifier,
            metadata=first.metadata,
        )

    def select(
        self,
        images: Any = slice(None),
        *,
        patches: Patch | str | int | Iterable[Patch | str | int] | None = None,
    ) -> Certificates:
        """The certificates of some images, by slice, indices or mask, against some of the patches."""
        rows = self._rows(images)
        kept = self.patches if patches is None else [self._known(each) for each in several(patches)]
        return Certificates(
            {
                (defender, patch): (rank[rows], min_k[rows])
                for (defender, patch), (rank, min_k) in self._results.items()
                if patch in kept
            },
            image_ids=self.image_ids[rows],
            num_classes=self.num_classes,
            image_size=self.image_size,
            classifier=self.classifier,
            metadata=self.metadata,
        )

    def __len__(self) -> int:
        return len(self.image_ids)

    def __repr__(self) -> str:
        return (
            f"Certificates({len(self):,} images, {self.num_classes} classes; "
            f"defenders {', '.join(self.defenders)}; "
            f"patches {', '.join(map(str, self.patches))})"
        )

    def _repr_html_(self) -> str:
        from costcert.notebook import certificates_html

        return certificates_html(self)

    @property
    def keys(self) -> list[Key]:
        """All pairs (defender, patch), in the order they were requested."""
        return list(self._results)

    @property
    def defenders(self) -> list[str]:
        return list(dict.fromkeys(defender for defender, _ in self._results))

    @property
    def patches(self) -> list[Patch]:
        return list(dict.fromkeys(patch for _, patch in self._results))

    def rank(self, defender: str, patch: Patch | str | int) -> Counts:
        """[N], the position of the true label in the defender's prediction on the clean image."""
        return self._result(defender, patch)[0]

    def min_k(self, defender: str, patch: Patch | str | int) -> Counts:
        """[N], the smallest k for which the true label provably stays in the top k."""
        return self._result(defender, patch)[1]

    def accuracy(self, k: int | Iterable[int] | None = None, *, confidence: float = 0.95) -> pd.DataFrame:
        """A tidy table: defender, patch, k, images, clean, certified, and their confidence intervals.

        Args:
            k: one k, or several; by default 1 to 5, or to the number of classes.
            confidence: of the intervals.
        """
        if k is None:
            k = range(1, min(5, self.num_classes) + 1)
        tally = Tally()
        tally.add(self)
        return tally.accuracy(k, confidence=confidence)

    def to_pandas(self) -> pd.DataFrame:
        """One row per image, defender and patch: image, defender, patch, rank, min_k."""
        import pandas as pd

        return pd.concat(
            [
                pd.DataFrame(
                    {
                        "image": self.image_ids,
                        "defender": defender,
                        "patch": str(patch),
                        "rank": rank,
                        "min_k": min_k,
                    }
                )
                for (defender, patch), (rank, min_k) in self._results.items()
            ],
            ignore_index=True,
        )

    def _rows(self, images: Any) -> Any:
        """Images of `select`, as numpy takes them."""
        try:
            rows = images if isinstance(images, slice) else np.atleast_1d(images)
            if np.arange(len(self))[rows].ndim == 1:
                return rows
        except (IndexError, TypeError, ValueError):
            pass
        raise CostcertError(
            f"images must be a slice, numbers below {len(self)}, or true and false for each, got {images!r}"
        )

    def _known(self, patch: Patch | str | int) -> Patch:
        """This patch in pixels, if there are certificates against it."""
        wanted = certified_patch(patch, self.image_size)
        if wanted not in self.patches:
            raise CostcertError(
                f"nothing was certified against {wanted}: these are certificates against "
                f"{', '.join(map(str, self.patches))}"
            )
        return wanted

    def _result(self, defender: str, patch: Patch | str | int) -> tuple[Counts, Counts]:
        wanted = certified_patch(patch, self.image_size)
        if not isinstance(defender, str):
            raise CostcertError(
                f"a defender must be a name, one of {', '.join(self.defenders)}, got {defender!r}"
            )
        if (defender, wanted) not in self._results:
            raise CostcertError(
                f"nothing was certified for {defender} against {wanted}"
                f"{nearest(defender, [d for d in self.defenders if d != defender])}: these are certificates "
                f"of {', '.join(self.defenders)} against {', '.join(map(str, self.patches))}"
            )
        return self._results[defender, wanted]
