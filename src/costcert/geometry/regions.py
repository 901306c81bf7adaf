"""Regions of an image: what one mutant keeps, or one mask covers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from costcert.geometry.sizes import ImageSize

Bools = npt.NDArray[np.bool_]


class Segment(NamedTuple):
    """`length` pixels along an axis, beginning at `start` and wrapping around at its end."""

    start: int
    length: int

    def pixels(self, axis_length: int) -> Bools:
        kept = np.zeros(axis_length, dtype=np.bool_)
        kept[np.arange(self.start, self.start + self.length) % axis_length] = True
        return kept


class Region(NamedTuple):
    """A rectangle of pixels: these rows of these columns."""

    rows: Segment
    columns: Segment

    def pixels(self, image_size: ImageSize) -> Bools:
        """[H, W], true where a pixel belongs to it."""
        return self.rows.pixels(image_size[0])[:, None] & self.columns.pixels(image_size[1])
