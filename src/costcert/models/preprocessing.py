"""Preprocessing: an image to the uint8 pixels of the threat model, and those to a network's input.

Everything that mixes pixels (resizing, cropping) happens in `prepare`; the threat model applies to its
output. `normalise` works pixel by pixel, so that rewriting a pixel changes no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from costcert.errors import CostcertError
from costcert.geometry.preparation import Preparation
from costcert.geometry.sizes import ImageSize, as_image_size
from costcert.models.classifier import Pixels

if TYPE_CHECKING:
    from torch import Tensor

_MODES = {1: "L", 3: "RGB"}
_INTERPOLATIONS = {mode.name.lower(): mode for mode in Image.Resampling}


@dataclass(frozen=True)
class Preprocessing:
    """How images become a network's input; names and meanings are those of timm.

    Args:
        image_size: (height, width) of the network's input.
        mean, std: per channel, for pixels between 0 and 1; both None for a network that takes raw uint8
            pixels and normalises them itself.
        crop_pct: the share of the resized image's side that the crop keeps.
        crop_mode: `center` keeps the aspect ratio and cuts the border off, `squash` changes the aspect
            ratio, `border` keeps the aspect ratio and pads.
        interpolation: the resampling filter.
    """

    image_size: ImageSize
    mean: tuple[float, ...] | None = (0.5, 0.5, 0.5)
    std: tuple[float, ...] | None = (0.5, 0.5, 0.5)
    channels: int = 3
    crop_pct: float = 1.0
    crop_mode: str = "squash"
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", as_image_size(self.image_size))
        if self.channels not in _MODES:
            raise CostcertError(f"images have 1 channel (grey) or 3 (RGB), got {self.channels}")
        if (self.mean is None) != (self.std is None):
            raise CostcertError("mean and std go together: pass both, or neither for raw pixels")
        for name in ("mean", "std"):
            object.__setattr__(self, name, per_channel(name, getattr(self, name), self.channels))
        if self.std is not None and min(self.std) <= 0:
            raise CostcertError(f"std must be above 0, got {list(self.std)}")
        # It checks crop_pct, crop_mode and interpolation.
        _ = self.geometry

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Preprocessing:
        """The inverse of `to_json`."""
        try:
            return cls(**values)
        except (TypeError, ValueError):
            raise CostcertError(f"cannot read the preprocessing {values!r}") from None

    def to_json(self) -> dict[str, Any]:
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @property
    def geometry(self) -> Preparation:
        """Which pixels of a picture each pixel of the input depends on."""
        return Preparation(self.image_size, self.crop_pct, self.crop_mode, self.interpolation)

    def prepare(self, image: Image.Image) -> Pixels:
        """uint8 pixels [H, W, C], resized and cropped as timm does for evaluation.

        Written with Pillow, because reports and the explorer prepare images without torch installed; a test
        compares it with timm's transform.
        """
        image = image.convert(_MODES[self.channels])
        height, width = self.image_size
        original = (image.height, image.width)
        scaled, (top, left) = self.geometry.scaled(original), self.geometry.corner(original)
        if image.size != scaled[::-1]:
            image = image.resize(scaled[::-1], _INTERPOLATIONS[self.interpolation])
        if (top, left) == (0, 0) and scaled == self.image_size:
            return self._array(image)
        canvas = Image.new(image.mode, (width, height), self._border())
        canvas.paste(image, (-left, -top))
        return self._array(canvas)

    def weights(self, original: ImageSize, axis: int) -> npt.NDArray[np.float32]:
        """[input pixels, picture pixels] of one axis: the weight of each picture pixel in each input pixel.

        Approximate, because Pillow rounds its weights for 8-bit pictures, and the pixels after each axis.
        """
        n, m = original[axis], self.geometry.scaled(original)[axis]
        lines = Image.fromarray(np.eye(n, dtype=np.float32))
        # Line y holds what pixel y gives to each pixel of the resized axis.
        gives = np.array(lines.resize((m, n), _INTERPOLATIONS[self.interpolation]) if m != n else lines)
        at = np.arange(self.image_size[axis]) + self.geometry.corner(original)[axis]
        inside = (at >= 0) & (at < m)
        return np.where(inside[:, None], gives[:, at.clip(0, m - 1)].T, np.float32(0))

    def _border(self) -> Any:
        colour = tuple(round(255 * value) for value in self.mean or (0.0,) * self.channels)
        return colour[0] if self.channels == 1 else colour

    def _array(self, image: Image.Image) -> Pixels:
        pixels = np.array(image, dtype=np.uint8)
        return pixels if self.channels > 1 else pixels[..., None]

    def normalise(self, images: Tensor) -> Tensor:
        """Network input [N, C, H, W] of uint8 pixels [N, H, W, C], pixel by pixel."""
        # Imported here, so that `prepare` works without torch.
        import torch

        pixels = images.permute(0, 3, 1, 2).contiguous()
        if self.mean is None or self.std is None:
            return pixels
        mean, std = (torch.tensor(v, device=pixels.device).reshape(-1, 1, 1) for v in (self.mean, self.std))
        return (pixels.to(torch.float32) / 255 - mean) / std


def per_channel(name: str, values: float | Sequence[float] | None, channels: int) -> tuple[float, ...] | None:
    """One value per channel: a single value is repeated, and three are averaged for grey images."""
    if values is None:
        return None
    several = [float(value) for value in (values if isinstance(values, Sequence) else [values])]
    if len(several) == 1:
        several *= channels
    if channels == 1 and len(several) == 3:
        several = [sum(several) / 3]
    if len(several) != channels:
        raise CostcertError(
            f"got {len(several)} values of {name} for {channels} channels: pass one per channel"
        )
    return tuple(several)
