"""Ablations: which pixels each mutant keeps.

A mutant of a strip or block family is the image with everything hidden except one region, the product of some
rows and some columns. So a family is a list of row segments and a list of column segments, and a mutant is
one of each. Mutants of `Masks` hide little and keep the rest (masks.py).
`str()` of a value is its spelling on the command line and in a manifest; `parse_ablation` reads it back.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from costcert.errors import GeometryError, SpellingError, nearest
from costcert.geometry.masks import Hidden as Hidden
from costcert.geometry.masks import Masks as Masks
from costcert.geometry.regions import Bools as Bools
from costcert.geometry.regions import Region as Region
from costcert.geometry.regions import Segment as Segment
from costcert.geometry.sizes import ImageSize, positive_int, shown


class Part(NamedTuple):
    """A family whose mutants are all pairs (row segment, column segment), rows slowest."""

    rows: list[Segment]
    columns: list[Segment]

    def regions(self) -> list[Region]:
        return [Region(rows, columns) for rows in self.rows for columns in self.columns]


@dataclass(frozen=True)
class _Strips:
    """Segments of `width` pixels that start at every `stride`-th position.

    Args:
        width: kept pixels along the axis.
        stride: distance between neighbouring starting positions.
        wrap: whether a segment that reaches the end continues at the beginning.
        span: first and last starting position that vote, both included; all of them by default.
    """

    width: int
    _: KW_ONLY
    stride: int = 1
    wrap: bool = True
    span: tuple[int, int] | None = None

    name: ClassVar[str]

    def __post_init__(self) -> None:
        object.__setattr__(self, "width", positive_int(self.width, f"the width of {self.name}"))
        object.__setattr__(self, "stride", positive_int(self.stride, f"the stride of {self.name}"))
        if not isinstance(self.wrap, bool | np.bool_ | int):
            raise GeometryError(f"wrap must be true or false, got {self.wrap!r}")
        object.__setattr__(self, "wrap", bool(self.wrap))
        if self.span is None:
            return
        try:
            first, last = self.span
        except (TypeError, ValueError):
            raise GeometryError(f"a span must be (first, last), got {self.span!r}") from None
        first = positive_int(first, "the first position of a span", at_least=0)
        last = positive_int(last, "the last position of a span", at_least=0)
        if first > last:
            raise GeometryError(f"a span must go from low to high, got {first}-{last}")
        object.__setattr__(self, "span", (first, last))

    def __str__(self) -> str:
        text = f"{self.name}:{self.width}"
        if self.stride != 1:
            text += f"/stride={self.stride}"
        if not self.wrap:
            text += "/wrap=no"
        if self.span is not None:
            text += f"/span={self.span[0]}-{self.span[1]}"
        return text

    def _segments(self, axis_length: int) -> list[Segment]:
        if self.width > axis_length:
            raise GeometryError(
                f"{self} does not fit: it keeps {self.width} pixels of an axis of {axis_length}; "
                f"use a width of at most {axis_length}"
            )
        last = axis_length - 1 if self.wrap else axis_length - self.width
        first, stop = (0, last) if self.span is None else self.span
        if stop > last:
            raise GeometryError(
                f"{self} does not fit: the last starting position on an axis of {axis_length} "
                f"pixels is {last}, but the span ends at {stop}"
            )
        return [Segment(start, self.width) for start in range(first, stop + 1, self.stride)]

    def parts(self, image_size: ImageSize) -> list[Part]:
        raise NotImplementedError

    def regions(self, image_size: ImageSize) -> list[Region]:
        """The region each mutant keeps, in the order of the ballots."""
        return [region for part in self.parts(image_size) for region in part.regions()]

    def count(self, image_size: ImageSize) -> int:
        """B, the number of mutants, which is the number of ballots per image."""
        return sum(len(part.rows) * len(part.columns) for part in self.parts(image_size))


class Columns(_Strips):
    """Each mutant keeps `width` neighbouring columns at full height (the paper: `Columns(19)` at 224x224)."""

    name = "columns"

    def parts(self, image_size: ImageSize) -> list[Part]:
        height, width = image_size
        return [Part([Segment(0, height)], self._segments(width))]


class Rows(_Strips):
    """Each mutant keeps `width` neighbouring rows at full width."""

    name = "rows"

    def parts(self, image_size: ImageSize) -> list[Part]:
        height, width = image_size
        return [Part(self._segments(height), [Segment(0, width)])]


class Blocks(_Strips):
    """Each mutant keeps one `width` x `width` block; stride, wrap and span apply to both axes."""

    name = "blocks"

    def parts(self, image_size: ImageSize) -> list[Part]:
        height, width = image_size
        return [Part(self._segments(height), self._segments(width))]


@dataclass(frozen=True, init=False)
class Pooled:
    """Several families that vote together: ballots are concatenated, and a patch touches mutants of each."""

    families: tuple[Columns | Rows | Blocks, ...]

    def __init__(self, *families: Columns | Rows | Blocks | Pooled) -> None:
        flat: list[Columns | Rows | Blocks] = []
        for family in families:
            if isinstance(family, Pooled):
                flat.extend(family.families)
            elif isinstance(family, _Strips):
                flat.append(family)
            else:
                raise GeometryError(f"pooled families must be ablations, got {family!r}")
        if not flat:
            raise GeometryError("pooling needs at least one family, got none")
        object.__setattr__(self, "families", tuple(flat))

    def __str__(self) -> str:
        return "+".join(str(family) for family in self.families)

    def parts(self, image_size: ImageSize) -> list[Part]:
        return [part for family in self.families for part in family.parts(image_size)]

    def regions(self, image_size: ImageSize) -> list[Region]:
        """The region each mutant keeps, in the order of the ballots."""
        return [region for family in self.families for region in family.regions(image_size)]

    def count(self, image_size: ImageSize) -> int:
        """B, the number of mutants, which is the number of ballots per image."""
        return sum(family.count(image_size) for family in self.families)


Ablation = Columns | Rows | Blocks | Pooled | Masks
# What one mutant keeps: a region, or all but what it hides.
Kept = Region | Hidden

_FAMILIES: dict[str, type[Columns] | type[Rows] | type[Blocks]] = {
    family.name: family for family in (Columns, Rows, Blocks)
}
_NO = ("no", "false", "0")
_YES = ("yes", "true", "1")


def parse_ablation(text: str) -> Ablation:
    """The ablation spelled `columns:19`, `blocks:75/stride=10/wrap=no`, `rows:4/span=4-24+columns:4`,
    `masks:6/patch=5`."""
    if str(text).strip().startswith(f"{Masks.name}:"):
        return _parse_masks(str(text).strip())
    families = [_parse_family(part.strip()) for part in str(text).split("+")]
    return families[0] if len(families) == 1 else Pooled(*families)


def as_ablation(value: Any) -> Ablation:
    """An ablation from a value or its spelling; a value of another package has the methods of those here."""
    if isinstance(value, str):
        return parse_ablation(value)
    methods = (getattr(value, name, None) for name in ("regions", "count"))
    if isinstance(value, type) or not all(map(callable, methods)):
        raise GeometryError(
            f"an ablation must be a value like Columns(19) or text like columns:19, got {value!r}"
        )
    ablation: Ablation = value
    return ablation


def _parse_masks(text: str) -> Masks:
    found = re.fullmatch(r"masks:(\d{1,3})/patch=(\d{1,6})(?:x(\d{1,6}))?", text)
    if found is None:
        raise SpellingError(
            f"cannot read {text!r}: masks are spelled masks:6/patch=5, or masks:6/patch=5x9 (height x "
            "width), without further options, and are not pooled with other families"
        )
    return Masks(int(found[1]), patch=(int(found[2]), int(found[3] or found[2])))


def _parse_family(text: str) -> Columns | Rows | Blocks:
    head, *options = text.split("/")
    name, _, width = head.partition(":")
    if name not in _FAMILIES:
        raise SpellingError(
            f"unknown ablation {text!r}{nearest(name, [*_FAMILIES, Masks.name])}: "
            f"write one of {', '.join(f'{known}:WIDTH' for known in _FAMILIES)}, or masks:COUNT/patch=SIDE"
        )
    if not re.fullmatch(r"\d{1,6}", width):
        raise SpellingError(f"{text!r} needs a width in pixels, as in {name}:19")
    stride, wrap, span = 1, True, None
    for option in options:
        key, _, value = option.partition("=")
        if key == "stride" and re.fullmatch(r"\d{1,6}", value):
            stride = int(value)
        elif key == "wrap" and value in _NO + _YES:
            wrap = value in _YES
        elif key == "span" and (found := re.fullmatch(r"(\d{1,6})-(\d{1,6})", value)):
            span = (int(found[1]), int(found[2]))
        else:
            raise SpellingError(
                f"cannot read {option!r} in {text!r}{nearest(key, ('stride', 'wrap', 'span'))}: "
                "the options are stride=4, wrap=no and span=4-24"
            )
    return _FAMILIES[name](int(width), stride=stride, wrap=wrap, span=span)


def positions(wanted: Ablation, given: Ablation, image_size: ImageSize) -> npt.NDArray[np.int64]:
    """The index of each mutant of `wanted` among the mutants of `given`.

    Any subset of mutants that is fixed before the image is seen is as sound as all of them.
    """
    index_of: dict[Kept, int] = {}
    regions: Sequence[Kept] = given.regions(image_size)
    for index, region in enumerate(regions):
        index_of.setdefault(region, index)
    chosen = [index_of.get(region, -1) for region in wanted.regions(image_size)]
    missing = chosen.count(-1)
    if missing:
        raise GeometryError(
            f"{missing} of the {len(chosen)} mutants of {wanted} were never evaluated: these votes are of "
            f"{given} on {shown(image_size)}; choose a stride and a span within it, or vote again"
        )
    return np.asarray(chosen, dtype=np.int64)
