"""Several runs and published numbers in one figure: accuracy against k, one panel per patch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import cycle
from math import nan
from typing import TYPE_CHECKING, Any

from costcert.errors import CostcertError, nearest
from costcert.geometry.patches import Square
from costcert.reports.figures.accuracy import clean_style, metric_keys, set_k_ticks
from costcert.reports.figures.layout import columns_for, new_figure, shortened
from costcert.reports.figures.patches import evenly_spaced, patch_title
from costcert.reports.published import Published
from costcert.reports.results import Results
from costcert.reports.style import INK, PAGE, QUIET, TEXT_SIZE, Look, line, line_style, styled
from costcert.reports.tables.comparison import METRICS, Comparison, Entry

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Line = tuple[Entry, Look]

# The colours of Okabe and Ito for runs. There is one more marker than colours, so that pairs repeat late.
# The first three colours also differ in grey print.
_COLOURS = ("#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#8C6D1F")
_MARKERS = ("o", "s", "v", "D", "P", "X", "<", ">")
_GREYS = (INK, QUIET, "#9aa0a6")
_PUBLISHED_MARKERS = ("*", "o", "^", "h", "d")


@styled
def comparison(
    results: Sequence[Results],
    ks: Iterable[int] = range(1, 6),
    published: Published | None = None,
    *,
    defenders: Iterable[str] | None = None,
    mixed: bool = False,
    width: float = PAGE,
) -> Figure:
    """Clean and certified accuracy of each run against k, with published numbers dashed.

    Args:
        published: lines of the paper to add, for patches that cover the same share of the image.
        defenders: the defenders to draw, of runs and of the paper; by default CostCert of each run, or the
            best defender of a run without CostCert, and all defenders of the paper.
        mixed: allow runs on different datasets, whose numbers are not comparable.
    """
    compared = Comparison.of(results, sorted(ks), published=published, mixed=mixed, confidence=0.95)
    shown = _looks(_chosen(compared, defenders))
    order = list(range(len(compared.threats)))
    if all(isinstance(threat.patch, Square) for threat in compared.threats):
        order.sort(key=lambda number: compared.threats[number].extent)
    panels_of, left_out = evenly_spaced(order)
    columns = columns_for(len(panels_of), width, 2.3)
    figure, panels = new_figure(
        "Clean and certified accuracy for each k" + (", and as published" if published else ""),
        _note(compared, has_published=any(entry.is_published for entry, _ in shown)) + left_out,
        [
            *((_label(entry, width), line(look, **_style(entry, look))) for entry, look in shown),
            *metric_keys(),
        ],
        width=width,
        panels=len(panels_of),
        columns=columns,
        panel_height=2.6 if columns > 1 else 2.4,
        sharex=True,
        sharey=True,
    )
    for place, (number, axes) in enumerate(zip(panels_of, panels, strict=True)):
        threat = compared.threats[number]
        _draw(axes, shown, number, compared.ks)
        axes.set_title(patch_title(str(threat.patch), threat.image_size, width / columns - 0.25))
        if place % columns == 0:
            axes.set_ylabel("Accuracy in %")
    set_k_ticks(panels[0], list(compared.ks))
    figure.supxlabel("k", size=TEXT_SIZE, color=QUIET)
    return figure


def _chosen(compared: Comparison, defenders: Iterable[str] | None) -> list[Entry]:
    if defenders is None:
        runs = dict.fromkeys(entry.run for entry in compared.entries if not entry.is_published)
        best = [_best([entry for entry in compared.entries if entry.run == run]) for run in runs]
        return best + [entry for entry in compared.entries if entry.is_published]
    known = list(dict.fromkeys(entry.defender for entry in compared.entries))
    wanted = list(defenders)
    for name in wanted:
        if name not in known:
            raise CostcertError(
                f"these runs have no defender {name!r}{nearest(name, known)}: choose from {', '.join(known)}"
            )
    return [entry for entry in compared.entries if entry.defender in wanted]


def _best(entries: Sequence[Entry]) -> Entry:
    """CostCert, or without it the defender that certifies most."""

    def certified(entry: Entry) -> tuple[bool, float]:
        shares = [cell.value or 0 for (metric, _, _), cell in entry.cells.items() if metric == "certified"]
        return entry.defender == "costcert", sum(shares)

    return max(entries, key=certified)


def _looks(entries: Sequence[Entry]) -> list[Line]:
    """Lines of runs are solid, with a colour and a marker each; published ones thin, grey and dashed."""
    own = [entry for entry in entries if not entry.is_published]
    # The published CostCert matters most: the darkest line, with the star marker of the paper.
    published = sorted(
        (entry for entry in entries if entry.is_published), key=lambda entry: entry.defender != "costcert"
    )
    coloured = zip(own, cycle(_COLOURS), cycle(_MARKERS), strict=False)
    grey = zip(published, cycle(_GREYS), cycle(_PUBLISHED_MARKERS), strict=False)
    return [
        *((entry, Look(colour, marker, "-", 3.9, 1.7)) for entry, colour, marker in coloured),
        *((entry, Look(colour, marker, (0, (4, 1.6)), 4.2, 1.0)) for entry, colour, marker in grey),
    ]


def _style(entry: Entry, look: Look, metric: str = "certified") -> dict[str, Any]:
    style = line_style(look) if metric == "certified" else clean_style(look)
    # Hollow markers, so that published lines differ from runs in grey print too.
    hollow = {"markerfacecolor": "white", "markeredgecolor": style["color"], "markeredgewidth": 0.7}
    return {**style, **hollow} if entry.is_published else style


def _draw(axes: Axes, lines: Sequence[Line], threat: int, ks: Sequence[int]) -> None:
    for entry, look in lines:
        # Certified lines are drawn last, above the others.
        cells = {metric: [entry.cell(metric, threat, k) for k in ks] for metric in reversed(METRICS)}
        for metric, of_ks in cells.items():
            if all(cell.value is None for cell in of_ks):
                continue
            shares = [nan if cell.value is None else 100 * cell.value for cell in of_ks]
            axes.plot(ks, shares, label=f"{entry.run} {entry.title} {metric}", **_style(entry, look, metric))
        ends = [(cell.low, cell.high) for cell in cells["certified"]]
        if all(low is not None and high is not None for low, high in ends):
            low, high = ([100 * (each or 0) for each in end] for end in zip(*ends, strict=True))
            axes.fill_between(ks, low, high, color=look.colour, alpha=0.16, linewidth=0, clip_on=False)


def _label(entry: Entry, width: float) -> str:
    passes = "" if entry.passes is None else f", {entry.passes:,} pass{'es' if entry.passes > 1 else ''}"
    return f"{shortened(entry.run, 40 if width > 5 else 24)}: {shortened(entry.title, 18)}{passes}"


def _note(compared: Comparison, *, has_published: bool) -> str:
    own = [entry for entry in compared.entries if not entry.is_published]
    data = list(dict.fromkeys(entry.data for entry in own or compared.entries))
    parts = [
        "Bold: the true label provably stays among the top k, whatever the patch shows and wherever it lies.",
        "Thin: it is there without a patch. Passes are per image.",
        "Bands: 95 % intervals." if own else "",
        "Dashed: as published, for patches that cover the same share of the image." if has_published else "",
        f"{data[0]}." if len(data) == 1 else "Different datasets: the numbers are not comparable.",
    ]
    return " ".join(part for part in parts if part)
