"""Pictures: uploads are decoded with limits, and what the model sees of an image is sent as a file."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from costcert.datasets.base import Dataset, ImageError
from costcert.errors import CostcertError

Pixels = npt.NDArray[np.uint8]

# Only formats with small, well-maintained decoders.
FORMATS = ("PNG", "JPEG", "WEBP")
# The same for people.
TAKEN = "PNG, JPEG or WebP"
MAX_PIXELS = 40_000_000
_CACHED_FILES = 512


class TooLargeError(CostcertError):
    """More bytes or pixels than the service takes."""


class PictureFile(NamedTuple):
    content: bytes
    media_type: str


class Pictures:
    """What the model sees of each image of a dataset: its pixels, or a file, of which the last are cached.

    Args:
        ids: names of its images, where the votes call them otherwise.
    """

    def __init__(
        self,
        dataset: Dataset,
        prepare: Callable[[Image.Image], Pixels],
        ids: Sequence[str] | None = None,
    ) -> None:
        self._dataset = dataset
        self._prepare = prepare
        self._rows = {name: row for row, name in enumerate(dataset.ids if ids is None else ids)}
        self.file = lru_cache(_CACHED_FILES)(self._file)

    def __contains__(self, image: str) -> bool:
        return image in self._rows

    def pixels(self, image: str) -> Pixels:
        return self._prepare(self._dataset.image(self._rows[image]))

    def _file(self, image: str) -> PictureFile:
        try:
            return encode(self.pixels(image))
        except ImageError:
            # Its message names a file of this machine.
            raise CostcertError(f"the picture of {image!r} cannot be read") from None


def encode(pixels: Pixels) -> PictureFile:
    """PNG for small pictures, which keeps every pixel; JPEG for photographs, which would be large as PNG."""
    plain = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    file = io.BytesIO()
    small = plain.shape[0] * plain.shape[1] <= 64 * 64
    if small:
        Image.fromarray(plain).save(file, "PNG")
    else:
        Image.fromarray(plain).save(file, "JPEG", quality=88)
    return PictureFile(file.getvalue(), "image/png" if small else "image/jpeg")


def decode(content: bytes, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The picture in these bytes; its size is checked before any pixel is decompressed."""
    try:
        picture = Image.open(io.BytesIO(content), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many(max_pixels) from None
    except Exception:
        raise CostcertError(f"this is not a picture that can be read: choose a {TAKEN} file") from None
    if picture.width * picture.height > max_pixels:
        raise _too_many(max_pixels)
    try:
        picture.load()
    except Exception:
        raise CostcertError("the picture is damaged or incomplete: choose another file") from None
    return picture


def _too_many(max_pixels: int) -> TooLargeError:
    return TooLargeError(f"the picture has more than {max_pixels:,} pixels: choose a smaller one")
