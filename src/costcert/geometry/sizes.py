"""Checked image sizes, always (height, width) in pixels of the model's input, and checked counts."""

from __future__ import annotations

import re
from operator import index
from typing import Any

from costcert.errors import GeometryError, SpellingError

ImageSize = tuple[int, int]

# Far larger than any classifier's input, and small enough for T_p to be counted in memory.
LARGEST_SIDE = 16384


def positive_int(value: Any, name: str, at_least: int = 1) -> int:
    """`value` as an int of at least `at_least`; raises a `GeometryError` that calls it `name` otherwise."""
    try:
        number = index(value)
    except TypeError:
        raise GeometryError(f"{name} must be an integer, got {value!r}") from None
    if isinstance(value, bool):
        raise GeometryError(f"{name} must be an integer, got {value!r}")
    if number < at_least:
        raise GeometryError(f"{name} must be at least {at_least}, got {number}")
    return number


def as_image_size(value: Any) -> ImageSize:
    """(height, width) from a pair, from the side of a square, or from text like `224` or `32x48`."""
    if isinstance(value, str):
        found = re.fullmatch(r"(\d{1,6})(?:x(\d{1,6}))?", value.strip())
        if not found:
            raise SpellingError(
                f"cannot read the image size {value!r}: write 224, or height x width as in 32x48"
            )
        value = (int(found[1]), int(found[2] or found[1]))
    elif hasattr(value, "__index__") and not isinstance(value, bool):
        value = (value, value)
    try:
        height, width = value
    except (TypeError, ValueError):
        raise GeometryError(f"the image size must be (height, width), got {value!r}") from None
    size = (positive_int(height, "the image height"), positive_int(width, "the image width"))
    if max(size) > LARGEST_SIDE:
        raise GeometryError(f"an image may have at most {LARGEST_SIDE} pixels per side, got {shown(size)}")
    return size


def several(values: Any) -> list[Any]:
    """One value or several, as a list; a text is one value."""
    if isinstance(values, str | bytes):
        return [values]
    try:
        return list(values)
    except TypeError:
        return [values]


def positive_ints(values: Any, name: str) -> list[int]:
    """One positive integer or several, without duplicates."""
    numbers = list(dict.fromkeys(positive_int(each, name) for each in several(values)))
    if not numbers:
        raise GeometryError(f"{name} needs at least one value, got none")
    return numbers


def shown(size: ImageSize) -> str:
    """The size as text, like `224x224`."""
    return f"{size[0]}x{size[1]}"
