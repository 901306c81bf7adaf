"""The figures of a run, as the paper has them; needs the extra `report`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from costcert.reports.figures.accuracy import accuracy_by_k, accuracy_by_size
from costcert.reports.figures.boxes import min_k_boxes
from costcert.reports.figures.classes import accuracy_by_class
from costcert.reports.figures.comparison import comparison
from costcert.reports.figures.files import as_bytes, check_formats, svg
from costcert.reports.figures.histogram import min_k_histogram
from costcert.reports.results import Results
from costcert.reports.style import COLUMN, PAGE
from costcert.store.files import atomic_write
from costcert.store.locations import Location, locate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "COLUMN",
    "FIGURES",
    "PAGE",
    "accuracy_by_class",
    "accuracy_by_k",
    "accuracy_by_size",
    "as_files",
    "check_formats",
    "comparison",
    "figures",
    "min_k_boxes",
    "min_k_histogram",
    "svg",
    "write_figures",
]


class Kind(NamedTuple):
    """A figure, and whether it says anything about these results."""

    draw: Callable[..., Figure]
    suits: Callable[[Results], bool]


FIGURES: Mapping[str, Kind] = {
    "accuracy-by-size": Kind(accuracy_by_size, lambda results: True),
    # With two classes there is only k = 1.
    "accuracy-by-k": Kind(accuracy_by_k, lambda results: results.num_classes > 2),
    "min-k-boxes": Kind(min_k_boxes, lambda results: results.num_classes > 2),
    "min-k-histogram": Kind(min_k_histogram, lambda results: True),
    "accuracy-by-class": Kind(accuracy_by_class, lambda results: results.by_class is not None),
}


def figures(results: Results, *, width: float = PAGE) -> dict[str, Figure]:
    """Those that make sense for these results, by name, as wide as a `PAGE` or a `COLUMN` (inches)."""
    return {name: kind.draw(results, width=width) for name, kind in FIGURES.items() if kind.suits(results)}


def write_figures(
    results: Results, folder: str | Location, formats: Iterable[str] = ("svg", "pdf"), *, width: float = PAGE
) -> list[Location]:
    """Write every figure in every format (svg, pdf, png), and say where."""
    formats = check_formats(formats)
    files = as_files(figures(results, width=width), locate(folder), formats)
    for path, content in files:
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
    return [path for path, _ in files]


def as_files(
    drawn: Mapping[str, Figure], folder: Location, formats: Iterable[str]
) -> list[tuple[Location, bytes]]:
    """Where in the folder each figure belongs in each format, and its bytes."""
    return [
        (folder / f"{name}.{kind}", as_bytes(figure, kind))
        for name, figure in drawn.items()
        for kind in formats
    ]
