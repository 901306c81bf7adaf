"""How wide text is in a LaTeX table: an upper estimate in points of Computer Modern at 8 pt.

Without it a table could only be scaled down until it fits, to letters that are too small to read.
"""

from __future__ import annotations

from costcert.reports.tables.layout import Cell

# Points between two columns.
GAP = 6.0

# The widest letter of each kind.
_WIDTHS = {
    **dict.fromkeys("ijl.,:;'!|", 2.6),
    **dict.fromkeys(" ()[]-rtfsI`", 3.4),
    **dict.fromkeys("0123456789acegzv/*+", 4.3),
    **dict.fromkeys("mw%", 7.2),
    **dict.fromkeys("MW@", 8.9),
}
_OTHER_LOWER, _OTHER = 4.8, 7.0
# Bold digits, and the digits of an interval, in relation to digits of the text.
_BOLD, _TINY = 1.18, 0.75


def text_width(text: str) -> float:
    return sum(_WIDTHS.get(each, _OTHER_LOWER if each.islower() else _OTHER) for each in text)


def cell_width(cell: Cell, intervals: bool) -> float:
    width = text_width(cell.text) * (_BOLD if cell.is_best else 1)
    return max(width, _TINY * text_width(cell.interval)) if intervals else width


def heading_lines(text: str) -> list[str]:
    """A patch and its share in two lines: `square:32` and `(2.0 %)`."""
    patch, separator, share = text.partition(" (")
    return [patch, f"({share}"] if separator else [text]


def breakable(text: str, width: float) -> str:
    """The text with a zero-width space after each character of words that are wider than this."""
    return " ".join(
        "\N{ZERO WIDTH SPACE}".join(word) if text_width(word) > width else word for word in text.split()
    )
