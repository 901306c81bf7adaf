"""The layout of every figure: title, note and legend above, panels below."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from costcert.reports.style import QUIET, TEXT_SIZE, TITLE_SIZE, Key

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches.
TITLE_LINE = 0.175
TEXT_LINE = 0.14
KEY_LINE = 0.155
GAP = 0.07
MARGIN = 0.06


def new_figure(
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
    """A figure with title, note and legend in lines of their own, and panels below them, row by row.

    Args:
        panel_height: inches of each row of panels, with tick labels.
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
    below_legend = (left, 0, room / width, 1 - tops[-1] / height)
    figure = Figure(
        figsize=(width, height),
        layout=ConstrainedLayoutEngine(rect=below_legend, w_pad=0.03, h_pad=0.03, wspace=0.03, hspace=0.05),
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
    """How many panels to draw side by side: as many as fit, with rows of about equal length."""
    most = max(1, int(width / narrowest))
    return ceil(panels / ceil(panels / most))


def text_width(text: str, size: float, weight: str = "normal") -> float:
    """The width of a text in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(family="sans-serif", weight=weight, size=size)
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0]) / 72


def wrapped(text: str, room: float, size: float, weight: str = "normal") -> list[str]:
    """Lines of at most `room` inches, or of one word that is wider; no-break spaces are kept."""
    lines: list[str] = []
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size, weight) <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and end if it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most - most // 3 - 1]}…{text[-(most // 3) :]}"


def _key_columns(keys: Sequence[Key], room: float) -> int:
    if not keys:
        return 1
    # The sizes of the legend below: the line before a name, and the space between columns.
    letter = TEXT_SIZE / 72
    widths = [text_width(label, TEXT_SIZE) + 4.5 * letter for label, _ in keys]
    for columns in range(len(keys), 1, -1):
        if sum(max(widths[column::columns]) for column in range(columns)) <= room + 1.6 * letter:
            return ceil(len(keys) / ceil(len(keys) / columns))
    return 1


def _row_by_row(keys: Sequence[Key], columns: int) -> list[Key]:
    """Reordered so that the legend, which matplotlib fills by column, reads row by row."""
    return [key for column in range(columns) for key in keys[column::columns]]
