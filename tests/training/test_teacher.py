"""A teacher, and the loss on what CostCert counts, on the command line."""

import json

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs costcert[models]")

import torch

from command_line import invoke
from costcert.models.saved import load_saved

QUICK = ("--data", "npz:d.npz", "--holdout", "0", "--epochs", "1", "--batch-size", "16")
STUDENT = ("train", "--model", "strip:small", *QUICK, "--ablation", "columns:3+rows:3", "--mutants", "4")


def run(*words):
    result = invoke(list(words))
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data, a whole-image teacher, a teacher of crops and one of other classes."""
    root = tmp_path_factory.mktemp("teachers")
    rng = np.random.default_rng(0)
    labels = np.arange(32) % 2
    images = rng.integers(0, 60, (32, 8, 8), dtype=np.uint8)
    images[labels == 1] += 150
    np.savez(root / "d.npz", images=images, labels=labels)
    np.savez(root / "three.npz", images=images, labels=np.arange(32) % 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        whole = ("train", "--model", "image:small", *QUICK, "--ablation", "columns:8")
        for words in (
            (*whole, "--out", "teacher"),
            (*whole, "--data", "npz:three.npz", "--out", "three"),
            ("train", "--model", "strip:small", *QUICK, "--ablation", "columns:3", "--out", "crops"),
        ):
            code, output = run(*words)
            assert code == 0, output
    return root


def test_a_teacher_and_a_certificate_change_what_is_learned(folder, monkeypatch):
    monkeypatch.chdir(folder)
    certified = (
        "--certificate-loss-weight",
        "0.3",
        "--vote-loss-weight",
        "0.2",
        "--patch",
        "2,rectangle:1x3",
        "--k",
        "1",
    )
    taught = ("--teacher", "teacher", "--teacher-weight", "0.5", "--teacher-temperature", "2")
    weights = {}
    for name, more in {"plain": (), "taught": taught, "both": (*taught, *certified)}.items():
        code, output = run(*STUDENT, *more, "--out", name)
        assert code == 0, output
        weights[name] = torch.cat([each.flatten() for each in load_saved(name).mutants.parameters()])
    assert not torch.equal(weights["plain"], weights["taught"])
    assert not torch.equal(weights["taught"], weights["both"])
    recipe = json.loads((folder / "both" / "model.json").read_text())["training"]["recipe"]
    assert recipe["certified_patches"] == ["2", "rectangle:1x3"]
    assert recipe["certified_ks"] == [1]
    again, _ = run(*STUDENT, *taught, *certified, "--out", "both")
    assert again == 0
    other, output = run(*STUDENT, *certified, "--out", "both")
    assert other == 2
    assert "its teacher is" in output


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--teacher", "nowhere"), "nowhere holds no model.json"),
        (("--teacher", "crops"), "takes crops: train one of whole images"),
        (("--teacher", "three"), "has 3 classes, the training data 2"),
        (("--teacher", "teacher", "--image-size", "10"), "takes another input"),
        (("--teacher-weight", "0.5"), "are for --teacher: pass that, too"),
        (("--patch", "2"), "are for --certificate-loss-weight: pass that, too"),
        (("--certificate-loss-weight", "0.3"), "needs the patches to certify against"),
        (("--certificate-loss-weight", "0.3", "--patch", "20"), "square:20"),
        (("--certificate-loss-weight", "0.3", "--patch", "2", "--ablation", "masks:2/patch=2"), "masks"),
    ],
)
def test_bad_teachers_and_certificates_get_one_sentence(folder, monkeypatch, more, sentence):
    monkeypatch.chdir(folder)
    given = list(STUDENT)
    for option, value in zip(more[::2], more[1::2], strict=True):
        if option in given:
            given[given.index(option) + 1] = value
        else:
            given += [option, value]
    code, output = run(*given, "--out", "never")
    assert code == 2, output
    assert sentence in output.replace("\n", " ")
    assert not (folder / "never").exists()
