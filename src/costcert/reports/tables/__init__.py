"""Accuracy as tables: laid out once (`paper_table`), written as HTML, LaTeX, Markdown, CSV or JSON."""

from costcert.reports.tables.as_html import html
from costcert.reports.tables.as_latex import latex
from costcert.reports.tables.as_markdown import markdown
from costcert.reports.tables.layout import Cell, PaperTable, Row
from costcert.reports.tables.paper import paper_table
from costcert.reports.tables.tidy import csv_table, csv_text, json_text, tidy_rows

__all__ = [
    "Cell",
    "PaperTable",
    "Row",
    "csv_table",
    "csv_text",
    "html",
    "json_text",
    "latex",
    "markdown",
    "paper_table",
    "tidy_rows",
]
