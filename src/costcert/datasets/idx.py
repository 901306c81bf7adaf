"""`idx:FOLDER`: MNIST's file format, as in Debian's dataset-fashion-mnist, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import zlib

import numpy as np
import numpy.typing as npt

from costcert.datasets.arrays import ArrayDataset
from costcert.datasets.base import Dataset
from costcert.errors import CostcertError
from costcert.store.locations import Location, locate

_FILES = {"train": "train", "test": "t10k"}


def idx(path: str, split: str) -> Dataset:
    """The images of `train-images-idx3-ubyte` or `t10k-images-idx3-ubyte`; ids are their numbers."""
    if split not in _FILES:
        raise CostcertError(f"idx:{path} has the splits train and test, got {split!r}")
    stem = _FILES[split]
    folder = locate(path)
    images = read_idx(folder, f"{stem}-images-idx3-ubyte", dimensions=3)
    labels = read_idx(folder, f"{stem}-labels-idx1-ubyte", dimensions=1)
    ids = [f"{stem}-{index:05d}" for index in range(len(images))]
    return ArrayDataset(f"idx:{folder.resolve().name}", images, labels, ids=ids, split=split)


def read_idx(folder: Location, name: str, *, dimensions: int) -> npt.NDArray[np.uint8]:
    """The array in `name` or `name.gz`: two zero bytes, the type (8: uint8), dimensions, sizes, values."""
    path = next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
    if path is None:
        raise CostcertError(f"{folder} holds no {name} or {name}.gz: expected the files of MNIST's format")
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise CostcertError(f"{path} cannot be read: it is damaged or cut short") from error
    start = 4 + 4 * dimensions
    sizes = [int.from_bytes(content[at : at + 4], "big") for at in range(4, start, 4)]
    if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) != start + math.prod(sizes):
        raise CostcertError(f"{path} is not an idx file of bytes in {dimensions} dimensions, or cut short")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)
