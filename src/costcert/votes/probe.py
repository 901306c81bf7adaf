"""How far a model's logits move when nothing but the way of computing them changes.

Sums of floating-point numbers depend on their order, and the order on batch size, thread count and device. A
mutant whose two best logits are close may therefore vote differently tomorrow. If no logit moves by more
than δ, two logits can approach each other by 2δ: a margin above ε = 2δ decides the label whatever happens.
δ is the largest movement seen here, on some mutants and on this device, times a safety factor for all that
were not tried; it is measured, not proved.

A soft ballot names its j best labels. Where the j-th and the next logit are within ε, they may change places,
and a whole entry moves from one label to the other: such a ballot is as uncertain as a hard one within ε. All
others name the same labels whatever happens, and τ, twice the largest change of any label's units times the
safety factor, is measured on those.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from costcert.errors import CostcertError
from costcert.geometry.ablations import Region
from costcert.models.classifier import Classifier, Logits, Pixels, Soft, ballots_of

# Mutants and ways that were not tried may move further than those that were.
SAFETY = 4


@dataclass(frozen=True)
class Probe:
    """What was measured; goes into the manifest of votes.

    Args:
        epsilon: a hard ballot with at most this margin, or a soft one with at most this cut, may be another.
        tau: units by which any other soft ballot may be off, per label.
        mutants: how many were tried.
        flips: how many of them changed their label.
        shifts: the largest movement of any logit, by what was changed.
    """

    epsilon: float
    tau: int
    mutants: int
    flips: int
    shifts: dict[str, float]


def probe(model: Classifier, images: Pixels, regions: Sequence[Region], *, soft: Soft | None = None) -> Probe:
    """Ask the same mutants in several ways and compare.

    Args:
        images: [N, H, W, C], as `model.prepare` gives them; a few are enough.
        soft: how soft ballots are made, for tau.
    """
    if len(images) == 0 or not regions:
        raise CostcertError("a probe needs at least one image and one region")
    usual = model.logits(images, regions)
    labels, units = usual.argmax(axis=-1), _units(usual, soft)
    flipped = np.zeros(labels.shape, dtype=np.bool_)
    moved = np.zeros(labels.shape, dtype=np.int64)
    shifts: dict[str, float] = {}
    for name, ask in _ways(model, images, regions):
        other = ask()
        shifts[name] = float(np.abs(other.astype(np.float64) - usual).max())
        flipped |= other.argmax(axis=-1) != labels
        np.maximum(moved, np.abs(_units(other, soft) - units).max(axis=-1), out=moved)
    epsilon = 2 * SAFETY * max(shifts.values())
    cuts = ballots_of(usual, soft).cuts
    lasting = moved[cuts > epsilon] if cuts is not None else moved[:0]
    return Probe(
        epsilon=epsilon,
        tau=0 if soft is None else min(2 * SAFETY * int(lasting.max(initial=0)), soft.cap),
        mutants=labels.size,
        flips=int(flipped.sum()),
        shifts=shifts,
    )


def _ways(
    model: Classifier, images: Pixels, regions: Sequence[Region]
) -> Iterator[tuple[str, Callable[[], Logits]]]:
    everything = partial(model.logits, images, regions)
    yield "once more", everything
    yield "in reverse order", lambda: _reversed(model.logits(_reversed(images), regions[::-1]), axes=2)
    yield "one image at a time", partial(_in_parts, model, images, regions, len(regions))
    yield "three mutants at a time", partial(_in_parts, model, images, regions, 3)
    yield "one mutant at a time", partial(_in_parts, model, images, regions, 1)
    # Only torch can change its threads while a model is in use.
    if "torch" in sys.modules:
        for count in (1, 2, 4):
            yield f"threads: {count}", partial(_with_threads, count, everything)


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
    """[..., L], what each label gets of the soft ballots."""
    units = np.zeros(logits.shape, dtype=np.int64)
    made = ballots_of(logits, soft)
    if made.soft_labels is not None and made.soft_units is not None:
        np.put_along_axis(units, made.soft_labels, made.soft_units, axis=-1)
    return units


def _with_threads(count: int, ask: Callable[[], Logits]) -> Logits:
    torch = sys.modules["torch"]
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        return ask()
    finally:
        torch.set_num_threads(before)
