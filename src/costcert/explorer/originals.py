"""Stickers on the original picture: how large they may be, and what they change at the model's input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from costcert.errors import CostcertError
from costcert.explorer.limits import MAX_SIZES, checked_sticker, clear_large_cache, footprints_of
from costcert.geometry.ablations import Masks
from costcert.geometry.footprints import Footprint
from costcert.geometry.patches import Original, Patch, Rectangle, Square
from costcert.geometry.preparation import Preparation
from costcert.geometry.regions import Bools
from costcert.geometry.sizes import ImageSize
from costcert.geometry.touch import touched
from costcert.votes.originals import preparation_of
from costcert.votes.table import Votes


def with_original(votes: Votes, original: ImageSize) -> Votes:
    """The first image of these votes, as if its original had this size."""
    return votes.take([0]).replace(originals=[original], unread=None)


def footprint_json(votes: Votes, patch: str, original: ImageSize) -> dict[str, Any]:
    """What a patch on an original of this size can change, as runs (start, length) of rows and of columns.

    `rows[top]` are the rows of the input that it can change from this top in the original.
    """
    image = with_original(votes, original)
    sticker = checked_sticker(patch, image)
    if not isinstance(sticker, Original):
        raise CostcertError(
            f"footprints are those of patches on the original, such as original:2, but {sticker} is on the "
            "model's input"
        )
    (footprint,) = footprints_of(image, sticker)
    sets = touched(votes.ablation, footprint, votes.image_size)
    clear_large_cache(sets)
    return {
        "patch": str(sticker),
        "original": list(footprint.original),
        "resized": list(footprint.preparation.scaled(footprint.original)),
        "corner": list(footprint.preparation.corner(footprint.original)),
        "rows": _runs(footprint.rows),
        "columns": _runs(footprint.columns),
        "budget": sets.delta,
    }


def stickers_on_originals(
    votes: Votes, certified: Iterable[Patch], shares: Sequence[float]
) -> dict[str, Any] | None:
    """Sizes of stickers on the originals that the page offers; None where it offers none.

    Args:
        certified: the patches of the run, if it was certified.
        shares: of the shorter side, the sides of squares that are compared where nothing was certified.
    """
    certified = list(certified)
    mine = [patch.patch for patch in certified if isinstance(patch, Original)]
    stored = [patch for patch in mine if isinstance(patch, Square | Rectangle)]
    sizes = _sizes(votes)
    if not sizes or (len(sizes) > MAX_SIZES and not stored):
        return None
    try:
        preparation = preparation_of(votes, Original(Square(1)))
    except CostcertError:
        return None
    if not stored and sizes == [votes.image_size] == [preparation.scaled(votes.image_size)]:
        # Nothing is resized: the original is the input.
        return None
    shortest = (min(height for height, _ in sizes), min(width for _, width in sizes))
    if isinstance(votes.ablation, Masks):
        shortest = _covered(votes.ablation, sizes[:MAX_SIZES], preparation)
    longest = [max(sides) for sides in zip(shortest, *map(_sides, stored), strict=True)]
    if min(longest) < 1:
        return None
    sides = sorted(patch.side for patch in stored if isinstance(patch, Square))
    if not sides and len(sizes) <= MAX_SIZES:
        sides = sorted({min(*longest, max(1, round(share * min(sizes[0])))) for share in shares})
    squares = [Square(side) for side in sides]
    first: Square | Rectangle = squares[(len(squares) - 1) // 3] if squares else stored[0]
    if stored and first not in stored:
        first = stored[0]
    return {
        "longest": longest,
        "sides": sides,
        "start": list(_sides(first)),
        "only": bool(stored) and len(mine) == len(certified),
    }


def _sides(patch: Square | Rectangle) -> tuple[int, int]:
    return patch.height, patch.width


def _sizes(votes: Votes) -> list[ImageSize]:
    """The sizes of the originals, the most frequent first."""
    if votes.originals is None:
        return []
    read = votes.originals if votes.unread is None else votes.originals[~votes.unread]
    distinct, counts = np.unique(read, axis=0, return_counts=True)
    ordered = distinct[np.argsort(-counts, kind="stable")]
    return [(int(height), int(width)) for height, width in ordered if height > 0 and width > 0]


def _covered(masks: Masks, sizes: Iterable[ImageSize], preparation: Preparation) -> tuple[int, int]:
    """The largest height and width on originals of all these sizes that the masks cover; 0 if none."""
    found = []
    for axis in (0, 1):
        most = []
        for original in sizes:
            fits, too_large = 0, original[axis] + 1
            while too_large - fits > 1:
                side = (fits + too_large) // 2
                patch = Rectangle(side, 1) if axis == 0 else Rectangle(1, side)
                reach = Footprint(patch, original, preparation)
                if (reach.height, reach.width)[axis] <= masks.sides[axis]:
                    fits = side
                else:
                    too_large = side
            most.append(fits)
        found.append(min(most))
    return found[0], found[1]


def _runs(table: Bools) -> list[list[list[int]]]:
    """Start and length of every run of true values, for each row of a table."""
    edges = np.diff(np.pad(table, ((0, 0), (1, 1))).astype(np.int8), axis=1)
    runs: list[list[list[int]]] = [[] for _ in table]
    starts, stops = np.argwhere(edges == 1), np.argwhere(edges == -1)
    for (row, first), (_, end) in zip(starts.tolist(), stops.tolist(), strict=True):
        runs[row].append([first, end - first])
    return runs
