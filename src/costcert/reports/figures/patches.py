"""Patches along an axis: squares by their side in pixels, anything else by its spelling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from costcert.errors import CostcertError
from costcert.geometry.patches import Square, concrete, parse_patch
from costcert.reports.figures.sheet import shortened, text_width
from costcert.reports.results import Results
from costcert.reports.style import TEXT_SIZE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

T = TypeVar("T")

LONGEST = 18
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


def in_order(results: Results) -> list[str]:
    """Squares by size, others as they were asked for."""
    return list(sides(results) or results.patches)


def patch_title(patch: str) -> str:
    square = parse_patch(patch)
    return f"{square.side} px patch" if isinstance(square, Square) else shortened(patch, LONGEST)


def asked(results: Results, patch: str | int) -> str:
    """The spelling of a patch that there are results for."""
    wanted = str(concrete(patch, results.image_size))
    if wanted not in results.patches:
        raise CostcertError(
            f"nothing was certified against {wanted}: there are results for {', '.join(results.patches)}"
        )
    return wanted


def few_patches(results: Results) -> tuple[list[str], str]:
    """As many patches as there is room for, first and last among them, and a word if some are left out."""
    return evenly(in_order(results))


def evenly(patches: list[T]) -> tuple[list[T], str]:
    """Of many patches some at equal distances, and a word about it."""
    if len(patches) <= MOST_PATCHES:
        return patches, ""
    apart = (len(patches) - 1) / (MOST_PATCHES - 1)
    shown = [patches[round(place * apart)] for place in range(MOST_PATCHES)]
    return shown, f" {MOST_PATCHES} of {len(patches)} patches are shown."


def label_sizes(axes: Axes, places: list[int], room: float) -> None:
    """Ticks at the sizes themselves, left out where labels would touch on an axis of `room` inches."""
    low, high = axes.get_xlim()
    apart = max(text_width(str(place), TEXT_SIZE) for place in places) + 0.07
    shown: list[int] = []
    for place in sorted(places):
        if not shown or (place - shown[-1]) * room / (high - low) >= apart:
            shown.append(place)
    axes.set_xticks(shown, [str(place) for place in shown])
    axes.set_xlabel("Patch side in px")


def label_patches(axes: Axes, results: Results, patches: list[str], room: float) -> None:
    """One tick per patch, at 0, 1, 2, …"""
    known = sides(results)
    labels = [str(known[patch]) if known else _in_two_lines(patch) for patch in patches]
    needed = len(labels) * max(
        text_width(line, TEXT_SIZE) + 0.07 for label in labels for line in label.split("\n")
    )
    slanted: dict[str, Any] = (
        {} if needed <= room else {"rotation": 40, "ha": "right", "rotation_mode": "anchor"}
    )
    axes.set_xticks(range(len(labels)), labels, **slanted)
    axes.set_xlabel("Patch side in px" if known else "Patch")


def _in_two_lines(patch: str) -> str:
    return shortened(patch, LONGEST).replace(":", ":\n")
