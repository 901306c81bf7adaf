"""Tables in GitHub's Markdown, which has one line of headings."""

from __future__ import annotations

import re

from costcert.reports.tables.layout import Cell, PaperTable


def markdown(table: PaperTable, *, intervals: bool = False) -> str:
    """Caption, table and notes; the best values in bold."""
    headings = [*table.stub, *(" ".join(levels) for levels in table.columns)]
    lines = [_line([escaped(heading) for heading in headings])]
    lines.append(_line(["---"] * len(table.stub) + ["---:"] * len(table.columns)))
    for row in table.rows:
        cells = [_cell(cell, intervals) for cell in row.cells]
        lines.append(_line([escaped(label) for label in row.labels] + cells))
    notes = [f"{escaped(remark)}\n" for remark in table.remarks(intervals=intervals)]
    return "\n".join([f"{escaped(table.caption)}.\n", *lines, "", *notes])


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell, intervals: bool) -> str:
    text = f"**{cell.text}**" if cell.is_best else cell.text
    return f"{text} {escaped(cell.interval)}" if intervals and cell.interval else text


def escaped(text: str) -> str:
    """The text without characters that Markdown gives a meaning."""
    return re.sub(r"([\\`*_\[\]<>|~#&])", r"\\\1", " ".join(text.split()))
