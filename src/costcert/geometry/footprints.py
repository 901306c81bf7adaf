"""Footprints: what a patch on the original picture can change at the model's input.

A patch covers some rows and columns of the picture. The input pixels that depend on one of these rows and on
one of these columns are its footprint: whatever is written under the patch, no other input pixel changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from costcert.errors import GeometryError
from costcert.geometry import bitsets
from costcert.geometry.patches import Original, Piece, Rectangle, Square
from costcert.geometry.preparation import Preparation
from costcert.geometry.regions import Bools
from costcert.geometry.sizes import ImageSize, positive_int, shown


@dataclass(frozen=True)
class Footprint:
    """A square or a rectangle on pictures of one size, as it arrives at the model's input."""

    patch: Square | Rectangle
    original: ImageSize
    preparation: Preparation

    def __str__(self) -> str:
        return f"{Original(self.patch)} of {shown(self.original)}"

    def at(self, image_size: ImageSize) -> Footprint:
        if image_size != self.preparation.image_size:
            raise GeometryError(
                f"{self} was followed to an input of {shown(self.preparation.image_size)}, not of "
                f"{shown(image_size)}: pass the preprocessing of the model that votes"
            )
        return self

    @cached_property
    def rows(self) -> Bools:
        """[tops, H], the input rows that depend on the patch's rows, for every top in the original."""
        return self._axis(0)

    @cached_property
    def columns(self) -> Bools:
        """[lefts, W], the same for the columns and every left in the original."""
        return self._axis(1)

    @property
    def height(self) -> int:
        """The most input rows from the first to the last that change, over all positions."""
        return _extent(self.rows)

    @property
    def width(self) -> int:
        return _extent(self.columns)

    def pixels(self, top: int, left: int) -> Bools:
        """[H, W], the input pixels that the patch can change from this place of the original."""
        reached: Bools = self.rows[top][:, None] & self.columns[left]
        return reached

    def _axis(self, axis: int) -> Bools:
        side = (self.patch.height, self.patch.width)[axis]
        reads = self.preparation.reads(self.original, axis)
        before = np.zeros((reads.shape[0], reads.shape[1] + 1), dtype=np.int32)
        np.cumsum(reads, axis=1, out=before[:, 1:])
        table: Bools = np.ascontiguousarray((before[:, side:] > before[:, : before.shape[1] - side]).T)
        return table

    def rectangles(self, top: int, left: int) -> list[Piece]:
        """The same pixels as rectangles of the input, whose tops and lefts are those of the input."""
        return [
            Piece(y, x, tall, wide)
            for y, tall in _runs(self.rows[top])
            for x, wide in _runs(self.columns[left])
        ]

    def largest(self) -> tuple[tuple[npt.NDArray[np.int64], Bools], tuple[npt.NDArray[np.int64], Bools]]:
        """The tops whose rows lie inside those of no other top, and these rows; the same for columns."""
        return _largest(self.rows), _largest(self.columns)


def footprint(patch: Original, original: ImageSize, preparation: Preparation) -> Footprint:
    """What this patch can change at the input if the picture has this size."""
    height, width = original
    size = (positive_int(height, "the original's height"), positive_int(width, "the original's width"))
    preparation.refuse(size)
    try:
        return Footprint(patch.patch.at(size), size, preparation)
    except GeometryError:
        raise GeometryError(
            f"{patch} does not fit an original of {shown(size)} pixels (height x width): use a smaller patch"
        ) from None


def covered_side(sides: tuple[int, int], original: ImageSize, preparation: Preparation) -> int:
    """The side of the largest square on pictures of this size that changes at most these sides; 0 if none.

    Wherever such a square lies on the picture, a patch of these sides at the input covers what it changes.
    """
    fits, too_large = 0, min(original) + 1
    while too_large - fits > 1:
        side = (fits + too_large) // 2
        reach = Footprint(Square(side), original, preparation)
        if reach.height <= sides[0] and reach.width <= sides[1]:
            fits = side
        else:
            too_large = side
    return fits


def _largest(table: Bools) -> tuple[npt.NDArray[np.int64], Bools]:
    keep = bitsets.maximal(bitsets.pack(table))
    return keep, table[keep]


def _runs(line: Bools) -> list[tuple[int, int]]:
    """Start and length of every run of true values."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], line, [False]])))
    return [(int(a), int(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _extent(table: Bools) -> int:
    some = table[table.any(axis=1)]
    if not len(some):
        return 0
    return int((some.shape[1] - some[:, ::-1].argmax(axis=1) - some.argmax(axis=1)).max())
