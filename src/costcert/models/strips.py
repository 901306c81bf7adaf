"""A small convolutional network for strips of a few pixels, where others shrink their input too far.

It halves only the sides that are long, and looks at a strip relative to its own mean and contrast as well as
at its plain colours, so that light and shadow matter less.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from costcert.errors import CostcertError, nearest

# Channels after the first convolution and after each residual block.
SIZES: dict[str, tuple[int, ...]] = {
    "small": (32, 64, 96, 128),
    "base": (48, 96, 192, 256),
}
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
        before, *afters = SIZES[size]
        stride, sides = _halved(sides)
        self.stem = _convolution(2 * channels + coordinates, before, stride)
        blocks = []
        for after in afters:
            stride, sides = _halved(sides)
            blocks.append(_Block(before, after, stride))
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * before, num_classes)

    def forward(self, crops: Tensor) -> Tensor:
        if crops.shape[-1] > crops.shape[-2]:
            crops = crops.transpose(-1, -2)
        colours = crops[:, : self.channels]
        features = self.blocks(self.stem(torch.cat([_relative(colours), crops], dim=1)))
        pooled = torch.cat([features.mean(dim=(-2, -1)), features.amax(dim=(-2, -1))], dim=1)
        logits: Tensor = self.head(self.dropout(pooled))
        return logits

    def get_classifier(self) -> nn.Module:
        """The last layer, as timm's networks name it."""
        return self.head


class _Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before: int, after: int, stride: tuple[int, int]) -> None:
        super().__init__()
        self.first = _convolution(before, after, stride)
        self.second = nn.Sequential(nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after))
        self.shortcut = nn.Conv2d(before, after, 1, stride=stride)

    def forward(self, features: Tensor) -> Tensor:
        return torch.relu(self.second(self.first(features)) + self.shortcut(features))


def _halved(sides: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
    """The stride that halves the longer side, or both once they are alike, and the sides after it."""
    down, across = (2 if side == max(sides) and side >= 4 else 1 for side in sides)
    return (down, across), (-(-sides[0] // down), -(-sides[1] // across))


def _convolution(before: int, after: int, stride: tuple[int, int] = (1, 1)) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    )


def _relative(colours: Tensor) -> Tensor:
    """Colours relative to the mean and the contrast of the crop they are in, all channels alike."""
    mean = colours.mean(dim=(1, 2, 3), keepdim=True)
    variance = colours.var(dim=(1, 2, 3), keepdim=True, correction=0)
    return (colours - mean) / (variance + _LEAST_CONTRAST**2).sqrt()
