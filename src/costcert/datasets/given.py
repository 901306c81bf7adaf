"""What people have as a dataset: a spelling, arrays, pictures, a torch Dataset or DataLoader."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from costcert.datasets.arrays import ArrayDataset
from costcert.datasets.base import Dataset
from costcert.datasets.normalised import NormalisedArray
from costcert.datasets.parse import parse_dataset
from costcert.datasets.pictures import Pictures
from costcert.errors import CostcertError
from costcert.votes.validation import as_array, shortened


def as_dataset(data: Any, on_progress: Callable[[int, int], None] = lambda done, images: None) -> Dataset:
    """The dataset that `data` is or describes.

    Args:
        data: a `Dataset`; a spelling like `"folder:photos"` or `"sample"`; a pair (images, labels), where
            images are uint8 [N, H, W] or [N, H, W, C], normalised floats [N, C, H, W], or a list of pictures;
            a torch Dataset or DataLoader of pairs (image, label).
        on_progress: called with the number of images read and the number of all images of torch data.
    """
    if isinstance(data, Dataset):
        return data
    if isinstance(data, str):
        return parse_dataset(data)
    # Data of torch can come only from a program that has imported it.
    if "torch" in sys.modules:
        from costcert.datasets.torch_data import is_torch_data, torch_data

        if is_torch_data(data):
            return torch_data(data, on_progress)
    if isinstance(data, list | tuple) and len(data) == 2:
        return _pair(*data)
    raise CostcertError(
        "data must be a dataset, a spelling like 'folder:photos', a pair (images, labels) of arrays, or a "
        f"torch Dataset or DataLoader, got {shortened(data)}"
    )


def _pair(images: Any, labels: Any) -> Dataset:
    truths: npt.ArrayLike = as_array(labels, "labels")
    if isinstance(images, list | tuple) and images and all(map(_is_picture, images)):
        return Pictures(images, truths)
    array = as_array(images, "images")
    if array.dtype.kind == "f":
        if array.ndim != 4 or array.shape[1] not in (1, 3) or 0 in array.shape:
            raise CostcertError(
                "images must be uint8 pixels [images, height, width, 3] or [images, height, width], or "
                "normalised floats with the channels first, [images, 3, height, width], got "
                f"{array.dtype} of shape {list(array.shape)}"
            )
        return NormalisedArray(array, truths)
    if array.dtype.kind in "iu" and array.dtype != np.uint8 and array.size:
        if array.min() < 0 or array.max() > 255:
            raise CostcertError(
                f"images must be 0 to 255, got integers from {array.min()} to {array.max()}: convert them to "
                "uint8"
            )
        array = array.astype(np.uint8)
    return ArrayDataset("arrays", array, truths)


def _is_picture(value: Any) -> bool:
    return isinstance(value, Image.Image) or str(getattr(value, "dtype", "")).endswith("uint8")
