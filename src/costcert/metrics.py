"""Certified accuracy as a metric of torchmetrics, for training loops: `pip install 'costcert[metrics]'`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from costcert.certification.certify import AnyPatch, certify, concrete_patches
from costcert.defenders import chosen, find
from costcert.errors import CostcertError
from costcert.geometry.ablations import Ablation, as_ablation
from costcert.geometry.sizes import ImageSize, as_image_size, positive_ints
from costcert.models.torchvision_repair import import_torchvision
from costcert.votes.defence import Soft
from costcert.votes.table import Votes
from costcert.votes.validation import as_array, class_count

try:
    # torchmetrics imports torchvision where it is installed.
    with suppress(CostcertError):
        import_torchvision()
    import torch
    from torch import Tensor
    from torchmetrics import Metric
except ModuleNotFoundError as error:
    raise CostcertError(
        f"costcert.metrics needs the package {error.name}: pip install 'costcert[metrics]'"
    ) from None


class CertifiedAccuracy(Metric):
    """Clean and certified accuracy at k, from the logits of all mutants of images.

    Its states are counts of images, so the value over several processes is exact: it is that of one process
    that sees all images. (A `DistributedSampler` repeats images to give every process the same number.)

    Args:
        ablation: the pixels each mutant keeps, a value or its spelling, as `"columns:4"`.
        image_size: of the network's input, as `32` or `(height, width)`.
        num_classes: L.
        patches: the patches to certify against: `"2"` is a 2 x 2 square.
        k: one k, or several.
        defender: the defender that ranks the labels.
        soft: make soft ballots of the logits, as `Soft(0.35, 4)`; hard ones by default.
        ties: as for `certify`.
        options: of `torchmetrics.Metric`.

    Example:
        >>> metric = CertifiedAccuracy("columns:4", image_size=32, num_classes=10, patches=["2", "5"])
        >>> for images, target in loader:
        ...     metric.update(logits_of_mutants(images), target)  # [N, B, L], [N]
        >>> metric.compute()
        {'clean@1': tensor(0.85), 'certified@1/square:2': tensor(0.61), …}
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    images: Tensor
    clean: Tensor
    certified: Tensor

    def __init__(
        self,
        ablation: Ablation | str,
        *,
        image_size: ImageSize | int | str,
        num_classes: int,
        patches: AnyPatch | Iterable[AnyPatch],
        k: int | Iterable[int] = (1, 5),
        defender: str = "costcert",
        soft: Soft | None = None,
        ties: str = "against",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.ablation, self.image_size = as_ablation(ablation), as_image_size(image_size)
        self.ablation.count(self.image_size)  # raises if it does not fit
        self.num_classes = class_count(num_classes)
        self.patches = concrete_patches(patches, self.image_size)
        self.ks = positive_ints(k, "k")
        if not isinstance(soft, Soft | None):
            raise CostcertError(f"soft must be a value like Soft(0.35, 4), got {soft!r}")
        chosen([defender], ablation=self.ablation, soft=soft is not None, partial=False)
        self.defender, self.soft, self.ties = defender, soft, ties
        table = torch.zeros((len(self.patches), len(self.ks)), dtype=torch.long)
        self.add_state("images", torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("clean", table.clone(), dist_reduce_fx="sum")
        self.add_state("certified", table.clone(), dist_reduce_fx="sum")

    def __repr__(self) -> str:
        patches, ks = ", ".join(map(str, self.patches)), ", ".join(map(str, self.ks))
        return (
            f"CertifiedAccuracy({self.ablation} by {self.defender}; patches {patches}; k {ks}; "
            f"{int(self.images)} images)"
        )

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Count these images.

        Args:
            logits: [N, B, L], of mutant b of image n, in the order of `ablation.regions(image_size)`.
            target: [N], the true labels.
        """
        given = as_array(logits, "logits")
        if given.ndim == 3 and given.shape[2] != self.num_classes:
            raise CostcertError(
                f"got logits of {given.shape[2]} classes, but the metric is for {self.num_classes}"
            )
        if given.ndim == 3 and not len(given):
            return
        votes = Votes.from_logits(
            given, target, ablation=self.ablation, image_size=self.image_size, soft=self.soft
        )
        certificates = certify(votes, self.patches, [self.defender], ties=self.ties)
        for counts, positions in ((self.clean, certificates.rank), (self.certified, certificates.min_k)):
            hits = [
                [int((positions(self.defender, patch) <= k).sum()) for k in self.ks] for patch in self.patches
            ]
            counts += torch.tensor(hits, device=counts.device)
        self.images += len(votes)

    def compute(self) -> dict[str, Tensor]:
        """`clean@K` and `certified@K/PATCH` for every k and patch, as shares of the images.

        A defender that masks a patch predicts differently for each, so its clean accuracies are
        `clean@K/PATCH`.
        """
        if int(self.images) == 0:
            raise CostcertError("certified accuracy needs at least one image: call update first")
        shares: dict[str, Tensor] = {}
        masks = find(self.defender).masks
        for row, patch in enumerate(self.patches):
            for column, k in enumerate(self.ks):
                name = f"clean@{k}/{patch}" if masks else f"clean@{k}"
                shares[name] = self.clean[row, column] / self.images
                shares[f"certified@{k}/{patch}"] = self.certified[row, column] / self.images
        return shares
