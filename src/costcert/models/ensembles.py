"""Ensembles: several networks that cast one ballot together, from the mean of their probabilities.

A ballot still depends on the kept pixels of its mutant alone, and still has one unit to give (theory.md), so
every certificate holds as it is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from costcert.errors import CostcertError
from costcert.geometry.ablations import Kept
from costcert.models.checkpoints import digest
from costcert.models.crops import Crops
from costcert.models.mutants import Mutants
from costcert.models.preprocessing import Preprocessing


class Ensemble(Mutants):
    """The logarithm of the mean probability that networks give to each label.

    Args:
        members: networks with their views, which must show mutants in the same way.
    """

    def __init__(self, members: Sequence[Mutants]) -> None:
        super().__init__(nn.ModuleList([each.network for each in members]), members[0].view)
        self.members, self.networks = nn.ModuleList(members), len(members)

    def forward(self, pixels: Tensor, regions: Kept | Sequence[Kept], images: Tensor | None = None) -> Tensor:
        votes = [member(pixels, regions, images).float().log_softmax(dim=1) for member in self.members]
        return torch.stack(votes).logsumexp(dim=0) - math.log(len(votes))

    def refuse(self, regions: Sequence[Kept]) -> None:
        for member in self.members:
            assert isinstance(member, Mutants)
            member.refuse(regions)


def ensemble(members: Sequence[Mutants], preprocessings: Sequence[Preprocessing], name: str) -> Ensemble:
    """The networks together; refused unless they take the same inputs."""
    for what, found in (
        ("prepare pictures", [each.to_json() for each in preprocessings]),
        ("hide pixels", [each.view.hide for each in members]),
        (
            "crop mutants",
            [sorted(each.view.shapes) if isinstance(each.view, Crops) else None for each in members],
        ),
    ):
        other = next((each for each in found if each != found[0]), None)
        if other is not None:
            raise CostcertError(
                f"the networks of {name} {what} differently ({found[0]} and {other}), so they cannot cast "
                "one ballot: train them with the same options"
            )
    return Ensemble(members)


def joint_digest(digests: Sequence[str | None], members: Sequence[Mutants]) -> str:
    """One digest for the weights of all networks, in their order."""
    known = [each or digest(member.network) for each, member in zip(digests, members, strict=True)]
    return f"sha256:{hashlib.sha256(' '.join(known).encode()).hexdigest()}"
