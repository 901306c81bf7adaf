"""Datasets held in one array: `npz:`, `idx:` and the bundled sample."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from costcert.datasets.base import Dataset
from costcert.errors import CostcertError


class ArrayDataset(Dataset):
    """Images [N, H, W] (grey) or [N, H, W, C] with one or three channels, as uint8."""

    def __init__(
        self,
        name: str,
        images: npt.NDArray[Any],
        labels: npt.ArrayLike,
        *,
        ids: Sequence[str] | npt.NDArray[np.str_] | None = None,
        class_names: Sequence[str] | None = None,
        split: str | None = None,
    ) -> None:
        if images.dtype != np.uint8:
            raise CostcertError(f"{name}: images must be 0 to 255 (uint8), got {images.dtype}")
        if images.ndim == 4 and images.shape[3] == 1:
            images = images[..., 0]
        if images.ndim != 3 and (images.ndim != 4 or images.shape[3] != 3):
            raise CostcertError(
                f"{name}: images must have the shape [images, height, width] or [images, height, width, 3], "
                f"got {images.shape}"
            )
        if 0 in images.shape[1:]:
            raise CostcertError(f"{name}: images of shape {images.shape[1:]} have no pixels")
        if ids is None:
            ids = [f"{index:05d}" for index in range(len(images))]
        if len(ids) != len(images):
            raise CostcertError(f"{name} has {len(images)} images, but {len(ids)} ids")
        super().__init__(name, list(ids), labels, class_names=class_names, split=split)
        self.images: npt.NDArray[np.uint8] = images

    def image(self, index: int) -> Image.Image:
        return Image.fromarray(self.images[index])

    def fingerprint(self, index: int) -> str:
        pixels = self.images[index]
        # The same bytes in another shape are another image.
        return hashlib.sha256(f"{pixels.shape}\n".encode() + pixels.tobytes()).hexdigest()
