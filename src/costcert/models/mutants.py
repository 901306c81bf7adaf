"""A network together with how mutants are shown to it: what is trained, and what votes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, nn

from costcert.geometry.ablations import Region
from costcert.models.views import View


class Mutants(nn.Module):
    """Logits of mutants.

    Args:
        network: gives [M, L] for what the view shows.
        view: what it is shown.
    """

    def __init__(self, network: nn.Module, view: View) -> None:
        super().__init__()
        self.network = network
        self.view = view

    def forward(
        self, pixels: Tensor, regions: Region | Sequence[Region], images: Tensor | None = None
    ) -> Tensor:
        """[M, L] for normalised pixels [N, C, H, W].

        Args:
            regions: one for every image, or a single one for all.
            images: [M], of which image each region is; one region per image, in order, by default.
        """
        if images is None:
            images = torch.arange(len(pixels), device=pixels.device)
        if isinstance(regions, Region):
            regions = [regions] * len(images)
        groups: dict[Hashable, list[int]] = {}
        for mutant, region in enumerate(regions):
            groups.setdefault(self.view.group(region), []).append(mutant)
        if len(groups) == 1:
            return self._answer(pixels, images, regions)
        answers = [
            self._answer(pixels, images[chosen], [regions[mutant] for mutant in chosen])
            for chosen in groups.values()
        ]
        order = torch.tensor([mutant for chosen in groups.values() for mutant in chosen])
        return torch.cat(answers)[order.argsort().to(pixels.device)]

    def _answer(self, pixels: Tensor, images: Tensor, regions: Sequence[Region]) -> Tensor:
        return self.view.answer(self.network, self.view.show(pixels, images, regions))
