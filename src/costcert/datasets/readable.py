"""Which images of a dataset can be read, found out by reading all of them once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from costcert.compiled import cores
from costcert.datasets.base import Dataset, ImageError
from costcert.datasets.subsets import Subset
from costcert.errors import CostcertError


class Readable(NamedTuple):
    """The images of a dataset that can be read, and the ids of those that cannot."""

    images: Dataset
    unread: list[str]


def readable(dataset: Dataset) -> Readable:
    """The dataset without images that cannot be read; itself if all can."""
    with ThreadPoolExecutor(cores()) as readers:
        read = list(readers.map(lambda index: _can_read(dataset, index), range(len(dataset))))
    kept = [index for index, can_read in enumerate(read) if can_read]
    if not kept:
        raise CostcertError(f"none of the {len(dataset):,} images of {dataset.name} can be read")
    unread = [name for name, can_read in zip(dataset.ids, read, strict=True) if not can_read]
    return Readable(Subset(dataset, kept, f"without {len(unread)} unread") if unread else dataset, unread)


def _can_read(dataset: Dataset, index: int) -> bool:
    try:
        dataset.image(index)
    except ImageError:
        return False
    return True
