"""Pictures in memory: Pillow images or their pixels, of any sizes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from costcert.datasets.base import Dataset, digest_of_picture
from costcert.errors import CostcertError
from costcert.votes.validation import as_array, shortened

# A Pillow image, or its pixels: uint8 [H, W] or [H, W, 3].
Picture = Image.Image | npt.NDArray[np.uint8]

_EXPECTED = "an image must be a Pillow image, or uint8 pixels of shape [height, width] or [height, width, 3]"


class Pictures(Dataset):
    """Images in memory; ids are their numbers."""

    def __init__(self, pictures: Sequence[Any], labels: npt.ArrayLike) -> None:
        shown = [as_picture(picture) for picture in pictures]
        super().__init__("pictures", [str(index) for index in range(len(shown))], labels)
        self._pictures = shown

    def image(self, index: int) -> Image.Image:
        return self._pictures[index]


def as_picture(value: Any) -> Image.Image:
    """A Pillow image from one, or from its pixels."""
    if isinstance(value, Image.Image):
        return value
    if not hasattr(value, "__array__"):
        hint = ": open it with PIL.Image.open" if isinstance(value, str) else ""
        raise CostcertError(f"{_EXPECTED}, got {shortened(value)}{hint}")
    pixels = as_array(value, "an image")
    fits = pixels.dtype == np.uint8 and (pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (1, 3)))
    if not fits or pixels.size == 0:
        channels_first = pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.dtype == np.uint8
        hint = ": put the channels last" if channels_first else ""
        raise CostcertError(f"{_EXPECTED}, got {pixels.dtype} of shape {list(pixels.shape)}{hint}")
    return Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)


def as_pictures(given: Any) -> list[Any]:
    """One picture, a batch of them as an array [N, H, W] or [N, H, W, C], or several, as a list.

    An array of three dimensions is one picture if the last has 1 or 3 entries, and grey pictures otherwise.
    """
    if isinstance(given, Image.Image | str):
        return [given]
    if hasattr(given, "__array__"):
        pixels = as_array(given, "images")
        batch = pixels.ndim == 4 or (pixels.ndim == 3 and pixels.shape[2] not in (1, 3))
        return list(pixels) if batch else [pixels]
    if not isinstance(given, Iterable):
        return [given]
    return list(given)


def digest_of_pixels(pixels: npt.NDArray[Any]) -> str:
    """A hash of an array: the same bytes in another shape or of another type are another image."""
    header = f"{pixels.dtype} {pixels.shape}\n".encode()
    return hashlib.sha256(header + np.ascontiguousarray(pixels).tobytes()).hexdigest()


def digest_of(image: Image.Image | npt.NDArray[Any]) -> str:
    """A hash that changes whenever the image does."""
    return digest_of_picture(image) if isinstance(image, Image.Image) else digest_of_pixels(image)
