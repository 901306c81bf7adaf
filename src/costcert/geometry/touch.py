"""T_p: the mutants that a patch touches, for every position p at which it may lie.

No closed form is used: the pixels that mutants keep are compared with the pixels of the patch and counted,
because published formulas undercount for strides (see docs/theory.md). Positions with equal T_p are listed
once, and a T_p inside another is dropped: an attacker who controls the larger set can do everything that
the smaller one allows.

Defenders get these sets as a walk: from one T_p to the next only a few mutants change, so the clean votes
are updated by adding and subtracting those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from costcert.errors import GeometryError
from costcert.geometry import bitsets, unions
from costcert.geometry.ablations import Ablation, Bools, Masks, Part, Segment
from costcert.geometry.footprints import Footprint
from costcert.geometry.patches import OnePatch, Original, Several, places
from costcert.geometry.sizes import ImageSize, shown

Indices = npt.NDArray[np.int64]

# Limit on the 64-bit words of the touched sets of one patch, where they have to be compared (512 MB).
MOST_WORDS = 1 << 26


@dataclass(frozen=True, eq=False)
class Touched:
    """Every distinct maximal T_p of a patch, as a walk.

    Step p flips mutants `flips[offsets[p]:offsets[p + 1]]`: i >= 0 becomes touched, ~i becomes clean again.
    The walk starts with nothing touched.

    Args:
        num_mutants: B.
        places: [P, n, 2], top and left of the n patches at position p, one of those with this T_p; those of a
            footprint are in the original.
        budgets: [P], q_p, the size of T_p.
    """

    num_mutants: int
    places: npt.NDArray[np.int32]
    budgets: npt.NDArray[np.int32]
    flips: npt.NDArray[np.int32]
    offsets: Indices

    def __len__(self) -> int:
        return len(self.budgets)

    @property
    def delta(self) -> int:
        """Δ, the largest budget."""
        return int(self.budgets.max(initial=0))

    def sets(self) -> Iterator[Bools]:
        """T_p for every p, one [B] mask at a time."""
        touched = np.zeros(self.num_mutants, dtype=np.bool_)
        for start, stop in zip(self.offsets[:-1], self.offsets[1:], strict=True):
            step = self.flips[start:stop]
            touched[np.where(step >= 0, step, ~step)] = step >= 0
            yield touched.copy()

    @cached_property
    def words(self) -> bitsets.Words:
        """T_p for every p as bits, [P, ceil(B/64)]."""
        width = -(-self.num_mutants // 64)
        step = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        mutant = self.flips ^ (self.flips >> 31)
        words = np.zeros((len(self), width), np.uint64)
        # A flip changes its bit in this row and in all later rows, until it is flipped back.
        bits = np.uint64(1) << (mutant & 63).astype(np.uint64)
        np.bitwise_xor.at(words.reshape(-1), step * width + (mutant >> 6), bits)
        return np.bitwise_xor.accumulate(words, axis=0, out=words)

    @cached_property
    def clean_first(self) -> npt.NDArray[np.int32]:
        """`flips`, in each step the mutants that become clean before those that become touched.

        So on the way, too, the touched mutants lie inside one of the T_p.
        """
        step = np.repeat(np.arange(len(self)), np.diff(self.offsets))
        return self.flips[np.lexsort((self.flips >= 0, step))]

    @cached_property
    def holders(self) -> tuple[npt.NDArray[np.int32], Indices]:
        """For every mutant the p whose T_p holds it: `found[offsets[i]:offsets[i + 1]]` for mutant i."""
        mutant, position = np.nonzero(bitsets.unpack(self.words, self.num_mutants).T)
        counts = np.bincount(mutant, minlength=self.num_mutants)
        return position.astype(np.int32), np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])

    def lies_within(self, others: Touched) -> bool:
        """Whether every T_p of this walk lies inside some T_p of `others`."""
        return all(bool((~others.words & mine == 0).all(axis=1).any()) for mine in self.words)

    @classmethod
    def nothing(cls, num_mutants: int) -> Touched:
        """A single empty touched set, T = {}: the min-k against it is the rank."""
        return cls(
            num_mutants,
            np.zeros((1, 0, 2), np.int32),
            np.zeros(1, np.int32),
            np.zeros(0, np.int32),
            np.zeros(2, np.int64),
        )


@lru_cache(maxsize=32)
def touched(ablation: Ablation, patch: OnePatch | Several | Footprint, image_size: ImageSize) -> Touched:
    """The touched sets of `patch` (in pixels, see `patches.concrete`) among the mutants of `ablation`."""
    if isinstance(patch, Original):
        raise GeometryError(
            f"{patch} is a patch on the original picture, whose size is not known here: pass its footprint"
        )
    patch = patch.at(image_size)
    single = patch.patch.at(image_size) if isinstance(patch, Several) else patch
    num_mutants = ablation.count(image_size)
    try:
        if isinstance(ablation, Masks):
            words, corners = _by_pixels(ablation, single, image_size)
        else:
            tables = _Tables(ablation.parts(image_size), single, image_size)
            if single is patch and tables.is_antichain:
                return tables.walk_grid()
            words, corners = tables.sets()
        if isinstance(patch, Several):
            words, chosen = unions.maximal(words, patch.times)
            corners = corners[chosen, 0]
    except bitsets.TooManySetsError as count:
        raise GeometryError(
            f"{patch} against {ablation} on {shown(image_size)} makes too many touched sets to compare "
            f"({count}): use fewer patches, or fewer mutants by a larger stride"
        ) from None
    return _walk_sets(words, corners, num_mutants)


def _by_pixels(
    ablation: Masks, patch: OnePatch | Footprint, image_size: ImageSize
) -> tuple[bitsets.Words, npt.NDArray[np.int32]]:
    """Every distinct maximal T_p as bits, and its top left corner, from the kept pixels of each mutant."""
    if isinstance(patch, Footprint):
        (tops, rows), (lefts, columns) = patch.largest()
    else:
        tops, lefts = places(patch, image_size)
    regions = ablation.regions(image_size)
    positions = len(tops) * len(lefts)
    if positions * -(-len(regions) // 64) > MOST_WORDS:
        raise bitsets.TooManySetsError(f"{positions:,} of {len(regions):,} mutants")
    touched = np.zeros((positions, len(regions)), dtype=np.bool_)
    for mutant, region in enumerate(regions):
        pixels = region.pixels(image_size)
        if isinstance(patch, Footprint):
            touched[:, mutant] = _meet(_meet(rows, pixels.T), columns).ravel()
            continue
        # before[y, x] kept pixels lie above row y and left of column x.
        before = np.zeros((image_size[0] + 1, image_size[1] + 1), dtype=np.int32)
        before[1:, 1:] = pixels.cumsum(axis=0, dtype=np.int32).cumsum(axis=1)
        for piece in patch.pieces():
            top, bottom = (before[piece.top + down :][: len(tops)] for down in (0, piece.height))
            left, right = (slice(at, at + len(lefts)) for at in (piece.left, piece.left + piece.width))
            kept = bottom[:, right] - top[:, right] - bottom[:, left] + top[:, left]
            touched[:, mutant] |= (kept > 0).ravel()
    words = bitsets.pack(touched)
    keep = bitsets.maximal(words)
    corners = np.stack([np.repeat(tops, len(lefts)), np.tile(lefts, len(tops))], axis=1)
    return words[keep], corners[keep, None].astype(np.int32)


class _Tables:
    """The segments that one patch touches along each axis: T at (top, left) is a union of products of both.

    `rows[part][piece]` is [tops, row segments], `columns[part][piece]` is [lefts, column segments].
    Tops whose touched segments lie inside those of another top are left out; the same holds for lefts.
    """

    def __init__(self, parts: list[Part], patch: OnePatch | Footprint, image_size: ImageSize) -> None:
        self.num_mutants = sum(len(part.rows) * len(part.columns) for part in parts)
        down, across = [part.rows for part in parts], [part.columns for part in parts]
        if isinstance(patch, Footprint):
            (tops, rows), (lefts, columns) = patch.largest()
            num_pieces = 1
            self.tops, self.rows = _footprint_axis(down, tops, rows)
            self.lefts, self.columns = _footprint_axis(across, lefts, columns)
        else:
            pieces = patch.pieces()
            num_pieces = len(pieces)
            tops, lefts = places(patch, image_size)
            self.tops, self.rows = _axis(down, tops, [(p.top, p.height) for p in pieces], image_size[0])
            self.lefts, self.columns = _axis(
                across, lefts, [(p.left, p.width) for p in pieces], image_size[1]
            )
        # Products of maximal sets are maximal, unless one of the two is empty, which makes the product empty.
        self.is_antichain = num_pieces == 1 and all(
            table.any(axis=1).all() for axis in (self.rows, self.columns) for part in axis for table in part
        )

    def route(self) -> Iterator[tuple[int, int]]:
        """All pairs (top, left) by index, in serpentine order, so that only one axis changes per step."""
        lefts = range(len(self.lefts))
        for y in range(len(self.tops)):
            yield from ((y, x) for x in (lefts if y % 2 == 0 else reversed(lefts)))

    def places(self, route: list[tuple[int, int]]) -> npt.NDArray[np.int32]:
        index = np.asarray(route, dtype=np.int64).reshape(-1, 2)
        corners = np.stack([self.tops[index[:, 0]], self.lefts[index[:, 1]]], axis=1)
        return corners[:, None, :].astype(np.int32)

    def sets(self) -> tuple[bitsets.Words, npt.NDArray[np.int32]]:
        """Every distinct maximal T_p as bits, and its top left corner."""
        positions = len(self.tops) * len(self.lefts)
        if positions * -(-self.num_mutants // 64) > MOST_WORDS:
            raise bitsets.TooManySetsError(f"{positions:,} of {self.num_mutants:,} mutants")
        route = list(self.route())
        words = np.concatenate([bitsets.pack(self._mask(y, x)[None]) for y, x in route])
        keep = slice(None) if self.is_antichain else bitsets.maximal(words)
        return words[keep], self.places(route)[keep]

    def _mask(self, y: int, x: int) -> Bools:
        parts = []
        for rows, columns in zip(self.rows, self.columns, strict=True):
            mask = np.zeros((rows[0].shape[1], columns[0].shape[1]), dtype=np.bool_)
            for row, column in zip(rows, columns, strict=True):
                mask |= row[y][:, None] & column[x][None, :]
            parts.append(mask.ravel())
        return np.concatenate(parts)

    def walk_grid(self) -> Touched:
        """The walk of a rectangle, without storing complete sets T_p: blocks have up to 50,176 mutants."""
        route = list(self.route())
        steps: list[npt.NDArray[np.int32]] = []
        offsets, budgets = [0], []
        families, base = [], 0
        for (row,), (column,) in zip(self.rows, self.columns, strict=True):
            families.append((_Axis(row), _Axis(column), base))
            base += row.shape[1] * column.shape[1]
        before: tuple[int, int] | None = None
        for y, x in route:
            length = budget = 0
            for row_axis, column_axis, base in families:
                width = column_axis.size
                if before is None:
                    moves = [(row_axis.on[y], column_axis.on[x], True)]
                elif before[0] == y:
                    entered, left = column_axis.change(before[1], x)
                    moves = [(row_axis.on[y], entered, True), (row_axis.on[y], left, False)]
                else:
                    entered, left = row_axis.change(before[0], y)
                    moves = [(entered, column_axis.on[x], True), (left, column_axis.on[x], False)]
                for r, c, becomes_touched in moves:
                    if len(r) and len(c):
                        mutants = (r[:, None] * width + (c + base)).ravel().astype(np.int32)
                        steps.append(mutants if becomes_touched else ~mutants)
                        length += len(mutants)
                budget += len(row_axis.on[y]) * len(column_axis.on[x])
            offsets.append(offsets[-1] + length)
            budgets.append(budget)
            before = (y, x)
        return Touched(
            self.num_mutants,
            self.places(route),
            np.asarray(budgets, np.int32),
            np.concatenate(steps) if steps else np.zeros(0, np.int32),
            np.asarray(offsets, np.int64),
        )


class _Axis:
    """The touched segments of one axis at each position, and the changes between two positions."""

    def __init__(self, table: Bools) -> None:
        self._table = table
        self.size = table.shape[1]
        self.on = [np.flatnonzero(row) for row in table]
        self._changes: dict[tuple[int, int], tuple[Indices, Indices]] = {}

    def change(self, before: int, after: int) -> tuple[Indices, Indices]:
        if (before, after) not in self._changes:
            old, new = self._table[before], self._table[after]
            self._changes[before, after] = (np.flatnonzero(new & ~old), np.flatnonzero(old & ~new))
        return self._changes[before, after]


def _axis(
    families: list[list[Segment]], starts: Indices, extents: list[tuple[int, int]], axis_length: int
) -> tuple[Indices, list[list[Bools]]]:
    """The starts whose touched segments are maximal, and the segments touched there by each piece."""
    tables = []
    for segments in families:
        kept = np.stack([segment.pixels(axis_length) for segment in segments])
        before = np.zeros((axis_length + 1, len(segments)), dtype=np.int32)
        np.cumsum(kept.T, axis=0, out=before[1:])
        tables.append([before[starts + first + length] > before[starts + first] for first, length in extents])
    together = np.concatenate([table for family in tables for table in family], axis=1)
    keep = bitsets.maximal(bitsets.pack(together))
    return starts[keep], [[table[keep] for table in family] for family in tables]


def _footprint_axis(
    families: list[list[Segment]], starts: Indices, reached: Bools
) -> tuple[Indices, list[list[Bools]]]:
    """The same for a footprint, from the pixels of the axis that it reaches from each start."""
    tables = [
        _meet(reached, np.stack([segment.pixels(reached.shape[1]) for segment in segments]))
        for segments in families
    ]
    keep = bitsets.maximal(bitsets.pack(np.concatenate(tables, axis=1)))
    return starts[keep], [[table[keep]] for table in tables]


def _meet(some: Bools, others: Bools) -> Bools:
    """[m, n], whether each of m sets of pixels and each of n others have a pixel in common."""
    # Counts of up to 16,384 pixels are exact in 32-bit floats, whose products are fast.
    met: Bools = some.astype(np.float32) @ others.astype(np.float32).T > 0
    return met


def _walk_sets(words: bitsets.Words, corners: npt.NDArray[np.int32], num_mutants: int) -> Touched:
    """The walk through these sets, in their order."""
    flips, lengths = [np.zeros(0, np.int32)], [np.zeros(0, np.int64)]
    last = np.zeros((1, num_mutants), dtype=np.bool_)
    chunk = max(1, (1 << 24) // num_mutants)
    for start in range(0, len(words), chunk):
        sets = np.concatenate([last, bitsets.unpack(words[start : start + chunk], num_mutants)])
        step, mutant = np.nonzero(sets[1:] != sets[:-1])
        mutant = mutant.astype(np.int32)
        flips.append(np.where(sets[1:][step, mutant], mutant, ~mutant))
        lengths.append(np.bincount(step, minlength=len(sets) - 1))
        last = sets[-1:]
    return Touched(
        num_mutants,
        corners,
        bitsets.sizes(words).astype(np.int32),
        np.concatenate(flips).astype(np.int32),
        np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))]),
    )
