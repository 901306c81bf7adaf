"""Tables for papers; they need `\\usepackage{booktabs,multirow}`."""

from __future__ import annotations

from costcert.reports.tables.layout import Cell, PaperTable, Row

_ESCAPES = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "&": r"\&",
        "%": r"\%",
        "$": r"\$",
        "#": r"\#",
        "_": r"\_",
        "{": r"\{",
        "}": r"\}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        # The default fonts of pdfLaTeX show other characters for these.
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        # At the beginning of a row these would be read as an argument of the \\ before it.
        "[": r"{[}",
        "*": r"{*}",
        "♠": r"$\spadesuit$",
        "⋆": r"$\star$",
    }
)

_DOCUMENT = r"""\documentclass{article}
\usepackage{booktabs,multirow}
\begin{document}
%s
\end{document}
"""


def latex(
    table: PaperTable, *, intervals: bool = False, label: str | None = None, standalone: bool = False
) -> str:
    """A `table` environment, or with `standalone` a complete document.

    Letters of other scripts are not escaped: they need LuaLaTeX or XeLaTeX.
    """
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{_escaped(table.caption)}.}}"]
    lines += [] if label is None else [rf"\label{{{label}}}"]
    lines += [rf"\begin{{tabular}}{{{'l' * len(table.stub)}{'r' * len(table.columns)}}}", r"\toprule"]
    for level in range(table.depth):
        lines += _headings(table, level)
    for block in table.blocks():
        lines += [r"\midrule", *_block(block, table.is_grouped, intervals)]
    lines += [r"\bottomrule", r"\end{tabular}"]
    if remarks := table.remarks(intervals=intervals):
        lines.append(rf"\par\smallskip{{\footnotesize\raggedright {_escaped(' '.join(remarks))}\par}}")
    lines.append(r"\end{table}")
    text = "\n".join(lines)
    return _DOCUMENT % text if standalone else text + "\n"


def _headings(table: PaperTable, level: int) -> list[str]:
    """One line of headings, and rules below headings that span several columns."""
    stub = [
        ("" if level else _multirow(_escaped(name), table.depth) if table.depth > 1 else _escaped(name))
        for name in table.stub
    ]
    spans = table.headings(level)
    if level == table.depth - 1:
        return [_line(stub + [_escaped(span.text) for span in spans])]
    above = [rf"\multicolumn{{{span.columns}}}{{c}}{{{_escaped(span.text)}}}" for span in spans]
    first = len(stub) + 1
    rules = [
        rf"\cmidrule(lr){{{first + span.start}-{first + span.start + span.columns - 1}}}" for span in spans
    ]
    return [_line(stub + above), "".join(rules)]


def _block(rows: list[Row], is_grouped: bool, intervals: bool) -> list[str]:
    lines = []
    for number, row in enumerate(rows):
        labels = [_escaped(label) for label in row.labels]
        if is_grouped:
            labels[0] = "" if number else _multirow(labels[0], len(rows))
        lines.append(_line(labels + [_cell(cell, intervals) for cell in row.cells]))
    return lines


def _line(cells: list[str]) -> str:
    return rf"{' & '.join(cells)} \\".lstrip()


def _multirow(text: str, rows: int) -> str:
    return rf"\multirow{{{rows}}}{{*}}{{{text}}}"


def _cell(cell: Cell, intervals: bool) -> str:
    text = rf"\textbf{{{cell.text}}}" if cell.is_best else cell.text
    return rf"{text} {{\scriptsize {cell.interval}}}" if intervals and cell.interval else text


def _escaped(text: str) -> str:
    # Two hyphens would become a dash.
    return " ".join(text.split()).translate(_ESCAPES).replace("--", "-{}-")
