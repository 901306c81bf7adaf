"""A network with its view of mutants: the module that is trained and that votes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from costcert.geometry.ablations import Hidden, Kept, Region
from costcert.models.strips import PooledStripNet
from costcert.models.views import View


class Mutants(nn.Module):
    """A network that classifies mutants.

    Args:
        network: from the view's inputs to logits [M, L].
        view: makes the network's inputs from pixels and kept regions.
    """

    # How many networks evaluate each mutant.
    networks = 1

    def __init__(self, network: nn.Module, view: View) -> None:
        super().__init__()
        self.network = network
        self.view = view

    def forward(self, pixels: Tensor, regions: Kept | Sequence[Kept], images: Tensor | None = None) -> Tensor:
        """Logits [M, L] of mutants of normalised pixels [N, C, H, W].

        Args:
            regions: the kept region of each mutant, or a single one for all.
            images: [M], the image of each mutant; by default one mutant per image, in order.
        """
        if images is None:
            images = torch.arange(len(pixels), device=pixels.device)
        if isinstance(regions, Region | Hidden):
            regions = [regions] * len(images)
        groups = self.view.groups(regions)
        if len(groups) == 1:
            return self._logits(pixels, images, regions)
        logits = [
            self._logits(pixels, images[chosen], [regions[mutant] for mutant in chosen]) for chosen in groups
        ]
        order = torch.tensor([mutant for chosen in groups for mutant in chosen])
        return torch.cat(logits)[order.argsort().to(pixels.device)]

    def refuse(self, regions: Sequence[Kept]) -> None:
        """Raise where the network cannot see these mutants."""
        # A view that crops refuses here what is not a strip or a block.
        self.view.groups(regions)
        if isinstance(self.network, PooledStripNet):
            for region in regions:
                if isinstance(region, Region):
                    self.network.refuse((region.rows.length, region.columns.length))

    def _logits(self, pixels: Tensor, images: Tensor, regions: Sequence[Kept]) -> Tensor:
        return self.view.forward(self.network, self.view.inputs(pixels, images, regions))
