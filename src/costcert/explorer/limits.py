"""What can be worked out while somebody waits, told before it is begun."""

from __future__ import annotations

from costcert.errors import GeometryError
from costcert.geometry.ablations import Ablation
from costcert.geometry.patches import Rectangle, Several, Shape, Square, concrete, places
from costcert.geometry.sizes import ImageSize, shown
from costcert.geometry.touch import Touched, touched
from costcert.votes.table import Votes

# Mutants times places of a patch that are counted while somebody waits: blocks of 75 at 224 px just fit.
MOST_CASES = 1 << 32
MOST_MUTANTS = 1 << 16
LARGEST_SIDE = 1024
# The same for defenders that compare every place with every other.
MOST_MASKED = 1 << 26
# Places times classes among which the worst attack is looked for, in half a minute or so.
MOST_PRICED = 1 << 27
# A walk through so many mutants is not kept: blocks take megabytes for every size of a sticker.
_LONG_WALK = 1 << 20


def reasonable(patch: str, ablation: Ablation, image_size: ImageSize) -> Square | Rectangle:
    """A square or rectangle whose places can be counted while somebody waits."""
    if max(image_size) > LARGEST_SIDE:
        raise GeometryError(f"the service takes images of up to {LARGEST_SIDE} pixels a side")
    sticker = concrete(patch, image_size)
    if isinstance(sticker, Several | Shape):
        raise GeometryError(
            f"the service takes squares and rectangles, got {str(sticker)[:40]}: use costcert certify"
        )
    mutants = ablation.count(image_size)
    tops, lefts = places(sticker, image_size)
    if mutants > MOST_MUTANTS or mutants * len(tops) * len(lefts) > MOST_CASES:
        raise GeometryError(
            f"{ablation} on {shown(image_size)} makes {mutants:,} mutants, too many for the service: "
            "use costcert certify"
        )
    return sticker


def forget(cases: Touched) -> None:
    """`touched` keeps what it counted last; many long walks would fill the memory."""
    if len(cases.flips) > _LONG_WALK:
        touched.cache_clear()


def masked_cost(votes: Votes, patch: Square | Rectangle) -> int:
    """An upper bound on places times mutants, told without counting a T_p."""
    parts = votes.ablation.parts(votes.image_size)
    cost = votes.num_mutants
    for axis, starts in enumerate(places(patch, votes.image_size)):
        if any(len(part[axis]) > 1 for part in parts):
            cost *= len(starts)
    return cost
