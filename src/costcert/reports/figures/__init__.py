"""The figures of a run, like those of the paper; they need the extra `report`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple

from costcert.reports.figures.accuracy import accuracy_by_k, accuracy_by_size
from costcert.reports.figures.boxes import min_k_boxes
from costcert.reports.figures.classes import accuracy_by_class
from costcert.reports.figures.comparison import comparison
from costcert.reports.figures.files import as_bytes, check_formats, title_and_note
from costcert.reports.figures.histogram import min_k_histogram
from costcert.reports.results import Results
from costcert.reports.style import COLUMN, PAGE
from costcert.store.locations import Location

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "COLUMN",
    "FIGURES",
    "PAGE",
    "ReportFigure",
    "accuracy_by_class",
    "accuracy_by_k",
    "accuracy_by_size",
    "as_bytes",
    "as_files",
    "check_formats",
    "comparison",
    "figures",
    "min_k_boxes",
    "min_k_histogram",
    "title_and_note",
]


class FigureKind(NamedTuple):
    """A function that draws, and whether its figure is informative for these results."""

    draw: Callable[..., Figure]
    applies_to: Callable[[Results], bool]


FIGURES: Mapping[str, FigureKind] = {
    "accuracy-by-size": FigureKind(accuracy_by_size, lambda results: True),
    # With two classes there is only k = 1.
    "accuracy-by-k": FigureKind(accuracy_by_k, lambda results: results.num_classes > 2),
    "min-k-boxes": FigureKind(min_k_boxes, lambda results: results.num_classes > 2),
    "min-k-histogram": FigureKind(min_k_histogram, lambda results: True),
    "accuracy-by-class": FigureKind(accuracy_by_class, lambda results: results.by_class is not None),
}


@dataclass(frozen=True)
class ReportFigure:
    """A figure of a report: drawn when it is first used, and only once per width.

    Args:
        draw: takes the width in inches.
    """

    draw: Callable[..., Figure]

    @cached_property
    def page_wide(self) -> Figure:
        return self.draw(width=PAGE)

    @cached_property
    def column_wide(self) -> Figure:
        """The same with fewer panels side by side, for a column of a paper or a phone."""
        return self.draw(width=COLUMN)


def figures(results: Results) -> dict[str, ReportFigure]:
    """The figures that are informative for these results, by name."""
    return {
        name: ReportFigure(partial(kind.draw, results))
        for name, kind in FIGURES.items()
        if kind.applies_to(results)
    }


def as_files(
    named: Mapping[str, ReportFigure], folder: Location, formats: Iterable[str]
) -> list[tuple[Location, bytes]]:
    """The path in the folder and the bytes of each figure in each format."""
    return [
        (folder / f"{name}.{file_format}", as_bytes(figure.page_wide, file_format))
        for name, figure in named.items()
        for file_format in formats
    ]
