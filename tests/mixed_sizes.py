"""Pictures of several sizes, and a network that takes them."""

import numpy as np

import costcert as cc
from costcert.models.preprocessing import Preprocessing

CLASSES = 3


def model_of(size=(9, 12), *, fit="squash", part=1.0, interpolation="bicubic", seed=0):
    """A network that counts how bright parts of the picture are."""
    import torch

    torch.manual_seed(seed)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * size[0] * size[1], CLASSES),
    )
    preprocessing = Preprocessing(
        size, (0.5,), (0.25,), channels=1, crop_pct=part, crop_mode=fit, interpolation=interpolation
    )
    return cc.load_model(network, preprocessing=preprocessing)


def pictures(sizes, seed=0):
    """Grey pictures of these sizes."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, size, dtype=np.uint8) for size in sizes]


def votes_of(model):
    """Votes on pictures of three sizes, in mixed order."""
    shown = pictures([(5, 6), (9, 12), (5, 6), (14, 20), (9, 12), (5, 6)])
    return cc.vote(model, (shown, [0, 1, 2, 0, 1, 2]), "columns:3")
