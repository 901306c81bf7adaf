"""`torchvision:NAME` and `torchvision:NAME@ROOT`: torchvision's datasets, in their own order.

CIFAR's files are pickles; torchvision opens them only after it has checked that they are the published ones.
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any

from costcert.datasets.base import Dataset, reading
from costcert.errors import CostcertError, SpellingError, nearest
from costcert.store.locations import Url, locate

if TYPE_CHECKING:
    from PIL.Image import Image

NAMES = (
    "CIFAR10",
    "CIFAR100",
    "FashionMNIST",
    "Flowers102",
    "Food101",
    "GTSRB",
    "KMNIST",
    "MNIST",
    "STL10",
    "SVHN",
)

# The attribute that holds the labels differs between the datasets of torchvision.
_LABELS = ("targets", "labels", "_labels")


class TorchvisionDataset(Dataset):
    """A dataset of torchvision; ids are numbers in the split."""

    def __init__(self, name: str, source: Any, split: str) -> None:
        labels = next((getattr(source, each) for each in _LABELS if hasattr(source, each)), None)
        if labels is None:
            labels = [label for _, label in source._samples]
        names = getattr(source, "classes", None)
        ids = [f"{split}-{index:05d}" for index in range(len(source))]
        super().__init__(
            f"torchvision:{name}", ids, [int(label) for label in labels], class_names=names, split=split
        )
        self._source = source

    def image(self, index: int) -> Image:
        with reading(f"{self.ids[index]} of {self.name}"):
            image: Image = self._source[index][0]
            return image


def torchvision(rest: str, split: str, *, download: bool = False) -> Dataset:
    """The dataset below ROOT (by default `data`); it is downloaded only if `download` is set."""
    from costcert.models.torchvision_repair import import_torchvision

    name, _, root = rest.partition("@")
    root = root or "data"
    if isinstance(locate(root), Url):
        raise CostcertError(f"torchvision reads local folders only, not {root}: copy it, or use folder:")
    if name not in NAMES:
        raise SpellingError(
            f"unknown dataset torchvision:{name}{nearest(name, NAMES)}: use one of {', '.join(NAMES)}"
        )
    import_torchvision()
    make = getattr(import_module("torchvision.datasets"), name)
    part: dict[str, Any] = {"split": split}
    if "train" in inspect.signature(make).parameters:
        if split not in ("train", "test"):
            raise CostcertError(f"torchvision:{name} has the splits train and test, got {split!r}")
        part = {"train": split == "train"}
    try:
        source = make(root, download=download, **part)
    except (OSError, RuntimeError, ValueError) as error:
        if download:
            raise CostcertError(f"torchvision:{name} could not be downloaded into {root}: {error}") from error
        raise CostcertError(
            f"torchvision:{name} ({split}) is not in {root}: {_first_sentence(error)}; pass --download, "
            f"or name its folder, as in torchvision:{name}@FOLDER"
        ) from error
    return TorchvisionDataset(name, source, split)


def _first_sentence(error: Exception) -> str:
    return str(error).split(".")[0].strip().lower()
