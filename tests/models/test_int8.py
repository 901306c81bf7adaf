"""An int8 network is made once, votes, is certified, checked, attacked and deployed."""

import json
import shutil
import sys
import warnings

import numpy as np
import pytest

pytest.importorskip("torch", reason="models need costcert[models]")
pytest.importorskip("onnx", reason="int8 networks need costcert[onnx]")
pytest.importorskip("onnxruntime", reason="int8 networks need costcert[onnx]")

import torch

import costcert as cc
from command_line import invoke
from costcert.errors import CostcertError
from costcert.models import side_by_side
from costcert.models.architectures import build
from costcert.models.int8 import NETWORK, RECORD
from costcert.models.preprocessing import Preprocessing
from costcert.models.saved import ModelCard, save_model
from costcert.models.shipped import model_folder

torch.set_num_threads(1)

RNG = np.random.default_rng(0)
SIZE = (17, 15)
IMAGES = RNG.integers(0, 256, (12, *SIZE, 3), dtype=np.uint8)
VIT = "timm:test_vit"
NORMAL = Preprocessing(SIZE, mean=(0.5,) * 3, std=(0.25,) * 3)


def trained(folder, model="strip:tall", ablation="columns:3", hide="crop", seed=0):
    """A folder as `train` writes it; of random weights."""
    settings = Preprocessing((32, 32), NORMAL.mean, NORMAL.std) if model == VIT else NORMAL
    torch.manual_seed(seed)
    built = build(model, num_classes=4, ablation=ablation, preprocessing=settings, hide=hide)
    save_model(folder, built.mutants.network, ModelCard(model, 4, settings, ablation, hide))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "data.npz"
    np.savez(file, images=IMAGES, labels=np.arange(12) % 4)
    return f"npz:{file}"


@pytest.fixture(scope="module")
def quantised_once(tmp_path_factory, data):
    made = trained(tmp_path_factory.mktemp("quantised") / "model")
    cc.load_model(made, precision="int8", calibration=cc.parse_dataset(data))
    return made


@pytest.fixture
def folder(tmp_path, quantised_once):
    """Each test's own, which it may damage."""
    return shutil.copytree(quantised_once, tmp_path / "model")


def int8(folder, **more):
    return cc.load_model(folder, precision="int8", **more)


KINDS = [
    pytest.param("strip:small", "columns:3", "crop", marks=pytest.mark.slow),
    pytest.param("strip:base", "blocks:7", "crop", marks=pytest.mark.slow),
    ("strip:tall", "columns:3", "crop"),
    pytest.param("strip:tall", "rows:4", "crop", marks=pytest.mark.slow),
    ("image:small", "columns:5", "zero"),
]


@pytest.mark.parametrize(("model", "ablation", "hide"), KINDS)
def test_logits_are_near_those_in_float32_and_the_same_in_every_batch(tmp_path, data, model, ablation, hide):
    """Exactly the same, at sizes where neither rows nor mutants begin at multiples of 64 bytes."""
    made = trained(tmp_path / "model", model, ablation, hide)
    float32, quantised = cc.load_model(made), int8(made, calibration=cc.parse_dataset(data))
    regions = cc.parse_ablation(ablation).regions(SIZE)
    expected, found = float32.logits(IMAGES, regions), quantised.logits(IMAGES, regions)
    centred = expected - expected.mean(axis=(0, 1))
    assert np.abs(found - expected).max() < 0.25 * np.abs(centred).max()
    assert not np.array_equal(found, expected)
    for size in (1, 3, 7, 64):
        quantised.batch_size = size
        assert np.array_equal(quantised.logits(IMAGES, regions), found)


def test_logits_do_not_depend_on_the_number_of_lanes(folder, monkeypatch):
    model, regions = int8(folder), cc.Columns(3).regions(SIZE)
    found = []
    for lanes in (1, 2):
        monkeypatch.setattr("costcert.models.side_by_side.lanes", lambda lanes=lanes: lanes)
        side_by_side._started.cache_clear()
        found.append(model.logits(IMAGES, regions).tobytes())
    side_by_side._started.cache_clear()
    assert found[0] == found[1]


def test_the_same_weights_and_images_make_the_same_file(tmp_path, data, folder):
    again = trained(tmp_path / "again")
    int8(again, calibration=cc.parse_dataset(data))
    for name in (NETWORK, RECORD):
        assert (again / name).read_bytes() == (folder / name).read_bytes()


def test_metadata_identify_the_int8_network(folder):
    float32, quantised = cc.load_model(folder).metadata(), int8(folder).metadata()
    record = json.loads((folder / RECORD).read_text())
    assert (quantised["precision"], quantised["digest"]) == ("int8", record["network"])
    assert record["weights"] == float32["digest"] != quantised["digest"]
    assert record["calibration"]["images"] == 12
    assert str(folder.parent) not in json.dumps(record)


def test_a_network_that_is_there_is_used(folder, data, tmp_path):
    before = (folder / NETWORK).stat().st_mtime_ns
    int8(folder, calibration=cc.parse_dataset(data))
    assert (folder / NETWORK).stat().st_mtime_ns == before
    np.savez(tmp_path / "other.npz", images=255 - IMAGES, labels=np.arange(12) % 4)
    with pytest.raises(CostcertError, match="was calibrated on other images than"):
        int8(folder, calibration=cc.parse_dataset(f"npz:{tmp_path / 'other.npz'}"))


def test_files_of_other_weights_and_damaged_ones_are_refused(folder, tmp_path):
    other = trained(tmp_path / "other", seed=1)
    for name in (NETWORK, RECORD):
        (other / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(CostcertError, match="was made from other weights"):
        int8(other)
    content = bytearray((folder / NETWORK).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / NETWORK).write_bytes(content)
    with pytest.raises(
        CostcertError, match=r"is not the file that int8\.json was written for|cannot be read"
    ):
        int8(folder)
    (folder / RECORD).write_text("{}")
    with pytest.raises(CostcertError, match="does not describe an int8 network"):
        int8(folder)
    (folder / RECORD).unlink()
    with pytest.raises(CostcertError, match=r"holds no int8\.onnx: pass images .*--calibration DATA"):
        int8(folder)


def test_what_has_no_int8_network_is_refused_in_a_sentence(tmp_path, data):
    images = cc.parse_dataset(data)
    with pytest.raises(CostcertError, match="precision int8 needs the folder of a trained model"):
        cc.load_model(lambda x: x.mean(axis=(1, 2)), image_size=32, precision="int8")
    with pytest.raises(CostcertError, match="int8 is for CPUs, got the device 'cuda'"):
        int8(tmp_path, device="cuda")
    with pytest.raises(CostcertError, match="calibration images are for precision int8"):
        cc.load_model(trained(tmp_path / "a"), calibration=images)
    with pytest.raises(CostcertError, match=r"unknown precision 'int9' \(did you mean 'int8'"):
        cc.load_model(tmp_path / "a", precision="int9")
    with pytest.raises(CostcertError, match="autocast is precision half"):
        int8(tmp_path / "a", autocast=True)
    with pytest.raises(CostcertError, match="takes crops of several shapes"):
        int8(trained(tmp_path / "b", "strip:small", "columns:3+rows:3"), calibration=images)


def test_dropped_tokens_are_refused(tmp_path, data):
    """Whether the network was trained on them, or has an int8 network and is asked to drop them now."""
    images = cc.parse_dataset(data)
    sentence = "drops tokens, but an int8 network takes inputs of one shape: leave precision out"
    with pytest.raises(CostcertError, match=sentence):
        int8(trained(tmp_path / "dropping", VIT, "columns:3", "drop-tokens"), calibration=images)
    painted = trained(tmp_path / "painted", VIT, "columns:3", "zero")
    int8(painted, calibration=images)
    with pytest.raises(CostcertError, match=sentence):
        int8(painted, hide="drop-tokens")
    run = ["vote", "--model", painted, "--data", data, "--device", "cpu", "--out", tmp_path / "votes"]
    result = invoke([*run, "--precision", "int8", "--hide", "drop-tokens"])
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert sentence in result.output


def test_the_shipped_network_is_small_and_of_the_shipped_weights():
    folder = model_folder("shipped:gtsrb")
    assert (folder / NETWORK).stat().st_size < 1_200_000
    record = json.loads((folder / RECORD).read_text())
    assert record["calibration"]["name"] == "npz:gtsrb-fit.npz"
    float32, quantised = cc.load_model("shipped:gtsrb"), int8("shipped:gtsrb")
    assert (record["weights"], record["network"]) == (
        float32.metadata()["digest"],
        quantised.metadata()["digest"],
    )
    for path in (b"/tmp", b"/home", b"/root", b"/Users"):
        assert path not in (folder / NETWORK).read_bytes()


@pytest.mark.parametrize("package", ["onnx", "onnxruntime"])
def test_packages_are_needed_only_for_int8(monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert cc.load_model("shipped:gtsrb").precision == "float32"
    with pytest.raises(CostcertError, match=rf"need the package {package}: pip install 'costcert\[onnx\]'"):
        int8("shipped:gtsrb")


def test_the_whole_way(tmp_path, data):
    """vote, certify, check, attack and Deployed use the int8 network, and no other."""
    made, votes, certs = trained(tmp_path / "model"), tmp_path / "votes", tmp_path / "certs"
    run = ["--model", made, "--data", data, "--device", "cpu"]
    missing = invoke(["vote", *run, "--precision", "int8", "--out", votes])
    assert (missing.exit_code, missing.output.count("\n")) == (2, 1)
    assert "--calibration DATA" in missing.output
    ask = ["vote", *run, "--precision", "int8", "--calibration", data, "--probe", "--out", votes]
    for _ in range(2):
        result = invoke(ask)
        assert result.exit_code == 0, result.output
    assert "no logit of" in result.output
    recorded = cc.read_votes(votes).provenance["model"]
    assert (recorded["precision"], recorded["digest"]) == ("int8", int8(made).metadata()["digest"])
    assert invoke(["certify", votes, "--patch", "2", "--out", certs]).exit_code == 0
    replay = ["--votes", votes, "--model", made, "--data", data, "--replay", "12"]
    checked = invoke(["check", certs, *replay])
    assert checked.exit_code == 0, checked.output
    deployed = cc.Deployed.from_run(certs, str(made))
    assert deployed.model.precision == "int8"
    assert np.array_equal(deployed.votes(list(IMAGES)).ballots, cc.read_votes(votes).ballots)
    with pytest.raises(CostcertError, match="is not the model that cast these votes"):
        cc.Deployed.from_run(certs, cc.load_model(made))
    attack = ["attack", "--run", certs, *run, "--patch", "2", "--places", "1", "--random", "1"]
    attacked = invoke([*attack, "--out", tmp_path / "attack"])
    assert attacked.exit_code == 0, attacked.output
    assert "has no gradients, so only random pixels are tried" in attacked.output
    steps = invoke([*attack, "--steps", "2", "--out", tmp_path / "steps"])
    assert (steps.exit_code, "has no gradients" in steps.output) == (2, True)
    given = invoke([*attack, "--precision", "int8", "--out", tmp_path / "given"])
    assert (given.exit_code, "leave --precision out" in given.output) == (2, True)


def test_making_one_warns_of_nothing(tmp_path, data, caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        int8(trained(tmp_path / "model"), calibration=cc.parse_dataset(data))
    assert not caplog.records
