"""The style of all figures: colour, marker and dash per defender, and the settings of matplotlib.

The colours are those of Okabe and Ito, which are distinguishable with any colour vision; markers and dashes
differ too, for grey print. Sizes are in inches and points as printed, so that a figure in a column is as
legible as one on a page.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from threading import RLock
from typing import TYPE_CHECKING, Any, ParamSpec

from costcert.defenders import find
from costcert.errors import CostcertError, SpellingError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

PAGE = 7.0
COLUMN = 3.4

INK = "#1f2328"
QUIET = "#646b73"
FAINT = "#e3e5e8"

TITLE_SIZE = 9.5
TEXT_SIZE = 7.5

# An entry of a legend: its label and its symbol.
Key = tuple[str, "Artist"]
Dash = str | tuple[float, tuple[float, ...]]
P = ParamSpec("P")


@dataclass(frozen=True)
class Look:
    """How one defender is drawn."""

    colour: str
    marker: str
    dash: Dash = "-"
    marker_size: float = 4.0
    width: float = 1.3


# The markers are those of the paper: stars, circles and triangles. Where two lines coincide, the later one is
# thinner and dashed, so that both are visible.
_BUILTIN = {
    "costcert": Look("#0072B2", "*", "-", 6.5, 1.9),
    "costcert-masks": Look("#56B4E9", "D", (0, (6, 0.8)), 4.4, 2.3),
    "patchguard": Look("#D55E00", "^", (0, (4, 1.6, 1, 1.6)), 3.7, 1.1),
    "double-masking": Look("#882255", "p", (0, (5, 1.2)), 4.2, 1.5),
    "cbn": Look("#009E73", "o", (0, (2.2, 1)), 4.2, 1.6),
    "drs": Look("#CC79A7", "s", (0, (1, 1)), 2.9, 1.1),
    "patchcleanser": Look("#E69F00", "P", (0, (3, 1)), 4.6, 1.7),
}
_PLUGINS = [
    Look("#000000", "v", (0, (6, 1, 1, 1, 1, 1))),
    Look("#7F7F7F", "X", (0, (1, 2))),
    Look("#8C6D1F", "<", (0, (8, 2))),
]

_SETTINGS: dict[str, Any] = {
    "font.family": "sans-serif",
    # It comes with matplotlib, so that every machine breaks lines at the same place.
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": TEXT_SIZE,
    "text.color": INK,
    # Names of classes may contain dollar signs.
    "text.parse_math": False,
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
def figure_settings() -> Iterator[None]:
    """matplotlib's defaults plus the settings above; the user's own settings are restored afterwards."""
    try:
        import matplotlib.style
    except ImportError:
        raise CostcertError("figures need matplotlib: pip install 'costcert[report]'") from None
    # matplotlib's settings are global, and a server may draw in several threads.
    with _lock, warnings.catch_warnings(), matplotlib.style.context(["default", _SETTINGS]):
        # For letters that the font lacks only the width is a guess: the reader's fonts draw them.
        warnings.filterwarnings("ignore", message=r"(?s)Glyph .* missing from")
        yield


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorator: draw with these settings, and fix the positions."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with figure_settings():
            figure = draw(*args, **kwargs)
            _fix_layout(figure)
        return figure

    return drawn


def _fix_layout(figure: Figure) -> None:
    """Compute the layout once for all formats; rounded, because the solver is not exactly reproducible."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
    # None, unlike "none", spares every file another layout: a drawing that is thrown away.
    figure.set_layout_engine(None)
    for axes in figure.axes:
        left, bottom, width, height = axes.get_position().bounds
        axes.set_position((round(left, 5), round(bottom, 5), round(width, 5), round(height, 5)))
    for text in figure.texts:
        x, y = text.get_position()
        text.set_position((round(x, 5), round(y, 5)))


def looks(defenders: Iterable[str]) -> dict[str, Look]:
    """The look of each defender, the same in every figure; plugins take the remaining looks in order."""
    defenders = list(defenders)
    plugins = [name for name in defenders if name not in _BUILTIN]
    return {name: _BUILTIN.get(name) or _PLUGINS[plugins.index(name) % len(_PLUGINS)] for name in defenders}


def defender_title(name: str) -> str:
    """The title of a defender, or its name if the package that provides it is not installed."""
    try:
        return find(name).title
    except SpellingError:
        return name


def defender_keys(defenders: Iterable[str]) -> list[Key]:
    """Legend entries of these defenders."""
    return [(defender_title(name), line(look)) for name, look in looks(defenders).items()]


def line(look: Look, **changes: Any) -> Line2D:
    """A line of this look, for a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **{**line_style(look), **changes})


def line_style(look: Look) -> dict[str, Any]:
    """Properties of a line of this look, for `Axes.plot`."""
    return {
        "color": look.colour,
        "linestyle": look.dash,
        "linewidth": look.width,
        "marker": look.marker,
        "markersize": look.marker_size,
        "markeredgecolor": "white",
        "markeredgewidth": 0.4,
        # Markers at 0 % and 100 % reach beyond the axes.
        "clip_on": False,
    }


def tint(colour: str, strength: float) -> tuple[float, float, float]:
    """The colour mixed with white, opaque, so that lines below are hidden."""
    from matplotlib.colors import to_rgb

    red, green, blue = (1 - strength * (1 - part) for part in to_rgb(colour))
    return red, green, blue
