"""What a data set is: images with labels, and names that stay the same from run to run."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from costcert.errors import CostcertError
from costcert.votes.validation import MOST_CLASSES, as_labels

if TYPE_CHECKING:
    from PIL.Image import Image

# The fingerprint of an image that cannot be read: whoever needs the image is told why by `image`.
UNREADABLE = "unreadable"

# Threads that read images for their fingerprints, and how many each takes at a time. Disks and stores are
# waited for more than cores are.
_READERS = 16
_AT_A_TIME = 16


class ImageError(CostcertError):
    """One image that cannot be read; the others may well be fine."""


class Dataset(ABC):
    """Images in a fixed order.

    Args:
        name: how to ask for it, without the folder it happens to lie in; goes into the manifest.
        ids: [N] names of the images, all different.
        labels: [N] true labels.
        class_names: where they are unknown, the largest label tells how many classes there are at least.
        split: which part this is, of data that come in parts.
    """

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
            raise CostcertError(f"{name} holds no image: at least one is needed")
        if self.labels.shape != (len(self.ids),):
            raise CostcertError(f"{name} has {len(self.ids)} images, but labels of shape {self.labels.shape}")
        if len(set(self.ids)) != len(self.ids):
            raise CostcertError(f"{name} gives two images the same id: ids must differ from one another")
        try:
            "\n".join(self.ids).encode()
        except UnicodeEncodeError as error:
            broken = self.ids[error.object[: error.start].count("\n")]
            raise CostcertError(f"{broken!r} of {name} is no valid Unicode: rename that file") from None
        self.num_classes = int(self.labels.max()) + 1 if self.class_names is None else known
        self._seen: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self):,} images, {self.num_classes} classes>"

    def label(self, index: int) -> int:
        return int(self.labels[index])

    @abstractmethod
    def image(self, index: int) -> Image:
        """The image, decoded; raises `ImageError`, which names it, where that fails."""

    def fingerprint(self, index: int) -> str:
        """What changes whenever the image does; it does not raise for an image that cannot be read.

        Here a hash of the pixels, made once: a subclass whose images may change meanwhile looks again.
        """
        if index not in self._seen:
            self._seen[index] = self._hash_of_pixels(index)
        return self._seen[index]

    def digest(self) -> str:
        """Tells these images from any others: a hash of ids, labels and fingerprints."""
        total = hashlib.sha256()
        parts = [range(len(self))[at : at + _AT_A_TIME] for at in range(0, len(self), _AT_A_TIME)]
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
                pixels = image.tobytes()
        except ImageError:
            return UNREADABLE
        # The same bytes are another picture in another shape or with other colours.
        total = hashlib.sha256(f"{image.mode} {image.size} {image.getpalette()}\n".encode())
        total.update(pixels)
        return total.hexdigest()

    def metadata(self) -> dict[str, Any]:
        """For the manifest."""
        return {"name": self.name, "split": self.split, "images": len(self), "digest": self.digest()}


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Whatever a decoder stumbles over means that this image cannot be read."""
    try:
        yield
    except ImageError:
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise ImageError(f"{what} cannot be read as an image ({reason.lower()})") from error
