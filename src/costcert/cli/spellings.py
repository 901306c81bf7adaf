"""How lists, numbers and soft ballots are spelled on the command line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from costcert.errors import SpellingError

if TYPE_CHECKING:
    from costcert.votes.defence import Soft


def parse_list(text: str) -> list[str]:
    """The parts between commas: `square:2, 2%`."""
    return [part.strip() for part in text.split(",") if part.strip()]


def parse_ks(text: str) -> list[int]:
    """Values of k: `1-5` or `1,5,10`."""
    ks: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,6})(?:-(\d{1,6}))?\s*", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= first <= last or last - first > 100:
            raise SpellingError(f"cannot read k {text!r}: write 5, 1-5 or 1,5,10")
        ks.extend(range(first, last + 1))
    return list(dict.fromkeys(ks))


def parse_soft(text: str) -> Soft:
    """Temperature and number of labels per ballot: `0.35,4`."""
    from costcert.votes.defence import Soft

    try:
        temperature, best = text.split(",")
        return Soft(float(temperature), int(best))
    except ValueError:
        raise SpellingError(
            f"cannot read soft ballots {text!r}: write temperature and labels, as in 0.35,4"
        ) from None


def parse_channels(option: str, text: str) -> list[float]:
    """One number per channel: `0.5,0.5,0.5`."""
    try:
        return [float(number) for number in text.split(",")]
    except ValueError:
        raise SpellingError(
            f"cannot read {option} {text!r}: write a number for each channel, as in 0.5,0.5,0.5"
        ) from None
