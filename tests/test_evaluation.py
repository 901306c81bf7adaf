"""One call from a network and a loader to certified accuracy: the same numbers as vote, certify, accuracy."""

import numpy as np
import pandas as pd
import pytest

import costcert as cc
from tiny import Tiny, pictures

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

PATCHES = ["2", "5"]


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


def loader(count=11):
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(count, 3, 10, 12, generator=generator)
    return DataLoader(TensorDataset(images, torch.arange(count) % 5), batch_size=4)


@pytest.mark.parametrize("soft", [None, cc.Soft(0.35, 3)])
def test_it_is_vote_certify_accuracy(soft, capfd):
    module = network().train()
    table = cc.certified_accuracy(
        module, loader(), ablation="columns:4", patches=PATCHES, k=[1, 3], soft=soft, progress=False
    )
    assert module.training
    assert capfd.readouterr() == ("", "")
    model = cc.load_model(module, image_size=(10, 12), mean=0.0, std=1.0)
    votes = cc.vote(model, loader(), "columns:4", soft=soft)
    pd.testing.assert_frame_equal(table, cc.certify(votes, PATCHES).accuracy([1, 3]))
    assert {"defender", "patch", "k", "clean", "certified"} <= set(table.columns)


def test_a_slow_twin():
    """Mutant by mutant, with the network alone: hidden pixels are 0, the most votes win, and at no position
    can the strips that a patch touches, all voting for one rival, lift it to the votes of the label."""
    module = network().eval()
    table = cc.certified_accuracy(
        module, loader(), "columns:4", "2", k=1, defenders="costcert", progress=False
    )
    strips = [{(start + offset) % 12 for offset in range(4)} for start in range(12)]
    certified = clean = images = 0
    for batch, labels in loader():
        for image, label in zip(batch, labels.tolist(), strict=True):
            ballots = []
            for strip in strips:
                mutant = torch.zeros_like(image)
                mutant[:, :, sorted(strip)] = image[:, :, sorted(strip)]
                with torch.inference_mode():
                    ballots.append(int(module(mutant[None])[0].argmax()))
            images += 1
            clean += max(range(5), key=lambda other: (ballots.count(other), -other)) == label
            holds = True
            for left in range(11):
                kept = [
                    vote for vote, strip in zip(ballots, strips, strict=True) if not strip & {left, left + 1}
                ]
                rival = max(kept.count(other) for other in range(5) if other != label)
                holds &= kept.count(label) > rival + len(ballots) - len(kept)
            certified += holds
    assert 0 < certified <= clean
    assert table["clean"].item() == pytest.approx(clean / images)
    assert table["certified"].item() == pytest.approx(certified / images)


def test_other_models_and_data():
    table = cc.certified_accuracy(Tiny(), pictures(6), "columns:3", "2", k=1, progress=False)
    assert set(table["images"]) == {6}

    def function(images):
        return images.reshape(len(images), -1)[:, :4]

    images = np.random.default_rng(0).integers(0, 256, (5, 6, 8), dtype=np.uint8)
    table = cc.certified_accuracy(function, (images, [0, 1, 2, 3, 0]), "columns:3", "2", progress=False)
    assert table["k"].unique().tolist() == [1, 2, 3, 4]


def test_progress_goes_to_the_error_stream(monkeypatch, capfd):
    from costcert import progress

    monkeypatch.setattr(progress, "_LOG_INTERVAL", 0.0)
    cc.certified_accuracy(network(), loader(), "columns:4", "2", k=1, defenders="costcert")
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "reading" in shown.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patches": 4.5}, "a patch must be a value like Square.* got 4.5"),
        ({"patches": "99"}, "does not fit"),
        ({"k": 0}, "k must be at least 1, got 0"),
        ({"k": []}, "k needs at least one value"),
        ({"defenders": "costcerd"}, "did you mean 'costcert'"),
        ({"hide": "black"}, "the colour 'black' after normalisation is not known"),
        ({"device": "nowhere"}, "unknown device 'nowhere'"),
        ({"ablation": "columns:13"}, "columns:13 does not fit"),
        ({"soft": 0.5}, "soft must be a value like"),
    ],
)
def test_mistakes_are_found_before_the_network_votes(options, message):
    module = network()
    asked = {"ablation": "columns:4", "patches": "2", "k": 1, "progress": False, **options}
    with pytest.raises(cc.CostcertError, match=message):
        cc.certified_accuracy(module, loader(), **asked)
    assert module.training


def test_options_of_a_model_that_is_loaded_already():
    with pytest.raises(cc.CostcertError, match="is loaded already: pass hide to load_model"):
        cc.certified_accuracy(Tiny(), pictures(3), "columns:3", "2", hide="zero", progress=False)
