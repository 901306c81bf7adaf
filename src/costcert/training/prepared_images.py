"""Preprocessed images for training, prepared once where they fit in memory."""

from __future__ import annotations

import math
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


class PreparedImages(Dataset[tuple[Tensor, Tensor]]):
    """The images of a dataset as input of the network, with their labels, a batch at a time.

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
        shape = (len(images), height, width, preprocessing.channels)
        fits = math.prod(shape) <= _MAX_CACHE_BYTES
        self._cache = np.empty(shape, np.uint8) if fits else None
        self._is_cached = np.zeros(len(images), np.bool_)
        # A cache in a worker process would be lost with it. So workers return prepared images to this
        # process, and a DataLoader over this dataset needs workers only where nothing is cached.
        self.workers = 0 if fits else workers
        self._from_workers = self._prepare_in_workers(order, workers) if fits and workers else iter(())

    def __len__(self) -> int:
        return len(self._images)

    def loader(self, batch_size: int, **options: Any) -> DataLoader[tuple[Tensor, Tensor]]:
        """Batches of uint8 pixels [N, H, W, C] and labels [N]; the options are those of a DataLoader."""
        return DataLoader(
            self, batch_size=batch_size, num_workers=self.workers, collate_fn=_as_it_is, **options
        )

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """A batch; a DataLoader calls this instead of reading image by image."""
        labels = torch.from_numpy(self._images.labels[indices].astype(np.int64))
        return torch.from_numpy(self._pixels(indices)), labels

    def _pixels(self, indices: list[int]) -> npt.NDArray[np.uint8]:
        if self._cache is None:
            return np.stack([self._prepare(self._images.image(index)) for index in indices])
        for index in indices:
            if not self._is_cached[index]:
                self._fill(index)
        pixels: npt.NDArray[np.uint8] = self._cache[indices]
        return pixels

    def _fill(self, index: int) -> None:
        """Cache this image, and before it those that worker processes return first."""
        for prepared_index, pixels in self._from_workers:
            self._keep(prepared_index, pixels)
            if prepared_index == index:
                return
        self._keep(index, self._prepare(self._images.image(index)))

    def _keep(self, index: int, pixels: npt.NDArray[np.uint8]) -> None:
        assert self._cache is not None
        self._cache[index], self._is_cached[index] = pixels, True

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
                yield from zip(indices.tolist(), pixels.numpy(), strict=True)
        except CostcertError:
            # A worker's error arrives with its traceback as text. `_pixels` prepares the same image again in
            # this process, where the error is one sentence.
            return


def _as_it_is(batch: Any) -> Any:
    return batch


class _IndexedImages(Dataset[tuple[int, npt.NDArray[np.uint8]]]):
    """The index of each image with its prepared pixels."""

    def __init__(self, images: Images, prepare: Callable[[Any], npt.NDArray[np.uint8]]) -> None:
        self._images, self._prepare = images, prepare

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[int, npt.NDArray[np.uint8]]:
        return index, self._prepare(self._images.image(index))
