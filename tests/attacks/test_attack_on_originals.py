"""Patches painted on originals: what they change after resizing, and that no certificate breaks."""

import numpy as np
import pytest
import torch
from PIL import Image

import costcert as cc
from command_line import invoke
from costcert.attacks.campaign import attack
from costcert.attacks.effort import Effort
from costcert.attacks.judging import Judge
from costcert.attacks.placements import Placements
from costcert.datasets.arrays import ArrayDataset
from costcert.datasets.pictures import Pictures
from costcert.geometry.preparation import FITS, SUPPORTS
from costcert.models.preprocessing import Preprocessing
from costcert.votes.defence import Defence

ORIGINAL, INPUT = (5, 9), (8, 20)
PATCH = "original:1"


class Brightest(torch.nn.Module):
    """Votes for the colour that a strip holds most of."""

    def __init__(self):
        super().__init__()
        self.contrast = torch.nn.Parameter(torch.tensor(0.5))

    def forward(self, pixels):
        return self.contrast * pixels.sum(dim=(2, 3))


def model_of(interpolation="bicubic", fit="squash"):
    preprocessing = Preprocessing(
        INPUT, (0.0,) * 3, (1.0,) * 3, channels=3, crop_mode=fit, interpolation=interpolation
    )
    return cc.load_model(Brightest(), preprocessing=preprocessing)


def data_of(count=8, size=ORIGINAL):
    """Dim pictures in which one colour is ahead, in more and more columns, and the next one in the others."""
    rng = np.random.default_rng(3)
    labels = np.arange(count) % 3
    pixels = rng.integers(10, 20, (count, *size, 3))
    for row, label in enumerate(labels):
        ahead = size[1] // 2 + 1 + row // 2
        pixels[row, :, :ahead, label] += 12
        pixels[row, :, ahead:, (label + 1) % 3] += 12
    return ArrayDataset("dim", pixels.astype(np.uint8), labels)


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("interpolation", SUPPORTS)
def test_weights_are_those_of_the_preparation(fit, interpolation):
    preprocessing = Preprocessing(
        (11, 14), (0.0,), (1.0,), channels=1, crop_pct=0.9, crop_mode=fit, interpolation=interpolation
    )
    for original in ((7, 9), (20, 31), (12, 16)):
        # Far from black and white, where sharp kernels would be clipped.
        picture = np.random.default_rng(0).integers(110, 146, original, dtype=np.uint8)
        down, across = (preprocessing.weights(original, axis) for axis in (0, 1))
        expected = preprocessing.prepare(Image.fromarray(picture))[..., 0]
        assert np.abs(down @ picture @ across.T - expected).max() <= 2


@pytest.mark.parametrize("defender", ["costcert", "patchguard"])
@pytest.mark.parametrize(("interpolation", "fit"), [("bicubic", "squash"), ("nearest", "border")])
def test_patches_are_painted_on_originals(tmp_path, defender, interpolation, fit):
    """They rewrite one pixel of the original, some succeed, and none on a certified image."""
    model, data = model_of(interpolation, fit), data_of()
    found = attack(
        model,
        data,
        PATCH,
        1,
        tmp_path / "out",
        ablation="columns:2",
        defender=defender,
        effort=Effort(places=4, restarts=2, steps=8, random=4),
        universal="random",
        shard_size=4,
    )
    patched = found.patched.reshape(-1, *ORIGINAL, 3)
    deployed = cc.Deployed(model, "columns:2", defender=defender, patch=PATCH)
    clean = np.stack([np.array(data.image(row)) for row in range(len(data))])
    changed = (patched != clean).any(axis=3)
    assert (changed.sum(axis=(1, 2)) <= 1).all()
    for row in np.flatnonzero(changed.any(axis=(1, 2))):
        assert np.argwhere(changed[row]).tolist() == [found.places[row].tolist()]
    listed = deployed.predict(patched, 3)
    np.testing.assert_array_equal(found.attacked, (listed == data.labels[:, None]).argmax(axis=1) + 1)
    certified = deployed.certify(clean, data.labels, PATCH, ties="lowest").min_k(defender, PATCH)
    np.testing.assert_array_equal(found.min_k, certified)
    assert (found.attacked <= found.min_k).all()
    assert (found.attacked > found.rank).any()


def test_touched_mutants_are_those_of_the_footprint():
    model = model_of()
    judge = Judge(
        model, Defence(cc.Columns(2), "zero", defender="costcert"), cc.Original(cc.Square(1)), ORIGINAL
    )
    placements = Placements(cc.Columns(2), judge.at_input, INPUT)
    assert placements.pixels(((2, 4),)).shape == ORIGINAL
    walk = judge.touched
    for (place,), held in zip(walk.places.tolist(), walk.sets(), strict=True):
        assert placements.touched((tuple(place),)).tolist() == np.flatnonzero(held).tolist()


def test_refusals(tmp_path):
    model, data = model_of(), data_of(2)
    masked = Defence(cc.Columns(2), "zero", defender="patchguard", mask=cc.Original(cc.Square(1)))
    with pytest.raises(cc.CostcertError, match="attack it with a patch on the original, such as original:1"):
        attack(model, data, "2", 1, tmp_path / "masked", classifier=masked)
    rng = np.random.default_rng(0)
    mixed = Pictures([rng.integers(0, 256, (height, 9, 3), dtype=np.uint8) for height in (5, 6)], [0, 1])
    with pytest.raises(
        cc.CostcertError, match=r"image 1 has 6x9 pixels, .* 5x9: attack originals of one size"
    ):
        attack(model, mixed, PATCH, 1, tmp_path / "mixed", ablation="columns:2", effort=Effort(steps=0))


def test_the_command_attacks_originals(tmp_path):
    """The demo's clothes have the size of the input, so that nothing spreads."""
    result = invoke(
        f"attack --model shipped:fashion --data sample --limit 4 --patch original:4 --places 2 --restarts 1 "
        f"--steps 4 --random 2 --out {tmp_path / 'out'}".split()
    )
    assert result.exit_code == 0, result.output
    assert "original:4 of 28x28 against" in " ".join(result.stdout.split())
