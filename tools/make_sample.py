"""Writes the package's sample dataset: the first 50 images of each class of Fashion-MNIST's test set.

    python tools/make_sample.py [FOLDER]

FOLDER holds t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz, as Debian's dataset-fashion-mnist does.
The images keep the order of the test set, and their ids are their indices in it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from costcert.datasets.idx import idx

PER_CLASS = 50
CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
OUT = Path(__file__).parents[1] / "src" / "costcert" / "sample" / "fashion_mnist.npz"


def main(folder: str = "/usr/share/datasets/fashion-mnist") -> None:
    test = idx(folder, "test")
    chosen = np.sort(
        np.concatenate([np.flatnonzero(test.labels == label)[:PER_CLASS] for label in range(len(CLASSES))])
    )
    np.savez_compressed(
        OUT,
        images=np.stack([np.asarray(test.image(index)) for index in chosen.tolist()]),
        labels=test.labels[chosen].astype(np.uint8),
        ids=np.array([test.ids[index] for index in chosen.tolist()]),
        class_names=np.array(CLASSES),
    )
    print(f"{OUT}: {len(chosen)} images, {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(*sys.argv[1:])
