"""The spelling of an ensemble, `A + B`, from those of its networks; without torch."""

from __future__ import annotations

from collections.abc import Sequence

_AND = " + "


def members_of(spelling: str) -> list[str]:
    """The spellings of the networks; one, unless it is an ensemble."""
    return [each.strip() for each in spelling.split(_AND)]


def spelled_together(spellings: Sequence[str]) -> str:
    """The spelling of an ensemble, or of the only network."""
    return _AND.join(spellings)
