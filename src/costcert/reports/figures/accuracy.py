"""Accuracy against the size of the patch, and against k."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from costcert.reports.figures.layout import columns_for, new_figure
from costcert.reports.figures.patches import (
    certified_patch,
    few_patches,
    patch_title,
    set_patch_ticks,
    set_size_ticks,
    sides,
    sorted_patches,
)
from costcert.reports.results import Results
from costcert.reports.style import (
    PAGE,
    QUIET,
    TEXT_SIZE,
    Key,
    Look,
    defender_keys,
    line,
    line_style,
    looks,
    styled,
    tint,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# With more k than this the axis is logarithmic, and only round k are drawn: these digits times powers of 10.
MOST_KS = 30
ROUND_DIGITS = (1, 2, 3, 5)


@styled
def accuracy_by_size(results: Results, ks: Iterable[int] = (5, 10), *, width: float = PAGE) -> Figure:
    """Clean and certified accuracy of each defender against the patch size, one panel per k (Fig. 7).

    The x axis is the side in pixels if all patches are squares; otherwise there is one tick per patch.
    """
    below = [k for k in dict.fromkeys(ks) if k < results.num_classes]
    ks = below or [max(1, results.num_classes - 1)]
    keys = [*defender_keys(results.defenders), *metric_keys()]
    columns = columns_for(len(ks), width, 2.3)
    figure, panels = new_figure(
        "Clean and certified accuracy by patch size",
        "Thin: the true label is among the top k without a patch. Bold: it provably stays there, "
        f"whatever the patch shows and wherever it lies. {results.images:,} images.",
        keys,
        width=width,
        panels=len(ks),
        columns=columns,
        panel_height=2.3 if columns > 1 or width > 5 else 1.9,
        sharey=True,
    )
    table = results.accuracy(ks)
    draw = _sizes if len(sides(results) or ()) > 1 else _side_by_side
    for place, (k, axes) in enumerate(zip(ks, panels, strict=True)):
        draw(axes, results, table[table["k"] == k], width / columns - 0.5)
        axes.set_title(f"Top {k}")
        axes.set_ylim(0, 100)
        if place % columns == 0:
            axes.set_ylabel("Accuracy in %")
        if place < len(ks) - columns:
            axes.set_xlabel("")
    return figure


def _sizes(axes: Axes, results: Results, table: pd.DataFrame, room: float) -> None:
    known = sides(results) or {}
    for defender, look in looks(results.defenders).items():
        rows = table[table["defender"] == defender].set_index("patch")
        mine = [patch for patch in known if patch in rows.index]
        places = [known[patch] for patch in mine]
        axes.plot(places, 100 * rows.loc[mine, "clean"], label=f"{defender} clean", **clean_style(look))
        axes.plot(
            places, 100 * rows.loc[mine, "certified"], label=f"{defender} certified", **line_style(look)
        )
    set_size_ticks(axes, list(known.values()), room)


def _side_by_side(axes: Axes, results: Results, table: pd.DataFrame, room: float) -> None:
    """Patches without an order by size: for each defender a stem from certified up to clean."""
    patches = sorted_patches(results)
    step = 0.7 / len(results.defenders)
    for turn, (defender, look) in enumerate(looks(results.defenders).items()):
        rows = table[table["defender"] == defender]
        places = [
            patches.index(patch) + step * (turn - (len(results.defenders) - 1) / 2) for patch in rows["patch"]
        ]
        clean, certified = 100 * rows["clean"], 100 * rows["certified"]
        axes.vlines(places, certified, clean, color=tint(look.colour, 0.45), linewidth=0.9)
        dots: dict[str, Any] = {"linestyle": "none"}
        axes.plot(places, clean, label=f"{defender} clean", **{**clean_style(look), **dots, "marker": "_"})
        axes.plot(places, certified, label=f"{defender} certified", **{**line_style(look), **dots})
    axes.set_xlim(-0.6, len(patches) - 0.4)
    set_patch_ticks(axes, results, patches, room)


def metric_keys() -> list[Key]:
    """Legend entries for bold and thin lines."""
    grey = Look(QUIET, "", "-")
    return [
        ("certified", line(grey, linewidth=1.9)),
        ("clean", line(grey, linewidth=0.9, color=tint(QUIET, 0.5))),
    ]


def clean_style(look: Look) -> dict[str, Any]:
    """Properties of a thin, faded line, for clean accuracy."""
    faded = tint(look.colour, 0.5)
    return {
        **line_style(look),
        "color": faded,
        "linewidth": 0.9,
        "markersize": look.marker_size * 0.6,
        "markeredgecolor": faded,
    }


@styled
def accuracy_by_k(results: Results, patch: str | int | None = None, *, width: float = PAGE) -> Figure:
    """Certified accuracy of each defender against k with 95 % intervals, for each patch or for one."""
    patches, left_out = few_patches(results) if patch is None else ([certified_patch(results, patch)], "")
    ks = shown_ks(results.num_classes)
    columns = columns_for(len(patches), width)
    figure, panels = new_figure(
        "Certified accuracy for each k",
        "Share of images whose true label provably stays among the top k. Bands: 95 % intervals for "
        f"{results.images:,} images.{left_out}",
        defender_keys(results.defenders),
        width=width,
        panels=len(patches),
        columns=columns,
        panel_height=1.65 if columns > 1 else 2.3,
        sharex=True,
        sharey=True,
    )
    table = results.accuracy(ks)
    for place, (each, axes) in enumerate(zip(patches, panels, strict=True)):
        for turn, (defender, look) in enumerate(looks(results.defenders).items()):
            rows = table[(table["defender"] == defender) & (table["patch"] == each)]
            band = 100 * rows["certified_low"], 100 * rows["certified_high"]
            axes.fill_between(rows["k"], *band, color=look.colour, alpha=0.16, linewidth=0, clip_on=False)
            axes.plot(
                rows["k"],
                100 * rows["certified"],
                label=f"{defender} certified",
                # A few markers, at different k for each defender.
                markevery=(turn, max(1, len(ks) // 3)) if len(ks) > 8 else None,
                **line_style(look),
            )
        axes.set_title(patch_title(each, results.image_size, width / columns - 0.25))
        if place % columns == 0:
            axes.set_ylabel("Certified in %")
    set_k_ticks(panels[0], ks)
    figure.supxlabel("k", size=TEXT_SIZE, color=QUIET)
    return figure


def shown_ks(num_classes: int) -> list[int]:
    """Every k below the number of classes; if these are many, all up to 10, then round ones, and the last."""
    last = max(1, num_classes - 1)
    if last <= MOST_KS:
        return list(range(1, last + 1))
    round_ks = {digit * 10**power for power in range(1, 8) for digit in ROUND_DIGITS}
    return sorted({k for k in {*range(1, 11), *round_ks} if k < last} | {last})


def set_k_ticks(axes: Axes, ks: list[int]) -> None:
    """Ticks of k, on a logarithmic axis if there are many, and accuracy from 0 to 100 %."""
    axes.set_ylim(0, 100)
    if ks[-1] > MOST_KS:
        axes.set_xscale("log")
        ticks = [10**power for power in range(9) if 10**power <= ks[-1]]
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.set_xlim(1, ks[-1])
    else:
        step = max(1, round(ks[-1] / 6))
        axes.set_xticks(range(1, ks[-1] + 1, step))
