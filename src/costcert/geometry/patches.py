"""Patches: the pixels an attacker may rewrite.

A patch is a set of pixels that may lie anywhere inside the image and never wraps. Its size is in pixels of
the model's input, except for `Original`: what that can change at the input is found by footprints.py.
`str()` of a value is its spelling; `parse_patch` reads it back.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from math import isqrt
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from costcert.errors import GeometryError, SpellingError, nearest
from costcert.geometry.sizes import ImageSize, as_image_size, positive_int, shown

# In one `Several`; far fewer already touch all mutants.
MOST_PATCHES = 64


class Piece(NamedTuple):
    """A rectangle of pixels inside a patch, relative to the patch's top left corner."""

    top: int
    left: int
    height: int
    width: int


@dataclass(frozen=True)
class Square:
    """A `side` x `side` sticker."""

    side: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "side", positive_int(self.side, "the side of a square"))

    def __str__(self) -> str:
        return f"square:{self.side}"

    @property
    def height(self) -> int:
        return self.side

    @property
    def width(self) -> int:
        return self.side

    def pieces(self) -> list[Piece]:
        return [Piece(0, 0, self.side, self.side)]

    def at(self, image_size: ImageSize) -> Square:
        return _fitting(self, image_size)


@dataclass(frozen=True)
class Rectangle:
    """A `height` x `width` sticker, not rotated."""

    height: int
    width: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "height", positive_int(self.height, "the height of a rectangle"))
        object.__setattr__(self, "width", positive_int(self.width, "the width of a rectangle"))

    def __str__(self) -> str:
        return f"rectangle:{self.height}x{self.width}"

    def pieces(self) -> list[Piece]:
        return [Piece(0, 0, self.height, self.width)]

    def at(self, image_size: ImageSize) -> Rectangle:
        return _fitting(self, image_size)


@dataclass(frozen=True, init=False)
class Shape:
    """A sticker of any shape: the true pixels of `mask`, all of them inside the image.

    Empty rows and columns around the shape are cropped.
    """

    mask: tuple[tuple[bool, ...], ...]

    def __init__(self, mask: Any) -> None:
        try:
            pixels = np.asarray(mask)
        except ValueError:
            raise GeometryError("a shape must be a table of pixels whose rows have equal length") from None
        if pixels.ndim != 2 or pixels.dtype.kind not in "bui":
            raise GeometryError(
                f"a shape must be a two-dimensional table of true and false, got {pixels.dtype} of shape "
                f"{pixels.shape}"
            )
        pixels = pixels != 0
        rows, columns = np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
        if not rows.size:
            raise GeometryError("a shape needs at least one pixel, got none")
        cut = pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        object.__setattr__(self, "mask", tuple(tuple(bool(p) for p in row) for row in cut))

    def __str__(self) -> str:
        return "shape:" + "/".join("".join("01"[p] for p in row) for row in self.mask)

    __repr__ = __str__

    @property
    def height(self) -> int:
        return len(self.mask)

    @property
    def width(self) -> int:
        return len(self.mask[0])

    def pieces(self) -> list[Piece]:
        """The mask split into rectangles: runs of pixels in a row, merged with equal runs below."""
        done: list[Piece] = []
        growing: dict[tuple[int, int], Piece] = {}
        for y, row in enumerate(self.mask):
            edges = np.flatnonzero(np.diff(np.array([False, *row, False])))
            runs = {(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)}
            done.extend(piece for run, piece in growing.items() if run not in runs)
            growing = {
                (a, b): growing[a, b]._replace(height=growing[a, b].height + 1)
                if (a, b) in growing
                else Piece(y, a, 1, b - a)
                for a, b in sorted(runs)
            }
        return done + list(growing.values())

    def at(self, image_size: ImageSize) -> Shape:
        return _fitting(self, image_size)


@dataclass(frozen=True)
class AreaShare:
    """A square of `percent` of the image's area, its side rounded up: 2 % of 224x224 is 32 px."""

    percent: Decimal

    def __post_init__(self) -> None:
        try:
            percent = Decimal(str(self.percent))
        except InvalidOperation:
            percent = Decimal("nan")
        if not (percent.is_finite() and 0 < percent <= 100):
            raise GeometryError(f"a share of the area must be above 0 and at most 100 %, got {self.percent}")
        object.__setattr__(self, "percent", percent.normalize())

    def __str__(self) -> str:
        return f"{self.percent:f}%"

    def at(self, image_size: ImageSize) -> Square:
        pixels = Fraction(self.percent) / 100 * image_size[0] * image_size[1]
        side = isqrt(-(-pixels.numerator // pixels.denominator) - 1) + 1
        return Square(side).at(image_size)


@dataclass(frozen=True)
class Scaled:
    """A square of `pixels` px in an image `original` px wide, resized along with it: 2/32 is 14 px at 224."""

    pixels: int
    original: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "pixels", positive_int(self.pixels, "the pixels of a scaled square"))
        object.__setattr__(self, "original", positive_int(self.original, "the original size"))

    def __str__(self) -> str:
        return f"{self.pixels}/{self.original}"

    def at(self, image_size: ImageSize) -> Square | Rectangle:
        height, width = (-(-self.pixels * side // self.original) for side in image_size)
        patch = Square(height) if height == width else Rectangle(height, width)
        return patch.at(image_size)


@dataclass(frozen=True)
class Several:
    """`times` copies of one patch at once, anywhere, overlapping or not."""

    patch: Square | Rectangle | Shape | AreaShare | Scaled
    times: int

    def __post_init__(self) -> None:
        given: Any = self.patch
        if isinstance(given, Original):
            raise GeometryError(
                f"several patches at once are in pixels of the model's input, got {self.times}*{given}: "
                f"certify against {given} alone, or against several squares such as 2*square:16"
            )
        if not isinstance(self.patch, _SINGLE):
            raise GeometryError(f"Several takes a single patch, such as Square(16), got {self.patch!r}")
        object.__setattr__(self, "times", positive_int(self.times, "the number of patches"))
        if self.times > MOST_PATCHES:
            raise GeometryError(f"at most {MOST_PATCHES} patches at once are supported, got {self.times}")

    def __str__(self) -> str:
        return f"{self.times}*{self.patch}"

    def at(self, image_size: ImageSize) -> Several:
        return Several(self.patch.at(image_size), self.times)


@dataclass(frozen=True)
class Original:
    """A patch on the picture as it comes, before it is resized and cropped; sizes are in its own pixels.

    `original:2` is 2 x 2 pixels of the picture, `original:2x4` is 2 high and 4 wide, `original:1%` is a
    square of that share of the picture's area. Votes record the size of pictures and how they were prepared.
    """

    patch: Square | Rectangle | AreaShare

    def __post_init__(self) -> None:
        patch: Any = self.patch
        if isinstance(patch, int | np.integer) and not isinstance(patch, bool):
            object.__setattr__(self, "patch", Square(int(patch)))
        elif not isinstance(patch, Square | Rectangle | AreaShare):
            raise GeometryError(
                "Original takes a square, a rectangle or a share of the area, such as Square(2), got "
                f"{patch!r}"
            )

    def __str__(self) -> str:
        if isinstance(self.patch, AreaShare):
            return f"original:{self.patch}"
        sides = f"{self.patch.height}x{self.patch.width}"
        return f"original:{sides if isinstance(self.patch, Rectangle) else self.patch.height}"

    def at(self, image_size: ImageSize) -> Original:
        """Itself: the size of the model's input says nothing about the picture's own."""
        return self


_SINGLE = (Square, Rectangle, Shape, AreaShare, Scaled)
Single = TypeVar("Single", "Square", "Rectangle", "Shape")
OnePatch = Square | Rectangle | Shape
Patch = Square | Rectangle | Shape | AreaShare | Scaled | Several | Original
# What certificates are against: pixels of the model's input, or of the original.
Certified = Square | Rectangle | Shape | Several | Original


def _fitting(patch: Single, image_size: ImageSize) -> Single:
    if patch.height > image_size[0] or patch.width > image_size[1]:
        raise GeometryError(
            f"{patch} does not fit a {shown(image_size)} image: it is {patch.height}x{patch.width} pixels "
            "(height x width); use a smaller patch"
        )
    return patch


_EXAMPLES = "32, square:32, rectangle:16x64, 2%, 2/32, shape:010/111, 2*square:16, original:2"


def parse_patch(text: str, image_size: ImageSize | None = None) -> Patch:
    """The patch spelled `32`, `square:32`, `rectangle:16x64`, `2%`, `2/32`, `2*square:16`, `shape:01/11`,
    `original:2`, `original:2x4`, `original:1%`.

    With an image size, relative sizes become pixels and a patch that does not fit is an error; a patch on the
    original stays as it is.
    """
    patch = _parse(str(text).strip())
    return patch if image_size is None else patch.at(as_image_size(image_size))


def _parse(text: str) -> Patch:
    if found := re.fullmatch(r"(\d{1,6})\*(.+)", text):
        if "*" in found[2]:
            raise SpellingError(
                f"cannot read {text[:40]!r}: write the number of patches once, as in 2*square:16"
            )
        inner: Any = _parse(found[2])
        return Several(inner, int(found[1]))
    if text.startswith("original:"):
        return Original(_of_original(text))
    if found := re.fullmatch(r"(?:square:)?(\d{1,6})", text):
        return Square(int(found[1]))
    if found := re.fullmatch(r"rectangle:(\d{1,6})x(\d{1,6})", text):
        return Rectangle(int(found[1]), int(found[2]))
    if found := re.fullmatch(r"(\d{1,3}(?:\.\d{1,9})?)\s?%", text):
        return AreaShare(Decimal(found[1]))
    if found := re.fullmatch(r"(\d{1,6})/(\d{1,6})", text):
        return Scaled(int(found[1]), int(found[2]))
    if (found := re.fullmatch(r"shape:([01]+(?:/[01]+)*)", text)) and _equal_lengths(found[1].split("/")):
        return Shape([[pixel == "1" for pixel in row] for row in found[1].split("/")])
    name = text.partition(":")[0]
    raise SpellingError(
        f"cannot read the patch {text!r}{nearest(name, ('square', 'rectangle', 'shape', 'original'))}: "
        f"write it like one of {_EXAMPLES}"
    )


def _of_original(text: str) -> Square | Rectangle | AreaShare:
    if found := re.fullmatch(r"original:(\d{1,6})(?:x(\d{1,6}))?", text):
        return Rectangle(int(found[1]), int(found[2])) if found[2] else Square(int(found[1]))
    if found := re.fullmatch(r"original:(\d{1,3}(?:\.\d{1,9})?)\s?%", text):
        return AreaShare(Decimal(found[1]))
    raise SpellingError(
        f"cannot read the patch {text[:40]!r}: a patch on the original is spelled original:2, original:2x4 "
        "(height x width) or original:1%"
    )


def _equal_lengths(rows: list[str]) -> bool:
    return len({len(row) for row in rows}) == 1


def concrete(patch: Patch | str | int, image_size: ImageSize) -> OnePatch | Several:
    """The patch in pixels of this image, from a value, a spelling or the side of a square.

    Raises:
        GeometryError: also for a patch on the original, whose pixels at the input are not known here.
    """
    value = certified_patch(patch, image_size)
    if isinstance(value, Original):
        raise GeometryError(
            f"{value} is a patch on the original picture, which is not supported here: name one in pixels of "
            "the model's input, such as square:32"
        )
    return value


def certified_patch(patch: Patch | str | int, image_size: ImageSize) -> Certified:
    """The patch in pixels of this image; one on the original stays as it is."""
    if isinstance(patch, str):
        patch = parse_patch(patch)
    elif isinstance(patch, int | np.integer) and not isinstance(patch, bool):
        patch = Square(int(patch))
    if not isinstance(patch, (*_SINGLE, Several, Original)):
        raise GeometryError(
            f"a patch must be a value like Square(32) or text like {_EXAMPLES}, got {patch!r}"
        )
    return patch.at(image_size)


def as_requested(spellings: Iterable[str], image_size: ImageSize) -> dict[Certified, str]:
    """The patches in pixels, and the names each was requested by: `1% (square:23)`, `2% and square:32`."""
    requested: dict[Certified, list[Patch]] = {}
    for patch in map(parse_patch, spellings):
        requested.setdefault(patch.at(image_size), []).append(patch)
    return {
        patch: " and ".join(map(str, dict.fromkeys(names))) + ("" if patch in names else f" ({patch})")
        for patch, names in requested.items()
    }


def places(patch: OnePatch, image_size: ImageSize) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The top rows and the left columns at which a single patch may lie."""
    return np.arange(image_size[0] - patch.height + 1), np.arange(image_size[1] - patch.width + 1)
