"""How many images have each min-k: stacked bars, one per defender."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from costcert.reports.figures.layout import columns_for, new_figure, shortened, text_width
from costcert.reports.figures.patches import few_patches, patch_title
from costcert.reports.results import Results
from costcert.reports.style import INK, PAGE, QUIET, TEXT_SIZE, Key, defender_title, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOT_CERTIFIED = "#dcdee1"


@styled
def min_k_histogram(results: Results, *, width: float = PAGE) -> Figure:
    """How many images have each min-k: one bar per defender, stacked bins, one panel per patch."""
    from matplotlib.patches import Patch

    patches, left_out = few_patches(results)
    ranges = bins(results.num_classes)
    colours = _shades(len(ranges))
    keys: list[Key] = [
        (bin_title(*each, results.num_classes), Patch(facecolor=colour, linewidth=0))
        for each, colour in zip(ranges, colours, strict=True)
    ]
    columns = columns_for(len(patches), width, 1.7)
    figure, panels = new_figure(
        "Images by the smallest certified k (min-k)",
        f"Share of {results.images:,} images with each min-k, from the strongest certificate, "
        f"k\u00a0=\u00a01, on the left to no promise on the right.{left_out}",
        keys,
        width=width,
        panels=len(patches),
        columns=columns,
        panel_height=0.5 + 0.16 * len(results.defenders),
        sharex=True,
        sharey=True,
    )
    names = [shortened(defender_title(defender), 22) for defender in results.defenders]
    # The names stand beside the first panel of each row.
    room = (width - max(text_width(name, TEXT_SIZE) for name in names)) / columns - 0.15
    for patch, axes in zip(patches, panels, strict=True):
        _bars(axes, results, patch, ranges, colours)
        axes.set_title(patch_title(patch, results.image_size, room))
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    panels[0].set_xlim(0, 100)
    panels[0].set_xticks(range(0, 101, 50))
    for axes in panels:
        # Inwards, so that they do not touch those of the next panel.
        first, *_, last = axes.get_xticklabels()
        first.set_horizontalalignment("left")
        last.set_horizontalalignment("right")
    figure.supxlabel("Images in %", size=TEXT_SIZE, color=QUIET)
    return figure


def bins(num_classes: int) -> list[tuple[int, int]]:
    """First and last min-k of each bin: 1, 2, 3, 4, 5, 6-10, 11-20, …; all classes are a bin of their own."""
    ends = [1, 2, 3, 4, 5] + [digit * 10**power for power in range(1, 8) for digit in (1, 2, 5)]
    below = [end for end in ends if end < num_classes - 1]
    if num_classes > 1:
        below.append(num_classes - 1)
    starts = [1, *(end + 1 for end in below)]
    return list(zip(starts, [*below, num_classes], strict=True))


def bin_title(low: int, high: int, num_classes: int) -> str:
    if high == num_classes:
        return "no promise"
    return f"{'k = ' * (low == 1)}{low:,}" if low == high else f"{low:,}–{high:,}"


def _bars(
    axes: Axes, results: Results, patch: str, ranges: list[tuple[int, int]], colours: list[Any]
) -> None:
    rows = [
        row for row, defender in enumerate(results.defenders) if (defender, patch) in results.tally.min_ks
    ]
    counts = [results.tally.min_ks[results.defenders[row], patch] for row in rows]
    starts = np.zeros(len(rows))
    for (low, high), colour in zip(ranges, colours, strict=True):
        shares = np.array([100 * each[low : high + 1].sum() / results.images for each in counts])
        nonempty = shares > 0
        axes.barh(
            np.array(rows)[nonempty],
            shares[nonempty],
            left=starts[nonempty],
            height=0.74,
            color=colour,
            linewidth=0,
            label=f"{low}-{high}",
            clip_on=False,
        )
        starts += shares
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", labelcolor=INK)


def _shades(count: int) -> list[Any]:
    """Dark to light, and grey for the last bin, where nothing is certified."""
    from matplotlib import colormaps

    return [*colormaps["viridis"](np.linspace(0.05, 0.97, count - 1) if count > 1 else []), NOT_CERTIFIED]
