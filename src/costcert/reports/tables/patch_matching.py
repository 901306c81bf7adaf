"""Which patches of different runs are the same attack and share a column."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import NamedTuple

from costcert.geometry.patches import AreaShare, Certified, Original, Several, Square, certified_patch
from costcert.geometry.sizes import ImageSize

MATCH_RULE = "squares of the same share of the image, to within half a pixel of the side"


class Threat(NamedTuple):
    """A patch together with the size of the attacked image.

    Args:
        originals: the sizes of the pictures before they were resized; empty if they are unknown.
        data: identifies the pictures; None if they are unknown.
        run: named behind the patch where another column has the same one.
    """

    patch: Certified
    image_size: ImageSize
    originals: frozenset[ImageSize] = frozenset()
    data: str | None = None
    run: str = ""

    @classmethod
    def of(cls, patch: str, image_size: ImageSize) -> Threat:
        return cls(certified_patch(patch, image_size), image_size)

    @property
    def is_pixels_of_original(self) -> bool:
        """Whether it is as large as the size of the original makes it."""
        return isinstance(self.patch, Original) and not isinstance(self.patch.patch, AreaShare)

    @property
    def share(self) -> float | None:
        """Share of the image's area; several patches count as if they did not overlap.

        None for pixels of the original, whose size is not known here.
        """
        if isinstance(self.patch, Original):
            inner = self.patch.patch
            return float(inner.percent) / 100 if isinstance(inner, AreaShare) else None
        one, times = (
            (self.patch.patch, self.patch.times) if isinstance(self.patch, Several) else (self.patch, 1)
        )
        pixels = sum(piece.height * piece.width for piece in one.at(self.image_size).pieces())
        return times * pixels / (self.image_size[0] * self.image_size[1])

    @property
    def extent(self) -> tuple[float, int]:
        """What patches are compared by: their share, or pixels of the original."""
        inner = self.patch.patch if isinstance(self.patch, Original) else None
        pixels = 0 if inner is None or isinstance(inner, AreaShare) else inner.height * inner.width
        return self.share or 0.0, pixels

    def __str__(self) -> str:
        # A share of the original is in the spelling already.
        if self.share is None or isinstance(self.patch, Original):
            return f"{self.patch} of {self.run}" if self.run else str(self.patch)
        percent = 100 * self.share
        return f"{self.patch} ({percent:.1f} %)" if percent >= 0.05 else f"{self.patch} ({percent:.1g} %)"

    def distance(self, other: Threat) -> float | None:
        """How much the sides of two squares differ as shares of the image, in pixels of the smaller image.

        None means that they are different attacks; patches of other shapes match only if they are equal.
        """
        if isinstance(self.patch, Original) and self.patch == other.patch:
            same = (self.data is not None and self.data == other.data) or self.originals == other.originals
            return 0.0 if same or not self.is_pixels_of_original else None
        if (self.patch, self.image_size) == (other.patch, other.image_size):
            return 0.0
        if not (isinstance(self.patch, Square) and isinstance(other.patch, Square)):
            return None
        scale, other_scale = (sqrt(height * width) for height, width in (self.image_size, other.image_size))
        pixels = abs(self.patch.side / scale - other.patch.side / other_scale) * min(scale, other_scale)
        # A square exactly halfway between two others matches neither, whatever the rounding.
        return pixels if pixels < 0.5 - 1e-9 else None


def match_patches(these: Sequence[Threat], those: Sequence[Threat]) -> dict[int, int]:
    """Positions of `these` to positions of `those` that match them: nearest first, each at most once."""
    candidates = sorted(
        (distance, this, that)
        for this, first in enumerate(these)
        for that, second in enumerate(those)
        if (distance := first.distance(second)) is not None
    )
    pairs: dict[int, int] = {}
    for _, this, that in candidates:
        if this not in pairs and that not in pairs.values():
            pairs[this] = that
    return pairs
