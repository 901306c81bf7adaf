"""Small convolutional networks for strips of a few pixels, where others shrink their input too far.

They halve only the sides that are long, and look at a strip relative to its own mean and contrast, so that
light and shadow matter less. `small` and `base` look at plain colours too, and for features anywhere in a
strip. `tall` soon folds the short side into channels, knows where its strip is, and remembers at which height
it saw what, which suits objects that fill their picture.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from costcert.errors import CostcertError, nearest

# Channels after the first convolution and after each residual block.
SIZES: dict[str, tuple[int, ...]] = {
    "small": (32, 64, 96, 128),
    "base": (48, 96, 192, 256),
    "tall": (32, 128, 128, 192, 256),
}
# Places along an axis between which `tall` learns where a strip is.
_PLACES = 16
# Rows that `tall` tells apart in the end.
_HEIGHTS = 4
# Convolutions along one axis are slow on pictures one pixel wide: so many strips stand side by side in one.
_SIDE_BY_SIDE = 8
# Contrast below this is noise: a strip that is nearly plain stays nearly plain. Colours lie about -1 … 1.
_LEAST_CONTRAST = 0.05


class StripNet(nn.Module):
    """Logits [M, L] of crops [M, channels + coordinates, height, width].

    Args:
        channels: colours of a pixel; what comes after them in the input is where it is.
        height, width: of the crop. One lying on its side is looked at like one standing.
        coordinates: further channels of the input.
    """

    def __init__(
        self,
        channels: int,
        height: int,
        width: int,
        num_classes: int,
        size: str = "small",
        *,
        coordinates: int = 1,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        if size not in SIZES:
            raise CostcertError(
                f"unknown strip network {size!r}{nearest(size, SIZES)}: one of {', '.join(SIZES)}"
            )
        self.channels = channels
        self.num_classes = num_classes
        sides = (max(height, width), min(height, width))
        make = _tall if size == "tall" else _square
        self.stem, self.blocks, self.pool, features = make(channels, coordinates, sides, SIZES[size])
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(features, num_classes)

    def forward(self, crops: Tensor) -> Tensor:
        if crops.shape[-1] > crops.shape[-2]:
            crops = crops.transpose(-1, -2)
        colours = crops[:, : self.channels]
        features = self.blocks(self.stem(torch.cat([_relative(colours), crops], dim=1)))
        logits: Tensor = self.head(self.dropout(self.pool(features)))
        return logits

    def get_classifier(self) -> nn.Module:
        """The last layer, as timm's networks name it."""
        return self.head


class _Layers(NamedTuple):
    """What lies between the input and the head, and how many numbers the head is given."""

    stem: nn.Module
    blocks: nn.Module
    pool: nn.Module
    features: int


def _square(colours: int, coordinates: int, sides: tuple[int, int], channels: tuple[int, ...]) -> _Layers:
    """Blocks that see both axes, and what they found anywhere."""
    before, *afters = channels
    stride, sides = _halved(sides)
    stem = _convolution(2 * colours + coordinates, before, stride)
    blocks = []
    for after in afters:
        stride, sides = _halved(sides)
        blocks.append(_Block(before, after, stride))
        before = after
    return _Layers(stem, nn.Sequential(*blocks), _Anywhere(), 2 * before)


def _tall(colours: int, coordinates: int, sides: tuple[int, int], channels: tuple[int, ...]) -> _Layers:
    """One look at both axes, then blocks along the long one, and what they found at each height."""
    first, before, *afters = channels
    stem = _TallStem(colours, coordinates, sides[1], first, before)
    length = -(-sides[0] // 2)
    blocks: list[nn.Module] = []
    for place, after in enumerate(afters):
        down = 2 if place and length > _HEIGHTS else 1
        blocks.append(_Block(before, after, (down, 1), kernel=(3, 1), padding=(1, 0)))
        before, length = after, -(-length // down)
    rows = min(length, _HEIGHTS)
    return _Layers(
        stem,
        _SideBySide(*blocks),
        nn.Sequential(nn.AdaptiveAvgPool2d((rows, 1)), nn.Flatten()),
        rows * before,
    )


class _Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(
        self,
        before: int,
        after: int,
        stride: tuple[int, int],
        *,
        kernel: tuple[int, int] = (3, 3),
        padding: tuple[int, int] = (1, 1),
    ) -> None:
        super().__init__()
        self.first = _convolution(before, after, stride, kernel=kernel, padding=padding)
        self.second = nn.Sequential(
            nn.Conv2d(after, after, kernel, padding=padding, bias=False), nn.BatchNorm2d(after)
        )
        self.shortcut = nn.Conv2d(before, after, 1, stride=stride)

    def forward(self, features: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(features)) + self.shortcut(features))


class _Anywhere(nn.Module):
    """The mean and the largest value of each channel."""

    def forward(self, features: Tensor) -> Tensor:
        return torch.cat([features.mean(dim=(-2, -1)), features.amax(dim=(-2, -1))], dim=1)


class _TallStem(nn.Module):
    """Features [M, C, half the length, 1] of a strip's relative colours and of where it begins."""

    def __init__(self, colours: int, coordinates: int, width: int, before: int, after: int) -> None:
        super().__init__()
        self.colours, self.width = colours, width
        self.look = _convolution(colours + coordinates, before)
        self.fold = _convolution(before, after, (2, 1), kernel=(3, width), padding=(1, 0))
        self.place = nn.Linear(coordinates * _PLACES, after) if coordinates else None

    def forward(self, shown: Tensor) -> Tensor:
        """Of relative colours, plain colours and coordinates, in this order."""
        relative, where = shown[:, : self.colours], shown[:, 2 * self.colours :]
        missing = max(self.width - shown.shape[-1], 0)
        seen = nn.functional.pad(torch.cat([relative, where], dim=1), (0, missing))
        features: Tensor = self.fold(self.look(seen.contiguous(memory_format=torch.channels_last)))
        if self.place is not None:
            features = features + self.place(_near(where[:, :, 0, 0]))[:, :, None, None]
        return features


def _near(where: Tensor) -> Tensor:
    """[M, coordinates * _PLACES]: 1 at the place that is nearest, less at its neighbours, 0 elsewhere."""
    places = torch.linspace(-1, 1, _PLACES, device=where.device, dtype=where.dtype)
    away = (where[:, :, None] - places).abs() * ((_PLACES - 1) / 2)
    return torch.relu(1 - away).flatten(1)


class _SideBySide(nn.Sequential):
    """Layers along the first axis, for features [M, C, length, width].

    None of them looks across the second axis, so strips that share a picture do not see each other.
    """

    def forward(self, features: Tensor) -> Tensor:
        count, _, length, width = features.shape
        beside = math.gcd(count, _SIDE_BY_SIDE) if width == 1 else 1
        if beside > 1:
            features = features.reshape(count // beside, beside, -1, length).permute(0, 2, 3, 1)
            features = features.contiguous(memory_format=torch.channels_last)
        for layer in self:
            features = layer(features)
        if beside > 1:
            features = features.permute(0, 3, 1, 2).reshape(count, features.shape[1], -1, 1)
        return features


def _halved(sides: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """The stride that halves the longer side, or both once they are alike, and the sides after it."""
    down, across = (2 if side == max(sides) and side >= 4 else 1 for side in sides)
    return (down, across), (-(-sides[0] // down), -(-sides[1] // across))


def _convolution(
    before: int,
    after: int,
    stride: tuple[int, int] = (1, 1),
    *,
    kernel: tuple[int, int] = (3, 3),
    padding: tuple[int, int] = (1, 1),
) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, kernel, stride=stride, padding=padding, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )


def _relative(colours: Tensor) -> Tensor:
    """Colours relative to the mean and the contrast of the crop they are in, all channels alike."""
    mean = colours.mean(dim=(1, 2, 3), keepdim=True)
    variance = colours.var(dim=(1, 2, 3), keepdim=True, correction=0)
    return (colours - mean) / (variance + _LEAST_CONTRAST**2).sqrt()
