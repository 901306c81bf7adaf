"""Preprocessed images for training, prepared once where they fit in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from costcert.datasets.base import Dataset as Images
from costcert.errors import CostcertError
from costcert.models.preprocessing import Preprocessing

# Up to this many bytes of prepared images are cached; a larger dataset is prepared again in every epoch.
_MAX_CACHE_BYTES = 4 << 30

# Images that a worker process returns at a time.
_WORKER_BATCH = 16


class PreparedImages(Dataset[tuple[Tensor, int]]):
    """The images of a dataset as input of the network, uint8 pixels [H, W, C], with their labels.

    Args:
        order: the order in which images are first read; worker processes prepare them in this order.
        workers: number of processes that prepare images.
    """

    def __init__(
        self,
        images: Images,
        preprocessing: Preprocessing,
        *,
        order: Sampler[int] | None = None,
        workers: int = 0,
    ) -> None:
        self._images = images
        self._prepare = preprocessing.prepare
        height, width = preprocessing.image_size
        fits = len(images) * height * width * preprocessing.channels <= _MAX_CACHE_BYTES
        self._cache: dict[int, npt.NDArray[np.uint8]] | None = {} if fits else None
        # A cache in a worker process would be lost with it. So workers return prepared images to this
        # process, and a DataLoader over this dataset needs workers only where nothing is cached.
        self.workers = 0 if fits else workers
        self._from_workers = self._prepare_in_workers(order, workers) if fits and workers else iter(())

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self._pixels(index)), self._images.label(index)

    def _pixels(self, index: int) -> npt.NDArray[np.uint8]:
        if self._cache is None:
            return self._prepare(self._images.image(index))
        if index not in self._cache:
            for prepared_index, pixels in self._from_workers:
                self._cache[prepared_index] = pixels
                if prepared_index == index:
                    break
            else:
                self._cache[index] = self._prepare(self._images.image(index))
        return self._cache[index]

    def _prepare_in_workers(
        self, order: Sampler[int] | None, workers: int
    ) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        loader = DataLoader(
            _IndexedImages(self._images, self._prepare),
            batch_size=_WORKER_BATCH,
            sampler=order,
            num_workers=workers,
            # Its own generator: training draws the same random numbers with and without workers.
            generator=torch.Generator(),
        )
        try:
            for indices, pixels in loader:
                # Copied, because workers return images in shared memory, which is small.
                yield from zip(indices.tolist(), map(np.copy, pixels.numpy()), strict=True)
        except CostcertError:
            # A worker's error arrives with its traceback as text. `_pixels` prepares the same image again in
            # this process, where the error is one sentence.
            return


class _IndexedImages(Dataset[tuple[int, npt.NDArray[np.uint8]]]):
    """The index of each image with its prepared pixels."""

    def __init__(self, images: Images, prepare: Callable[[Any], npt.NDArray[np.uint8]]) -> None:
        self._images, self._prepare = images, prepare

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[int, npt.NDArray[np.uint8]]:
        return index, self._prepare(self._images.image(index))
