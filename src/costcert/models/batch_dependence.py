"""Does what a model says about one mutant depend on the others in its batch?

Then a patch on one mutant could change the ballot of another that it does not touch, and no certificate would
hold. BatchNorm in training mode does so, and so do activations that are quantised by the range they have in
the batch. Not every format can be looked into, so the model is asked: about each mutant alone, about all
together, and about all in other company. What differs by more than rounding is refused. This is a test, not
a proof: dependence that none of these batches shows is not found.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costcert.errors import CostcertError
from costcert.geometry.ablations import Region
from costcert.models.classifier import Classifier, Logits, Pixels

# Movement that may be rounding, as a share of the largest logit. In float32 the shipped networks and ResNets,
# ViTs and ConvNeXts of up to 101 layers moved by at most 1e-6: a hundred times that is room for devices that
# choose another algorithm for another batch. In half precision one rounding of a logit alone is 2**-11 of it
# (float16) or 2**-8 (bfloat16), and the bound is a few of these.
ROUNDING = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 2e-2}


def refuse_batch_dependence(model: Classifier, images: Pixels, regions: Sequence[Region]) -> None:
    """Raise if the model says something else about a mutant when others are beside it.

    Args:
        images: [N, H, W, C], as `model.prepare` gives them. Every mutant is asked three times, once in a
            batch of its own, so pass a few images and a few regions.
    """
    if not len(images) or not regions:
        return
    alone = _one_by_one(model, images, regions)
    company = _company(images.shape[1:])
    beside = model.in_one_batch(np.concatenate([company, images[::-1]]), regions[::-1])
    together = (model.in_one_batch(images, regions), beside[len(company) :][::-1, ::-1])
    largest = float(np.abs(alone, where=np.isfinite(alone), out=np.zeros_like(alone)).max(initial=0.0))
    allowed = ROUNDING.get(model.precision, ROUNDING["float32"]) * largest
    moved = max(_largest_movement(alone, other) for other in together)
    if moved <= allowed:
        return
    name = model.metadata().get("name", type(model).__name__)
    again = _largest_movement(alone, _one_by_one(model, images, regions))
    if again > allowed:
        raise CostcertError(
            f"{name} says something else about the same mutant each time it is asked (a logit moves by "
            f"{again:.2g}), so no certificate would hold: switch off what is random in it"
        )
    raise CostcertError(
        f"{name} says something else about a mutant when others are beside it (a logit moves by {moved:.2g}, "
        f"rounding explains {allowed:.2g}), so no certificate would hold: it must not use statistics of the "
        "batch, as BatchNorm does in training mode and dynamic quantisation does for activations"
    )


def unlike_pictures(count: int, shape: tuple[int, ...]) -> Pixels:
    """[count, H, W, C] of noise, always the same.

    They differ in grain, and each channel of each in brightness and contrast: statistics of a batch then
    depend on which of them are in it, also behind layers that normalise every picture by itself.
    """
    rng = np.random.default_rng(0)
    height, width, channels = shape
    pictures = np.empty((count, *shape), dtype=np.uint8)
    for picture in range(count):
        grain = 1 + 3 * picture
        low = rng.integers(0, 128, channels)
        high = low + rng.integers(32, 128, channels)
        noise = rng.integers(low, high, (-(-height // grain), -(-width // grain), channels))
        pictures[picture] = noise.repeat(grain, axis=0).repeat(grain, axis=1)[:height, :width]
    return pictures


def _company(shape: tuple[int, ...]) -> Pixels:
    """The extremes: a picture without any contrast, and one with all of it."""
    harsh = np.random.default_rng(1).integers(0, 2, shape) * 255
    return np.stack([np.zeros(shape), harsh]).astype(np.uint8)


def _one_by_one(model: Classifier, images: Pixels, regions: Sequence[Region]) -> Logits:
    rows = [[model.logits(image[None], [region])[0, 0] for region in regions] for image in images]
    return np.array(rows, dtype=np.float32)


def _largest_movement(logits: Logits, other: Logits) -> float:
    """Infinite where only one of them is a number; that neither is one is for `ballots_of` to say."""
    same = (logits == other) | (np.isnan(logits) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        moved = np.abs(logits.astype(np.float64) - other)
    return float(np.nan_to_num(np.where(same, 0.0, moved), nan=np.inf, posinf=np.inf).max(initial=0.0))
