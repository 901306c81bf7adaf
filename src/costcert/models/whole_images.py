"""A small convolutional network for whole images of about 32 pixels, of which a mutant hides some rectangles.

Attribute names of the modules are those of the stored weights: renaming one breaks checkpoints.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from costcert.errors import CostcertError, nearest
from costcert.models.strips import Block, MeanAndMax, convolution

# Channels after the first convolution and after each residual block, each of which halves both sides. The
# first layers see the most pixels and take most of the time, so they are thin.
IMAGE_SIZES: dict[str, tuple[int, ...]] = {
    "small": (16, 32, 96, 160),
    "base": (32, 64, 128, 256),
}


class WholeImageNet(nn.Module):
    """Logits [M, L] of images [M, channels, height, width]."""

    def __init__(self, channels: int, num_classes: int, size: str = "small", *, dropout: float = 0.1) -> None:
        super().__init__()
        if size not in IMAGE_SIZES:
            raise CostcertError(
                f"unknown image network {size!r}{nearest(size, IMAGE_SIZES)}: use one of "
                f"{', '.join(IMAGE_SIZES)}"
            )
        before, *afters = IMAGE_SIZES[size]
        self.num_classes = num_classes
        self.stem = convolution(channels, before)
        blocks = []
        for after in afters:
            blocks.append(Block(before, after, (2, 2)))
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.pool = MeanAndMax()
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(2 * before, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        # CPUs convolve channels that lie side by side in memory faster.
        features = self.blocks(self.stem(images.contiguous(memory_format=torch.channels_last)))
        logits: Tensor = self.head(self.dropout(self.pool(features)))
        return logits

    def get_classifier(self) -> nn.Module:
        """The last layer, by the method's name in timm."""
        return self.head
