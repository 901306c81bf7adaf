"""Min-k as box plots by patch size, and how its mean grows with the size."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from costcert.reports.figures.layout import new_figure
from costcert.reports.figures.patches import few_patches, set_patch_ticks, set_size_ticks, sides
from costcert.reports.results import Results
from costcert.reports.style import PAGE, QUIET, defender_keys, line_style, looks, styled, tint

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Counts = npt.NDArray[np.int64]

# With more classes than this the axis is logarithmic: small values would be squeezed on a linear one.
MOST_LINEAR = 30

# The label of min-k = number of classes: the list of all labels always contains the right one.
NO_PROMISE = "no\npromise"


@styled
def min_k_boxes(results: Results, *, width: float = PAGE) -> Figure:
    """Box plots of min-k by patch size, and how its mean grows from each size to the next (Fig. 5)."""
    growing = len(sides(results) or ()) > 1
    beside = growing and width > 5
    patches, left_out = few_patches(results)
    note = (
        "Boxes: the middle half of the images, with the median; whiskers: as far as 1.5 box heights; "
        "markers: the mean."
    )
    if growing:
        note += f" {'Right' if beside else 'Below'}: mean min-k divided by that of the next smaller patch."
    figure, panels = new_figure(
        "The smallest certified k (min-k), by patch size",
        f"{note} {results.images:,} images.{left_out}",
        defender_keys(results.defenders),
        width=width,
        panels=1 + growing,
        columns=1 + beside,
        panel_height=2.5 if width > 5 else 2.1,
        gridspec_kw={"width_ratios": [2.1, 1]} if beside else {"height_ratios": [1.25, 1]} if growing else {},
    )
    _boxes(panels[0], results, patches, (width * 0.66 if beside else width) - 0.5)
    if growing:
        _growth(panels[1], results, (width * 0.33 if beside else width) - 0.5)
    return figure


class Box(NamedTuple):
    """The numbers of a box plot: lower whisker, three quartiles and upper whisker, and the mean."""

    marks: tuple[float, float, float, float, float]
    mean: float


def box(counts: Counts) -> Box:
    """The box plot of the images, from the number of images with each min-k."""
    present = np.flatnonzero(counts)
    q1, median, q3 = (quantile(counts, share) for share in (0.25, 0.5, 0.75))
    reach = 1.5 * (q3 - q1)
    low = min(q1, float(present[present >= q1 - reach][0]))
    high = max(q3, float(present[present <= q3 + reach][-1]))
    return Box((low, q1, median, q3, high), mean(counts))


def mean(counts: Counts) -> float:
    return float(counts @ np.arange(len(counts)) / counts.sum())


def quantile(counts: Counts, share: float) -> float:
    """As `numpy.quantile` of the min-k of every image, with linear interpolation."""
    up_to = counts.cumsum()
    place = share * (up_to[-1] - 1)
    below, above = (np.searchsorted(up_to, at, side="right") for at in (np.floor(place), np.ceil(place)))
    return float(below + (above - below) * (place - np.floor(place)))


def _boxes(axes: Axes, results: Results, patches: list[str], room: float) -> None:
    min_ks = results.tally.min_ks
    step = 0.84 / len(results.defenders)
    wide = 0.72 * step
    for turn, (defender, look) in enumerate(looks(results.defenders).items()):
        mine = [patch for patch in patches if (defender, patch) in min_ks]
        aside = step * (turn - (len(results.defenders) - 1) / 2)
        places = np.array([patches.index(patch) + aside for patch in mine])
        boxes = [box(min_ks[defender, patch]) for patch in mine]
        low, q1, median, q3, high = (np.array(each) for each in zip(*(b.marks for b in boxes), strict=True))
        # Not Axes.bxp, which imports pyplot and selects a backend for the entire process.
        axes.vlines([*places, *places], [*low, *q3], [*q1, *high], color=look.colour, linewidth=0.8)
        axes.bar(
            places,
            q3 - q1,
            bottom=q1,
            width=wide,
            facecolor=tint(look.colour, 0.3),
            edgecolor=look.colour,
            linewidth=0.8,
            label=f"{defender} box",
        )
        axes.hlines(
            median,
            places - wide / 2,
            places + wide / 2,
            color=look.colour,
            linewidth=1.8,
            label=f"{defender} median",
            zorder=3,
        )
        axes.plot(
            places,
            [each.mean for each in boxes],
            label=f"{defender} mean",
            **{**line_style(look), "linestyle": "none", "markersize": min(look.marker_size, 5), "zorder": 4},
        )
    last = results.num_classes
    if last > MOST_LINEAR:
        axes.set_yscale("log")
        ticks = [tick for tick in (10**power for power in range(9)) if tick * 2 < last]
        axes.set_yticks([*ticks, last], [*(f"{tick:,}" for tick in ticks), NO_PROMISE])
        axes.set_yticks([], minor=True)
        axes.set_ylim(0.8, last * 1.9)
    else:
        step = max(1, round(last / 8))
        ticks = [tick for tick in range(1, last, step) if last - tick >= last / 12]
        axes.set_yticks([*ticks, last], [*map(str, ticks), NO_PROMISE])
        axes.set_ylim(0.5, last + max(0.6, last * 0.1))
    axes.axhline(last, color=QUIET, linewidth=0.7, linestyle=(0, (1, 2)), zorder=0.9)
    axes.set_xlim(-0.5, len(patches) - 0.5)
    axes.set_xticks([place + 0.5 for place in range(len(patches) - 1)], minor=True)
    axes.grid(visible=True, which="minor", axis="x")
    axes.set_ylabel("min-k" + (" (log scale)" if last > MOST_LINEAR else ""))
    set_patch_ticks(axes, results, patches, room)


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
    set_size_ticks(axes, list(known.values())[1:], room)
