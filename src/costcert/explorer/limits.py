"""Limits of the service: what one request may cost, checked before the work begins."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from costcert.errors import GeometryError
from costcert.explorer.pictures import MAX_PIXELS
from costcert.geometry.ablations import Masks
from costcert.geometry.footprints import Footprint
from costcert.geometry.patches import Original, Rectangle, Several, Shape, Square, certified_patch, places
from costcert.geometry.sizes import ImageSize, shown
from costcert.geometry.touch import Touched, touched
from costcert.votes.originals import on_input
from costcert.votes.table import Votes

# A patch that the service takes.
Sticker = Square | Rectangle | Original

# Mutants times places of a patch; blocks of 75 on 224 px just fit.
MAX_TOUCH_COST = 1 << 32
MAX_MUTANTS = 1 << 16
MAX_IMAGE_SIDE = 1024
# Mutants times places for defenders that compare every place with every other.
MAX_MASKING_COST = 1 << 26
# Places times classes in the search for the strongest attack, which takes about half a minute.
MAX_ATTACK_COST = 1 << 27
# Sizes of the originals in one table: each takes up to a tenth of a second per patch on them.
MAX_SIZES = 64
# Sizes of which the largest budget is counted: `touched` still holds the sets of as many after certifying.
MAX_COUNTED_SIZES = 32
# Pairs of a pixel of the input and one of the original along one axis, which become a table of 32 MB.
MAX_PAIRS = 1 << 22
# Touched sets with more changes between places than this are not cached: blocks take megabytes per patch.
_MAX_CACHED_FLIPS = 1 << 20


@dataclass(frozen=True)
class Limits:
    """What one request and one connection may cost.

    Args:
        bytes: of a body.
        pixels: of a picture.
        seconds: for an answer, and for a body to arrive.
        waiting: jobs that may queue; further requests are answered with 429.
        idle: seconds until the head of a request is complete, from the opening of the connection or from its
            last answer.
        connections: open at once, half as many per client; above that the one that has waited longest for its
            client is closed.
    """

    bytes: int = 10_000_000
    pixels: int = MAX_PIXELS
    seconds: float = 30.0
    waiting: int = 32
    idle: float = 10.0
    connections: int = 512


class TooManySizesError(GeometryError):
    """The originals have more sizes than the service follows patches for."""


def known_sticker(patch: str, image_size: ImageSize) -> Sticker:
    """The patch of this spelling: a square or a rectangle, of the input or of the original."""
    sticker = certified_patch(patch, image_size)
    if isinstance(sticker, Several | Shape):
        raise GeometryError(
            f"the service takes squares and rectangles, got {str(sticker)[:40]}: use costcert certify"
        )
    return sticker


def checked_sticker(patch: str, votes: Votes) -> Sticker:
    """The same, if its places are few enough for one request."""
    if max(votes.image_size) > MAX_IMAGE_SIDE:
        raise GeometryError(
            f"the service takes images of up to {MAX_IMAGE_SIDE} pixels a side, got "
            f"{shown(votes.image_size)}: use costcert certify"
        )
    sticker = known_sticker(patch, votes.image_size)
    mutants = votes.num_mutants
    if isinstance(sticker, Original):
        positions = sum(prod(_distinct(footprint)) for footprint in footprints_of(votes, sticker))
    else:
        tops, lefts = places(sticker, votes.image_size)
        positions = len(tops) * len(lefts)
    if mutants > MAX_MUTANTS or mutants * positions > MAX_TOUCH_COST:
        raise GeometryError(
            f"{votes.ablation} on {shown(votes.image_size)} makes {mutants:,} mutants, too many for the "
            "service: use costcert certify"
        )
    return sticker


def footprints_of(votes: Votes, patch: Original) -> list[Footprint]:
    """What a patch on the original can change at the input, for each size of the originals.

    Raises:
        TooManySizesError: where all of them take too long for one request.
    """
    read = np.arange(len(votes)) if votes.unread is None else np.flatnonzero(~votes.unread)
    # Votes that record no sizes are refused by `on_input`, for any of their images.
    first = read[:1]
    if votes.originals is not None:
        first = read[np.unique(votes.originals[read], axis=0, return_index=True)[1]]
    if len(first) > MAX_SIZES:
        raise TooManySizesError(
            f"these originals have {len(first):,} sizes, too many for the service to follow {patch} in each: "
            "use costcert certify, and explore its certificates"
        )
    found = [on_input(votes.take([image]), patch) for image in first]
    return [_followed(footprint) for footprint in found if isinstance(footprint, Footprint)]


def _followed(footprint: Footprint) -> Footprint:
    """The same footprint, if its tables are small enough for one request."""
    sides = zip(footprint.original, footprint.preparation.image_size, strict=True)
    if any(side * at_input > MAX_PAIRS for side, at_input in sides):
        raise GeometryError(
            f"an original of {shown(footprint.original)} pixels is too large for the service to follow "
            "a patch on it: use costcert certify"
        )
    return footprint


def _distinct(footprint: Footprint) -> tuple[int, int]:
    """About how many tops and lefts reach maximal sets: of those without gaps one starts in each row."""
    places_on = zip(footprint.original, (footprint.patch.height, footprint.patch.width), strict=True)
    tops, lefts = (
        min(side - extent + 1, at_input)
        for (side, extent), at_input in zip(places_on, footprint.preparation.image_size, strict=True)
    )
    return tops, lefts


def clear_large_cache(sets: Touched) -> None:
    """Empty the cache of `touched` after large sets, many of which would fill the memory."""
    if len(sets.flips) > _MAX_CACHED_FLIPS:
        touched.cache_clear()


def masking_cost(votes: Votes, patch: Sticker) -> int:
    """About places times mutants, and not less for patches on the input, without computing a T_p."""
    if isinstance(patch, Original):
        counts = [_distinct(footprint) for footprint in footprints_of(votes, patch)]
    else:
        tops, lefts = places(patch, votes.image_size)
        counts = [(len(tops), len(lefts))]
    return max((_masking_cost(votes, each) for each in counts), default=0)


def _masking_cost(votes: Votes, counts: tuple[int, int]) -> int:
    ablation = votes.ablation
    parts = None if isinstance(ablation, Masks) else ablation.parts(votes.image_size)
    cost = votes.num_mutants
    for axis, count in enumerate(counts):
        if parts is None or any(len(part[axis]) > 1 for part in parts):
            cost *= count
    return cost
