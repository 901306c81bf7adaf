"""Patches along an axis: squares by their side in pixels, other patches by height × width."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, TypeVar

from costcert.errors import CostcertError
from costcert.geometry.patches import Square, parse_patch
from costcert.geometry.patches import certified_patch as certified_value
from costcert.geometry.sizes import ImageSize
from costcert.reports.figures.layout import text_width
from costcert.reports.patch_names import size, size_and_share
from costcert.reports.results import Results
from costcert.reports.style import TEXT_SIZE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

T = TypeVar("T")

MOST_PATCHES = 8


def sides(results: Results) -> dict[str, int] | None:
    """The side of each patch, smallest first, if all are squares."""
    found = {}
    for patch in results.patches:
        square = parse_patch(patch)
        if not isinstance(square, Square):
            return None
        found[patch] = square.side
    return dict(sorted(found.items(), key=lambda each: each[1]))


def sorted_patches(results: Results) -> list[str]:
    """Patches by size if all are squares, otherwise in the order of the results."""
    return list(sides(results) or results.patches)


def patch_title(patch: str, image_size: ImageSize, room: float = inf) -> str:
    """The title of a panel about this patch, without the share of the image if there is no room for it."""
    title = size_and_share(patch, image_size)
    return title if text_width(title, TEXT_SIZE, "bold") <= room else size(patch, image_size)


def certified_patch(results: Results, patch: str | int) -> str:
    """The spelling of this patch in the results; a patch without results is refused."""
    wanted = str(certified_value(patch, results.image_size))
    if wanted not in results.patches:
        raise CostcertError(
            f"nothing was certified against {wanted}: choose from {', '.join(results.patches)}"
        )
    return wanted


def few_patches(results: Results) -> tuple[list[str], str]:
    """At most MOST_PATCHES patches, and a sentence for the note if some are left out."""
    return evenly_spaced(sorted_patches(results))


def evenly_spaced(patches: list[T]) -> tuple[list[T], str]:
    """At most MOST_PATCHES patches, evenly spaced with the first and the last, and a sentence about it."""
    if len(patches) <= MOST_PATCHES:
        return patches, ""
    step = (len(patches) - 1) / (MOST_PATCHES - 1)
    shown = [patches[round(index * step)] for index in range(MOST_PATCHES)]
    return shown, f" {MOST_PATCHES} of {len(patches)} patches are shown."


def set_size_ticks(axes: Axes, places: list[int], room: float) -> None:
    """One tick per size, except where labels would touch on an axis of `room` inches."""
    low, high = axes.get_xlim()
    apart = max(text_width(str(place), TEXT_SIZE) for place in places) + 0.07
    shown: list[int] = []
    for place in sorted(places):
        if not shown or (place - shown[-1]) * room / (high - low) >= apart:
            shown.append(place)
    axes.set_xticks(shown, [str(place) for place in shown])
    axes.set_xlabel("Side of the square patch in px")


def set_patch_ticks(axes: Axes, results: Results, patches: list[str], room: float) -> None:
    """One tick per patch, at 0, 1, 2, …"""
    known = sides(results)
    labels = [
        str(known[patch]) if known else _in_two_lines(size(patch, results.image_size)) for patch in patches
    ]
    needed = len(labels) * max(
        text_width(line, TEXT_SIZE) + 0.07 for label in labels for line in label.split("\n")
    )
    slanted: dict[str, Any] = (
        {} if needed <= room else {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    )
    axes.set_xticks(range(len(labels)), labels, **slanted)
    axes.set_xlabel("Side of the square patch in px" if known else "Patch, height × width")


def _in_two_lines(name: str) -> str:
    """`2 of 16 × 16 px` is broken before the size."""
    return name.replace(" of ", " of\n")
