"""The exceptions a user may see. Each message says what was given, what was expected and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CostcertError(Exception):
    """An error that the caller can fix; the command line prints its message and exits with 2."""


class SpellingError(CostcertError):
    """A name, an ablation or a patch that cannot be parsed."""


class GeometryError(CostcertError):
    """An ablation or a patch that does not fit the image, or the votes."""


class VotesError(CostcertError):
    """Votes that are invalid, or that lack what was requested of them."""


class StoreError(CostcertError):
    """A file or a folder that is missing, damaged, of another format or of another run."""


class OtherModelError(CostcertError):
    """A model that is not the one that cast the votes."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the known word most similar to this one, or an empty string."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
