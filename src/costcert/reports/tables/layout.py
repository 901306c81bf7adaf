"""A table as papers have them: headings above and at the left, accuracy in percent, the best in bold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

DIGITS = 1
UNKNOWN = "n/a"


@dataclass(frozen=True)
class Cell:
    """A share with its confidence interval; None where it is not known."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    is_best: bool = False

    @property
    def text(self) -> str:
        return UNKNOWN if self.value is None else _percent(self.value)

    @property
    def interval(self) -> str:
        """`[62.4, 70.6]`, or nothing where no interval is known, as in print."""
        return (
            "" if self.low is None or self.high is None else f"[{_percent(self.low)}, {_percent(self.high)}]"
        )


@dataclass(frozen=True)
class Row:
    """Headings at the left, then a cell per column."""

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]
    is_published: bool = False


class Span(NamedTuple):
    """A heading over so many columns, the first of which is `start`."""

    text: str
    start: int
    columns: int


@dataclass(frozen=True)
class PaperTable:
    """What every renderer draws.

    Args:
        stub: what the labels of a row are.
        columns: the headings above each column, the outermost first.
        notes: sentences below.
        confidence: of the intervals.
        is_grouped: rows with the same first label stand together, and the label is written once.
    """

    caption: str
    stub: tuple[str, ...]
    columns: tuple[tuple[str, ...], ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    confidence: float = 0.95
    is_grouped: bool = False

    @property
    def depth(self) -> int:
        """Lines of headings."""
        return len(self.columns[0])

    def headings(self, level: int) -> list[Span]:
        """Headings of one line: neighbours under the same heading share one; in the last line none do."""
        spans: list[Span] = []
        for start, heading in enumerate(self.columns):
            before = self.columns[start - 1] if start else ()
            if level < self.depth - 1 and heading[: level + 1] == before[: level + 1]:
                spans[-1] = spans[-1]._replace(columns=spans[-1].columns + 1)
            else:
                spans.append(Span(heading[level], start, 1))
        return spans

    def blocks(self) -> Iterator[list[Row]]:
        """Rows that stand together."""
        if not self.is_grouped:
            yield list(self.rows)
            return
        for _, rows in groupby(self.rows, key=lambda row: row.labels[0]):
            yield list(rows)

    def remarks(self, *, intervals: bool) -> list[str]:
        """The notes, and what the brackets are."""
        if not (intervals and any(cell.interval for row in self.rows for cell in row.cells)):
            return list(self.notes)
        return [f"In brackets: {100 * self.confidence:g} % confidence intervals.", *self.notes]


def with_best(rows: Sequence[Row]) -> list[Row]:
    """Mark the best of each column, all of them where the precision shown cannot tell them apart.

    One value alone is not the best of anything.
    """
    best = [_best(column) for column in zip(*(row.cells for row in rows), strict=True)]
    return [
        replace(
            row,
            cells=tuple(
                replace(cell, is_best=cell.value is not None and cell.text == top)
                for cell, top in zip(row.cells, best, strict=True)
            ),
        )
        for row in rows
    ]


def _best(column: Sequence[Cell]) -> str | None:
    known = [cell for cell in column if cell.value is not None]
    return max(known, key=lambda cell: float(cell.text)).text if len(known) > 1 else None


def _percent(share: float) -> str:
    return f"{100 * share:.{DIGITS}f}"
