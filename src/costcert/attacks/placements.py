"""Where a patch is tried on an image, and how the mutants that it touches there should vote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from costcert.certification.max_min import MaxMin
from costcert.certification.witnesses import Witness, strongest, units_given, witness
from costcert.geometry.ablations import Ablation, Kept, Masks, Region, Segment
from costcert.geometry.footprints import Footprint
from costcert.geometry.patches import OnePatch, Original, Piece, Several
from costcert.geometry.sizes import ImageSize
from costcert.votes.table import Votes

Bools = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]
Places = tuple[tuple[int, int], ...]

# Positions that are priced for each one that is tried.
_PRICED = 4
# Attempts to move a patch along an axis without touching other mutants.
_MOVES = 8


@dataclass(frozen=True, eq=False)
class Placement:
    """A position of the patch, and the ballots that would do the most harm there.

    Args:
        places: (top, left) of the patch, or of each of several.
        touched: [q], the mutants that keep a pixel of it.
        rivals: the labels to lift past the true label.
        wanted: [q], the rival that each touched mutant should vote for.
    """

    places: Places
    touched: Indices
    rivals: Indices
    wanted: Indices


class Placements:
    """The positions of a patch, and which pixels it covers and which mutants it touches there.

    A patch lies on the model's input; that of a footprint lies on the original, and all positions and covered
    pixels are those of the original.
    """

    def __init__(
        self, ablation: Ablation, patch: OnePatch | Several | Footprint, image_size: ImageSize
    ) -> None:
        self._footprint = patch if isinstance(patch, Footprint) else None
        self.patch = Original(patch.patch) if isinstance(patch, Footprint) else patch
        self.single: OnePatch
        if isinstance(patch, Footprint):
            self.single = patch.patch
        else:
            self.single = patch.patch.at(image_size) if isinstance(patch, Several) else patch
        self.times = patch.times if isinstance(patch, Several) else 1
        # The size of the pictures that patches are painted on.
        self.canvas = patch.original if isinstance(patch, Footprint) else image_size
        self.regions: Sequence[Kept] = ablation.regions(image_size)
        self._room = (self.canvas[0] - self.single.height + 1, self.canvas[1] - self.single.width + 1)
        if isinstance(ablation, Masks):
            self._kept: _KeptPixels | _KeptStrips = _KeptPixels(self.regions, image_size)
        else:
            self._kept = _KeptStrips(ablation.regions(image_size), image_size)

    def touched(self, places: Places) -> Indices:
        """The mutants that keep a pixel of the patch, counted as in `geometry.touch`."""
        hit = np.zeros(len(self.regions), dtype=np.bool_)
        for top, left in places:
            for y, x, height, width in self._changed(top, left):
                hit |= self._kept.within(slice(y, y + height), slice(x, x + width))
        return np.flatnonzero(hit)

    def _changed(self, top: int, left: int) -> list[Piece]:
        """The rectangles of the input that one patch can change."""
        if self._footprint is not None:
            return self._footprint.rectangles(top, left)
        return [piece._replace(top=top + piece.top, left=left + piece.left) for piece in self.single.pieces()]

    def pixels(self, places: Places) -> Bools:
        """[H, W], the pixels of the picture that the patch covers."""
        return self.sources(places) >= 0

    def sources(self, places: Places) -> Indices:
        """[H, W], the index of the patch's pixel on each pixel of the picture; -1 where there is none."""
        source = np.full(self.canvas, -1, dtype=np.int64)
        for top, left in places:
            for piece in self.single.pieces():
                rows, columns = np.arange(piece.height) + piece.top, np.arange(piece.width) + piece.left
                source[np.ix_(top + rows, left + columns)] = rows[:, None] * self.single.width + columns
        return source

    def draw(self, rng: np.random.Generator) -> Places:
        """A random position."""
        return tuple(
            (int(rng.integers(self._room[0])), int(rng.integers(self._room[1]))) for _ in range(self.times)
        )

    def draw_equivalent(self, places: Places, rng: np.random.Generator) -> Places:
        """A random position along one axis that touches the same mutants; the given one if none is found."""
        same = self.touched(places)
        for move in range(_MOVES):
            other = self.draw(rng)
            pairs = zip(places, other, strict=True)
            moved = tuple(((y, left) if move % 2 else (top, x)) for (top, left), (y, x) in pairs)
            if np.array_equal(self.touched(moved), same):
                return moved
        return places


class _KeptStrips:
    """Which mutants keep a pixel of a rectangle, where each keeps some rows of some columns."""

    def __init__(self, regions: Sequence[Region], image_size: ImageSize) -> None:
        self._rows = _kept_before([region.rows for region in regions], image_size[0])
        self._columns = _kept_before([region.columns for region in regions], image_size[1])

    def within(self, rows: slice, columns: slice) -> Bools:
        down = self._rows[:, rows.stop] > self._rows[:, rows.start]
        across: Bools = self._columns[:, columns.stop] > self._columns[:, columns.start]
        return down & across


class _KeptPixels:
    """The same where each mutant keeps any pixels, as those of masks do."""

    def __init__(self, regions: Sequence[Kept], image_size: ImageSize) -> None:
        self._kept = np.stack([region.pixels(image_size) for region in regions])

    def within(self, rows: slice, columns: slice) -> Bools:
        return np.asarray(self._kept[:, rows, columns].any(axis=(1, 2)))


class Prices:
    """CostCert's price of lifting rivals past the true label of one image, per position."""

    def __init__(self, votes: Votes, image: int, k: int) -> None:
        self.votes, self.image, self.k = votes, image, k
        self.truth = int(votes.truth[image])
        self._labels, self._units = units_given(votes, image)
        self._scores = np.zeros(votes.num_classes, dtype=np.int64)
        np.add.at(self._scores, self._labels, self._units)

    def rest(self, touched: Indices) -> Indices:
        """[L], the votes of the untouched mutants."""
        rest = self._scores.copy()
        np.subtract.at(rest, self._labels[touched], self._units[touched])
        return rest

    def gaps(self, touched: Indices) -> tuple[Indices, Indices]:
        """Rivals, cheapest first, and their gaps; ties go to the lowest label, as in the prediction."""
        rest = self.rest(touched)
        gaps = np.maximum(rest[self.truth] - rest + (np.arange(len(rest)) > self.truth), 0)
        order = np.argsort(gaps, kind="stable")
        order = order[order != self.truth]
        return order, gaps[order]

    def lifted(self, touched: Indices) -> tuple[int, int]:
        """How many rivals (at most k) the budget lifts, and the budget left over, or lacking for one more."""
        _, gaps = self.gaps(touched)
        left = self.votes.cap * len(touched) - np.cumsum(gaps[: self.k])
        count = int((left >= 0).sum())
        return count, int(left[min(count, len(left) - 1)])

    def placement(
        self, placements: Placements, places: Places, rng: np.random.Generator | None = None
    ) -> Placement:
        """The placement with the cheapest rivals; with `rng`, with random rivals that the budget allows."""
        touched = placements.touched(places)
        order, gaps = self.gaps(touched)
        budget = self.votes.cap * len(touched)
        chosen = np.arange(min(self.k, len(order)))
        if rng is not None:
            others = rng.choice(min(len(order), 2 * self.k + 2), len(chosen), replace=False)
            chosen = others if gaps[others].sum() <= budget else rng.permutation(chosen)
        ballots = -(-gaps[chosen] // self.votes.cap)
        # Neighbouring mutants keep similar parts of a patch, so each rival gets consecutive ones.
        wanted = np.repeat(order[chosen], ballots)[: len(touched)]
        spare = np.full(len(touched) - len(wanted), order[chosen[0]])
        return Placement(places, touched, order[chosen], np.concatenate([spare, wanted]))


class RowPrices(Prices):
    """The same for votes of masks, where a rival passes the true label with one row of mutants."""

    def __init__(self, votes: Votes, image: int, k: int) -> None:
        super().__init__(votes, image, k)
        self._rows = MaxMin(votes, image)

    def lifted(self, touched: Indices) -> tuple[int, int]:
        found = self._rows.attack(self._mask(touched), self.k)
        return len(found.lifted), -found.short

    def placement(
        self, placements: Placements, places: Places, rng: np.random.Generator | None = None
    ) -> Placement:
        touched = placements.touched(places)
        first = [] if rng is None else rng.permutation(self.votes.num_classes).tolist()
        found = self._rows.attack(self._mask(touched), self.k, first)
        rivals = [*found.lifted, *([] if found.following is None else [found.following])][: self.k]
        wanted = np.full(self.votes.num_mutants, rivals[0])
        # A ballot that is split goes to the label with the most units.
        order = np.argsort(found.units, kind="stable")
        wanted[found.mutants[order]] = found.labels[order]
        return Placement(places, touched, np.array(rivals), wanted[touched])

    def _mask(self, touched: Indices) -> Bools:
        held = np.zeros(self.votes.num_mutants, dtype=np.bool_)
        held[touched] = True
        return held


def prices_of(votes: Votes, image: int, k: int) -> Prices:
    """The prices of one image, by what its labels are ranked by."""
    return (RowPrices if isinstance(votes.ablation, Masks) else Prices)(votes, image, k)


def best_placements(
    votes: Votes, image: int, placements: Placements, k: int, count: int, rng: np.random.Generator
) -> list[Placement]:
    """Up to `count` positions: the witness's (or the strongest attack's), the worst by price, random ones."""
    prices = prices_of(votes, image, k)
    found = witness(votes, image, placements.patch, k, ties="lowest")
    found = found or strongest(votes, image, placements.patch, ties="lowest")
    first = _as_witnessed(found, prices.placement(placements, found.places))
    drawn = [placements.draw_equivalent(found.places, rng) for _ in range(count)]
    drawn += [placements.draw(rng) for _ in range(_PRICED * count)]
    others = [places for places in dict.fromkeys(drawn) if places != found.places]
    price = {places: prices.lifted(placements.touched(places)) for places in others}
    # Where the budget does not lift k rivals, no pixels can succeed.
    others = [places for places in others if price[places][0] == k] or others
    worst = sorted(others, key=price.__getitem__, reverse=True)[: count // 2]
    rest = [places for places in others if places not in worst]
    rng.shuffle(rest)
    chosen = [*worst, *rest][: count - 1]
    candidates = [first, *(prices.placement(placements, places) for places in chosen)]
    # A patch that touches no mutant changes nothing.
    return [placement for placement in candidates if len(placement.touched)]


def _as_witnessed(found: Witness, placement: Placement) -> Placement:
    """The placement with the witness's ballots; a split ballot goes to the label with the most units."""
    wanted = dict(zip(placement.touched.tolist(), placement.wanted.tolist(), strict=True))
    for at in np.argsort(found.units, kind="stable"):
        wanted[int(found.mutants[at])] = int(found.labels[at])
    return replace(
        placement, wanted=np.array([wanted[mutant] for mutant in placement.touched.tolist()], np.int64)
    )


def _kept_before(segments: Sequence[Segment], length: int) -> npt.NDArray[np.int32]:
    """[B, length + 1], the number of pixels of each segment before each position."""
    kept = np.stack([segment.pixels(length) for segment in segments])
    before = np.zeros((len(segments), length + 1), dtype=np.int32)
    np.cumsum(kept, axis=1, out=before[:, 1:])
    return before
