"""`sample`: 500 images of Fashion-MNIST's test set, bundled with the package."""

from __future__ import annotations

from importlib.resources import as_file, files

from costcert.datasets.arrays import ArrayDataset
from costcert.datasets.base import Dataset
from costcert.errors import CostcertError
from costcert.store.parquet import read_npz


def sample(rest: str, split: str) -> Dataset:
    """The images that tools/make_sample.py chose."""
    if rest:
        raise CostcertError(f"the sample has no options, got {rest!r}: write `sample`")
    if split != "test":
        raise CostcertError(
            f"the sample has only the split test, not {split}: use other images, as in "
            "torchvision:FashionMNIST@data"
        )
    with as_file(files("costcert") / "sample" / "fashion_mnist.npz") as path:
        arrays = read_npz(path)
    return ArrayDataset(
        "sample",
        arrays["images"],
        arrays["labels"],
        ids=arrays["ids"],
        class_names=arrays["class_names"].tolist(),
        split="test",
    )
