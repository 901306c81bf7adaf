"""Figures as the bytes of a file: the same results give the same bytes."""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from typing import TYPE_CHECKING, Any

from costcert.errors import CostcertError
from costcert.reports.style import figure_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "pdf", "png")


def check_formats(formats: Iterable[str]) -> list[str]:
    """The formats without repetitions; an unknown one is refused."""
    requested = list(dict.fromkeys(formats))
    for name in requested:
        if name not in FORMATS:
            raise CostcertError(f"got the figure format {name!r}: choose from {', '.join(FORMATS)}")
    return requested


def as_bytes(figure: Figure, file_format: str) -> bytes:
    """The figure as a file of this format (svg, pdf or png), without a date."""
    title, note = title_and_note(figure)
    metadata: dict[str, dict[str, Any]] = {
        "svg": {"Title": title, "Description": note, "Creator": "costcert", "Date": None},
        "pdf": {"Title": title, "Subject": note, "Creator": "costcert", "CreationDate": None},
        "png": {"Title": title, "Description": note, "Software": None},
    }
    with figure_settings():
        file = BytesIO()
        figure.savefig(file, format=file_format, metadata=metadata[file_format], dpi=200)
    return file.getvalue()


def title_and_note(figure: Figure) -> tuple[str, str]:
    """The title and the sentences below it, which `new_figure` adds before any other text."""
    title, note = (text.get_text().replace("\n", " ") for text in figure.texts[:2])
    return title, note
