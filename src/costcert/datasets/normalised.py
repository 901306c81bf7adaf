"""Images that are a network's input already: floats, normalised by the caller.

No model prepares them. Hidden pixels are painted after normalisation, as the model's `hide` says, so a mutant
depends on its kept pixels alone. What the caller did before (resizing, cropping) is not known here, and the
threat model applies to its result: patch sizes are in pixels of these inputs.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from costcert.datasets.base import Dataset, Prepared
from costcert.datasets.pictures import digest_of_pixels
from costcert.errors import CostcertError
from costcert.geometry.sizes import ImageSize, shown
from costcert.votes.validation import as_array

if TYPE_CHECKING:
    from PIL.Image import Image

    from costcert.models.classifier import Classifier

Inputs = npt.NDArray[np.float32]


class NormalisedDataset(Dataset):
    """Inputs [C, H, W] of a network, all of one size.

    Args:
        shape: (channels, height, width).
    """

    normalised = True

    def __init__(
        self,
        name: str,
        ids: Sequence[str],
        labels: npt.ArrayLike,
        *,
        shape: tuple[int, ...],
        class_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, ids, labels, class_names=class_names)
        self.channels = shape[0]
        self.image_size: ImageSize = (shape[1], shape[2])

    @abstractmethod
    def input(self, index: int) -> Inputs:
        """The input [C, H, W]."""

    def image(self, index: int) -> Image:
        raise CostcertError(
            f"{self.name} holds normalised inputs, which are no pictures: pass the pictures themselves"
        )

    def prepared(self, index: int, model: Classifier) -> Prepared:
        if not model.takes_normalised:
            raise CostcertError(
                f"{self.name} holds normalised floats, but {model!r} takes pictures (uint8): pass pictures, "
                "or a torch network"
            )
        if (model.channels, model.image_size) != (self.channels, self.image_size):
            raise CostcertError(
                f"{self.name} holds inputs of {shown(self.image_size)} with {self.channels} channels, but "
                f"the model takes {shown(model.image_size)} with {model.channels}: resize them"
            )
        pixels: Any = np.ascontiguousarray(self.input(index).transpose(1, 2, 0))
        return Prepared(pixels, None)

    def fingerprint(self, index: int) -> str:
        return digest_of_pixels(self.input(index))


class NormalisedArray(NormalisedDataset):
    """Inputs in one array [N, C, H, W]; ids are their numbers."""

    def __init__(self, images: npt.NDArray[Any], labels: npt.ArrayLike) -> None:
        ids = [f"{index:05d}" for index in range(len(images))]
        super().__init__("arrays", ids, labels, shape=images.shape[1:])
        self._images: Inputs = np.stack([as_input(image, f"image {at}") for at, image in enumerate(images)])

    def input(self, index: int) -> Inputs:
        image: Inputs = self._images[index]
        return image


def as_input(value: Any, where: str) -> Inputs:
    """One finite input [C, H, W] with 1 or 3 channels, as float32; errors call it `where`."""
    pixels = as_array(value, where)
    if pixels.dtype.kind != "f" or pixels.ndim != 3 or pixels.shape[0] not in (1, 3) or pixels.size == 0:
        raise CostcertError(
            f"{where} must be normalised floats of shape [channels, height, width] with 1 or 3 channels, or "
            f"uint8 pixels [height, width, 3], got {pixels.dtype} of shape {list(pixels.shape)}"
        )
    with np.errstate(over="ignore"):
        inputs = np.ascontiguousarray(pixels, dtype=np.float32)
    if not np.isfinite(inputs).all():
        raise CostcertError(f"{where} holds NaN or infinite pixels: check how it is normalised")
    return inputs
