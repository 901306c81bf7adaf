"""The networks that voting and predicting are measured on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

import costcert as cc
from costcert.geometry.ablations import Ablation
from costcert.models.architectures import Built, build, view_of
from costcert.models.mutants import Mutants
from costcert.models.shipped import model_folder
from costcert.models.torch_classifier import TorchClassifier
from costcert.votes.defence import Soft
from costcert.votes.tuning import TUNED, read_tuned

SHIPPED = ("shipped:gtsrb", "shipped:fashion")


class Voter(NamedTuple):
    """A network, with the mutants and the ballots it was tuned for."""

    model: TorchClassifier
    ablation: Ablation
    soft: Soft | None = None


def shipped(name: str) -> Voter:
    model = cc.load_model(name)
    tuned = model_folder(name) / TUNED
    if not tuned.is_file():
        return Voter(model, model.ablation)
    chosen = read_tuned(tuned)
    return Voter(model, chosen.ablation, chosen.soft)


def random_vit(name: str, num_classes: int) -> Built:
    """A ViT of timm with random weights."""
    torch.manual_seed(0)
    return build(f"timm:{name}", num_classes=num_classes)


def hiding(built: Built, hide: str, name: str, *, batch_size: int | None = None) -> TorchClassifier:
    """The same network with another way of hiding."""
    network, settings = built.mutants.network, built.preprocessing
    mutants = Mutants(network, view_of(hide, network, settings, None, name))
    return TorchClassifier(mutants, settings, name=name, batch_size=batch_size)


def noise(model: TorchClassifier, count: int) -> np.ndarray:
    shape = (count, *model.image_size, model.channels)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
