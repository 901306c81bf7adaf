"""The one family of exceptions a user meets: what came, what was expected, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CostcertError(Exception):
    """Something the caller can put right; the command line prints it and exits with 2."""


class SpellingError(CostcertError):
    """A name, an ablation or a patch that cannot be read."""


class GeometryError(CostcertError):
    """An ablation or a patch that does not fit the image, or the votes."""


class VotesError(CostcertError):
    """Ballots that are not ballots."""


class StoreError(CostcertError):
    """A file or a folder that is missing, foreign, damaged or of another run."""


class OtherModelError(CostcertError):
    """A model that is not the one whose votes are at hand."""


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean 'x'?)`` for the known word most like this one, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else ""
