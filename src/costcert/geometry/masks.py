"""Masks: mutants that hide what a patch could cover, and keep the rest.

Masks are rectangles on a grid, so placed that every position of a patch lies inside at least one of them:
they *cover* the patch. A mutant hides one mask, or two. Whatever a patch rewrites, the mutants that hide it
completely see nothing of it.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from costcert.errors import GeometryError
from costcert.geometry.regions import Bools, Region, Segment
from costcert.geometry.sizes import ImageSize, positive_int, shown

# Limit on mutants per image: those of 19 masks an axis.
_MOST_PAIRS = 1 << 16


class Hidden(NamedTuple):
    """What one mutant hides: one mask, or two. It keeps all other pixels."""

    masks: tuple[Region, ...]

    def pixels(self, image_size: ImageSize) -> Bools:
        """[H, W], true where a pixel is kept."""
        kept = np.ones(image_size, dtype=np.bool_)
        for mask in self.masks:
            kept &= ~mask.pixels(image_size)
        return kept


@dataclass(frozen=True)
class Masks:
    """Each mutant hides two masks, (i, j) with i <= j; (i, i) hides one.

    Masks are numbered row by row, and mutants are ordered (0, 0), (0, 1), …, (1, 1), (1, 2), ….

    Args:
        per_axis: c, the number of masks along each axis: n = c² masks and n(n+1)/2 mutants.
        patch: the side of the patch that masks cover, or its (height, width).
    """

    per_axis: int
    _: KW_ONLY
    patch: int | tuple[int, int]

    name = "masks"

    def __post_init__(self) -> None:
        object.__setattr__(self, "per_axis", positive_int(self.per_axis, "the number of masks along an axis"))
        object.__setattr__(self, "patch", _sides(self.patch))

    def __str__(self) -> str:
        return f"masks:{self.per_axis}/patch={shown_sides(self.sides)}"

    def __repr__(self) -> str:
        height, width = self.sides
        return f"Masks({self.per_axis}, patch={height if height == width else self.sides})"

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of the patch."""
        height, width = self.patch  # type: ignore[misc]
        return height, width

    @property
    def num_masks(self) -> int:
        """n."""
        return self.per_axis**2

    def masks(self, image_size: ImageSize) -> list[Region]:
        """The masks, row by row."""
        rows, columns = (
            self._segments(patch, side) for patch, side in zip(self.sides, image_size, strict=True)
        )
        return [Region(down, across) for down in rows for across in columns]

    def _segments(self, patch: int, axis_length: int) -> list[Segment]:
        """Segments such that every `patch` neighbouring pixels lie inside one of them."""
        if patch > axis_length:
            raise GeometryError(
                f"{self} does not fit: its patch has {patch} pixels along an axis of {axis_length}; "
                f"use a patch of at most {axis_length}"
            )
        stride = -(-(axis_length - patch + 1) // self.per_axis)
        side = stride + patch - 1
        return [Segment(min(t * stride, axis_length - side), side) for t in range(self.per_axis)]

    def regions(self, image_size: ImageSize) -> list[Hidden]:
        """What each mutant hides, in the order of the ballots."""
        return _pairs(self, image_size)

    def count(self, image_size: ImageSize) -> int:
        """B, the number of mutants, which is the number of ballots per image."""
        return len(self.regions(image_size))

    @property
    def num_pairs(self) -> int:
        """B, whether or not the masks fit an image."""
        return self.num_masks * (self.num_masks + 1) // 2

    def table(self) -> npt.NDArray[np.int32]:
        """[n, n], the mutant that hides masks i and j, in either order."""
        table = np.zeros((self.num_masks, self.num_masks), dtype=np.int32)
        first, second = np.triu_indices(self.num_masks)
        table[first, second] = table[second, first] = np.arange(len(first))
        return table


@lru_cache(maxsize=32)
def _pairs(masks: Masks, image_size: ImageSize) -> list[Hidden]:
    if masks.num_pairs > _MOST_PAIRS:
        raise GeometryError(
            f"{masks} make {masks.num_pairs:,} mutants per image, more than {_MOST_PAIRS:,}: use fewer masks"
        )
    pairs = [
        Hidden((first,) if first is second else (first, second))
        for first, second in combinations_with_replacement(masks.masks(image_size), 2)
    ]
    if not all(pair.pixels(image_size).any() for pair in pairs):
        raise GeometryError(
            f"{masks} on {shown(image_size)} makes mutants that hide every pixel: use more masks, or a "
            "smaller patch"
        )
    return pairs


def _sides(patch: Any) -> tuple[int, int]:
    """Height and width from a side, or from a pair."""
    if isinstance(patch, tuple | list):
        if len(patch) != 2:
            raise GeometryError(f"the patch of masks must be a side or (height, width), got {patch!r}")
        height, width = patch
    else:
        height = width = patch
    return (
        positive_int(height, "the height of a patch that masks cover"),
        positive_int(width, "the width of a patch that masks cover"),
    )


def shown_sides(sides: tuple[int, int]) -> str:
    """As text: `5`, or `5x9` where height and width differ."""
    height, width = sides
    return str(height) if height == width else f"{height}x{width}"
