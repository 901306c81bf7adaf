"""The base class of datasets: images with labels, and ids that stay the same from run to run."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt

from costcert.errors import CostcertError, GeometryError
from costcert.geometry.sizes import ImageSize
from costcert.votes.validation import MOST_CLASSES, as_labels

if TYPE_CHECKING:
    from PIL.Image import Image

    from costcert.models.classifier import Classifier, Pixels

# The fingerprint of an image that cannot be read; `image` raises the reason.
UNREADABLE = "unreadable"

# Threads that read images for their fingerprints, and images per task. More threads than cores, because most
# of the time is spent waiting for disks and object stores.
_READERS = 16
_IMAGES_PER_TASK = 16


class Prepared(NamedTuple):
    """An image as a model takes it.

    Args:
        pixels: [H, W, C].
        original: height and width of the picture before it was resized; None if it is no picture.
    """

    pixels: Pixels
    original: ImageSize | None


class ImageError(CostcertError):
    """One image cannot be read; other images of the dataset may be readable."""


class Dataset(ABC):
    """Images in a fixed order.

    Args:
        name: its spelling without the path of its folder; recorded in the manifest.
        ids: [N] names of the images, all different.
        labels: [N] true labels.
        class_names: if unknown, the number of classes is the largest label plus one.
        split: the part that this is, of data that have splits.
    """

    # Whether images are a network's input already, normalised by the caller (normalised.py).
    normalised = False

    def __init__(
        self,
        name: str,
        ids: Sequence[str],
        labels: npt.ArrayLike,
        *,
        class_names: Sequence[str] | None = None,
        split: str | None = None,
    ) -> None:
        self.name = name
        self.split = split
        self.ids = [str(each) for each in ids]
        self.class_names = None if class_names is None else tuple(str(each) for each in class_names)
        known = MOST_CLASSES if self.class_names is None else len(self.class_names)
        self.labels = as_labels(labels, f"labels of {name}", known)
        if not self.ids:
            raise CostcertError(f"{name} holds no images: at least one is needed")
        if self.labels.shape != (len(self.ids),):
            raise CostcertError(f"{name} has {len(self.ids)} images, but labels of shape {self.labels.shape}")
        if len(set(self.ids)) != len(self.ids):
            raise CostcertError(f"{name} has two images with the same id: ids must be unique")
        try:
            "\n".join(self.ids).encode()
        except UnicodeEncodeError as error:
            broken = self.ids[error.object[: error.start].count("\n")]
            raise CostcertError(f"{broken!r} of {name} is not valid Unicode: rename that file") from None
        self.num_classes = int(self.labels.max()) + 1 if self.class_names is None else known
        self._seen: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        split = "" if self.split is None else f", split {self.split}"
        kind = type(self).__name__.lstrip("_")
        return f"{kind}({self.name}: {len(self):,} images, {self.num_classes} classes{split})"

    def label(self, index: int) -> int:
        return int(self.labels[index])

    @abstractmethod
    def image(self, index: int) -> Image:
        """The decoded image; raises `ImageError`, which names it, if that fails."""

    def prepared(self, index: int, model: Classifier) -> Prepared:
        """The image as the model's pixels, and its own size."""
        image = self.image(index)
        try:
            pixels = model.prepare(image)
        except GeometryError as error:
            raise GeometryError(f"image {self.ids[index]}: {error}") from None
        return Prepared(pixels, (image.height, image.width))

    def fingerprint(self, index: int) -> str:
        """A hash that changes whenever the image does; it does not raise for an unreadable image.

        The default hashes the pixels once and caches the result: a subclass whose images may change during a
        run has to override it.
        """
        if index not in self._seen:
            self._seen[index] = self._hash_of_pixels(index)
        return self._seen[index]

    def digest(self) -> str:
        """Identifies the dataset: a hash of ids, labels and fingerprints."""
        total = hashlib.sha256()
        starts = range(0, len(self), _IMAGES_PER_TASK)
        parts = [range(len(self))[start : start + _IMAGES_PER_TASK] for start in starts]
        with ThreadPoolExecutor(_READERS) as readers:
            for part, found in zip(parts, readers.map(self._fingerprints, parts), strict=True):
                for index, fingerprint in zip(part, found, strict=True):
                    total.update(f"{self.ids[index]}\t{self.label(index)}\t{fingerprint}\n".encode())
        return total.hexdigest()

    def _fingerprints(self, part: range) -> list[str]:
        return [self.fingerprint(index) for index in part]

    def _hash_of_pixels(self, index: int) -> str:
        try:
            image = self.image(index)
            with reading(self.ids[index]):
                return digest_of_picture(image)
        except ImageError:
            return UNREADABLE

    def metadata(self) -> dict[str, Any]:
        """Name, split, number of images and digest, for the manifest."""
        return {"name": self.name, "split": self.split, "images": len(self), "digest": self.digest()}


def digest_of_picture(image: Image) -> str:
    """A hash of the pixels: the same bytes in another shape or with another palette are another image."""
    total = hashlib.sha256(f"{image.mode} {image.size} {image.getpalette()}\n".encode())
    total.update(image.tobytes())
    return total.hexdigest()


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turns any exception of a decoder into an `ImageError` that names the image."""
    try:
        yield
    except ImageError:
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ImageError(f"{what} cannot be read as an image ({reason.lower()})") from error
