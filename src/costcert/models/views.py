"""What of an image a network is shown.

A view shows a mutant its kept pixels and their position, and nothing else of the image. Training and voting
go through the same views, so that a network is asked as it was taught.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from costcert.geometry.ablations import Region, Segment


class View(ABC):
    """How mutants are shown to a network."""

    hide: str

    def group(self, region: Region) -> Hashable:
        """Mutants of one group can share a batch; it depends on the region alone."""
        return None

    @abstractmethod
    def area(self, region: Region) -> int:
        """How many pixels the network looks at: what a mutant costs."""

    @abstractmethod
    def show(self, pixels: Tensor, images: Tensor, regions: Sequence[Region]) -> Any:
        """What the network gets: mutant m keeps `regions[m]` of the normalised `pixels[images[m]]`.

        Args:
            pixels: [N, C, H, W], never written to.
            images: [M], which image each mutant is made of.
            regions: M of them, all of one group.
        """

    def answer(self, network: nn.Module, shown: Any) -> Tensor:
        """[M, L] logits of what `show` gave."""
        logits: Tensor = network(shown)
        return logits


def kept(segments: Sequence[Segment], axis_length: int, device: torch.device) -> Tensor:
    """[M, axis_length], true where a pixel of the axis is kept (`Segment.pixels`, many at once)."""
    starts, lengths = _starts_and_lengths(segments, device)
    return (torch.arange(axis_length, device=device) - starts) % axis_length < lengths


def indices(segments: Sequence[Segment], axis_length: int, device: torch.device) -> Tensor:
    """[M, length], the kept pixels of segments of one length in order, going round the end of the axis."""
    starts, _ = _starts_and_lengths(segments, device)
    return (starts + torch.arange(segments[0].length, device=device)) % axis_length


def _starts_and_lengths(segments: Sequence[Segment], device: torch.device) -> tuple[Tensor, Tensor]:
    starts, lengths = torch.tensor(segments, device=device).unbind(dim=1)
    return starts[:, None], lengths[:, None]
