"""The base class of views: how a mutant becomes a network's input.

A view passes on the kept pixels of a mutant and their position, and nothing else of the image. Training and
voting use the same views, so that a network votes on the kind of input it was trained on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from costcert.geometry.ablations import Hidden, Kept, Region, Segment
from costcert.geometry.sizes import ImageSize


class View(ABC):
    """Makes network inputs from pixels and kept regions; `hide` is its spelling."""

    hide: str

    def group(self, region: Kept) -> Hashable:
        """A key that depends on the region alone; mutants with the same key can share a batch."""
        return None

    def groups(self, regions: Sequence[Kept]) -> list[list[int]]:
        """Indices of the regions that can share a batch."""
        groups: dict[Hashable, list[int]] = {}
        for index, region in enumerate(regions):
            groups.setdefault(self.group(region), []).append(index)
        return list(groups.values())

    @abstractmethod
    def area(self, region: Kept) -> int:
        """Pixels in the network's input for this region, which the cost of a mutant is proportional to."""

    @abstractmethod
    def inputs(self, pixels: Tensor, images: Tensor, regions: Sequence[Kept]) -> Any:
        """Network inputs, where mutant m keeps `regions[m]` of the normalised `pixels[images[m]]`.

        Args:
            pixels: [N, C, H, W], never modified.
            images: [M], the image of each mutant.
            regions: the M kept regions, all of one group.
        """

    def forward(self, network: nn.Module, inputs: Any) -> Tensor:
        """Logits [M, L] of the network for these inputs."""
        logits: Tensor = network(inputs)
        return logits


def visible(regions: Sequence[Kept], image_size: ImageSize, device: torch.device) -> Tensor:
    """[M, H, W], true where a mutant shows a pixel."""
    if isinstance(regions[0], Hidden):
        hidden = [region.masks for region in regions if isinstance(region, Hidden)]
        # A mutant that hides one mask hides it twice.
        first, second = (_rectangles([masks[at] for masks in hidden], image_size, device) for at in (0, -1))
        return ~(first | second)
    return _rectangles([region for region in regions if isinstance(region, Region)], image_size, device)


def _rectangles(regions: Sequence[Region], image_size: ImageSize, device: torch.device) -> Tensor:
    """[M, H, W], true inside each region."""
    rows = kept([region.rows for region in regions], image_size[0], device)
    columns = kept([region.columns for region in regions], image_size[1], device)
    return rows[:, :, None] & columns[:, None, :]


def kept(segments: Sequence[Segment], axis_length: int, device: torch.device) -> Tensor:
    """[M, axis_length], true where a position on the axis is kept: `Segment.pixels` of M segments at once."""
    starts, lengths = _starts_and_lengths(segments, device)
    return (torch.arange(axis_length, device=device) - starts) % axis_length < lengths


def indices(segments: Sequence[Segment], axis_length: int, device: torch.device) -> Tensor:
    """[M, length], the kept positions of segments of equal length in order, wrapping at the axis' end."""
    starts, _ = _starts_and_lengths(segments, device)
    return (starts + torch.arange(segments[0].length, device=device)) % axis_length


def _starts_and_lengths(segments: Sequence[Segment], device: torch.device) -> tuple[Tensor, Tensor]:
    starts, lengths = torch.tensor(segments, device=device).unbind(dim=1)
    return starts[:, None], lengths[:, None]
