"""A trained network of whole images, whose soft labels a network of mutants learns from."""

from __future__ import annotations

import torch
from torch import Tensor

from costcert.errors import CostcertError
from costcert.models.preprocessing import Preprocessing
from costcert.models.saved import load_saved
from costcert.store.locations import Location


class Teacher:
    """The network in the folder of a trained model, which sees all of every image.

    Args:
        preprocessing, num_classes: of the network that learns; the teacher's must be the same.
    """

    def __init__(self, folder: Location, preprocessing: Preprocessing, num_classes: int) -> None:
        mutants, card, self.digest = load_saved(folder)
        if card.hide == "crop":
            raise CostcertError(
                f"the teacher {folder} takes crops: train one of whole images, as image:small or timm:NAME"
            )
        if card.num_classes != num_classes:
            raise CostcertError(
                f"the teacher {folder} has {card.num_classes} classes, the training data {num_classes}: "
                "train it on the same classes"
            )
        own, other = card.preprocessing, preprocessing
        if (own.image_size, own.channels, own.mean, own.std) != (
            other.image_size,
            other.channels,
            other.mean,
            other.std,
        ):
            raise CostcertError(
                f"the teacher {folder} takes another input ({own.to_json()}) than the network that it "
                f"teaches ({other.to_json()}): train it with the same size and normalisation"
            )
        self._network = mutants.network.eval()

    def logits(self, pixels: Tensor) -> Tensor:
        """[N, L], for the normalised pixels of whole images [N, C, H, W]."""
        self._network.to(pixels.device)
        with torch.no_grad():
            taught: Tensor = self._network(pixels)
        return taught
