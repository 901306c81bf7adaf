"""Measures how much of a model's input changes with a patch of the original image, for soundness.md.

python docs/resizing.py
python docs/resizing.py --patch 32 --original 500 --input 224
"""

from __future__ import annotations

import argparse
from math import floor

import numpy as np
from PIL import Image

import costcert as cc
from costcert.models.preprocessing import Preprocessing

# Half the width of each filter, in pixels of the coarser of original and input. The first two filters are not
# zero at that distance, the others are.
REACH = {"nearest": 0.5, "box": 0.5, "bilinear": 1, "hamming": 1, "bicubic": 2, "lanczos": 3}
SHOWN = ("nearest", "bilinear", "bicubic", "lanczos")
FITS = (("squash", 1.0), ("center", 0.9), ("center", 0.875))
PATCHES = ((2, 32), (5, 32), (2, 28))
TRIES = 8
MOST_PLACES = 64


def measured(preprocessing: Preprocessing, patch: int, original: int, tries: int = TRIES) -> tuple[int, int]:
    """Smallest and largest side of the changed area, over positions of a square patch in a square image.

    Rows and columns are resized separately, so positions on the diagonal cover both. For each position the
    largest change by any of the rewritings counts.
    """
    rng = np.random.default_rng(0)
    places = np.unique(np.linspace(0, original - patch, MOST_PLACES).astype(int))
    sides = np.zeros((len(places), tries), dtype=int)
    for attempt in range(tries):
        # Strong noise tries many roundings; in noise near grey no change is clipped at black or white.
        spread = (255, 32)[attempt % 2]
        clean = rng.integers(
            (255 - spread) // 2, (255 + spread) // 2 + 1, (original, original), dtype=np.uint8
        )
        before = preprocessing.prepare(Image.fromarray(clean))
        for at, place in enumerate(places):
            inside = (slice(place, place + patch),) * 2
            rewritten = clean.copy()
            noise = rng.integers(0, 256, (patch, patch))
            rewritten[inside] = (0, 255, 255 - clean[inside], noise)[attempt // 2 % 4]
            changed = (preprocessing.prepare(Image.fromarray(rewritten)) != before).any(axis=2)
            sides[at, attempt] = max(_side(changed.any(axis=axis)) for axis in (0, 1))
    most = sides.max(axis=1)
    return int(most.min()), int(most.max())


def at_most(preprocessing: Preprocessing, patch: int, original: int) -> int:
    """The largest side that the width of the filter allows, over all positions of the patch."""
    side = preprocessing.image_size[0]
    resized = floor(side / preprocessing.crop_pct)
    scale = resized / original
    reach = REACH[preprocessing.interpolation]
    if preprocessing.interpolation != "nearest":
        # When downsampling the filter is wider by the scale.
        reach = reach / min(1.0, scale)
    # Distances that differ only by rounding count as equal.
    slack = 1e-9 if preprocessing.interpolation in ("nearest", "box") else -1e-9
    middles = (np.arange(side) + round((resized - side) / 2) + 0.5) / scale
    first = np.arange(original - patch + 1)[:, None] + 0.5
    reached = (middles > first - reach - slack) & (middles < first + patch - 1 + reach + slack)
    return int(reached.sum(axis=1).max())


def _side(changed: np.ndarray) -> int:
    where = np.flatnonzero(changed)
    return int(where[-1] - where[0]) + 1 if len(where) else 0


def cell(preprocessing: Preprocessing, patch: int, original: int, tries: int = TRIES) -> str:
    smallest, largest = measured(preprocessing, patch, original, tries)
    limit = at_most(preprocessing, patch, original)
    sides = f"{largest}" if smallest == largest else f"{smallest} to {largest}"
    return sides if largest == limit else f"{sides} (at most {limit})"


def rows(
    patches: tuple[tuple[int, int], ...] = PATCHES,
    *,
    side: int = 224,
    interpolations: tuple[str, ...] = SHOWN,
    tries: int = TRIES,
) -> list[str]:
    """The table of soundness.md, with a row per patch and interpolation."""
    fits = [mode if part == 1 else f"{mode}, crop_pct {part}" for mode, part in FITS]
    table = [
        f"| rewritten | certified as | interpolation | {' | '.join(fits)} |",
        "|---|---|---|" + "---|" * len(FITS),
    ]
    for patch, original in patches:
        certified = cc.parse_patch(f"{patch}/{original}", (side, side))
        for interpolation in interpolations:
            cells = [
                cell(_fitted(side, mode, part, interpolation), patch, original, tries) for mode, part in FITS
            ]
            sizes = f"{patch} px of {original} | `{patch}/{original}`: {certified.height} px"
            table.append(f"| {sizes} | {interpolation} | {' | '.join(cells)} |")
    return table


def _fitted(side: int, mode: str, part: float, interpolation: str) -> Preprocessing:
    return Preprocessing((side, side), channels=1, crop_mode=mode, crop_pct=part, interpolation=interpolation)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="How much of a model's input changes with a patch of the original image."
    )
    parser.add_argument("--patch", type=int, help="side of the patch, in pixels of the original")
    parser.add_argument("--original", type=int, default=32, help="side of the original image")
    parser.add_argument("--input", type=int, default=224, help="side of the model's input")
    options = parser.parse_args()
    patches = PATCHES if options.patch is None else ((options.patch, options.original),)
    print("\n".join(rows(patches, side=options.input)))
