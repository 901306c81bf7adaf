"""Converts GTSRB to `.npz` files that `costcert` reads: training, validation, both together, and test.

    python tools/gtsrb.py --arrays gtsrb_train.npz gtsrb_test.npz --out data
    python tools/gtsrb.py --torchvision data --out data

A track is 30 frames of one sign, near-duplicates of each other, so tracks are never split: `is_val_track` of
the arrays selects those for validation; of torchvision's files it is every fifth track of a class. Training
images that show a sign of the test set (`overlaps_test`) are left out if that is known. torchvision's images
are resized to 32 x 32 pixels with the bilinear filter.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIDE = 32


def main() -> None:
    parser = argparse.ArgumentParser(description="GTSRB as .npz files.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--arrays", type=Path, nargs=2, metavar=("TRAIN", "TEST"))
    source.add_argument("--torchvision", type=Path, metavar="FOLDER", help="root folder of torchvision")
    parser.add_argument("--out", type=Path, default=Path("data"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    parts = from_arrays(*options.arrays) if options.arrays else from_torchvision(options.torchvision)
    found = {name: arrays for name, *arrays in parts}
    # For a last training, once all settings are chosen on the validation tracks.
    found["all"] = [np.concatenate(both) for both in zip(found["fit"], found["val"], strict=True)]
    for name, (images, labels, ids) in found.items():
        path = options.out / f"gtsrb-{name}.npz"
        np.savez_compressed(path, images=images, labels=labels, ids=ids)
        print(f"{path}: {len(images):,} images, {len(np.unique(labels))} classes")


def from_arrays(train: Path, test: Path) -> Iterator[tuple[str, Any, Any, Any]]:
    with np.load(train) as arrays:
        images, labels = arrays["images"], arrays["labels"].astype(np.int64)
        held_out, overlaps = arrays["is_val_track"].astype(bool), arrays["overlaps_test"].astype(bool)
        names = zip(labels, arrays["track"], arrays["frame"], strict=True)
        ids = np.array([f"train-{label:02d}-{track:05d}-{frame:05d}" for label, track, frame in names])
    for name, chosen in (("fit", ~held_out & ~overlaps), ("val", held_out & ~overlaps)):
        yield name, images[chosen], labels[chosen], ids[chosen]
    with np.load(test) as arrays:
        ids = np.array([f"test-{index:05d}" for index in arrays["file_index"]])
        yield "test", arrays["images"], arrays["labels"].astype(np.int64), ids


def from_torchvision(folder: Path) -> Iterator[tuple[str, Any, Any, Any]]:
    from costcert.models.torchvision_repair import import_torchvision

    torchvision: Any = import_torchvision()
    fit, val = [], []
    for path, label in torchvision.datasets.GTSRB(folder, split="train")._samples:
        track = int(Path(path).name.split("_")[0])
        (val if track % 5 == 4 else fit).append((Path(path), label))
    test = [(Path(path), label) for path, label in torchvision.datasets.GTSRB(folder, split="test")._samples]
    for name, files in (("fit", fit), ("val", val), ("test", test)):
        images = np.stack([small(path) for path, _ in files])
        labels = np.array([label for _, label in files])
        yield name, images, labels, np.array([f"{name}-{path.parent.name}-{path.stem}" for path, _ in files])


def small(path: Path) -> np.ndarray:
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR))


if __name__ == "__main__":
    main()
