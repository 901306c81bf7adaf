"""The models in the package load, vote with their tuned settings, and match their cards."""

import json

import numpy as np
import pytest

pytest.importorskip("torch", reason="models need costcert[models]")


import costcert as cc
from command_line import invoke
from costcert.errors import CostcertError
from costcert.models.shipped import model_folder
from costcert.store.files import read_json
from costcert.votes.tuning import TUNED, read_tuned
from places import beside

DATA = beside("data", "gtsrb_test.npz")


@pytest.mark.parametrize(
    ("name", "classes", "side"),
    [("fashion", 10, 28), ("fashion-masks", 10, 28), ("gtsrb", 43, 32), ("gtsrb-pooled", 43, 32)],
)
def test_shipped_models_load(name, classes, side):
    model = cc.load_model(f"shipped:{name}")
    assert (model.num_classes, model.image_size) == (classes, (side, side))
    card = json.loads((model_folder(f"shipped:{name}") / "model.json").read_text())
    assert model.metadata()["digest"] == card["weights"]
    size = sum(path.stat().st_size for path in model_folder(f"shipped:{name}").iterdir())
    assert size < 10_000_000
    assert "/tmp" not in json.dumps(card)


def test_an_unknown_name_is_refused():
    with pytest.raises(CostcertError, match="did you mean 'gtsrb'"):
        cc.load_model("shipped:gtsbr")


def test_vote_and_attack_use_the_tuned_settings_by_default(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(
        tmp_path / "signs.npz",
        images=rng.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8),
        labels=np.array([0, 1, 42]),
    )
    signs = ["--model", "shipped:gtsrb", "--data", f"npz:{tmp_path}/signs.npz"]
    quickly = ["--patch", "2", "--places", "1", "--random", "1", "--steps", "0"]
    for words in (["vote", *signs], ["attack", *signs, *quickly]):
        result = invoke([*words, "--out", str(tmp_path / words[0])])
        assert result.exit_code == 0, result.output
    votes, attack = cc.read_votes(tmp_path / "vote"), read_json(tmp_path / "attack" / "manifest.json")
    tuned = read_tuned(model_folder("shipped:gtsrb") / TUNED)
    assert (votes.ablation, votes.recipe) == (tuned.ablation, tuned.soft)
    assert attack["classifier"] == {**votes.classifier.to_json(), "defender": "costcert"}


@pytest.mark.parametrize("also", [[], ["--model", "shipped:gtsrb-pooled"]], ids=["alone", "ensemble"])
@pytest.mark.parametrize(
    ("ablation", "reason"),
    [
        ("columns:3", "layers for strips of 32x2, 2x32 pixels (height x width), but got 32x3"),
        ("blocks:4/stride=4", "but got 4x4: use mutants of these shapes"),
        ("masks:2/patch=2", "takes crops of strips or blocks"),
    ],
)
def test_mutants_that_a_network_cannot_see_are_refused_before_a_folder_is_made(
    tmp_path, ablation, reason, also
):
    np.savez(tmp_path / "signs.npz", images=np.zeros((1, 32, 32, 3), np.uint8), labels=np.array([42]))
    signs = ["--model", "shipped:gtsrb-pooled", *also, "--data", f"npz:{tmp_path}/signs.npz"]
    result = invoke(["vote", *signs, "--ablation", ablation, "--out", str(tmp_path / "votes")])
    assert result.exit_code == 2
    assert reason in " ".join(result.output.split())
    assert not (tmp_path / "votes").exists()


def some_signs():
    """201 test images, and their labels."""
    if not DATA.exists():
        pytest.skip("COSTCERT_TEST_DATA names no folder with the GTSRB test images")
    with np.load(DATA) as arrays:
        return list(arrays["images"][::63]), arrays["labels"][::63].astype(np.int64)


def test_signs_are_recognised_and_certified():
    """Near the published table within sampling error."""
    images, labels = some_signs()
    tuned = read_tuned(model_folder("shipped:gtsrb") / TUNED)
    ablation, soft = tuned.ablation, tuned.soft
    deployed = cc.Deployed(cc.load_model("shipped:gtsrb"), ablation, soft=soft)
    certificates = deployed.certify(images, labels, [2, 5])
    assert (certificates.rank("costcert", 2) <= 1).mean() > 0.88
    assert (certificates.min_k("costcert", 2) <= 1).mean() > 0.62
    assert (certificates.min_k("costcert", 5) <= 5).mean() > 0.74


def test_pooled_strips_certify_lists_of_signs():
    """The same for the network of columns and rows."""
    images, labels = some_signs()
    model = cc.load_model("shipped:gtsrb-pooled")
    pooled = "columns:2/span=7-21+rows:2/span=10-24"
    certificates = cc.Deployed(model, pooled, soft=cc.Soft(1.25, 43)).certify(images, labels, [2, 5])
    assert (certificates.rank("costcert", 5) <= 1).mean() > 0.93
    assert (certificates.min_k("costcert", 2) <= 5).mean() > 0.92
    assert (certificates.min_k("costcert", 5) <= 5).mean() > 0.81
