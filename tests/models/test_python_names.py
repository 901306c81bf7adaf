"""`python:package.module:name`: code that the user names, and nothing else, is imported and run."""

import json
import sys

import numpy as np
import pytest
import torch

import costcert as cc
from command_line import invoke, parsed
from costcert.errors import CostcertError, OtherModelError, SpellingError
from costcert.models.loading import load_model
from costcert.models.python_names import find_named

torch.set_num_threads(1)

CODE = """
import torch
from torch import nn

def mean(images):
    return images.reshape(len(images), -1).mean(axis=1)[:, None] * [[1.0, -1.0]]

def other(images):
    return -mean(images)

class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.tensor([2.0, 1.0]))

    def forward(self, pixels):
        return pixels.flatten(1).mean(dim=1, keepdim=True) * self.factor

net = Twice()
table = [1, 2]

def fails(images):
    raise ValueError("no such\\nlayer")

class holder:
    net = net
"""


@pytest.fixture
def code(tmp_path, monkeypatch):
    """Writes modules into the current folder; they are forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)

    def write(name, text=CODE):
        path = tmp_path / f"{name.replace('.', '/')}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        for module in set(sys.modules) - before:
            if module.partition(".")[0] == name.partition(".")[0]:
                del sys.modules[module]
        return path

    yield write
    for module in set(sys.modules) - before:
        if (tmp_path / module.partition(".")[0]).exists() or (tmp_path / f"{module}.py").exists():
            del sys.modules[module]


IMAGES = np.random.default_rng(1).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
REGIONS = cc.Columns(2).regions((8, 8))


def test_a_function_of_the_current_folder(code):
    code("mine")
    model = load_model("python:mine:mean", image_size=8)
    assert model.num_classes == 2
    assert model.metadata()["name"] == "python:mine:mean"
    own = load_model(find_named("python:mine:mean").value, image_size=8)
    assert np.array_equal(model.logits(IMAGES, REGIONS), own.logits(IMAGES, REGIONS))


def test_a_torch_module_in_a_package(code):
    code("mypackage.__init__", "")
    code("mypackage.models")
    for name in ("net", "holder.net"):
        model = load_model(f"python:mypackage.models:{name}", image_size=8, mean=0.5, std=0.5)
        assert model.metadata()["name"] == f"python:mypackage.models:{name}"
        assert model.num_classes == 2


@pytest.mark.parametrize("name", ["mean", "net"])
def test_another_source_is_another_model(code, name):
    more = {} if name == "mean" else {"mean": 0.5, "std": 0.5}

    def digest():
        return load_model(f"python:mine:{name}", image_size=8, **more).metadata()["digest"]

    code("mine")
    first = digest()
    assert first.startswith("sha256:")
    code("mine")
    assert digest() == first
    code("mine", CODE.replace("[[1.0, -1.0]]", "[[1.0, -2.0]]"))
    assert digest() != first


def test_the_source_that_defines_a_function_counts_too(code):
    code("shop.inner")
    code("shop.front", "from shop.inner import mean")
    first = find_named("python:shop.front:mean").source
    code("shop.inner", CODE + "\n# changed\n")
    assert find_named("python:shop.front:mean").source != first


def test_other_weights_are_another_model(code):
    code("mine")
    first = load_model("python:mine:net", image_size=8, mean=0.5, std=0.5).metadata()["digest"]
    with torch.no_grad():
        find_named("python:mine:net").value.factor += 1
    assert load_model("python:mine:net", image_size=8, mean=0.5, std=0.5).metadata()["digest"] != first


@pytest.mark.parametrize(
    ("spelling", "error", "says"),
    [
        ("python:mine", SpellingError, "write python:MODULE:FUNCTION"),
        ("python:mine:", SpellingError, "write python:MODULE:FUNCTION"),
        ("python:../mine:mean", SpellingError, "write python:MODULE:FUNCTION"),
        ("python:mine:__import__('os')", SpellingError, "write python:MODULE:FUNCTION"),
        (
            "python:mein:mean",
            CostcertError,
            "there is no module 'mein' in .* or among the installed packages",
        ),
        ("python:mine:maen", CostcertError, r"mine has no 'maen' \(did you mean 'mean'\?\)"),
        ("python:mine:Twice", CostcertError, "is a class: name a function"),
        ("python:mine:table", CostcertError, "is a list: name a function"),
        (
            "python:mine:fails",
            CostcertError,
            r"fails on random images: ValueError: no such \(.*mine.py, line 23",
        ),
        (
            "python:needs:mean",
            CostcertError,
            r"cannot be imported: ModuleNotFoundError: .*'absent'.*needs.py",
        ),
        ("python:exits:mean", CostcertError, r"cannot be imported: SystemExit: 0 \(.*exits.py, line 2\)"),
    ],
)
def test_what_cannot_be_used_gets_one_sentence(code, spelling, error, says):
    code("mine")
    code("needs", "import absent\n")
    code("exits", "import sys\nsys.exit(0)\n")
    with pytest.raises(error, match=says) as raised:
        load_model(spelling, image_size=8)
    assert "\n" not in str(raised.value)


def test_missing_options_are_named(code):
    code("mine")
    with pytest.raises(CostcertError, match=r"python:mine:mean does not store its input size.*--image-size"):
        load_model("python:mine:mean")
    with pytest.raises(CostcertError, match=r"pass mean and std \(--mean and --std"):
        load_model("python:mine:net", image_size=8)
    with pytest.raises(CostcertError, match="a Python function takes no checkpoint"):
        load_model("python:mine:net", image_size=8, checkpoint="w.safetensors")
    refused = invoke(
        ["train", "--model", "python:mine:net", "--data", "sample", "--ablation", "columns:4", "--out", "m"]
    )
    assert refused.exit_code == 2
    assert "python:mine:net cannot be trained: write timm:NAME, strip:SIZE or image:SIZE" in refused.stderr


class TestRun:
    @pytest.fixture
    def votes(self, code, tmp_path):
        code("mine")
        np.savez("d.npz", images=IMAGES, labels=[0, 1])
        words = ["vote", "--model", "python:mine:mean", "--data", "npz:d.npz", "--image-size", "8"]
        result = invoke([*words, "--ablation", "columns:2", "--out", "votes"])
        assert result.exit_code == 0, result.output
        return tmp_path / "votes"

    def test_another_function_is_refused(self, votes, code):
        with pytest.raises(OtherModelError, match="its name is 'python:mine:other', not 'python:mine:mean'"):
            cc.Deployed.from_run(votes, "python:mine:other")
        code("theirs")
        with pytest.raises(OtherModelError, match="its name is"):
            cc.Deployed.from_run(votes, "python:theirs:mean")
        code("mine", CODE + "\n# changed\n")
        with pytest.raises(OtherModelError, match="its digest is"):
            cc.Deployed.from_run(votes, "python:mine:mean")

    def test_is_never_loaded_from_what_it_records(self, votes, code):
        """Reading, certifying, checking and showing votes imports nothing that their manifest names."""
        name = cc.read_votes(votes).provenance["model"]["name"]
        assert name == "python:mine:mean"
        code("mine", "raise AssertionError('imported')")
        for words in (
            ["certify", "votes", "--patch", "2", "-d", "costcert", "--out", "certs"],
            ["check", "certs", "--votes", "votes"],
        ):
            result = invoke(words)
            assert result.exit_code == 0, result.output
        from costcert.cli.explore import opened

        _, deployed = opened(parsed(["explore", "certs"]))
        assert deployed is None
        assert "mine" not in sys.modules
        assert json.loads((votes / "manifest.json").read_text())["made"]["model"]["name"] == name
