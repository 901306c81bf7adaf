"""Limits of the service: what one request may cost, checked before the work begins."""

from __future__ import annotations

from dataclasses import dataclass

from costcert.errors import GeometryError
from costcert.explorer.pictures import MAX_PIXELS
from costcert.geometry.ablations import Ablation, Masks
from costcert.geometry.patches import Rectangle, Several, Shape, Square, concrete, places
from costcert.geometry.sizes import ImageSize, shown
from costcert.geometry.touch import Touched, touched
from costcert.votes.table import Votes

# Mutants times places of a patch; blocks of 75 on 224 px just fit.
MAX_TOUCH_COST = 1 << 32
MAX_MUTANTS = 1 << 16
MAX_IMAGE_SIDE = 1024
# Mutants times places for defenders that compare every place with every other.
MAX_MASKING_COST = 1 << 26
# Places times classes in the search for the strongest attack, which takes about half a minute.
MAX_ATTACK_COST = 1 << 27
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


def checked_patch(patch: str, ablation: Ablation, image_size: ImageSize) -> Square | Rectangle:
    """The square or rectangle of this spelling, if its places are few enough for one request."""
    if max(image_size) > MAX_IMAGE_SIDE:
        raise GeometryError(
            f"the service takes images of up to {MAX_IMAGE_SIDE} pixels a side, got {shown(image_size)}: "
            "use costcert certify"
        )
    sticker = concrete(patch, image_size)
    if isinstance(sticker, Several | Shape):
        raise GeometryError(
            f"the service takes squares and rectangles, got {str(sticker)[:40]}: use costcert certify"
        )
    mutants = ablation.count(image_size)
    tops, lefts = places(sticker, image_size)
    if mutants > MAX_MUTANTS or mutants * len(tops) * len(lefts) > MAX_TOUCH_COST:
        raise GeometryError(
            f"{ablation} on {shown(image_size)} makes {mutants:,} mutants, too many for the service: "
            "use costcert certify"
        )
    return sticker


def clear_large_cache(sets: Touched) -> None:
    """Empty the cache of `touched` after large sets, many of which would fill the memory."""
    if len(sets.flips) > _MAX_CACHED_FLIPS:
        touched.cache_clear()


def masking_cost(votes: Votes, patch: Square | Rectangle) -> int:
    """An upper bound on places times mutants, without computing a T_p."""
    ablation = votes.ablation
    parts = None if isinstance(ablation, Masks) else ablation.parts(votes.image_size)
    cost = votes.num_mutants
    for axis, starts in enumerate(places(patch, votes.image_size)):
        if parts is None or any(len(part[axis]) > 1 for part in parts):
            cost *= len(starts)
    return cost
