"""What a network sees of a mutant that hides masks: everything else, and nothing of the masks."""

import numpy as np
import pytest
import torch

import costcert as cc
from costcert.models.architectures import build
from costcert.models.hiding import Painted
from costcert.models.mutants import Mutants
from costcert.models.tokens import DropTokens
from costcert.models.torch_classifier import TorchClassifier
from models.test_hiding import IMAGES, RGB, SIZE, VITS, convolutional, vit

MASKS = cc.Masks(3, patch=(5, 7))
WAYS = {
    "zero": lambda: Mutants(convolutional(), Painted("zero", RGB)),
    "mean": lambda: Mutants(convolutional(), Painted("mean", RGB)),
    **{
        name: lambda options=options: Mutants(network := vit(**options), DropTokens(network, SIZE))
        for name, options in VITS.items()
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_hidden_pixels_change_nothing_and_others_do(way):
    model = TorchClassifier(WAYS[way](), RGB, name="test")
    regions = MASKS.regions(SIZE)
    rng = np.random.default_rng(7)
    logits = model.logits(IMAGES, regions)
    for mutant in (0, 1, 20, 44):
        kept = regions[mutant].pixels(SIZE)
        noise = rng.integers(0, 256, IMAGES.shape, dtype=np.uint8)
        elsewhere = np.where(kept[..., None], IMAGES, noise)
        assert np.array_equal(model.logits(elsewhere, regions)[:, mutant], logits[:, mutant])
    shown = model.logits(255 - IMAGES, regions)
    assert (shown != logits).any(axis=(0, 2)).all()


def test_a_patch_changes_touched_mutants_alone():
    """Every position of the patch: mutants outside T_p have the same logits, bit for bit."""
    model = TorchClassifier(WAYS["zero"](), RGB, name="test")
    regions = MASKS.regions(SIZE)
    before = model.logits(IMAGES[:1], regions)[0]
    rng = np.random.default_rng(8)
    for top, left in [(0, 0), (19, 25), (7, 9), (8, 10), (13, 3)]:
        attacked = IMAGES[:1].copy()
        attacked[:, top : top + 5, left : left + 7] = rng.integers(0, 256, (5, 7, 3), dtype=np.uint8)
        after = model.logits(attacked, regions)[0]
        clean = [not region.pixels(SIZE)[top : top + 5, left : left + 7].any() for region in regions]
        assert 0 < sum(clean) < len(clean)
        assert np.array_equal(after[clean], before[clean])


def test_dropped_tokens_are_those_without_a_visible_pixel():
    view = DropTokens(vit(), SIZE)
    for region in MASKS.regions(SIZE):
        kept = region.pixels(SIZE)
        expected = [
            row * 4 + column
            for row in range(3)
            for column in range(4)
            if kept[8 * row : 8 * row + 8, 8 * column : 8 * column + 8].any()
        ]
        assert view.places(region).tolist() == expected


def test_image_networks_learn_from_pairs_of_masks_and_keep_their_spelling():
    mutants, preprocessing = build("image:small", num_classes=3, image_size=(20, 24), channels=1)
    assert mutants.view.hide == "zero"
    regions = cc.Masks(2, patch=4).regions(preprocessing.image_size)
    logits = mutants(torch.zeros(2, 1, 20, 24), regions[:2])
    assert logits.shape == (2, 3)


@pytest.mark.parametrize(
    ("architecture", "options", "sentence"),
    [
        (
            "strip:small",
            {"ablation": "masks:3/patch=5"},
            "crop shows a strip or a block by itself, but masks:3",
        ),
        ("image:small", {"hide": "crop"}, "image:small takes whole images: use hide='zero', got 'crop'"),
        ("image:smal", {}, "unknown image network 'smal' .did you mean 'small'"),
        ("image:small", {"num_classes": None}, "image:small needs the number of classes"),
    ],
)
def test_networks_that_do_not_fit_are_refused(architecture, options, sentence):
    with pytest.raises(cc.CostcertError, match=sentence):
        build(architecture, **{"num_classes": 3, "image_size": 24} | options)
