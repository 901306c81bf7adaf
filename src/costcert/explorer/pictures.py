"""Pictures in and out: what somebody sends is decoded with care, what the model saw is sent as a file."""

from __future__ import annotations

import io
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

from costcert.datasets.base import Dataset, ImageError
from costcert.errors import CostcertError

Pixels = npt.NDArray[np.uint8]

# Formats whose decoders are small and well looked after.
FORMATS = ("PNG", "JPEG", "WEBP")
MOST_PIXELS = 40_000_000
_KEPT = 512


class TooLargeError(CostcertError):
    """More bytes or pixels than the service takes."""


class PictureFile(NamedTuple):
    content: bytes
    media_type: str


class Pictures:
    """What the model saw of each image of a data set, as files; the last few are kept."""

    def __init__(self, dataset: Dataset, prepare: Callable[[Image.Image], Pixels]) -> None:
        self._dataset = dataset
        self._prepare = prepare
        self._rows = {name: row for row, name in enumerate(dataset.ids)}
        self._kept: OrderedDict[str, PictureFile] = OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, image: str) -> bool:
        return image in self._rows

    def file(self, image: str) -> PictureFile:
        with self._lock:
            if image in self._kept:
                self._kept.move_to_end(image)
                return self._kept[image]
        try:
            made = encoded(self._prepare(self._dataset.image(self._rows[image])))
        except ImageError:
            # Its own words name a file of this machine.
            raise CostcertError(f"the picture of {image!r} cannot be read") from None
        with self._lock:
            self._kept[image] = made
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return made


def encoded(pixels: Pixels) -> PictureFile:
    """Small pictures keep every pixel; photographs would be large that way."""
    plain = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    file = io.BytesIO()
    small = plain.shape[0] * plain.shape[1] <= 64 * 64
    if small:
        Image.fromarray(plain).save(file, "PNG")
    else:
        Image.fromarray(plain).save(file, "JPEG", quality=88)
    return PictureFile(file.getvalue(), "image/png" if small else "image/jpeg")


def decoded(content: bytes, most_pixels: int = MOST_PIXELS) -> Image.Image:
    """The picture in these bytes; its size is looked at before a single pixel is unpacked."""
    try:
        picture = Image.open(io.BytesIO(content), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many(most_pixels) from None
    except Exception:
        raise CostcertError(f"this is no picture that can be read: send {', '.join(FORMATS)}") from None
    if picture.width * picture.height > most_pixels:
        raise _too_many(most_pixels)
    try:
        picture.load()
    except Exception:
        raise CostcertError("the picture is damaged or cut off: send it again") from None
    return picture


def _too_many(most_pixels: int) -> TooLargeError:
    return TooLargeError(f"the picture has more than {most_pixels:,} pixels: send a smaller one")
