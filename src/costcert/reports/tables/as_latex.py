"""Tables for papers, split so that each fits a column or a page; they need `\\usepackage{booktabs}`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil
from string import ascii_lowercase
from typing import NamedTuple

from costcert.errors import SpellingError, nearest
from costcert.reports.tables.layout import Cell, PaperTable, Row
from costcert.reports.tables.text_width import GAP, breakable, cell_width, heading_lines, text_width

PACKAGES = r"\usepackage{booktabs}"


class Style(NamedTuple):
    """A float and the width it has to fit, in points."""

    environment: str
    width: float
    document: str
    fits: str


STYLES: Mapping[str, Style] = {
    "narrow": Style("table", 229, "[twocolumn]{article}", "one column of a two-column article"),
    "wide": Style("table*", 345, "{article}", "the width of an article's page"),
}

# The most of the width that labels take before their lines are broken.
_LABELS = 0.45
# Labels that are longer become letters, if labels take more than that.
_LONG_LABEL = 60
# Lines on a page, beside a caption and headings.
_LINES = 40

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
        "\N{ZERO WIDTH SPACE}": r"\allowbreak{}",
    }
)


def latex(
    table: PaperTable,
    *,
    style: str = "wide",
    intervals: bool = False,
    label: str | None = None,
    standalone: bool = False,
) -> str:
    """One float per part of the table that fits, or with `standalone` a complete document.

    Letters of other scripts are not escaped: they need LuaLaTeX or XeLaTeX.

    Args:
        style: `narrow` floats fit a column and show one patch each; `wide` ones fit a page and show as many
            patches as fit.
        label: of the first float; a number is added for the others.
    """
    if style not in STYLES:
        raise SpellingError(f"unknown style {style!r}{nearest(style, STYLES)}: use {' or '.join(STYLES)}")
    chosen = STYLES[style]
    floats = [
        "\n".join(_float(part, chosen, intervals, label and (f"{label}-{number}" if number > 1 else label)))
        for number, part in enumerate(_parts(table, style == "narrow", chosen.width, intervals), 1)
    ]
    text = "\n\n".join([f"% Style {style}: fits {chosen.fits}. Needs {PACKAGES}", *floats])
    if not standalone:
        return text + "\n"
    begin, end = r"\begin{document}", r"\end{document}"
    return f"\\documentclass{chosen.document}\n{PACKAGES}\n{begin}\n{text}\n{end}\n"


def _parts(table: PaperTable, narrow: bool, width: float, intervals: bool) -> Iterator[PaperTable]:
    """Tables that fit the width: one patch each, or as many patches as fit."""
    if narrow:
        table = _with_letters(table if table.is_grouped else table.with_joined_labels(), width)
        for part in table.by_patch():
            named = replace(part, caption=f"{table.caption}. Patch: {part.caption}")
            yield from _split(named, width, intervals)
        return
    table = _with_letters(table, width)
    patches = list(dict.fromkeys(column[1] for column in table.columns))
    while patches:
        most = len(patches)
        while most > 1 and _total(table.of_patches(patches[:most]), width, intervals) > width:
            most -= 1
        part = table.of_patches(patches[:most])
        patches = patches[most:]
        yield from _split(part if not patches else replace(part, notes=()), width, intervals)


def _with_letters(table: PaperTable, width: float) -> PaperTable:
    """The table with letters for long labels, and a note about them, if labels take too much width."""
    for place, name in enumerate(table.stub):
        labels = list(dict.fromkeys(row.labels[place] for row in table.rows))
        total = sum(max(_natural(table, each)) for each in range(len(table.stub)))
        is_long = max(map(text_width, labels)) > _LONG_LABEL and len(labels) <= len(ascii_lowercase)
        if name == "defender" or not is_long or total <= width * _LABELS:
            continue
        letters = dict(zip(labels, ascii_lowercase, strict=False))
        rows = []
        for row in table.rows:
            short = list(row.labels)
            short[place] = letters[short[place]]
            rows.append(replace(row, labels=tuple(short)))
        # Of joined labels the first names the letters.
        stub = list(table.stub)
        stub[place] = name.partition(",")[0]
        meaning = "; ".join(f"{letter} is {label}" for label, letter in letters.items())
        note = f"{stub[place].capitalize()} ({name}): {meaning}." if stub[place] != name else ""
        note = note or f"{name.capitalize()}: {meaning}."
        table = replace(table, stub=tuple(stub), rows=tuple(rows), notes=(note, *table.notes))
    return table


def _split(table: PaperTable, width: float, intervals: bool) -> Iterator[PaperTable]:
    """Columns that do not fit side by side, and rows that do not fit a page, go into further tables."""
    places = list(range(len(table.columns)))
    most = len(places)
    while most > 1 and any(
        _total(table.of_columns(places[start : start + most]), width, intervals) > width
        for start in range(0, len(places), most)
    ):
        # As many columns in each, as far as possible.
        most = ceil(len(places) / (ceil(len(places) / most) + 1)) if most > 2 else 1
    parts = [
        page
        for start in range(0, len(places), most)
        for page in _pages(table.of_columns(places[start : start + most]), width, intervals)
    ]
    yield from (replace(part, notes=()) for part in parts[:-1])
    yield parts[-1]


def _pages(table: PaperTable, width: float, intervals: bool) -> Iterator[PaperTable]:
    """The rows that fit a page, beside the notes; a block stays whole if it can."""
    notes = ceil(text_width(" ".join(table.notes)) / width)
    height = 2 if intervals and any(cell.interval for row in table.rows for cell in row.cells) else 1
    most = max((_LINES - notes) // height, 1)
    page: list[Row] = []
    for block in table.blocks():
        for start in range(0, len(block), most):
            rows = block[start : start + most]
            if len(page) + len(rows) > most:
                yield replace(table, rows=tuple(page))
                page = []
            page += rows
    yield replace(table, rows=tuple(page))


def _total(table: PaperTable, width: float, intervals: bool) -> float:
    """The width of a table whose labels are broken to fit this width."""
    labels = _labels(table, width, intervals)
    return sum(labels) + GAP * (len(labels) - 1) + _numbers(table, intervals)


def _numbers(table: PaperTable, intervals: bool) -> float:
    """The width of the columns of numbers, with the gaps at their left."""
    columns = [
        max(
            max(cell_width(row.cells[place], intervals) for row in table.rows),
            max(map(text_width, heading_lines(heading[-1]))),
        )
        for place, heading in enumerate(table.columns)
    ]
    total = sum(columns) + GAP * len(columns)
    for level in range(table.depth - 1):
        for span in table.headings(level):
            below = columns[span.start : span.start + span.columns]
            above = max(map(text_width, heading_lines(span.text)))
            total += max(above - sum(below) - GAP * (len(below) - 1), 0)
    return total


def _labels(table: PaperTable, width: float, intervals: bool) -> list[float]:
    """The widths of the columns of labels: their own, or shares of what numbers leave and labels may take."""
    natural = [max(_natural(table, place)) for place in range(len(table.stub))]
    room = max(width * _LABELS, width - _numbers(table, intervals)) - GAP * (len(natural) - 1)
    if sum(natural) <= room:
        return natural
    fixed, wide = (natural[:1], natural[1:]) if table.is_grouped else ([], natural)
    # Wide columns give way first: all of them get the same width, except those that need less.
    left, widths = room - sum(fixed), dict.fromkeys(range(len(wide)), 0.0)
    for rank, place in enumerate(sorted(widths, key=lambda each: wide[each])):
        widths[place] = min(wide[place], left / (len(wide) - rank))
        left -= widths[place]
    return [*fixed, *widths.values()]


def _natural(table: PaperTable, place: int) -> list[float]:
    """The widths of a column's labels and of its heading."""
    return [text_width(text) for text in (table.stub[place], *(row.labels[place] for row in table.rows))]


def _float(table: PaperTable, style: Style, intervals: bool, label: str | None) -> list[str]:
    widths = _labels(table, style.width, intervals)
    kinds = "".join(
        "l"
        if text_width(name) <= width and all(text_width(row.labels[place]) <= width for row in table.rows)
        # A column of broken lines is as wide as it was measured to be.
        else rf"p{{{width:.0f}pt}}"
        for place, (name, width) in enumerate(zip(table.stub, widths, strict=True))
    )
    lines = [
        rf"\begin{{{style.environment}}}",
        r"\centering\footnotesize\sloppy",
        rf"\setlength{{\tabcolsep}}{{{GAP / 2:g}pt}}",
        rf"\caption{{{_escaped(breakable(table.caption, style.width / 2))}.}}\smallskip",
    ]
    lines += [] if label is None else [rf"\label{{{label}}}"]
    lines += [rf"\begin{{tabular}}{{@{{}}{kinds}{'r' * len(table.columns)}@{{}}}}", r"\toprule"]
    for level in range(table.depth):
        lines += _headings(table, level, widths)
    for block in table.blocks():
        lines += [r"\midrule", *_block(block, table.is_grouped, intervals, widths)]
    lines += [r"\bottomrule", r"\end{tabular}"]
    if remarks := table.remarks(intervals=intervals):
        text = _escaped(breakable(" ".join(remarks), style.width / 2))
        lines.append(rf"\par\smallskip{{\raggedright {text}\par}}")
    return [*lines, rf"\end{{{style.environment}}}"]


def _headings(table: PaperTable, level: int, widths: list[float]) -> list[str]:
    """One line of headings, and rules below headings that span several columns."""
    spans = table.headings(level)
    if level == table.depth - 1:
        stub = [_label(name, width) for name, width in zip(table.stub, widths, strict=True)]
        return [_line(stub + [_stacked(span.text, "r") for span in spans])]
    above = [rf"\multicolumn{{{span.columns}}}{{c}}{{{_stacked(span.text, 'c')}}}" for span in spans]
    first = len(table.stub) + 1
    rules = [
        rf"\cmidrule(lr){{{first + span.start}-{first + span.start + span.columns - 1}}}" for span in spans
    ]
    return [_line([""] * len(table.stub) + above), "".join(rules)]


def _block(rows: list[Row], is_grouped: bool, intervals: bool, widths: list[float]) -> list[str]:
    lines = []
    for number, row in enumerate(rows):
        labels = [_label(label, width) for label, width in zip(row.labels, widths, strict=True)]
        if is_grouped and number:
            labels[0] = ""
        lines.append(_line(labels + [_cell(cell, intervals) for cell in row.cells]))
    return lines


def _line(cells: list[str]) -> str:
    return rf"{' & '.join(cells)} \\".lstrip()


def _label(text: str, width: float) -> str:
    if text_width(text) <= width:
        return _escaped(text)
    return rf"\raggedright {_escaped(breakable(text, width))}"


def _stacked(text: str, alignment: str) -> str:
    """A patch and its share, one above the other."""
    lines = [_escaped(line) for line in heading_lines(text)]
    if len(lines) == 1:
        return lines[0]
    above, below = lines
    return rf"\begin{{tabular}}[b]{{@{{}}{alignment}@{{}}}}{above}\\{below}\end{{tabular}}"


def _cell(cell: Cell, intervals: bool) -> str:
    text = rf"\textbf{{{cell.text}}}" if cell.is_best else cell.text
    if not (intervals and cell.interval):
        return text
    return rf"\begin{{tabular}}[t]{{@{{}}r@{{}}}}{text}\\{{\tiny {cell.interval}}}\end{{tabular}}"


def _escaped(text: str) -> str:
    # Two hyphens would become a dash.
    return " ".join(text.split()).translate(_ESCAPES).replace("--", "-{}-")
