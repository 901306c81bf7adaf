"""The layout of help: a heading for each group, and below it its options with their defaults."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from cyclopts.help import HelpEntry, HelpPanel

# Columns of the names; the description of a longer name starts on the next line.
_NAMES = 27

# A space at which textwrap does not break a line.
_UNBROKEN = "\N{NO-BREAK SPACE}"


class PlainHelp:
    """Renders help as plain text, with bold headings on a terminal."""

    def render_usage(self, console: Any, options: Any, usage: Any) -> None:
        console.print(f"Usage: {usage}", highlight=False, markup=False)

    def __call__(self, console: Any, options: Any, panel: HelpPanel) -> None:
        if not panel.entries:
            return
        console.print(str(panel.title), style="bold", highlight=False, markup=False)
        names = _NAMES if panel.format == "parameter" else 10
        for entry in panel.entries:
            for line in _lines(entry, names, console.width):
                console.print(line, highlight=False, markup=False, soft_wrap=True)
        console.print()


def _lines(entry: HelpEntry, names: int, columns: int) -> Iterator[str]:
    # A positional argument is shown by its name alone, although `--name` is accepted, too.
    labels = [entry.positional_label] if entry.positional_label else entry.display_labels_with_metavar
    label = "  " + ", ".join(labels)
    if len(label) > names + 2:
        yield label
        label = ""
    width = max(columns - names - 4, 20)
    for line in textwrap.wrap(_description(entry, width), width, break_on_hyphens=False):
        yield f"{label:{names + 4}}{line}".replace(_UNBROKEN, " ")
        label = ""


def _description(entry: HelpEntry, width: int) -> str:
    text = getattr(entry.description, "primary_renderable", entry.description)
    notes = []
    if entry.env_var:
        notes.append(f"[env: {', '.join(entry.env_var)}]")
    if entry.default is not None:
        notes.append(f"[default: {entry.default}]")
    if entry.required:
        notes.append("[required]")
    unbroken = [note.replace(" ", _UNBROKEN) if len(note) <= width else note for note in notes]
    return " ".join([str(text or ""), *unbroken])
