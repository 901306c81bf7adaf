"""The layout of a table: headings above and at the left, accuracy in percent, the best values marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

DIGITS = 1
UNKNOWN = "n/a"


@dataclass(frozen=True)
class Cell:
    """An accuracy with its confidence interval; None where it is unknown."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    is_best: bool = False

    @property
    def text(self) -> str:
        return UNKNOWN if self.value is None else _percent(self.value)

    @property
    def interval(self) -> str:
        """`[62.4, 70.6]`, or empty without an interval, as for published numbers."""
        return (
            "" if self.low is None or self.high is None else f"[{_percent(self.low)}, {_percent(self.high)}]"
        )


@dataclass(frozen=True)
class Row:
    """Labels at the left, then one cell per column."""

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]
    is_published: bool = False


class Span(NamedTuple):
    """A heading over several columns, from the column number `start` on."""

    text: str
    start: int
    columns: int


@dataclass(frozen=True)
class PaperTable:
    """A table that can be written as HTML, LaTeX, Markdown or CSV.

    Args:
        stub: the headings above the labels of the rows.
        columns: the headings above each column, the top one first: the metric, the patch and perhaps k.
        notes: sentences below the table.
        confidence: of the intervals.
        is_grouped: rows with the same first label form a block, and the label is written once.
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
        """One line of headings; equal neighbours are merged, except in the last line."""
        spans: list[Span] = []
        for start, heading in enumerate(self.columns):
            before = self.columns[start - 1] if start else ()
            if level < self.depth - 1 and heading[: level + 1] == before[: level + 1]:
                spans[-1] = spans[-1]._replace(columns=spans[-1].columns + 1)
            else:
                spans.append(Span(heading[level], start, 1))
        return spans

    def blocks(self) -> Iterator[list[Row]]:
        """Groups of rows with the same first label; one group if the table is not grouped."""
        if not self.is_grouped:
            yield list(self.rows)
            return
        for _, rows in groupby(self.rows, key=lambda row: row.labels[0]):
            yield list(rows)

    def of_columns(self, places: Sequence[int]) -> PaperTable:
        """These columns alone, without rows in which all of them are unknown."""
        rows = [replace(row, cells=tuple(row.cells[place] for place in places)) for row in self.rows]
        known = [row for row in rows if any(cell.value is not None for cell in row.cells)]
        return replace(
            self, columns=tuple(self.columns[place] for place in places), rows=tuple(known or rows)
        )

    def of_patches(self, patches: Sequence[str]) -> PaperTable:
        """The columns of these patches, which are the second line of headings."""
        return self.of_columns([place for place, column in enumerate(self.columns) if column[1] in patches])

    def by_patch(self) -> list[PaperTable]:
        """A table for each patch, which is its caption instead of a heading; the last one has the notes."""
        patches = list(dict.fromkeys(column[1] for column in self.columns))
        parts = [self.of_patches([patch]) for patch in patches]
        return [
            replace(
                part,
                caption=patch,
                columns=tuple((metric, *below) for metric, _, *below in part.columns),
                notes=self.notes if patch == patches[-1] else (),
            )
            for patch, part in zip(patches, parts, strict=True)
        ]

    def with_joined_labels(self, but: str = "defender") -> PaperTable:
        """All labels of a row joined to one, which can be broken into lines, except for this one."""
        place = self.stub.index(but)

        def joined(labels: tuple[str, ...]) -> tuple[str, ...]:
            return ", ".join(labels[:place] + labels[place + 1 :]), labels[place]

        rows = tuple(replace(row, labels=joined(row.labels)) for row in self.rows)
        return replace(self, stub=joined(self.stub), rows=rows)

    def remarks(self, *, intervals: bool) -> list[str]:
        """The notes, with an explanation of the intervals if they are shown."""
        if not (intervals and any(cell.interval for row in self.rows for cell in row.cells)):
            return list(self.notes)
        return [f"In brackets: {100 * self.confidence:g} % confidence intervals.", *self.notes]


def with_best(rows: Sequence[Row]) -> list[Row]:
    """Mark the best values of each column: all that look equal at the precision shown.

    A column with a single value has no best one.
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
