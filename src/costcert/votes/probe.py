"""Numerical probe: how far the logits of a model move if only the way of computing them changes.

Sums of floating-point numbers depend on their order, which depends on batch size and device. A
mutant whose two best logits are close may therefore vote differently in another run. If no logit moves by
more than δ, the difference of two logits changes by at most 2δ, so a label whose margin exceeds ε = 2δ
cannot change. δ is the largest movement measured on some mutants on this device, times a safety factor for
those that were not tried; it is measured, not proved.

A soft ballot names its j best labels. If the j-th and the next logit are within ε, they may swap order, and
the units of one label move to the other: such a ballot is as uncertain as a hard one with a margin within ε.
All other soft ballots keep their labels, and τ is measured on those: twice the largest change of any label's
units, times the safety factor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from costcert.errors import CostcertError
from costcert.geometry.ablations import Region
from costcert.models.classifier import Classifier, Logits, Pixels, ballots_of
from costcert.votes.defence import Soft

# Safety factor: other mutants, or other ways of computing, may move further than those that were tried.
SAFETY = 4


@dataclass(frozen=True)
class Probe:
    """The result of a probe, for the manifest of votes.

    Args:
        epsilon: a hard ballot with at most this margin, or a soft one with at most this cut, may change.
        tau: units by which any other soft ballot may be off, per label.
        mutants: the number of mutants that were tried.
        flips: the number of them whose label changed.
        shifts: the largest movement of any logit, for each way of computing.
    """

    epsilon: float
    tau: int
    mutants: int
    flips: int
    shifts: dict[str, float]

    def in_words(self, soft: Soft | None) -> str:
        """What was found, and what epsilon and tau mean for ballots of this kind."""
        if self.epsilon == 0:
            found = f"no logit of {self.mutants:,} mutants moved in {len(self.shifts)} ways of computing it"
            return f"{found} (epsilon 0{'' if soft is None else f', tau {self.tau}'})"
        distance = "margin" if soft is None else "margin or cut"
        words = (
            f"logits of {self.mutants:,} mutants moved by up to {max(self.shifts.values()):.2g} in "
            f"{len(self.shifts)} ways of computing them, and {self.flips:,} changed their vote; so ballots "
            f"with a {distance} of at most epsilon = {self.epsilon:.2g} may change on another machine or run"
        )
        if soft is None:
            return words
        others = f"by tau = {self.tau:,} of {soft.cap:,} units per label" if self.tau else "not (tau = 0)"
        return f"{words}, and others {others}"


def probe(model: Classifier, images: Pixels, regions: Sequence[Region], *, soft: Soft | None = None) -> Probe:
    """Evaluate the same mutants in several ways and compare the logits.

    Args:
        images: [N, H, W, C], the results of `model.prepare`; a few are enough.
        soft: how soft ballots are made, for tau.
    """
    if len(images) == 0 or not regions:
        raise CostcertError("a probe needs at least one image and one region")
    usual = model.logits(images, regions)
    labels, units = usual.argmax(axis=-1), _units(usual, soft)
    flipped = np.zeros(labels.shape, dtype=np.bool_)
    moved = np.zeros(labels.shape, dtype=np.int64)
    shifts: dict[str, float] = {}
    for name, evaluate in _ways(model, images, regions):
        other = evaluate()
        shifts[name] = float(np.abs(other.astype(np.float64) - usual).max())
        flipped |= other.argmax(axis=-1) != labels
        np.maximum(moved, np.abs(_units(other, soft) - units).max(axis=-1), out=moved)
    epsilon = 2 * SAFETY * max(shifts.values())
    cuts = ballots_of(usual, soft).cuts
    certain = moved[cuts > epsilon] if cuts is not None else moved[:0]
    return Probe(
        epsilon=epsilon,
        tau=0 if soft is None else min(2 * SAFETY * int(certain.max(initial=0)), soft.cap),
        mutants=labels.size,
        flips=int(flipped.sum()),
        shifts=shifts,
    )


def _ways(
    model: Classifier, images: Pixels, regions: Sequence[Region]
) -> Iterator[tuple[str, Callable[[], Logits]]]:
    """Ways of computing the same logits, by name."""
    everything = partial(model.logits, images, regions)
    yield "once more", everything
    yield "in reverse order", lambda: _reversed(model.logits(_reversed(images), regions[::-1]), axes=2)
    yield "one image at a time", partial(_in_parts, model, images, regions, len(regions))
    yield "three mutants at a time", partial(_in_parts, model, images, regions, 3)
    yield "one mutant at a time", partial(_in_parts, model, images, regions, 1)


def _reversed(values: npt.NDArray[Any], axes: int = 1) -> npt.NDArray[Any]:
    return np.ascontiguousarray(np.flip(values, axis=tuple(range(axes))))


def _in_parts(model: Classifier, images: Pixels, regions: Sequence[Region], width: int) -> Logits:
    """One image and `width` of its mutants at a time."""
    rows = [
        [
            model.logits(images[n : n + 1], regions[start : start + width])[0]
            for start in range(0, len(regions), width)
        ]
        for n in range(len(images))
    ]
    return np.stack([np.concatenate(row) for row in rows])


def _units(logits: Logits, soft: Soft | None) -> npt.NDArray[np.int64]:
    """[..., L], the units that the soft ballots give to each label."""
    units = np.zeros(logits.shape, dtype=np.int64)
    made = ballots_of(logits, soft)
    if made.soft_labels is not None and made.soft_units is not None:
        np.put_along_axis(units, made.soft_labels, made.soft_units, axis=-1)
    return units
