"""Tables for web pages."""

from __future__ import annotations

from html import escape

from costcert.reports.tables.layout import Cell, PaperTable, Row

# What a page needs to show the tables below as they are meant.
STYLE = """\
.paper-table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.paper-table caption { text-align: left; padding-bottom: .6em; }
.paper-table th, .paper-table td { padding: .25em .7em; text-align: right; vertical-align: top; }
.paper-table tbody th, .paper-table th.stub { text-align: left; font-weight: normal; }
.paper-table th.stub { vertical-align: bottom; }
.paper-table thead th { font-weight: 600; }
.paper-table thead th[scope=colgroup] { text-align: center; }
.paper-table thead, .paper-table tbody { border-bottom: 1px solid currentColor; }
.paper-table small { display: block; opacity: .7; white-space: nowrap; }
.paper-table .published { font-style: italic; }
.paper-table [scope=rowgroup] { font-style: normal; }
.paper-table tfoot td { text-align: left; font-size: .85em; }
"""


def html(table: PaperTable, *, intervals: bool = True) -> str:
    """A `<table>`; the best values are `<strong>`, rows of the paper have the class `published`."""
    lines = ['<table class="paper-table">', f"<caption>{escape(table.caption)}</caption>"]
    lines.append(f'<colgroup span="{len(table.stub)}"></colgroup>')
    if table.depth > 1:
        lines += [f'<colgroup span="{span.columns}"></colgroup>' for span in table.headings(0)]
    lines += ["<thead>", *(_headings(table, level) for level in range(table.depth)), "</thead>"]
    for block in table.blocks():
        lines += ["<tbody>", *_block(block, table.is_grouped, intervals), "</tbody>"]
    remarks = table.remarks(intervals=intervals)
    if remarks:
        width = len(table.stub) + len(table.columns)
        lines.append("<tfoot>")
        lines += [f'<tr><td colspan="{width}">{escape(remark)}</td></tr>' for remark in remarks]
        lines.append("</tfoot>")
    return "\n".join([*lines, "</table>", ""])


def _headings(table: PaperTable, level: int) -> str:
    stub = [
        f'<th class="stub" scope="col" rowspan="{table.depth}">{escape(name)}</th>'
        for name in table.stub
        if level == 0
    ]
    if level == table.depth - 1:
        above = [f'<th scope="col">{escape(span.text)}</th>' for span in table.headings(level)]
    else:
        above = [
            f'<th scope="colgroup" colspan="{span.columns}">{escape(span.text)}</th>'
            for span in table.headings(level)
        ]
    return f"<tr>{''.join(stub + above)}</tr>"


def _block(rows: list[Row], is_grouped: bool, intervals: bool) -> list[str]:
    lines = []
    for number, row in enumerate(rows):
        labels = [f'<th scope="row">{escape(label)}</th>' for label in row.labels[is_grouped:]]
        if is_grouped and number == 0:
            labels.insert(0, f'<th scope="rowgroup" rowspan="{len(rows)}">{escape(row.labels[0])}</th>')
        kind = ' class="published"' if row.is_published else ""
        cells = [f"<td>{_cell(cell, intervals)}</td>" for cell in row.cells]
        lines.append(f"<tr{kind}>{''.join(labels + cells)}</tr>")
    return lines


def _cell(cell: Cell, intervals: bool) -> str:
    text = f"<strong>{cell.text}</strong>" if cell.is_best else cell.text
    return f"{text} <small>{cell.interval}</small>" if intervals and cell.interval else text
