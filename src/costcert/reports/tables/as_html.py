"""Tables for web pages."""

from __future__ import annotations

from costcert.reports.rendering import render
from costcert.reports.tables.layout import PaperTable


def html(table: PaperTable, *, intervals: bool = True) -> str:
    """The table as a `<table>` element."""
    return render("table.html.j2", table=table, intervals=intervals)
