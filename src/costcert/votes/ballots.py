"""Ballots from logits: the label each mutant votes for, how certain it is, and its soft ballot."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from costcert.errors import CostcertError
from costcert.votes.defence import Soft

Logits = npt.NDArray[np.float32]


class Ballots(NamedTuple):
    """Ballots of mutants: a label and a margin each and, if requested, a soft ballot.

    Args:
        margins: best minus second logit: how far the difference of two logits must move to change the label.
        cuts: the smallest logit in the soft ballot minus the largest outside it: how far the difference of
            two logits must move to change which labels the soft ballot holds.
    """

    labels: npt.NDArray[np.int32]
    margins: npt.NDArray[np.float32]
    soft_labels: npt.NDArray[np.int32] | None = None
    soft_units: npt.NDArray[np.int32] | None = None
    cuts: npt.NDArray[np.float32] | None = None


def ballots_of(logits: Logits, soft: Soft | None = None) -> Ballots:
    """Ballots from logits [..., L]: the best label (ties to the lowest), the margin and the soft ballot."""
    if not np.isfinite(logits).all():
        raise CostcertError("the model outputs NaN or infinite logits: check its weights and its input")
    labels = logits.argmax(axis=-1).astype(np.int32)
    margins = _gap_after(logits, 1)
    if soft is None:
        return Ballots(labels, margins)
    if soft.temperature is None:
        raise CostcertError(
            "soft ballots need a temperature, but these votes were made elsewhere and do not record it: vote "
            "again with a temperature"
        )
    scaled = logits.astype(np.float64) / soft.temperature
    share = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    share /= share.sum(axis=-1, keepdims=True)
    best = min(soft.best, logits.shape[-1])
    order = _best_first(share, best)
    units = np.floor(np.take_along_axis(share, order, axis=-1) * soft.cap).astype(np.int32)
    return Ballots(labels, margins, order.astype(np.int32), units, _gap_after(logits, best))


def _gap_after(logits: Logits, best: int) -> npt.NDArray[np.float32]:
    """The `best`-th largest logit minus the next; infinite where there is no next."""
    if best >= logits.shape[-1]:
        return np.full(logits.shape[:-1], np.inf, dtype=np.float32)
    top = np.partition(logits, (-best - 1, -best), axis=-1)
    return (top[..., -best] - top[..., -best - 1]).astype(np.float32)


def _best_first(share: npt.NDArray[np.float64], best: int) -> npt.NDArray[np.int64]:
    """Labels of the `best` largest shares, largest first, ties to the lowest label.

    The same as the start of a stable sort, without sorting all labels.
    """
    smallest = np.partition(share, -best, axis=-1)[..., -best, None]
    larger, equal = share > smallest, share == smallest
    missing = best - larger.sum(axis=-1, keepdims=True)
    chosen = larger | (equal & (equal.cumsum(axis=-1) <= missing))
    labels = chosen.nonzero()[-1].reshape(*share.shape[:-1], best)
    order = np.argsort(-np.take_along_axis(share, labels, axis=-1), axis=-1, kind="stable")
    return np.take_along_axis(labels, order, axis=-1)
