"""What mutants keep in training."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs costcert[models]")

import costcert as cc
from command_line import invoke
from costcert.geometry.masks import Hidden
from costcert.training.random_masks import regions_for_training

SIZE = (20, 28)


def test_strips_are_trained_on_as_they_vote():
    columns = cc.Columns(4)
    assert regions_for_training(columns, SIZE, seed=0) == columns.regions(SIZE)


def test_masks_of_the_ablation_come_with_random_ones_up_to_their_size():
    masks = cc.Masks(3, patch=(2, 5))
    regions = regions_for_training(masks, SIZE, seed=0)
    own = masks.regions(SIZE)
    assert regions[: len(own)] == own
    drawn = regions[len(own) :]
    assert all(isinstance(each, Hidden) for each in drawn)
    assert {len(each.masks) for each in drawn} == {1, 2}
    largest = masks.masks(SIZE)[0]
    rectangles = [mask for each in drawn for mask in each.masks]
    for axis, (side, axis_length) in enumerate(zip(("rows", "columns"), SIZE, strict=True)):
        segments = [mask[axis] for mask in rectangles]
        longest = getattr(largest, side).length
        assert {segment.length for segment in segments} == set(range(-(-longest // 2), longest + 1))
        # Anywhere, and never across the border.
        assert min(segment.start for segment in segments) == 0
        assert max(segment.start + segment.length for segment in segments) == axis_length


def test_they_depend_on_the_seed_alone():
    masks = cc.Masks(3, patch=4)
    assert regions_for_training(masks, SIZE, seed=1) == regions_for_training(masks, SIZE, seed=1)
    assert regions_for_training(masks, SIZE, seed=1) != regions_for_training(masks, SIZE, seed=2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "side", "more"),
    [
        ("image:small", 12, ["--epochs", "12"]),
        (
            "timm:test_vit",
            64,
            ["--hide", "drop-tokens", "--image-size", "64", "--epochs", "1"],
        ),
    ],
    ids=["painted", "dropped tokens"],
)
def test_a_network_is_trained_on_masks_and_certified(tmp_path, monkeypatch, model, side, more):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = np.arange(64) % 2
    images = rng.integers(0, 60, (64, side, side, 3), dtype=np.uint8)
    images[labels == 1] += 150
    np.savez("data.npz", images=images, labels=labels)
    patch, data = str(side // 8), ["--data", "npz:data.npz"]
    masks, few = ["--ablation", f"masks:3/patch={patch}"], ["--batch-size", "8", "--lr", "0.003"]
    for words in (
        ["train", "--model", model, *more, *data, *masks, *few, "--holdout", "0", "--out", "model"],
        ["vote", "--model", "model", *data, "--limit", "16", "--soft", "1,2", "--out", "votes"],
        ["certify", "votes", "--patch", patch, "--out", "certs"],
        ["check", "certs", "--votes", "votes", "--all", "--model", "model", *data, "--replay", "2"],
    ):
        result = invoke(words)
        assert result.exit_code == 0, result.output
    votes = cc.read_votes("votes")
    assert votes.num_mutants == 45
    certificates = cc.read_certificates("certs")
    assert certificates.defenders == ["patchcleanser"]
    if model == "image:small":
        # Bright or dark, whatever is hidden.
        assert (certificates.min_k("patchcleanser", patch) == 1).mean() > 0.9
