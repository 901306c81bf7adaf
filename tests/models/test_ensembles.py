"""Ensembles: the mean probability of several networks, as one classifier from votes to deployment."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="models need costcert[models]")

import torch

import costcert as cc
from command_line import invoke
from costcert.attacks.optimizer import has_gradients
from costcert.errors import CostcertError
from costcert.models.architectures import build
from costcert.models.saved import ModelCard, save_model

ABLATION = "columns:3+rows:3"
NAMES = ("up", "down", "left", "right")


def network(folder, seed, *, ablation=ABLATION, side=8, names=NAMES):
    """The folder of an untrained strip network."""
    torch.manual_seed(seed)
    built = build("strip:small", num_classes=4, ablation=ablation, image_size=side)
    for module in built.mutants.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.running_var, 0.02, 0.1)
    save_model(
        folder,
        built.mutants.network,
        ModelCard("strip:small", 4, built.preprocessing, ablation, "crop", names),
    )
    return str(folder)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("networks")
    return [network(root / name, seed) for seed, name in enumerate("abc")]


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), dtype=np.uint8)


def test_a_ballot_is_the_mean_probability(folders, images):
    regions = cc.parse_ablation(ABLATION).regions((8, 8))
    logits = [cc.load_model(folder).logits(images, regions).astype(float) for folder in folders]
    shares = [np.exp(each) / np.exp(each).sum(axis=2, keepdims=True) for each in logits]
    together = cc.load_model(folders)
    found = np.exp(together.logits(images, regions).astype(float))
    assert np.allclose(found, np.mean(shares, axis=0), atol=1e-6)
    assert np.abs(shares[0] - shares[1]).max() > 0.01
    assert str(together.ablation) == ABLATION
    assert together.class_names == NAMES


def test_every_spelling_is_the_same_classifier(folders):
    joined = cc.load_model(" + ".join(folders)).metadata()
    assert cc.load_model(folders).metadata() == joined
    assert cc.load_model(folders[::-1]).metadata()["digest"] != joined["digest"]
    alone = cc.load_model(folders[0]).metadata()
    assert cc.load_model([folders[0]]).metadata() == alone
    assert alone["digest"] != joined["digest"]


def test_a_rewritten_patch_changes_no_ballot_that_it_does_not_touch(folders, images):
    model, ablation = cc.load_model(folders), cc.parse_ablation(ABLATION)
    regions = ablation.regions((8, 8))
    rewritten = images.copy()
    rewritten[:, 2:4, 5:7] = 255 - rewritten[:, 2:4, 5:7]
    before, after = model.logits(images, regions), model.logits(rewritten, regions)
    sees = np.array(
        [region.rows.pixels(8)[2:4].any() & region.columns.pixels(8)[5:7].any() for region in regions]
    )
    assert (before[:, ~sees] == after[:, ~sees]).all()
    assert (before[:, sees] != after[:, sees]).any()


def test_the_whole_way(folders, images, tmp_path, monkeypatch):
    """vote, certify, check --replay and attack, with the ensemble spelled either way."""
    monkeypatch.chdir(tmp_path)
    np.savez("data.npz", images=images, labels=np.arange(6) % 4)
    both = ["--model", folders[0], "--model", folders[1]]
    for words in (
        ["vote", *both, "--data", "npz:data.npz", "--soft", "0.5,4", "--out", "votes"],
        ["certify", "votes", "--patch", "1", "--out", "certs"],
        ["check", "certs", "--votes", "votes", "--all", *both, "--data", "npz:data.npz", "--replay", "3"],
        ["check", "certs", "--votes", "votes", "--model", f"{folders[0]} + {folders[1]}"],
        ["attack", "--run", "certs", *both, "--data", "npz:data.npz", "--patch", "1", "--limit", "2",
         "--steps", "2", "--out", "attack"],
    ):  # fmt: skip
        result = invoke(words)
        assert result.exit_code == 0, result.output
    other = invoke(["check", "certs", "--votes", "votes", "--model", folders[0]])
    assert other.exit_code == 1
    assert "is not the model that cast these votes" in other.output
    deployed = cc.Deployed.from_run("certs", cc.load_model(folders[:2]))
    assert deployed.predict(images, k=4).shape == (6, 4)


def test_an_ensemble_has_gradients_if_all_its_networks_have(folders):
    def darker(images):
        return np.stack([images.mean(axis=(1, 2, 3)), 255 - images.mean(axis=(1, 2, 3))], axis=1)

    assert has_gradients(cc.load_model(folders))
    assert not has_gradients(cc.load_model([darker, darker], image_size=8))


def test_what_does_not_go_together_is_refused(folders, tmp_path):
    small = network(tmp_path / "small", 3, side=10)
    with pytest.raises(CostcertError, match="prepare pictures differently"):
        cc.load_model([folders[0], small])
    columns = network(tmp_path / "columns", 3, ablation="columns:3")
    with pytest.raises(CostcertError, match="crop mutants differently"):
        cc.load_model([folders[0], columns])
    named = network(tmp_path / "named", 3, names=("a", "b", "c", "d"))
    with pytest.raises(CostcertError, match="differ in names of classes"):
        cc.load_model([folders[0], named])
    with pytest.raises(CostcertError, match="an ensemble takes no checkpoint"):
        cc.load_model(folders, checkpoint="x.safetensors")
    with pytest.raises(CostcertError, match="nowhere"):
        cc.load_model([folders[0], str(tmp_path / "nowhere")])
