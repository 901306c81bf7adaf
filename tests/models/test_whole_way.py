"""A model that is not a folder goes the whole way on the command line: once its votes record how pixels are
prepared, no later command has to be told again."""

import json
import subprocess
import sys

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import costcert as cc
from command_line import invoke, parsed
from costcert.cli.explore import opened
from costcert.models.loading import load_model
from onnx_files import onnx_file

pytest.importorskip("onnxruntime", reason="ONNX files need costcert[onnx]")
pytest.importorskip("fastapi", reason="the page needs costcert[explore]")

torch.set_num_threads(1)

CODE = '''
import numpy as np
import torch
from torch import nn


def by_colour(images):
    """Logits of red, green and blue, for each image independently."""
    return images.reshape(len(images), -1, 3).mean(axis=1) / 255


torch.manual_seed(0)
body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
net = nn.Sequential(body, nn.Linear(4, 3))
'''


def torch_network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    ).eval()


def export(network, path):
    """The network above as an ONNX file, written node by node: torch.onnx needs one more package."""
    weights = {name.replace(".", "_"): w.detach().numpy() for name, w in network.state_dict().items()}
    nodes = [
        helper.make_node("Conv", ["images", "0_weight", "0_bias"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "4_weight", "4_bias"], ["logits"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "exported",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["n", 3, 12, 12])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3])],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), str(path))


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with images of three colours, ONNX files and a Python module, which is the current one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    rng = np.random.default_rng(0)
    labels = np.arange(9) % 3
    images = rng.integers(0, 120, (9, 12, 12, 3), dtype=np.uint8)
    images[np.arange(9), :, :, labels] += 100
    np.savez("data.npz", images=images, labels=labels)
    onnx_file(tmp_path / "tiny.onnx", ["n", 3, 12, 12])
    export(torch_network(), tmp_path / "exported.onnx")
    (tmp_path / "own_code.py").write_text(CODE)
    yield tmp_path
    sys.modules.pop("own_code", None)


def succeeding(*words):
    result = invoke(words)
    assert result.exit_code == 0, result.output
    return result


NORMALISED = ["--mean", "0.4,0.5,0.6", "--std", "0.25"]
MODELS = {
    "onnx:tiny.onnx": NORMALISED,
    "onnx:exported.onnx": NORMALISED,
    "python:own_code:by_colour": ["--image-size", "12"],
    "python:own_code:net": [*NORMALISED, "--image-size", "12"],
}


@pytest.mark.parametrize(
    "model",
    [
        "onnx:exported.onnx",
        "python:own_code:net",
        *(
            pytest.param(model, marks=pytest.mark.slow)
            for model in ("onnx:tiny.onnx", "python:own_code:by_colour")
        ),
    ],
)
def test_later_commands_need_no_further_options(here, model):
    of_data = ["--model", model, "--data", "npz:data.npz"]
    succeeding("vote", *of_data, *MODELS[model], "--ablation", "columns:3", "--probe", "--out", "votes")
    succeeding("certify", "votes", "--patch", "2", "-d", "costcert", "--out", "certs")
    quickly = ["--patch", "2", "--places", "2", "--restarts", "1", "--random", "2", "--limit", "3"]
    attacked = succeeding("attack", "--run", "certs", *of_data, *quickly, "--out", "attack")
    has_gradients = model == "python:own_code:net"
    assert ("has no gradients, so only random pixels are tried" in attacked.stderr) != has_gradients
    assert json.loads((here / "attack" / "manifest.json").read_text())["effort"]["steps"] == (
        40 if has_gradients else 0
    )
    checked = succeeding("check", "certs", "--votes", "votes", *of_data, "--replay", "3")
    assert f"Weights: {model} has those that voted" in checked.stdout
    assert "no problems" in checked.stdout
    session, deployed = opened(parsed(["explore", "certs", *of_data]))
    assert len(session.votes) == 9
    votes = cc.read_votes("votes")
    again = cc.Deployed.from_run("certs", model)
    with np.load("data.npz") as data:
        for service in (deployed, again):
            assert (service.votes(list(data["images"]), data["labels"]).ballots == votes.ballots).all()


@pytest.mark.parametrize("model", ["onnx:exported.onnx", "python:own_code:by_colour"])
def test_without_a_run_attack_is_told_how_pixels_are_prepared(here, model):
    words = ["attack", "--model", model, "--data", "npz:data.npz", "--ablation", "columns:3", "--patch", "2"]
    words += ["--random", "1", "--places", "1", "--limit", "2", "--out", "attack"]
    refused = invoke(words)
    assert refused.exit_code == 2
    missing = "--mean and --std" if model.startswith("onnx") else "--image-size"
    assert missing in refused.stderr
    assert not (here / "attack").exists()
    succeeding(*words, *MODELS[model])
    kept = succeeding(*words, *MODELS[model])
    assert "the only shard was there already, of 2 images" in kept.stderr


def test_requested_steps_without_gradients_are_refused(here):
    words = ["attack", "--model", "onnx:tiny.onnx", "--data", "npz:data.npz", *NORMALISED, "--out", "attack"]
    refused = invoke([*words, "--ablation", "columns:3", "--patch", "2", "--steps", "5"])
    assert refused.exit_code == 2
    assert "onnx:tiny.onnx has no gradients: pass --steps 0" in refused.stderr
    assert not (here / "attack").exists()


def test_an_exported_network_computes_what_torch_does(here):
    options = {"mean": 0.5, "std": 0.25, "image_size": 12}
    with np.load("data.npz") as data:
        regions = cc.Columns(3).regions((12, 12))
        ours = load_model("onnx:exported.onnx", **options).logits(data["images"], regions)
        theirs = load_model(torch_network(), **options).logits(data["images"], regions)
    assert np.abs(ours - theirs).max() < 1e-5


def test_images_of_one_channel(here):
    (here / "grey_code.py").write_text("def dark(images):\n    return images[:, :2, 0, 0].astype(float)\n")
    grey = np.random.default_rng(0).integers(0, 256, (3, 5, 5), dtype=np.uint8)
    np.savez("grey.npz", images=grey, labels=[0, 1, 1])
    words = ["vote", "--model", "python:grey_code:dark", "--data", "npz:grey.npz", "--image-size", "5"]
    succeeding(*words, "--channels", "1", "--ablation", "rows:2", "--out", "votes")
    assert cc.read_votes("votes").provenance["model"]["preprocessing"]["channels"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ray", "slurm"])
def test_workers_of_an_engine_find_the_function(here, engine):
    pytest.importorskip({"ray": "ray", "slurm": "submitit"}[engine], reason=f"needs costcert[{engine}]")
    words = [sys.executable, "-m", "costcert", "vote", "--model", "python:own_code:by_colour", "--data"]
    words += ["npz:data.npz", "--image-size", "12", "--ablation", "columns:3", "--shard-size", "3"]
    more = ["--engine", engine, "--workers", "1"]
    more += ["--engine-option", "cluster=local"] * (engine == "slurm")
    done = subprocess.run([*words, *more, "--out", "there"], capture_output=True, text=True, cwd=here)
    assert done.returncode == 0, done.stderr
    succeeding(*words[3:], "--out", "in-one-process")
    assert (cc.read_votes("there").ballots == cc.read_votes("in-one-process").ballots).all()
