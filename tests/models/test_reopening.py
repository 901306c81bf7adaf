"""The model that voted is loaded again from any of its spellings, and any other model is refused."""

import json

import numpy as np
import pytest
import torch
from onnx import TensorProto
from safetensors.torch import save_file
from torch import nn

import costcert as cc
from costcert.errors import CostcertError
from costcert.models.architectures import build
from costcert.models.loading import load_model
from costcert.models.preprocessing import Preprocessing
from costcert.models.reopening import model_that_voted
from costcert.models.saved import ModelCard, save_model
from onnx_files import onnx_file

torch.set_num_threads(1)

ABLATION = "columns:4/stride=4"
SIZE = (32, 32)
IMAGES = np.random.default_rng(1).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
REGIONS = cc.parse_ablation(ABLATION).regions(SIZE)
OTHER = "is not the model that cast these votes .*, its {} is .*: certificates of one model do not hold for"
NORMAL = Preprocessing(SIZE, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25), interpolation="bilinear")


def recorded_by(model):
    """The model's metadata as read from a manifest."""
    return json.loads(json.dumps(dict(model.metadata())))


def again(spelling, recorded, **more):
    kwargs = {
        "num_classes": 3,
        "class_names": None,
        "ablation": ABLATION,
        "image_size": SIZE,
        "device": "cpu",
    }
    return model_that_voted(str(spelling), recorded, **kwargs | more)


def assert_the_same(model, other):
    assert recorded_by(model) == recorded_by(other)
    assert np.array_equal(model.logits(IMAGES, REGIONS), other.logits(IMAGES, REGIONS))


def network_of(spelling, seed=0, **more):
    torch.manual_seed(seed)
    kwargs = {"num_classes": 3, "ablation": ABLATION, "preprocessing": NORMAL, "hide": None}
    network = build(spelling, **kwargs | more).mutants.network
    for weight in network.parameters():
        nn.init.normal_(weight, std=0.1)
    return network


def trained(folder, spelling="strip:small", hide="crop", preprocessing=NORMAL, **more):
    network = network_of(spelling, hide=hide, preprocessing=preprocessing, **more)
    card = ModelCard(spelling, 3, preprocessing, ABLATION, hide, class_names=("a", "b", "c"))
    save_model(folder, network, card)
    return folder


def weights(path, spelling, seed=0, **more):
    save_file(network_of(spelling, seed, **more).state_dict(), path)
    return path


class TestFolder:
    @pytest.mark.parametrize("name", ["m", "strip", "timm", "onnx", "strip:small"])
    @pytest.mark.parametrize("card", ["", "/model.json"])
    def test_is_loaded_whatever_its_name_is(self, tmp_path, monkeypatch, name, card):
        monkeypatch.chdir(tmp_path)
        trained(tmp_path / name)
        voted = load_model(tmp_path / name)
        assert_the_same(again(f"{name}{card}", recorded_by(voted)), voted)

    def test_hides_pixels_as_when_it_voted(self, tmp_path):
        trained(tmp_path, "timm:vit_tiny_patch16_224", "drop-tokens")
        voted = load_model(tmp_path, hide="black")
        assert_the_same(again(tmp_path, recorded_by(voted)), voted)

    def test_of_other_weights_is_another(self, tmp_path):
        recorded = recorded_by(load_model(trained(tmp_path / "one")))
        with pytest.raises(CostcertError, match=OTHER.format("digest")):
            again(trained(tmp_path / "two", seed=1), recorded)

    def test_of_another_normalisation_is_another(self, tmp_path):
        recorded = recorded_by(load_model(trained(tmp_path / "one")))
        darker = Preprocessing(SIZE, mean=(0.4, 0.5, 0.5), std=NORMAL.std, interpolation="bilinear")
        with pytest.raises(CostcertError, match=OTHER.format("mean")):
            again(trained(tmp_path / "two", preprocessing=darker), recorded)

    def test_of_another_architecture_with_the_same_weights_is_another(self, tmp_path):
        one, two = (f"timm:vit_tiny_patch16_224{kind}" for kind in ("", ".augreg_in21k"))
        trained(tmp_path / "one", one, "zero")
        trained(tmp_path / "two", two, "zero")
        with pytest.raises(CostcertError, match=OTHER.format("name")):
            again(tmp_path / "two", recorded_by(load_model(tmp_path / "one")))

    def test_of_other_classes_is_refused(self, tmp_path):
        recorded = recorded_by(load_model(trained(tmp_path)))
        with pytest.raises(CostcertError, match="has 3 classes, but 4 are requested"):
            again(tmp_path, recorded, num_classes=4)
        with pytest.raises(CostcertError, match=OTHER.format("class names")):
            again(tmp_path, recorded, class_names=("a", "c", "b"))
        assert again(tmp_path, recorded, class_names=["a", "b", "c"]).class_names == ("a", "b", "c")

    @pytest.mark.parametrize(
        ("precision", "expected"), [("float32", "float32"), ("bfloat16", "half"), ("int8", "int8")]
    )
    def test_computes_in_the_precision_of_the_votes(self, tmp_path, monkeypatch, precision, expected):
        """Not every processor computes in half precision, so the network is not evaluated here."""
        model = load_model(trained(tmp_path))
        model.precision = precision
        calls = []
        monkeypatch.setattr(
            "costcert.models.reopening.load_model", lambda _, **kwargs: [calls.append(kwargs), model][1]
        )
        assert again(tmp_path, recorded_by(model)) is model
        assert [kwargs["precision"] for kwargs in calls] == [expected]

    def test_takes_no_checkpoint(self, tmp_path):
        recorded = recorded_by(load_model(trained(tmp_path)))
        with pytest.raises(CostcertError, match="takes no checkpoint"):
            again(tmp_path, recorded, checkpoint=tmp_path / "model.safetensors")


@pytest.mark.parametrize("name", ["fashion", "gtsrb"])
def test_a_shipped_model_is_loaded_again(name):
    voted = load_model(f"shipped:{name}")
    kwargs = {
        "num_classes": voted.num_classes,
        "class_names": voted.class_names,
        "ablation": voted.ablation,
        "image_size": voted.image_size,
    }
    assert recorded_by(again(f"shipped:{name}", recorded_by(voted), **kwargs)) == recorded_by(voted)


SPELLED = [
    ("strip:small", "crop"),
    ("timm:vit_tiny_patch16_224", "drop-tokens"),
    ("timm:vit_tiny_patch16_224", "mean"),
    ("timm:resnet10t", "crop"),
]


class TestSpelled:
    @pytest.mark.parametrize(("spelling", "hide"), SPELLED)
    @pytest.mark.parametrize(
        "preprocessing",
        [pytest.param(NORMAL, id="given"), pytest.param(None, id="its own", marks=pytest.mark.slow)],
    )
    def test_is_loaded_with_the_preprocessing_of_the_votes(self, tmp_path, spelling, hide, preprocessing):
        path = weights(tmp_path / "w.safetensors", spelling, hide=hide)
        pixels = {"preprocessing": preprocessing} if preprocessing else {"image_size": SIZE}
        kwargs = {"num_classes": 3, "hide": hide, "ablation": ABLATION}
        voted = load_model(spelling, checkpoint=path, **kwargs, **pixels)
        assert_the_same(again(spelling, recorded_by(voted), checkpoint=path), voted)

    def test_of_other_weights_is_another(self, tmp_path):
        one, two = (weights(tmp_path / f"{n}.safetensors", "strip:small", seed=n) for n in range(2))
        kwargs = {"num_classes": 3, "ablation": ABLATION, "image_size": SIZE}
        recorded = recorded_by(load_model("strip:small", checkpoint=one, **kwargs))
        with pytest.raises(CostcertError, match=OTHER.format("digest")):
            again("strip:small", recorded, checkpoint=two)

    def test_without_its_weights_is_an_error(self, tmp_path):
        recorded = recorded_by(load_model(trained(tmp_path)))
        with pytest.raises(CostcertError, match="strip:small has no weights: pass a checkpoint"):
            again("strip:small", recorded)

    def test_that_was_saved_in_a_folder_since_is_still_the_same(self, tmp_path):
        trained(tmp_path / "m")
        path = tmp_path / "m" / "model.safetensors"
        kwargs = {"num_classes": 3, "ablation": ABLATION, "preprocessing": NORMAL}
        voted = load_model("strip:small", checkpoint=path, **kwargs)
        assert_the_same(again(tmp_path / "m", recorded_by(voted)), voted)


class TestOnnx:
    @pytest.mark.parametrize("hide", ["zero", "black", "mean"])
    def test_is_loaded_with_mean_and_std_of_the_votes(self, tmp_path, hide):
        onnx_file(tmp_path / "m.onnx", ["n", 3, 32, 32])
        spelling = f"onnx:{tmp_path / 'm.onnx'}"
        voted = load_model(spelling, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7), hide=hide)
        assert_the_same(again(spelling, recorded_by(voted)), voted)

    def test_may_have_another_path_now(self, tmp_path):
        onnx_file(tmp_path / "m.onnx", ["n", 3, 32, 32])
        voted = load_model(f"onnx:{tmp_path / 'm.onnx'}", mean=0.5, std=0.5)
        (tmp_path / "m.onnx").rename(tmp_path / "n.onnx")
        moved = again(f"onnx:{tmp_path / 'n.onnx'}", recorded_by(voted))
        assert np.array_equal(moved.logits(IMAGES, REGIONS), voted.logits(IMAGES, REGIONS))

    def test_of_raw_pixels_is_loaded_again(self, tmp_path):
        onnx_file(tmp_path / "m.onnx", ["n", "h", "w", 3], TensorProto.UINT8)
        voted = load_model(f"onnx:{tmp_path / 'm.onnx'}", image_size=32)
        assert_the_same(again(f"onnx:{tmp_path / 'm.onnx'}", recorded_by(voted)), voted)

    def test_in_half_precision_is_loaded_again(self, tmp_path):
        onnx_file(tmp_path / "m.onnx", ["n", 3, 32, 32], TensorProto.FLOAT16)
        voted = load_model(f"onnx:{tmp_path / 'm.onnx'}", mean=0.5, std=0.5)
        assert_the_same(again(f"onnx:{tmp_path / 'm.onnx'}", recorded_by(voted)), voted)

    def test_in_another_precision_is_another(self, tmp_path):
        onnx_file(tmp_path / "m.onnx", ["n", 3, 32, 32])
        recorded = recorded_by(load_model(f"onnx:{tmp_path / 'm.onnx'}", mean=0.5, std=0.5))
        with pytest.raises(CostcertError, match=OTHER.format("precision")):
            again(f"onnx:{tmp_path / 'm.onnx'}", recorded | {"precision": "bfloat16"})

    def test_another_file_is_another_model(self, tmp_path):
        for name in ("m", "n"):
            onnx_file(tmp_path / f"{name}.onnx", ["n", 3, 32, 32])
        recorded = recorded_by(load_model(f"onnx:{tmp_path / 'm.onnx'}", mean=0.5, std=0.5))
        with pytest.raises(CostcertError, match=OTHER.format("digest")):
            again(f"onnx:{tmp_path / 'n.onnx'}", recorded)

    def test_is_not_a_torch_network(self, tmp_path):
        onnx_file(tmp_path / "m.onnx", ["n", 3, 32, 32])
        voted = recorded_by(load_model(f"onnx:{tmp_path / 'm.onnx'}", mean=0.5, std=0.5))
        with pytest.raises(CostcertError, match=OTHER.format("name")):
            again(f"onnx:{tmp_path / 'm.onnx'}", voted | {"name": "strip:small"})


class TestRecordedMetadata:
    @pytest.fixture
    def folder(self, tmp_path):
        return trained(tmp_path)

    def test_another_image_size_is_refused(self, folder):
        recorded = recorded_by(load_model(folder))
        with pytest.raises(CostcertError, match=OTHER.format("image size")):
            again(folder, recorded, image_size=(32, 28))

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("digest", "sha256:0"),
            ("digest", 7),
            ("name", "strip:base"),
        ],
    )
    def test_a_field_that_differs_is_named(self, folder, field, value):
        recorded = recorded_by(load_model(folder))
        with pytest.raises(CostcertError, match=OTHER.format(field)):
            again(folder, recorded | {field: value})

    @pytest.mark.parametrize(
        ("field", "value"),
        [("std", [0.5] * 3), ("crop_pct", 0.9), ("crop_mode", "center"), ("interpolation", "nearest")],
    )
    def test_a_field_of_the_preprocessing_that_differs_is_named(self, folder, field, value):
        recorded = recorded_by(load_model(folder))
        changed = recorded["preprocessing"] | {field: value}
        with pytest.raises(CostcertError, match=OTHER.format(field)):
            again(folder, recorded | {"preprocessing": changed})

    def test_another_way_of_hiding_is_refused(self, folder):
        recorded = recorded_by(load_model(folder))
        with pytest.raises(CostcertError, match="trained with hide 'crop', which cannot become 'zero'"):
            again(folder, recorded | {"hide": "zero"})

    @pytest.mark.parametrize("field", ["name", "digest", "preprocessing", "hide", "precision"])
    def test_votes_without_a_field_are_refused(self, folder, field):
        recorded = recorded_by(load_model(folder))
        for less in ({k: v for k, v in recorded.items() if k != field}, recorded | {field: None}):
            with pytest.raises(CostcertError, match=f"do not record the {field} of their model"):
                again(folder, less)

    @pytest.mark.parametrize("value", ["squash", [1], {"sise": 3}, {"image_size": 32, "mean": "dark"}])
    def test_preprocessing_that_cannot_be_read_is_an_error(self, folder, value):
        recorded = recorded_by(load_model(folder))
        with pytest.raises(CostcertError, match="cannot read the preprocessing"):
            again(folder, recorded | {"preprocessing": value})
