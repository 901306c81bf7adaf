"""What mutants keep in training: the regions of the ablation; for masks, random ones as well."""

from __future__ import annotations

import numpy as np

from costcert.geometry.ablations import Ablation, Kept, Masks
from costcert.geometry.masks import Hidden
from costcert.geometry.regions import Region, Segment
from costcert.geometry.sizes import ImageSize

# Random pairs of masks, beside those of the ablation.
_PAIRS = 8192
# The share of mutants that hide one mask only.
_SINGLE = 0.1


def regions_for_training(ablation: Ablation, image_size: ImageSize, seed: int) -> list[Kept]:
    """The regions to draw mutants from.

    A network that has seen the masks of one grid only recognises their borders, and does worse with masks
    for another patch. So it is also shown pairs of rectangles at any position, from half the sides of a mask
    to all of it.
    """
    regions: list[Kept] = list(ablation.regions(image_size))
    if not isinstance(ablation, Masks):
        return regions
    rng = np.random.default_rng((seed, 2))
    largest = ablation.masks(image_size)[0]
    for _ in range(_PAIRS):
        masks = [_rectangle(largest, image_size, rng) for _ in range(1 if rng.random() < _SINGLE else 2)]
        regions.append(Hidden(tuple(masks)))
    return regions


def _rectangle(largest: Region, image_size: ImageSize, rng: np.random.Generator) -> Region:
    """At a random position, with random sides."""
    segments = []
    for longest, axis_length in zip((largest.rows.length, largest.columns.length), image_size, strict=True):
        length = int(rng.integers(-(-longest // 2), longest + 1))
        segments.append(Segment(int(rng.integers(axis_length - length + 1)), length))
    return Region(*segments)
