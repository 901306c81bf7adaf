"""What stands in votes of masks, with a patch at its worst place: the rows, and what each label can score.

The words are those of defenders/patchcleanser.py: row i holds all mutants that hide mask i, a row is safe if
mask i alone hides the patch, L_p is the least that the true label scores, U_p[y] the most that a rival can.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from costcert.certification.witnesses import units_given
from costcert.errors import VotesError
from costcert.geometry.ablations import Masks
from costcert.geometry.patches import Certified
from costcert.votes.originals import touched_by
from costcert.votes.table import Votes

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Standing:
    """One image with a patch at one place.

    Args:
        places: (top, left) of the patch, in the original if it is on that.
        touched: the mutants that do not hide all of it.
        safe: the rows without such a mutant, which are the masks that cover the patch.
        standing: the rows in which every mutant gives something to the true label.
        scores: [L], S, which labels are ranked by without a patch.
        least: L_p; 0 without a safe row.
        least_row: the safe row that gives it.
        most: [L], U_p.
        most_rows: [L], the row that gives it.
        position: of the true label at worst.
    """

    places: tuple[tuple[int, int], ...]
    touched: Numbers
    safe: Numbers
    standing: Numbers
    scores: Numbers
    least: int
    least_row: int | None
    most: Numbers
    most_rows: Numbers
    position: int

    def rivals(self, truth: int) -> list[int]:
        """All other labels, those that can score most first."""
        order = np.lexsort((-self.scores, -self.most))
        return [int(label) for label in order if label != truth]


def worst_standing(votes: Votes, image: int, patch: Certified) -> Standing:
    """The place where most rivals can reach the true label, and there where the next one comes nearest."""
    masks = votes.ablation
    if not isinstance(masks, Masks):
        raise VotesError(f"only votes of masks have rows, but these are of {masks}")
    votes = votes.require_complete("a picture of its rows")
    truth, rows = int(votes.truth[image]), masks.table()
    given = _given(votes, image)[rows]
    lowest = given.min(axis=1)
    positions = touched_by(votes.take([image]), patch)
    best: tuple[int, int] | None = None
    for place, held in zip(positions.places, positions.sets(), strict=True):
        attacked = held[rows]
        safe = np.flatnonzero(~attacked.any(axis=1))
        own = lowest[safe, truth]
        least = int(own.max(initial=0))
        reach = np.where(attacked[..., None], votes.cap, given).min(axis=1)
        most = reach.max(axis=0)
        gaps = least - np.delete(most, truth)
        passing, next_gap = int((gaps <= 0).sum()), int(gaps[gaps > 0].min(initial=votes.cap))
        if best is not None and (passing, -next_gap) <= best:
            continue
        best = passing, -next_gap
        found = Standing(
            tuple((int(top), int(left)) for top, left in place),
            np.flatnonzero(held),
            safe,
            np.flatnonzero(lowest[:, truth] > 0),
            lowest.max(axis=0),
            least,
            int(safe[own.argmax()]) if len(safe) else None,
            most,
            reach.argmax(axis=0),
            1 + passing,
        )
    return found


def _given(votes: Votes, image: int) -> Numbers:
    """[B, L], what each mutant gives to each label."""
    labels, units = units_given(votes, image)
    given = np.zeros((votes.num_mutants, votes.num_classes), dtype=np.int64)
    np.add.at(given, (np.arange(votes.num_mutants)[:, None], labels), units)
    return given
