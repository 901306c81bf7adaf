"""How a picture becomes the model's input: which pixels of the picture each input pixel depends on.

A picture is resized, row by row and column by column, and then cropped or padded. So an input pixel depends
on some rows and some columns of the picture, and each axis is treated by itself. `models/preprocessing.py`
asks here how large the resized picture is and where the input lies in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor, gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from costcert.errors import GeometryError, nearest
from costcert.geometry.regions import Bools
from costcert.geometry.sizes import ImageSize, as_image_size, shown

FITS = ("center", "squash", "border")
# Half the width of each kernel, in pixels of the coarser of picture and resized picture. `nearest` has none.
SUPPORTS = {"nearest": 0, "box": 0, "bilinear": 1, "hamming": 1, "bicubic": 2, "lanczos": 3}
# The kernels that are zero at every integer distance but 0.
_ZERO_BETWEEN = ("bicubic", "lanczos")

# Limit on the sides of a picture, before and after it is resized: up to it, Pillow's rounding errors cannot
# move a nearest pixel, except in a tie.
LARGEST_ORIGINAL = 1 << 16
# Limit on the pairs of input pixel and picture pixel along one axis (256 MB).
_MOST_PAIRS = 1 << 26


@dataclass(frozen=True)
class Preparation:
    """Resizing and cropping, as in `Preprocessing`, whose fields these are."""

    image_size: ImageSize
    crop_pct: float = 1.0
    crop_mode: str = "squash"
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", as_image_size(self.image_size))
        if not 0 < self.crop_pct <= 1:
            raise GeometryError(f"crop_pct must be above 0 and at most 1, got {self.crop_pct}")
        for value, known in ((self.crop_mode, FITS), (self.interpolation, tuple(SUPPORTS))):
            if value not in known:
                raise GeometryError(
                    f"unknown {value!r}{nearest(value, known)}: use one of {', '.join(known)}"
                )

    @classmethod
    def from_json(cls, recorded: Mapping[str, Any]) -> Preparation:
        """From the preprocessing that a manifest records."""
        try:
            height, width = recorded["image_size"]
            return cls(
                (height, width), recorded["crop_pct"], recorded["crop_mode"], recorded["interpolation"]
            )
        except (KeyError, TypeError, ValueError):
            raise GeometryError(f"cannot read the preprocessing {recorded!r}") from None

    def scaled(self, original: ImageSize) -> ImageSize:
        """The size of the resized picture; refused where no row or no column of it is left."""
        found = self._scaled(original)
        if min(found) < 1:
            raise GeometryError(
                f"a picture of {shown(original)} pixels (height x width) is too thin: resized into "
                f"{shown(self.image_size)} with its aspect ratio ({self.crop_mode}) it becomes "
                f"{shown(found)}, so crop it, or prepare pictures with squash"
            )
        return found

    def _scaled(self, original: ImageSize) -> ImageSize:
        target = (floor(self.image_size[0] / self.crop_pct), floor(self.image_size[1] / self.crop_pct))
        if self.crop_mode == "squash":
            return target
        ratios = (original[0] / target[0], original[1] / target[1])
        if self.crop_mode == "center" and target[0] == target[1]:
            # torchvision fixes the shorter side and rounds the longer one down.
            short = min(original)
            return (target[0] * original[0] // short, target[0] * original[1] // short)
        ratio = max(ratios) if self.crop_mode == "border" else min(ratios)
        return (round(original[0] / ratio), round(original[1] / ratio))

    def corner(self, original: ImageSize) -> tuple[int, int]:
        """The input's top and left in the resized picture; negative where the picture is padded."""
        scaled = self.scaled(original)
        return (round((scaled[0] - self.image_size[0]) / 2), round((scaled[1] - self.image_size[1]) / 2))

    def refuse(self, original: ImageSize) -> None:
        """Raise if pictures of this size cannot be followed to the input."""
        scaled = self.scaled(original)
        if max(original) <= LARGEST_ORIGINAL < max(scaled):
            raise GeometryError(
                f"an original of {shown(original)} pixels (height x width) is resized to {shown(scaled)} "
                f"({self.crop_mode}), but sides of more than {LARGEST_ORIGINAL:,} pixels cannot be followed "
                "to the input: crop it before it is voted on"
            )
        pairs = max(side * n for side, n in zip(self.image_size, original, strict=True))
        if max(original) > LARGEST_ORIGINAL or pairs > _MOST_PAIRS:
            raise GeometryError(
                f"an original of {shown(original)} pixels (height x width) is too large to be followed to an "
                f"input of {shown(self.image_size)}: resize it before it is voted on"
            )

    def reads(self, original: ImageSize, axis: int) -> Bools:
        """[input pixels, picture pixels] of one axis: which pixels of the picture an input pixel depends on.

        Nothing else can change it. Along an axis of n pixels that is resized to m, input pixel i reads pixel
        y with a weight that depends on their distance, D / 2M pixels of the kernel for the integers

            D = (2y+1)m - (2i+1)n        M = max(n, m)

        and the weight is zero from the kernel's half width on, and for some kernels at integer distances. A
        weight that is not zero may still be too small to change a pixel of 8 bits: then these are too many,
        never too few. Where a rounding error could decide between two pixels, as in a tie of `nearest`, both
        count.
        """
        self.refuse(original)
        n, m = original[axis], self.scaled(original)[axis]
        i = np.arange(self.image_size[axis], dtype=np.int64)[:, None] + self.corner(original)[axis]
        y = np.arange(n, dtype=np.int64)
        if self.interpolation == "nearest":
            found = _nearest(i, y, n, m)
        else:
            found = _weighted(i, y, n, m, self.interpolation)
        # Outside of the resized picture there is only padding.
        found &= (i >= 0) & (i < m)
        return found


def _weighted(
    i: npt.NDArray[np.int64], y: npt.NDArray[np.int64], n: int, m: int, interpolation: str
) -> Bools:
    distance, one = np.abs((2 * y + 1) * m - (2 * i + 1) * n), 2 * max(n, m)
    if interpolation == "box":
        # Both ends count: rounding errors decide which of the two has a weight.
        ends: Bools = 2 * distance <= one
        return ends
    found: Bools = distance < SUPPORTS[interpolation] * one
    if interpolation in _ZERO_BETWEEN:
        found &= (distance == 0) | (distance % one != 0)
    return found


def _nearest(i: npt.NDArray[np.int64], y: npt.NDArray[np.int64], n: int, m: int) -> Bools:
    """The pixel that holds the position (2i+1)n / 2m, and its neighbour if that is the border of both."""
    twice = (2 * i + 1) * n
    found: Bools = y == twice // (2 * m)
    steps = m // gcd(n, m)
    if steps & (steps - 1):
        # n / m is not a fraction of a power of two, so that Pillow's position may fall short of the border.
        found |= (twice % (2 * m) == 0) & (y == twice // (2 * m) - 1)
    return found
