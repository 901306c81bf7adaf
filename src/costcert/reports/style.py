"""One look for all figures: a colour, marker and dash per defender, type, and the sheet they are drawn on.

Colours are those of Okabe and Ito, which people with any colour vision tell apart; markers and dashes say the
same once more, for grey print. Sizes are in inches and points as printed, so that a figure drawn for a column
is as legible as one drawn for a page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from math import ceil
from threading import RLock
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from costcert.defenders import find
from costcert.errors import CostcertError, SpellingError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

PAGE = 7.0
COLUMN = 3.4

INK = "#1f2328"
QUIET = "#646b73"
FAINT = "#e3e5e8"

TITLE_SIZE = 9.5
TEXT_SIZE = 7.5
TITLE_LINE = 0.175
TEXT_LINE = 0.14
KEY_LINE = 0.155
GAP = 0.07
MARGIN = 0.06

# A name in the legend and how what it names looks.
Key = tuple[str, "Artist"]
Dash = str | tuple[float, tuple[float, ...]]
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Look:
    """How one defender is drawn."""

    colour: str
    marker: str
    dash: Dash = "-"
    marker_size: float = 4.0
    width: float = 1.3


# The markers are the paper's: stars, circles and triangles. Where two lines fall together, the later one is
# thinner and has gaps, so that both are seen.
_HOUSE = {
    "costcert": Look("#0072B2", "*", "-", 6.5, 1.9),
    "costcert-masks": Look("#56B4E9", "D", (0, (6, 0.8)), 4.4, 2.3),
    "patchguard": Look("#D55E00", "^", (0, (4, 1.6, 1, 1.6)), 3.7, 1.1),
    "cbn": Look("#009E73", "o", (0, (2.2, 1)), 4.2, 1.6),
    "drs": Look("#CC79A7", "s", (0, (1, 1)), 2.9, 1.1),
}
_GUESTS = [
    Look("#000000", "v", (0, (6, 1, 1, 1, 1, 1))),
    Look("#E69F00", "P", (0, (3, 1))),
    Look("#7F7F7F", "X", (0, (1, 2))),
    Look("#8C6D1F", "<", (0, (8, 2))),
]

_SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    # The one that comes with matplotlib, so that every machine breaks lines at the same place.
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": TEXT_SIZE,
    "text.color": INK,
    "axes.titlesize": TEXT_SIZE,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 4,
    "axes.labelsize": TEXT_SIZE,
    "axes.labelcolor": QUIET,
    "axes.labelpad": 2.5,
    "axes.edgecolor": "#9aa0a6",
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": "#9aa0a6",
    "ytick.color": "#9aa0a6",
    "xtick.labelcolor": QUIET,
    "ytick.labelcolor": QUIET,
    "xtick.labelsize": TEXT_SIZE - 0.5,
    "ytick.labelsize": TEXT_SIZE - 0.5,
    "xtick.major.size": 2.5,
    "ytick.major.size": 0,
    "xtick.major.width": 0.6,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.fontsize": TEXT_SIZE,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "none",
    "svg.hashsalt": "costcert",
    "pdf.fonttype": 42,
}
_lock = RLock()


@contextmanager
def house_settings() -> Iterator[None]:
    """matplotlib as it comes plus the settings above, whatever the user's own; theirs again afterwards."""
    try:
        import matplotlib.style
    except ImportError:
        raise CostcertError("figures need matplotlib: pip install 'costcert[report]'") from None
    # The settings are the whole process's, and a web page may draw in several threads.
    with _lock, matplotlib.style.context(["default", _SETTINGS]):
        yield


def house_style(draw: Callable[P, T]) -> Callable[P, T]:
    """Draw with the settings of the house."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> T:
        with house_settings():
            return draw(*args, **kwargs)

    return drawn


def looks(defenders: Iterable[str]) -> dict[str, Look]:
    """Each defender's look, the same in every figure; those not of the house take what is left, in order."""
    defenders = list(defenders)
    guests = [name for name in defenders if name not in _HOUSE]
    return {name: _HOUSE.get(name) or _GUESTS[guests.index(name) % len(_GUESTS)] for name in defenders}


def defender_title(name: str) -> str:
    """What people call it; its name where the package that brings it is not installed here."""
    try:
        return find(name).title
    except SpellingError:
        return name


def defender_keys(defenders: Iterable[str]) -> list[Key]:
    return [(defender_title(name), line(look)) for name, look in looks(defenders).items()]


def line(look: Look, **changes: Any) -> Line2D:
    """A line of this look, for a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **{**line_style(look), **changes})


def line_style(look: Look) -> dict[str, Any]:
    return {
        "color": look.colour,
        "linestyle": look.dash,
        "linewidth": look.width,
        "marker": look.marker,
        "markersize": look.marker_size,
        "markeredgecolor": "white",
        "markeredgewidth": 0.4,
        # So that markers at 0 % and 100 % are whole.
        "clip_on": False,
    }


def tint(colour: str, strength: float) -> tuple[float, float, float]:
    """The colour on white, opaque: lines below do not shine through."""
    from matplotlib.colors import to_rgb

    red, green, blue = (1 - strength * (1 - part) for part in to_rgb(colour))
    return red, green, blue


def sheet(
    title: str,
    note: str,
    keys: Sequence[Key],
    *,
    width: float,
    panels: int,
    columns: int,
    panel_height: float,
    **grid: Any,
) -> tuple[Figure, list[Axes]]:
    """A figure with a head (title, note, legend) and panels below it, row by row; the head covers no data.

    Args:
        panel_height: inches of each row, with its labels.
        grid: further arguments of `Figure.subplots`.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    room = width - 2 * MARGIN
    title_lines = wrapped(title, room, TITLE_SIZE, "bold")
    note_lines = wrapped(note, room, TEXT_SIZE)
    key_columns = _key_columns(keys, room)
    key_rows = ceil(len(keys) / key_columns)
    tops = [MARGIN]
    for height in (
        len(title_lines) * TITLE_LINE,
        len(note_lines) * TEXT_LINE + GAP,
        key_rows * KEY_LINE + GAP,
    ):
        tops.append(tops[-1] + height)
    rows = ceil(panels / columns)
    height = tops[-1] + rows * panel_height + MARGIN
    left = MARGIN / width
    below_head = (left, 0, room / width, 1 - tops[-1] / height)
    figure = Figure(
        figsize=(width, height),
        layout=ConstrainedLayoutEngine(rect=below_head, w_pad=0.03, h_pad=0.03, wspace=0.03, hspace=0.05),
    )
    kinds: list[tuple[list[str], dict[str, Any]]] = [
        (title_lines, {"size": TITLE_SIZE, "weight": "bold"}),
        (note_lines, {"size": TEXT_SIZE, "color": QUIET}),
    ]
    for (lines, style), top in zip(kinds, tops, strict=False):
        figure.text(left, 1 - top / height, "\n".join(lines), va="top", linespacing=1.25, **style)
    if keys:
        labels, handles = zip(*_row_by_row(keys, key_columns), strict=True)
        figure.legend(
            handles,
            labels,
            loc="upper left",
            bbox_to_anchor=(left, 1 - tops[2] / height),
            ncols=key_columns,
            frameon=False,
            borderpad=0,
            borderaxespad=0,
            labelspacing=0.3,
            columnspacing=1.6,
            handletextpad=0.5,
            handlelength=2.4,
        )
    cells = figure.subplots(rows, columns, squeeze=False, **grid)
    for empty in cells.flat[panels:]:
        empty.remove()
    for axes in cells.flat[:panels]:
        axes.tick_params(labelbottom=True)
    return figure, list(cells.flat[:panels])


def columns_for(panels: int, width: float, narrowest: float = 1.6) -> int:
    """How many panels stand side by side: as many as fit, the rows about equally long."""
    most = max(1, int(width / narrowest))
    return ceil(panels / ceil(panels / most))


def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    if not text.strip():
        return 0.0
    font = FontProperties(family="sans-serif", weight=weight)
    return float(TextPath((0, 0), text, size=size, prop=font, usetex=False).get_extents().width) / 72


def wrapped(text: str, room: float, size: float, weight: str = "normal") -> list[str]:
    """Lines no wider than `room` inches, unless a single word is; no-break spaces stay."""
    lines: list[str] = []
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size, weight) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def shortened(text: str, most: int) -> str:
    """Both ends of a long name."""
    return text if len(text) <= most else f"{text[: most - most // 3 - 1]}…{text[-(most // 3) :]}"


def _key_columns(keys: Sequence[Key], room: float) -> int:
    if not keys:
        return 1
    # The line before a name and the space after it take 4.5 letters' height.
    widths = [text_width(label, TEXT_SIZE) + 4.5 * TEXT_SIZE / 72 for label, _ in keys]
    for columns in range(len(keys), 1, -1):
        if sum(max(widths[column::columns]) for column in range(columns)) <= room:
            return ceil(len(keys) / ceil(len(keys) / columns))
    return 1


def _row_by_row(keys: Sequence[Key], columns: int) -> list[Key]:
    """Legends fill column by column; people read row by row."""
    return [key for column in range(columns) for key in keys[column::columns]]
