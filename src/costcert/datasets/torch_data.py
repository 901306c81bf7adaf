"""A torch Dataset or DataLoader as a dataset: what it holds is read by index, one image at a time.

A torch dataset has no ids, so an image's id is its number in the order in which it comes. The order must
therefore be the same in every run, and so must the pixels: an image is refused if it has changed when it is
read again, as after a random transform.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import Dataset as TorchDataset

from costcert.datasets.base import Dataset, reading
from costcert.datasets.normalised import Inputs, NormalisedDataset, as_input
from costcert.datasets.pictures import as_picture, digest_of
from costcert.errors import CostcertError
from costcert.votes.validation import as_array, as_integers, shortened

_RANDOM = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)

# Called with the number of images read and the number of all images.
OnProgress = Callable[[int, int], None]


def is_torch_data(value: Any) -> bool:
    return isinstance(value, TorchDataset | DataLoader)


def torch_data(
    source: TorchDataset[Any] | DataLoader[Any], on_progress: OnProgress = lambda done, images: None
) -> Dataset:
    """All images of a torch Dataset or DataLoader, each of which is read once here.

    Floats [C, H, W] are a network's input; Pillow images and uint8 pixels [H, W, C] are pictures. The images
    of a DataLoader are read from its dataset, in its order and through its `collate_fn`, one at a time.
    """
    items = _Items(source)
    labels, digests = [], []
    for index in range(len(items)):
        image, label = items.read(index)
        labels.append(label)
        digests.append(digest_of(image))
        on_progress(index + 1, len(items))
    return (_TorchPictures if items.shape is None else _TorchInputs)(items, labels, digests)


class _Items:
    """Pairs of image and label by number, in the order in which they come.

    `shape` is that of all inputs, or None for pictures, which may differ in size.
    """

    def __init__(self, source: TorchDataset[Any] | DataLoader[Any]) -> None:
        loader = source if isinstance(source, DataLoader) else None
        dataset: Any = source if loader is None else loader.dataset
        self._source = dataset
        self.name = f"torch:{type(dataset).__name__}"
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
            raise CostcertError(
                f"{self.name} cannot be read by index, so its order may differ from run to run: collect its "
                "images and pass (images, labels)"
            )
        self._order = range(len(dataset)) if loader is None else _order(loader, self.name)
        self._collate = None if loader is None else loader.collate_fn
        # Datasets expect one reader per process.
        self._lock = Lock()
        if not len(self._order):
            raise CostcertError(f"{self.name} is empty: at least one image is needed")
        first, _ = self._item(0)
        self.shape = first.shape if isinstance(first, np.ndarray) else None
        self.ids = [f"{index:05d}" for index in range(len(self._order))]
        names = getattr(dataset, "classes", None)
        self.class_names = names if isinstance(names, list | tuple) else None

    def __len__(self) -> int:
        return len(self._order)

    def read(self, index: int, digest: str | None = None) -> tuple[Image.Image | Inputs, int]:
        """The image and its label; it must be of the same kind as the first.

        Args:
            digest: of the image when it was read before, which it must still have.
        """
        image, label = self._item(index)
        shape = image.shape if isinstance(image, np.ndarray) else None
        if shape != self.shape:
            kinds = [f"input of shape {list(each)}" if each else "picture" for each in (shape, self.shape)]
            raise CostcertError(
                f"image {index} of {self.name} is a {kinds[0]}, but the first image is a {kinds[1]}: "
                "give all images of a network one kind and size"
            )
        if digest is not None and digest_of(image) != digest:
            raise CostcertError(
                f"image {index} of {self.name} is another one whenever it is read, so no certificate would "
                "hold: remove what is random from its transform"
            )
        return image, label

    def _item(self, index: int) -> tuple[Image.Image | Inputs, int]:
        where = f"image {index} of {self.name}"
        with self._lock, reading(where):
            item = self._source[self._order[index]]
            if self._collate is not None:
                item = self._collate([item])
        if not isinstance(item, list | tuple) or len(item) < 2:
            raise CostcertError(f"{where} is {shortened(item)}, expected a pair (image, label)")
        image, label = item[:2]
        if self._collate is not None:
            image, label = (_only(part, where) for part in (image, label))
        if getattr(as_array(label, f"the label of {where}"), "ndim", 0):
            raise CostcertError(f"the label of {where} is {shortened(label)}, expected one integer")
        return _image(image, where), int(as_integers(label, f"the label of {where}"))


class _TorchPictures(Dataset):
    """Pictures of a torch dataset."""

    def __init__(self, items: _Items, labels: list[int], digests: list[str]) -> None:
        super().__init__(items.name, items.ids, labels, class_names=items.class_names)
        self._items, self._digests = items, digests

    def image(self, index: int) -> Image.Image:
        picture: Any = self._items.read(index, self._digests[index])[0]
        return picture  # type: ignore[no-any-return]

    def fingerprint(self, index: int) -> str:
        return self._digests[index]


class _TorchInputs(NormalisedDataset):
    """Inputs of a torch dataset."""

    def __init__(self, items: _Items, labels: list[int], digests: list[str]) -> None:
        assert items.shape is not None
        super().__init__(items.name, items.ids, labels, class_names=items.class_names, shape=items.shape)
        self._items, self._digests = items, digests

    def input(self, index: int) -> Inputs:
        pixels: Any = self._items.read(index, self._digests[index])[0]
        return pixels  # type: ignore[no-any-return]

    def fingerprint(self, index: int) -> str:
        return self._digests[index]


def _order(loader: DataLoader[Any], name: str) -> list[int]:
    """The indices of a loader's images, in its order, which must not be random."""
    batches: Any = loader.batch_sampler
    if batches is None:
        raise CostcertError(f"the DataLoader of {name} has batch_size=None: pass its dataset instead")
    samplers = (loader.sampler, getattr(batches, "sampler", None))
    if any(isinstance(each, _RANDOM) or getattr(each, "shuffle", False) for each in samplers):
        raise CostcertError(
            f"the DataLoader of {name} shuffles its images, so they would have other ids in every run: make "
            "it with shuffle=False"
        )
    first, again = ([int(index) for batch in batches for index in batch] for _ in range(2))
    if first != again:
        raise CostcertError(
            f"the DataLoader of {name} gives its images in another order every time, so they would have "
            "other ids in every run: use a sampler that is not random"
        )
    return first


def _only(batch: Any, where: str) -> Any:
    """The only element of a batch of one image."""
    try:
        (element,) = batch
    except (TypeError, ValueError):
        raise CostcertError(
            f"{where} becomes {shortened(batch)} by the DataLoader's collate_fn, expected a batch of one"
        ) from None
    return element


def _image(value: Any, where: str) -> Image.Image | Inputs:
    """A network's input from floats, a picture from anything else."""
    floats = (
        value.is_floating_point()
        if isinstance(value, torch.Tensor)
        else isinstance(value, np.ndarray) and value.dtype.kind == "f"
    )
    return as_input(value, where) if floats else as_picture(value)
