"""A test for models whose logits of a mutant depend on the other mutants in its batch.

With such a model a patch on one mutant could change the ballot of another that it does not touch, and no
certificate would hold. BatchNorm in training mode behaves like this, and so do activations quantised by their
range in the batch. Not every model format can be inspected, so each mutant is evaluated alone, in a batch of
all, and in a batch with other images; a difference larger than rounding is refused. This is a test, not a
proof: it does not find a dependence that none of these batches triggers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from costcert.errors import CostcertError
from costcert.geometry.ablations import Kept
from costcert.models.classifier import Classifier, Logits, Pixels

# The largest difference that may be rounding, relative to the largest logit. In float32 the shipped networks
# and ResNets, ViTs and ConvNeXts of up to 101 layers differed by at most 1e-6; a hundred times that allows
# for devices that choose another algorithm for another batch size. In half precision the rounding of one
# logit alone is 2**-11 (float16) or 2**-8 (bfloat16) of it, and the bound is a few of these. Integers do not
# round, and a difference before they are made from floats may grow to one of them: none is accepted.
ROUNDING = {"float32": 1e-4, "float16": 4e-3, "bfloat16": 2e-2, "int8": 0.0}


def refuse_batch_dependence(model: Classifier, images: Pixels, regions: Sequence[Kept]) -> None:
    """Raise if the logits of a mutant depend on the other mutants in its batch.

    Args:
        images: [N, H, W, C], as `model.prepare` returns them. Every mutant is evaluated three times, once in
            a batch of its own, so pass a few images and a few regions.
    """
    if not len(images) or not regions:
        return
    alone = _one_by_one(model, images, regions)
    others = _extreme_images(images)
    mixed = model.in_one_batch(np.concatenate([others, images[::-1]]), regions[::-1])
    batched = (model.in_one_batch(images, regions), mixed[len(others) :][::-1, ::-1])
    largest = float(np.abs(alone, where=np.isfinite(alone), out=np.zeros_like(alone)).max(initial=0.0))
    allowed = ROUNDING.get(model.precision, ROUNDING["float32"]) * largest
    found = max(_largest_difference(alone, logits) for logits in batched)
    if found <= allowed:
        return
    name = model.metadata().get("name", type(model).__name__)
    repeated = _largest_difference(alone, _one_by_one(model, images, regions))
    if repeated > allowed:
        raise CostcertError(
            f"{name} is not deterministic: two evaluations of the same mutant differ by {repeated:.2g} in a "
            "logit, so no certificate would hold; disable what is random in it"
        )
    raise CostcertError(
        f"the logits of {name} for a mutant depend on the others in its batch (a logit differs by "
        f"{found:.2g}, rounding explains {allowed:.2g}), so no certificate would hold: it must not use "
        "batch statistics, as BatchNorm does in training mode and dynamic quantisation does for activations"
    )


def probe_images(count: int, shape: tuple[int, ...]) -> Pixels:
    """Images [count, H, W, C] of noise, always the same.

    They differ in grain size, and their channels in brightness and contrast: batch statistics then depend on
    which of them are in the batch, even behind layers that normalise each image by itself.
    """
    rng = np.random.default_rng(0)
    height, width, channels = shape
    images = np.empty((count, *shape), dtype=np.uint8)
    for index in range(count):
        grain = 1 + 3 * index
        low = rng.integers(0, 128, channels)
        high = low + rng.integers(32, 128, channels)
        noise = rng.integers(low, high, (-(-height // grain), -(-width // grain), channels))
        images[index] = noise.repeat(grain, axis=0).repeat(grain, axis=1)[:height, :width]
    return images


def _extreme_images(images: Pixels) -> Pixels:
    """An image without contrast and one with maximal contrast, of the shape and type of these."""
    shape = images.shape[1:]
    # Inputs that were normalised elsewhere have no fixed black and white.
    black, white = (0, 255) if images.dtype == np.uint8 else (images.min(), images.max())
    two_colours = np.where(np.random.default_rng(1).integers(0, 2, shape), white, black)
    return np.stack([np.full(shape, black), two_colours]).astype(images.dtype)


def _one_by_one(model: Classifier, images: Pixels, regions: Sequence[Kept]) -> Logits:
    rows = [[model.logits(image[None], [region])[0, 0] for region in regions] for image in images]
    return np.array(rows, dtype=np.float32)


def _largest_difference(logits: Logits, other: Logits) -> float:
    """Infinite where one is finite and the other is not; where both are NaN, `ballots_of` raises later."""
    same = (logits == other) | (np.isnan(logits) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        difference = np.abs(logits.astype(np.float64) - other)
    return float(np.nan_to_num(np.where(same, 0.0, difference), nan=np.inf, posinf=np.inf).max(initial=0.0))
