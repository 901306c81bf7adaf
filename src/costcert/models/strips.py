"""Small convolutional networks for strips a few pixels wide, which common networks downsample too far.

They downsample the long side first, and normalise each strip by its own mean and contrast, so that lighting
matters less. `small` and `base` also take the colours as they are, and pool features over the entire strip.
`tall` merges the short side into channels early, embeds the position of the strip, and pools features per
height, which suits objects that fill their image.

Attribute names of the modules are those of the stored weights: renaming one breaks checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
# Grid points per axis of the position embedding of `tall`, which is interpolated between them.
_GRID_POINTS = 16
# Rows of the feature map that `tall` passes to its head.
_HEIGHTS = 4
# Convolutions along one axis are slow on inputs one pixel wide, so up to this many strips share one input.
_SIDE_BY_SIDE = 8
# Contrast below this counts as noise and is not amplified. Colours are between -1 and 1.
_MIN_CONTRAST = 0.05


class StripFeatures(nn.Module):
    """Features [M, features] of crops [M, channels + coordinates, height, width], all layers but the last.

    Args:
        channels: colour channels of the input, which come first.
        height, width: of the crop. A crop wider than high is transposed.
        coordinates: coordinate channels of the input, which come after the colours.
    """

    def __init__(self, channels: int, height: int, width: int, size: str, coordinates: int) -> None:
        super().__init__()
        if size not in SIZES:
            raise CostcertError(
                f"unknown strip network {size!r}{nearest(size, SIZES)}: use one of {', '.join(SIZES)}"
            )
        self.channels = channels
        sides = (max(height, width), min(height, width))
        make = _tall if size == "tall" else _square
        self.stem, self.blocks, self.pool, self.features = make(channels, coordinates, sides, SIZES[size])

    def forward(self, crops: Tensor) -> Tensor:
        if crops.shape[-1] > crops.shape[-2]:
            crops = crops.transpose(-1, -2)
        colours = crops[:, : self.channels]
        features: Tensor = self.pool(self.blocks(self.stem(torch.cat([_relative(colours), crops], dim=1))))
        return features


class StripNet(StripFeatures):
    """Logits [M, L] of crops of one shape; the arguments are those of `StripFeatures`."""

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
        super().__init__(channels, height, width, size, coordinates)
        self.num_classes = num_classes
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(self.features, num_classes)

    def forward(self, crops: Tensor) -> Tensor:
        logits: Tensor = self.head(self.dropout(super().forward(crops)))
        return logits

    def get_classifier(self) -> nn.Module:
        """The last layer, by the method's name in timm."""
        return self.head


class PooledStripNet(nn.Module):
    """Logits [M, L] of crops of several shapes, as of pooled columns and rows.

    Each shape has layers of its own: columns and rows look too different to share them.

    Args:
        shapes: height and width of the crops; the other arguments are those of `StripNet`.
    """

    def __init__(
        self,
        channels: int,
        shapes: Sequence[tuple[int, int]],
        num_classes: int,
        size: str = "small",
        *,
        coordinates: int = 1,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        by_shape = {_key(shape): StripFeatures(channels, *shape, size, coordinates) for shape in shapes}
        self.by_shape = nn.ModuleDict(by_shape)
        self.dropout = nn.Dropout(dropout)
        self.heads = nn.ModuleDict(
            {key: nn.Linear(each.features, num_classes) for key, each in by_shape.items()}
        )

    def forward(self, crops: Tensor) -> Tensor:
        height, width = crops.shape[-2:]
        self.refuse((height, width))
        key = _key((height, width))
        logits: Tensor = self.heads[key](self.dropout(self.by_shape[key](crops)))
        return logits

    def refuse(self, shape: tuple[int, int]) -> None:
        """Raise for crops of a shape that no layers were trained for."""
        if _key(shape) not in self.by_shape:
            raise CostcertError(
                f"this network has layers for strips of {', '.join(self.by_shape)} pixels (height x width), "
                f"but got {_key(shape)}: use mutants of these shapes"
            )

    def get_classifier(self) -> nn.Module:
        """The last layers, by the method's name in timm."""
        return self.heads


def _key(shape: tuple[int, int]) -> str:
    return f"{shape[0]}x{shape[1]}"


class _Layers(NamedTuple):
    """The layers before the head, and the number of features they pass to it."""

    stem: nn.Module
    blocks: nn.Module
    pool: nn.Module
    features: int


def _square(colours: int, coordinates: int, sides: tuple[int, int], channels: tuple[int, ...]) -> _Layers:
    """Blocks of 3 x 3 convolutions, and pooling over the entire crop."""
    before, *afters = channels
    stride, sides = _halved(sides)
    stem = convolution(2 * colours + coordinates, before, stride)
    blocks = []
    for after in afters:
        stride, sides = _halved(sides)
        blocks.append(Block(before, after, stride))
        before = after
    return _Layers(stem, nn.Sequential(*blocks), MeanAndMax(), 2 * before)


def _tall(colours: int, coordinates: int, sides: tuple[int, int], channels: tuple[int, ...]) -> _Layers:
    """A stem over both axes, blocks of convolutions along the long one, and pooling per height."""
    first, before, *afters = channels
    stem = _TallStem(colours, coordinates, sides[1], first, before)
    length = -(-sides[0] // 2)
    blocks: list[nn.Module] = []
    for place, after in enumerate(afters):
        down = 2 if place and length > _HEIGHTS else 1
        blocks.append(Block(before, after, (down, 1), kernel=(3, 1), padding=(1, 0)))
        before, length = after, -(-length // down)
    rows = min(length, _HEIGHTS)
    return _Layers(
        stem,
        _SideBySide(*blocks),
        _MeanPerHeight(rows),
        rows * before,
    )


class Block(nn.Module):
    """A residual block of two convolutions."""

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
        self.first = convolution(before, after, stride, kernel=kernel, padding=padding)
        self.second = nn.Sequential(
            nn.Conv2d(after, after, kernel, padding=padding, bias=False), nn.BatchNorm2d(after)
        )
        self.shortcut = nn.Conv2d(before, after, 1, stride=stride)

    def forward(self, features: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(features)) + self.shortcut(features))


class MeanAndMax(nn.Module):
    """Global mean and max pooling, concatenated."""

    def forward(self, features: Tensor) -> Tensor:
        exporting = torch.onnx.is_in_onnx_export()
        mean = _mean(features) if exporting else features.mean(dim=(-2, -1), keepdim=True)
        return torch.cat([mean.flatten(1), features.amax(dim=(-2, -1))], dim=1)


class _MeanPerHeight(nn.Module):
    """Mean pooling to `rows` rows of one pixel, flattened."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def forward(self, features: Tensor) -> Tensor:
        # The mean of one value is this value, but torch takes as long for it as for a convolution.
        if features.shape[-2:] != (self.rows, 1):
            features = nn.functional.adaptive_avg_pool2d(features, (self.rows, 1))
        return features.flatten(1)


class _TallStem(nn.Module):
    """Features [M, C, half the length, 1] of a strip's relative colours and of its position."""

    def __init__(self, colours: int, coordinates: int, width: int, before: int, after: int) -> None:
        super().__init__()
        self.colours, self.width = colours, width
        self.look = convolution(colours + coordinates, before)
        self.fold = convolution(before, after, (2, 1), kernel=(3, width), padding=(1, 0))
        self.place = nn.Linear(coordinates * _GRID_POINTS, after) if coordinates else None

    def forward(self, inputs: Tensor) -> Tensor:
        """The channels of `inputs` are relative colours, colours and coordinates, in this order."""
        relative, position = inputs[:, : self.colours], inputs[:, 2 * self.colours :]
        missing = max(self.width - inputs.shape[-1], 0)
        padded = nn.functional.pad(torch.cat([relative, position], dim=1), (0, missing))
        features: Tensor = self.fold(self.look(padded.contiguous(memory_format=torch.channels_last)))
        if self.place is not None:
            features = features + self.place(_interpolation(position[:, :, 0, 0]))[:, :, None, None]
        return features


def _interpolation(position: Tensor) -> Tensor:
    """[M, coordinates * _GRID_POINTS]: the weights of linear interpolation between grid points."""
    points = torch.linspace(-1, 1, _GRID_POINTS, device=position.device, dtype=position.dtype)
    distance = (position[:, :, None] - points).abs() * ((_GRID_POINTS - 1) / 2)
    return torch.relu(1 - distance).flatten(1)


class _SideBySide(nn.Sequential):
    """Layers along the first axis of features [M, C, length, width], applied to several strips at once.

    None of the layers mixes columns, so strips that share an input do not affect each other.
    """

    def forward(self, features: Tensor) -> Tensor:
        count, _, length, width = features.shape
        # A trace, as for ONNX, would keep the batch size of its example.
        group = math.gcd(count, _SIDE_BY_SIDE) if width == 1 and not torch._C._get_tracing_state() else 1
        if group > 1:
            features = features.reshape(count // group, group, -1, length).permute(0, 2, 3, 1)
            features = features.contiguous(memory_format=torch.channels_last)
        for layer in self:
            features = layer(features)
        if group > 1:
            features = features.permute(0, 3, 1, 2).reshape(count, features.shape[1], -1, 1)
        return features


def _halved(sides: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """The stride that halves the longer side, or both sides once they are equal, and the sides after it."""
    down, across = (2 if side == max(sides) and side >= 4 else 1 for side in sides)
    return (down, across), (-(-sides[0] // down), -(-sides[1] // across))


def convolution(
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
    """Colours normalised by the mean and standard deviation of their crop, over all channels together."""
    if torch.onnx.is_in_onnx_export():
        mean = _mean(colours.flatten(1)[:, None, None])
        variance = _mean(((colours - mean) ** 2).flatten(1)[:, None, None])
    else:
        mean = colours.mean(dim=(1, 2, 3), keepdim=True)
        variance = colours.var(dim=(1, 2, 3), keepdim=True, correction=0)
    return (colours - mean) / (variance + _MIN_CONTRAST**2).sqrt()


def _mean(features: Tensor) -> Tensor:
    """The mean over both axes, for ONNX: as pooling, which ONNX Runtime adds up in the same order anywhere.

    The order of its other sums depends on the address of the values, and so on the place in the batch.
    """
    return nn.functional.adaptive_avg_pool2d(features, 1)
