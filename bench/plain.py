"""Straightforward implementations in numpy: one image at a time, one patch region after the other.

bench/certify.py checks the library against these, and compares its speed with theirs. They are not slow on
purpose: the mutants that a region touches are computed once for all images, labels are counted and sorted by
numpy, and DRS, which has one budget for all regions, does not loop over them. Ties count against the true
label.

All take ballots [N, B] of wrapping columns `width` wide with stride 1 on an image `image_width` wide, and
return min-k [N] against a square of `side` pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from itertools import combinations_with_replacement

import numpy as np


def costcert_plain(
    ballots: np.ndarray, truth: np.ndarray, num_classes: int, width: int, side: int, image_width: int
) -> np.ndarray:
    """Algorithm 1 of the paper with the optimisation it was measured with: the smallest k, by adding
    labels in descending order of clean votes until Eq. 1 exceeds the budget."""
    clean = ~touched_columns(width, side, image_width)
    return _each(ballots, truth, lambda row, true: costcert_one(row, true, num_classes, clean))


def costcert_soft_plain(
    labels: np.ndarray,
    units: np.ndarray,
    truth: np.ndarray,
    num_classes: int,
    width: int,
    side: int,
    image_width: int,
    cap: int,
) -> np.ndarray:
    """The same for soft ballots [N, B, j]: votes are sums of units, and a touched mutant is worth `cap`."""
    clean = ~touched_columns(width, side, image_width)
    found = []
    for row, given, true in zip(labels, units, truth, strict=True):
        worst = 0
        for mutants in clean:
            # Sums of units stay far below 2**53, where floats are exact.
            votes = np.bincount(row[mutants].ravel(), given[mutants].ravel(), minlength=num_classes)
            worst = max(worst, _lifted(votes.astype(np.int64), true, cap * np.count_nonzero(~mutants)))
        found.append(1 + worst)
    return np.array(found, np.int64)


def cbn_plain(
    ballots: np.ndarray, truth: np.ndarray, num_classes: int, width: int, side: int, image_width: int
) -> np.ndarray:
    """Rivals that reach the true label if each gets the entire budget."""
    clean = ~touched_columns(width, side, image_width)
    budgets = np.count_nonzero(~clean, axis=1)

    def one(row: np.ndarray, true: int) -> int:
        worst = 0
        for mutants, budget in zip(clean, budgets, strict=True):
            votes = np.bincount(row[mutants], minlength=num_classes)
            # The true label counts itself, which is the 1 in min-k.
            worst = max(worst, np.count_nonzero(votes + budget >= votes[true]))
        return worst

    return _each(ballots, truth, one)


def drs_plain(
    ballots: np.ndarray, truth: np.ndarray, num_classes: int, width: int, side: int, image_width: int
) -> np.ndarray:
    """Rivals within twice the largest budget of the true label, in votes of all mutants."""
    budget = np.count_nonzero(touched_columns(width, side, image_width), axis=1).max()

    def one(row: np.ndarray, true: int) -> int:
        votes = np.bincount(row, minlength=num_classes)
        return np.count_nonzero(votes + 2 * budget >= votes[true])

    return _each(ballots, truth, one)


def patchguard_plain(
    ballots: np.ndarray, truth: np.ndarray, num_classes: int, width: int, side: int, image_width: int
) -> np.ndarray:
    """For every region, every window that the prediction may mask: R * R passes over B ballots."""
    touched = touched_columns(width, side, image_width)

    def one(row: np.ndarray, true: int) -> int:
        right = row == true
        worst = 0
        for region in touched:
            votes = np.bincount(row[~region], minlength=num_classes)
            outside = right & ~region
            masked = max(np.count_nonzero(outside & window) for window in touched)
            votes_left = votes[true] - masked
            votes[true] = votes_left
            # As above, the true label counts itself.
            worst = max(worst, np.count_nonzero(votes >= votes_left))
        return worst

    return _each(ballots, truth, one)


def masks_plain(
    ballots: np.ndarray, truth: np.ndarray, num_classes: int, width: int, side: int, image_width: int
) -> np.ndarray:
    """CostCert over PatchGuard's masks: the same loop, but every label loses its own best window."""
    touched = touched_columns(width, side, image_width)

    def one(row: np.ndarray, true: int) -> int:
        worst = 0
        for region in touched:
            votes = np.bincount(row[~region], minlength=num_classes)
            masked = np.zeros(num_classes, np.int64)
            for window in touched:
                np.maximum(masked, np.bincount(row[window & ~region], minlength=num_classes), out=masked)
            floor = votes[true] - masked[true]
            able = votes >= floor
            able[true] = False
            costs = np.sort(np.maximum(0, floor - votes[able] + masked[able]))
            worst = max(worst, _affordable(costs, np.count_nonzero(region)))
        return 1 + worst

    return _each(ballots, truth, one)


def costcert_one(row: np.ndarray, true: int, num_classes: int, clean: Iterable[np.ndarray]) -> int:
    """Min-k of one image with ballots [B]; each mask [B] holds the mutants that one region leaves clean."""
    worst = 0
    for mutants in clean:
        votes = np.bincount(row[mutants], minlength=num_classes)
        worst = max(worst, _lifted(votes, true, np.count_nonzero(~mutants)))
    return 1 + worst


@cache
def touched_columns(width: int, side: int, image_width: int) -> np.ndarray:
    """[R, B]: whether a square at each of its positions shares a column with the strip of each mutant."""
    kept = np.zeros((image_width, image_width), bool)
    for mutant in range(image_width):
        kept[mutant, np.arange(mutant, mutant + width) % image_width] = True
    return np.stack([kept[:, at : at + side].any(axis=1) for at in range(image_width - side + 1)])


def touched_by_two(touched: np.ndarray) -> Iterable[np.ndarray]:
    """Two patches at once: every union of two rows of [R, B]."""
    for one, other in combinations_with_replacement(touched, 2):
        yield one | other


def clean_blocks(block: int, side: int, image_width: int) -> Iterable[np.ndarray]:
    """Masks of clean mutants for each position of a square and wrapping blocks, too many to hold at once."""
    touched = touched_columns(block, side, image_width)
    for rows in touched:
        for columns in touched:
            yield ~np.outer(rows, columns).ravel()


def _lifted(votes: np.ndarray, true: int, budget: int) -> int:
    """How many rivals can be lifted to the clean votes of the true label; overwrites `votes`."""
    level = votes[true]
    votes[true] = -1
    rivals = np.sort(votes)[:0:-1]
    return _affordable(np.maximum(0, level - rivals), budget)


def _affordable(sorted_costs: np.ndarray, budget: int) -> int:
    """How many of the costs, cheapest first, fit into the budget together."""
    return int(np.searchsorted(np.cumsum(sorted_costs), budget, side="right"))


def _each(ballots: np.ndarray, truth: np.ndarray, one: Callable[[np.ndarray, int], int]) -> np.ndarray:
    return np.array([one(row, int(true)) for row, true in zip(ballots, truth, strict=True)], np.int64)
