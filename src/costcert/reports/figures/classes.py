"""Certified accuracy of each class."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from costcert.certification.accuracy import wilson
from costcert.errors import CostcertError
from costcert.reports.figures.layout import new_figure, shortened
from costcert.reports.figures.patches import certified_patch, patch_title
from costcert.reports.results import Results
from costcert.reports.style import (
    INK,
    PAGE,
    QUIET,
    defender_title,
    line,
    line_style,
    looks,
    styled,
    tint,
)
from costcert.reports.summary import classes, headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# With more classes than this only the best and the worst are shown.
MOST_CLASSES = 40
EXTREMES = 15


@styled
def accuracy_by_class(
    results: Results,
    *,
    defender: str | None = None,
    patch: str | int | None = None,
    k: int = 1,
    width: float = PAGE,
) -> Figure:
    """Certified and clean accuracy of each class, best first, for one defender, patch and k.

    Args:
        defender: that of the headline by default.
        patch: that of the headline by default.
    """
    key = _key(results, defender, patch, k)
    ranked = [each.label for each in classes(results, *key)]
    parts = [("", ranked)]
    if len(ranked) > MOST_CLASSES:
        parts = [(f"{EXTREMES} best", ranked[:EXTREMES]), (f"{EXTREMES} worst", ranked[-EXTREMES:])]
    elif len(ranked) > MOST_CLASSES // 2 and width > 5:
        half = ceil(len(ranked) / 2)
        parts = [("Better half", ranked[:half]), ("Worse half", ranked[half:])]
    look = looks(results.defenders)[key[0]]
    beside = len(parts) if width > 5 else 1
    note = (
        f"{defender_title(key[0])} against {patch_title(key[1], results.image_size)}; bars: 95 % intervals."
    )
    if len(ranked) > MOST_CLASSES:
        note += f" The {EXTREMES} best and the {EXTREMES} worst of {len(ranked):,} classes."
    figure, panels = new_figure(
        f"Certified top-{k} accuracy by class",
        note,
        [
            ("certified", line(look, linestyle="none")),
            ("clean", line(look, linestyle="none", marker="|", markeredgecolor=QUIET, markeredgewidth=1)),
        ],
        width=width,
        panels=len(parts),
        columns=beside,
        panel_height=0.5 + 0.15 * max(len(part) for _, part in parts),
        sharex=True,
    )
    for axes, (title, part) in zip(panels, parts, strict=True):
        _dots(axes, results, key, part)
        axes.set_title(title)
    for axes in panels[-beside:]:
        axes.set_xlabel(f"Top-{k} accuracy in %")
    return figure


def _key(results: Results, defender: str | None, patch: str | int | None, k: int) -> tuple[str, str, int]:
    if results.by_class is None:
        raise CostcertError(
            "these results have no counts by class: read them with the votes that were certified, which hold "
            "the true labels"
        )
    found = headline(results)
    key = (
        found.defender if defender is None else defender,
        found.patch if patch is None else certified_patch(results, patch),
        k,
    )
    known = results.by_class.certified
    if key not in known:
        choices = "; ".join(", ".join(map(str, dict.fromkeys(each))) for each in zip(*known, strict=True))
        raise CostcertError(
            f"there are no counts by class for {key[0]} against {key[1]} at k = {k}: choose from {choices}"
        )
    return key


def _dots(axes: Axes, results: Results, key: tuple[str, str, int], labels: list[int]) -> None:
    counts = results.by_class
    assert counts is not None
    look = looks(results.defenders)[key[0]]
    images, rows = counts.images[labels], range(len(labels))
    certified = counts.certified[key][labels]
    ends = [wilson(int(hits), int(of)) for hits, of in zip(certified, images, strict=True)]
    axes.hlines(
        rows,
        [100 * low for low, _ in ends],
        [100 * high for _, high in ends],
        color=tint(look.colour, 0.35),
        linewidth=2.4,
    )
    dots: dict[str, Any] = {"linestyle": "none"}
    clean: dict[str, Any] = {"marker": "|", "markersize": 6, "markeredgecolor": QUIET, "markeredgewidth": 1}
    axes.plot(100 * counts.clean[key][labels] / images, rows, label="clean", **{**dots, **clean})
    axes.plot(100 * certified / images, rows, label="certified", **{**line_style(look), **dots})
    prefix = "" if results.votes.get("class_names") else "class "
    axes.set_yticks(rows, [prefix + shortened(results.class_names[label], 24) for label in labels])
    axes.tick_params(axis="y", labelcolor=INK)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(-2.5, 102.5)
    axes.spines["left"].set_visible(False)
