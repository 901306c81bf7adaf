"""The console of all commands: its output fits every width and every encoding."""

from __future__ import annotations

import codecs
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# Redirected output is not broken into lines, unless COLUMNS says how wide it may be.
_UNBOUNDED = 10_000

_IN_ASCII = {
    "♠": "-spade",
    "⋆": "*",
    "≤": "<=",
    "≥": ">=",
    "×": "x",
    "…": "...",
    "–": "-",
    "—": "-",
    "─": "-",
    "━": "-",
    "│": "|",
    "“": '"',
    "”": '"',
    "‘": "'",
    "’": "'",
    "\N{NO-BREAK SPACE}": " ",
}
_HANDLER = "costcert-in-ascii"


def make_console(*, stderr: bool = False, soft_wrap: bool = False) -> Console:
    """A console on the output or the error stream, as wide as the terminal.

    Args:
        soft_wrap: leave the breaking of lines to the terminal, so that a path can be copied as a whole.
    """
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False, soft_wrap=soft_wrap)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _UNBOUNDED
    return console


def spell_what_cannot_be_encoded() -> None:
    """Have both streams write ASCII for characters that their encoding lacks, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        # A stream that a test or a notebook put there may have neither; another handler is the user's choice.
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None and stream.errors in ("strict", "backslashreplace"):
            reconfigure(errors=_HANDLER)


def as_encoded(text: str, encoding: str) -> str:
    """The text as a stream of this encoding shows it, to measure its width."""
    return text.encode(encoding, _HANDLER).decode(encoding)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    unknown = error.object[error.start : error.end]
    return "".join(_IN_ASCII.get(each) or _escaped(each) for each in unknown), error.end


def _escaped(character: str) -> str:
    return character.encode("ascii", "backslashreplace").decode("ascii")


codecs.register_error(_HANDLER, _in_ascii)
