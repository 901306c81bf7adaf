"""How large k must be: min-k as boxes by patch size, and as a histogram."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from costcert.reports.figures.patches import (
    for_panels,
    in_order,
    label_patches,
    label_sizes,
    patch_title,
    sides,
)
from costcert.reports.results import Results
from costcert.reports.style import (
    INK,
    PAGE,
    QUIET,
    TEXT_SIZE,
    Key,
    columns_for,
    defender_keys,
    defender_title,
    house_style,
    line_style,
    looks,
    sheet,
    shortened,
    tint,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Counts = npt.NDArray[np.int64]

# With more classes than this small values would be squeezed together on a linear axis.
MOST_LINEAR = 30
NO_PROMISE = "#dcdee1"


@house_style
def min_k_boxes(results: Results, *, width: float = PAGE) -> Figure:
    """Box plots of min-k by patch size, and how its mean grows from each size to the next (Fig. 5)."""
    growing = len(sides(results) or ()) > 1
    beside = growing and width > 5
    note = (
        "Boxes: the middle half of the images, with the median; whiskers: as far as 1.5 box heights; "
        "markers: the mean."
    )
    if growing:
        note += f" {'Right' if beside else 'Below'}: mean min-k divided by that of the next smaller patch."
    figure, panels = sheet(
        "The smallest k that can be promised, by patch size",
        f"{note} {results.images:,} images.",
        defender_keys(results.defenders),
        width=width,
        panels=1 + growing,
        columns=1 + beside,
        panel_height=2.5 if width > 5 else 2.1,
        gridspec_kw={"width_ratios": [2.1, 1]} if beside else {"height_ratios": [1.25, 1]} if growing else {},
    )
    _boxes(panels[0], results, (width * 0.66 if beside else width) - 0.5)
    if growing:
        _growth(panels[1], results, (width * 0.33 if beside else width) - 0.5)
    return figure


def box(counts: Counts) -> dict[str, float]:
    """What a box plot shows of the images, from how many have each min-k."""
    present = np.flatnonzero(counts)
    q1, median, q3 = (quantile(counts, share) for share in (0.25, 0.5, 0.75))
    reach = 1.5 * (q3 - q1)
    return {
        "q1": q1,
        "med": median,
        "q3": q3,
        "mean": mean(counts),
        "whislo": min(q1, float(present[present >= q1 - reach][0])),
        "whishi": max(q3, float(present[present <= q3 + reach][-1])),
    }


def mean(counts: Counts) -> float:
    return float(counts @ np.arange(len(counts)) / counts.sum())


def quantile(counts: Counts, share: float) -> float:
    """As numpy's of the images one by one: between two images, on the line between them."""
    up_to = counts.cumsum()
    place = share * (up_to[-1] - 1)
    below, above = (np.searchsorted(up_to, at, side="right") for at in (np.floor(place), np.ceil(place)))
    return float(below + (above - below) * (place - np.floor(place)))


def _boxes(axes: Axes, results: Results, room: float) -> None:
    patches, min_ks = in_order(results), results.tally.min_ks
    step = 0.84 / len(results.defenders)
    for turn, (defender, look) in enumerate(looks(results.defenders).items()):
        mine = [patch for patch in patches if (defender, patch) in min_ks]
        edge: dict[str, Any] = {"color": look.colour, "linewidth": 0.8, "solid_capstyle": "butt"}
        axes.bxp(
            [box(min_ks[defender, patch]) for patch in mine],
            positions=[
                patches.index(patch) + step * (turn - (len(results.defenders) - 1) / 2) for patch in mine
            ],
            widths=step * 0.72,
            showfliers=False,
            showcaps=False,
            showmeans=True,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": tint(look.colour, 0.3), "edgecolor": look.colour, "linewidth": 0.8},
            whiskerprops=edge,
            medianprops={**edge, "linewidth": 1.8},
            meanprops={
                "marker": look.marker,
                "markersize": min(look.marker_size, 5),
                "markerfacecolor": look.colour,
                "markeredgecolor": "white",
                "markeredgewidth": 0.5,
                "zorder": 4,
            },
        )
    last = results.num_classes
    if last > MOST_LINEAR:
        axes.set_yscale("log")
        ticks = [tick for tick in (10**power for power in range(9)) if tick * 2 < last]
        axes.set_yticks([*ticks, last], [f"{tick:,}" for tick in [*ticks, last]])
        axes.set_yticks([], minor=True)
        axes.set_ylim(0.8, last * 1.9)
    else:
        ticks = list(range(1, last + 1, max(1, round(last / 8))))
        axes.set_yticks([tick for tick in ticks if tick == last or last - tick >= last / 12] + [last])
        axes.set_ylim(0.5, last + max(0.6, last * 0.1))
    axes.axhline(last, color=QUIET, linewidth=0.7, linestyle=(0, (1, 2)), zorder=0.9)
    axes.annotate(
        f"k = {last:,}, all classes: no promise",
        (0, last),
        xycoords=("axes fraction", "data"),
        xytext=(2, 2.5),
        textcoords="offset points",
        color=QUIET,
        size="small",
        bbox={"facecolor": "white", "linewidth": 0, "pad": 0.5},
    )
    axes.set_xlim(-0.5, len(patches) - 0.5)
    axes.set_xticks([place + 0.5 for place in range(len(patches) - 1)], minor=True)
    axes.grid(visible=True, which="minor", axis="x")
    axes.set_ylabel("min-k" + (" (log scale)" if last > MOST_LINEAR else ""))
    label_patches(axes, results, room)


def _growth(axes: Axes, results: Results, room: float) -> None:
    """r_i = mean min-k of size i over that of size i - 1."""
    known = sides(results) or {}
    for defender, look in looks(results.defenders).items():
        mine = [patch for patch in known if (defender, patch) in results.tally.min_ks]
        means = np.array([mean(results.tally.min_ks[defender, patch]) for patch in mine])
        axes.plot(
            [known[patch] for patch in mine[1:]],
            means[1:] / means[:-1],
            label=f"{defender} ratio",
            **line_style(look),
        )
    axes.axhline(1, color=QUIET, linewidth=0.7, linestyle=(0, (1, 2)), zorder=0.9)
    axes.set_ylabel("Growth of the mean, ratio r")
    axes.margins(x=0.08)
    label_sizes(axes, list(known.values())[1:], room)


@house_style
def min_k_histogram(results: Results, *, width: float = PAGE) -> Figure:
    """How many images have each min-k: a bar per defender, cut into bins, a panel per patch."""
    from matplotlib.patches import Patch

    patches, left_out = for_panels(results)
    ranges = bins(results.num_classes)
    colours = _shades(len(ranges))
    keys: list[Key] = [
        (bin_title(*each, results.num_classes), Patch(facecolor=colour, linewidth=0))
        for each, colour in zip(ranges, colours, strict=True)
    ]
    columns = columns_for(len(patches), width, 1.7)
    figure, panels = sheet(
        "Images by the smallest k that can be promised",
        f"Share of {results.images:,} images with each min-k: from left to right k\u00a0=\u00a01, the "
        f"strongest promise, to none.{left_out}",
        keys,
        width=width,
        panels=len(patches),
        columns=columns,
        panel_height=0.5 + 0.16 * len(results.defenders),
        sharex=True,
        sharey=True,
    )
    names = [shortened(defender_title(defender), 22) for defender in results.defenders]
    for patch, axes in zip(patches, panels, strict=True):
        _bars(axes, results, patch, ranges, colours)
        axes.set_title(patch_title(patch))
    panels[0].set_yticks(range(len(names)), names)
    panels[0].set_ylim(len(names) - 0.5, -0.5)
    panels[0].set_xlim(0, 100)
    panels[0].set_xticks(range(0, 101, 50))
    figure.supxlabel("Images in %", size=TEXT_SIZE, color=QUIET)
    return figure


def bins(num_classes: int) -> list[tuple[int, int]]:
    """From and up to: 1, 2, 3, 4, 5, 6-10, 11-20, 21-50, 51-100, … and all classes alone."""
    ends = [1, 2, 3, 4, 5] + [digit * 10**power for power in range(1, 8) for digit in (1, 2, 5)]
    below = [end for end in ends if end < num_classes - 1]
    if num_classes > 1:
        below.append(num_classes - 1)
    starts = [1, *(end + 1 for end in below)]
    return list(zip(starts, [*below, num_classes], strict=True))


def bin_title(low: int, high: int, num_classes: int) -> str:
    if high == num_classes:
        return f"{high:,}: no promise"
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
        seen = shares > 0
        axes.barh(
            np.array(rows)[seen],
            shares[seen],
            left=starts[seen],
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
    """Dark to light, and grey for the last."""
    from matplotlib import colormaps

    return [*colormaps["viridis"](np.linspace(0.05, 0.97, count - 1) if count > 1 else []), NO_PROMISE]
