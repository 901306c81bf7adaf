"""Models of every kind load as they were saved, and are refused with a clear error if they do not fit."""

import json
import os
import pickle
import re

import numpy as np
import pytest
import torch
from onnx import TensorProto
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.torch_version import TorchVersion

import costcert as cc
from costcert.errors import CostcertError, SpellingError, StoreError
from costcert.models import torchvision_repair
from costcert.models.architectures import build
from costcert.models.checkpoints import SAFE_TORCH, digest, read_weights, start_from
from costcert.models.hiding import Painted
from costcert.models.loading import load_model
from costcert.models.mutants import Mutants
from costcert.models.preprocessing import Preprocessing
from costcert.models.saved import ModelCard, load_saved, read_card, save_model
from costcert.models.torch_classifier import TorchClassifier, resolve_device
from costcert.models.torchvision_repair import import_timm
from onnx_files import onnx_file
from places import ROOT

timm = import_timm()
torch.set_num_threads(1)

RNG = np.random.default_rng(3)
VIT = "timm:vit_tiny_patch16_224"
SMALL = {"num_classes": 6, "image_size": 32}
IMAGES = RNG.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
COLUMNS = cc.Columns(6, stride=5)
REGIONS = COLUMNS.regions((32, 32))


def smooth_image(width, height, mode="RGB"):
    """A smooth image, like a photograph, on which resizing filters differ."""
    noise = Image.fromarray(RNG.integers(0, 256, (7, 9, 3), dtype=np.uint8))
    return noise.resize((width, height), Image.Resampling.BICUBIC).convert(mode)


@pytest.fixture(scope="module")
def trained():
    torch.manual_seed(0)
    network = build(VIT, **SMALL).mutants.network
    nn.init.normal_(network.head.weight)
    return network.eval()


@pytest.fixture
def checkpoint(trained, tmp_path):
    save_file(trained.state_dict(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


class TestPreprocessing:
    @pytest.mark.parametrize("size", [(300, 200), (200, 301), (224, 224), (97, 64), (40, 400)])
    @pytest.mark.parametrize(
        ("crop_pct", "mode"),
        [(0.9, "center"), (1.0, "center"), (1.0, "squash"), (0.875, "squash"), (1.0, "border")],
    )
    def test_matches_timm(self, size, crop_pct, mode):
        settings = Preprocessing(
            (96, 96), (0.5, 0.4, 0.3), (0.2, 0.3, 0.1), crop_pct=crop_pct, crop_mode=mode
        )
        image = smooth_image(*size)
        theirs = timm.data.create_transform(
            (3, 96, 96), mean=settings.mean, std=settings.std, crop_pct=crop_pct, crop_mode=mode,
            interpolation="bicubic",
        )(image)  # fmt: skip
        pixels = settings.prepare(image)
        assert (pixels.dtype, pixels.shape) == (np.uint8, (96, 96, 3))
        torch.testing.assert_close(settings.normalise(torch.tensor(pixels[None]))[0], theirs)

    def test_of_a_timm_model_comes_from_its_configuration(self):
        settings = build("timm:resnet18", num_classes=3).preprocessing
        assert settings == Preprocessing(
            (224, 224),
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            crop_pct=0.95,
            crop_mode="center",
            interpolation="bicubic",
        )

    def test_does_not_change_an_image_of_the_right_size(self):
        pixels = RNG.integers(0, 256, (28, 30, 1), dtype=np.uint8)
        settings = Preprocessing((28, 30), (0.5,), (0.5,), channels=1)
        assert np.array_equal(settings.prepare(Image.fromarray(pixels[..., 0])), pixels)

    @pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "1"])
    def test_takes_images_of_every_mode(self, mode):
        assert Preprocessing((8, 8)).prepare(smooth_image(20, 10, mode)).shape == (8, 8, 3)

    def test_survives_json(self):
        for settings in (Preprocessing((3, 4), crop_pct=0.9), Preprocessing((3, 4), None, None, 1)):
            assert Preprocessing.from_json(json.loads(json.dumps(settings.to_json()))) == settings

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"channels": 4}, "1 channel .* or 3"),
            ({"mean": None}, "go together"),
            ({"std": (0.5, 0.0, 0.5)}, "above 0"),
            ({"mean": (0.5, 0.5)}, "2 values of mean for 3 channels"),
            ({"crop_pct": 1.5}, "at most 1"),
            ({"crop_mode": "centre"}, "did you mean 'center'"),
            ({"interpolation": "bicubi"}, "did you mean 'bicubic'"),
        ],
    )
    def test_refuses_invalid_values(self, options, words):
        with pytest.raises(CostcertError, match=words):
            Preprocessing((8, 8), **options)

    def test_refuses_pictures_of_which_nothing_is_left(self):
        with pytest.raises(CostcertError, match=r"a picture of 1x500 pixels .* is too thin"):
            Preprocessing((56, 56), crop_mode="border").prepare(Image.new("RGB", (500, 1)))


class TestCheckpoints:
    @pytest.mark.parametrize(
        ("suffix", "wrap"),
        [
            ("safetensors", "module."),
            ("pt", "state_dict"),
            *(
                pytest.param(suffix, wrap, marks=pytest.mark.slow)
                for suffix, wraps in {
                    "safetensors": ("plain", "state_dict", "model", "module.model."),
                    "pt": ("plain", "model", "module.", "module.model."),
                }.items()
                for wrap in wraps
            ),
        ],
    )
    def test_are_read_from_every_wrapper(self, trained, tmp_path, wrap, suffix):
        weights = trained.state_dict()
        path = tmp_path / f"w.{suffix}"
        if wrap.endswith("."):
            weights = {wrap + name: value for name, value in weights.items()}
        if suffix == "safetensors":
            save_file(weights, path)
        else:
            torch.save({wrap: weights, "epoch": 3} if wrap in ("state_dict", "model") else weights, path)
        model = load_model(VIT, checkpoint=path, **SMALL)
        assert digest(model.mutants.network) == digest(trained)

    def test_without_a_last_layer_are_refused(self, tmp_path):
        name = "vit_tiny_patch16_224"
        save_file(
            timm.create_model(name, num_classes=0, img_size=32).state_dict(), tmp_path / "w.safetensors"
        )
        with pytest.raises(CostcertError, match="has no classification layer"):
            load_model(f"timm:{name}", checkpoint=tmp_path / "w.safetensors", image_size=32, num_classes=0)

    def test_set_the_number_of_classes(self, checkpoint):
        assert load_model(VIT, checkpoint=checkpoint, image_size=32).num_classes == 6

    def test_of_other_classes_are_refused(self, checkpoint):
        with pytest.raises(CostcertError, match="trained for 6 classes, but 7 are requested"):
            load_model(VIT, checkpoint=checkpoint, num_classes=7, image_size=32)

    def test_of_another_architecture_are_refused(self, checkpoint):
        with pytest.raises(CostcertError, match=r"does not fit the model: it lacks 'conv1\.weight' and"):
            load_model("timm:resnet18", checkpoint=checkpoint)

    def test_that_timm_cannot_convert_are_refused(self, tmp_path):
        save_file(timm.create_model("resnet18").state_dict(), tmp_path / "w.safetensors")
        with pytest.raises(CostcertError, match="does not fit the model: it lacks 'cls_token'"):
            load_model(VIT, checkpoint=tmp_path / "w.safetensors", **SMALL)

    def test_with_unknown_weights_are_refused(self, trained, tmp_path):
        save_file(trained.state_dict() | {"more": torch.zeros(1)}, tmp_path / "w.safetensors")
        with pytest.raises(CostcertError, match="the model does not have 'more'"):
            load_model(VIT, checkpoint=tmp_path / "w.safetensors", **SMALL)

    def test_of_another_width_are_refused(self, trained, tmp_path):
        other = build("timm:vit_small_patch16_224", **SMALL).mutants.network
        save_file(other.state_dict(), tmp_path / "w.safetensors")
        with pytest.raises(CostcertError, match=r"has shape \[.*\], the model expects"):
            load_model(VIT, checkpoint=tmp_path / "w.safetensors", **SMALL)

    def test_of_another_image_size_have_their_positions_resampled_as_timm_does(self, checkpoint):
        assert load_model(VIT, checkpoint=checkpoint, image_size=64).image_size == (64, 64)

    def test_a_pickle_is_not_executed(self, tmp_path):
        class Harm:
            def __reduce__(self):
                return (os.mkdir, (str(tmp_path / "harm"),))

        (tmp_path / "w.pt").write_bytes(pickle.dumps({"state_dict": Harm()}))
        torch.save({"state_dict": Harm()}, tmp_path / "v.pt")
        for name in ("w.pt", "v.pt"):
            with pytest.raises(CostcertError, match="could execute any code"):
                read_weights(tmp_path / name)
        assert not (tmp_path / "harm").exists()

    @pytest.mark.parametrize("old", ["2.4.0", "2.5.1+cu124", "2.6.0", "2.9.1", "2.10.0a0"])
    @pytest.mark.parametrize("name", ["w.pt", "w.pth", "w.bin"])
    def test_torch_files_need_a_torch_with_a_safe_unpickler(self, tmp_path, monkeypatch, old, name):
        torch.save({"weight": torch.ones(2)}, tmp_path / name)
        assert read_weights(tmp_path / name)["weight"].tolist() == [1, 1]
        monkeypatch.setattr(torch, "__version__", TorchVersion(old))
        monkeypatch.setattr(torch, "load", None)
        with pytest.raises(
            CostcertError, match=rf"torch {re.escape(old)} .*{name}, .* upgrade torch, or save"
        ):
            read_weights(tmp_path / name)

    @pytest.mark.parametrize(("version", "works"), [("2.9.1", False), ("2.10.0", True), ("3.0.0+cpu", True)])
    def test_safetensors_are_read_with_every_torch(self, checkpoint, tmp_path, monkeypatch, version, works):
        monkeypatch.setattr(torch, "__version__", TorchVersion(version))
        assert read_weights(checkpoint)
        torch.save({"weight": torch.ones(2)}, tmp_path / "w.pt")
        if works:
            assert read_weights(tmp_path / "w.pt")
        else:
            with pytest.raises(CostcertError, match=r"which torch 2\.10 does not"):
                read_weights(tmp_path / "w.pt")

    def test_the_declared_dependency_is_a_safe_torch(self):
        """The version that pip installs and the one that is checked at run time are the same."""
        project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        assert f'"torch>={SAFE_TORCH}"' in project

    @pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
    @pytest.mark.parametrize("content", [b"", b"nonsense", b"\x80\x02garbage", b"PK\x03\x04"])
    def test_damaged_files_are_refused(self, tmp_path, name, content):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CostcertError, match=name):
            read_weights(tmp_path / name)

    def test_without_weights_are_refused(self, tmp_path):
        torch.save({"epoch": 1}, tmp_path / "w.pt")
        with pytest.raises(CostcertError, match="holds no weights"):
            read_weights(tmp_path / "w.pt")
        torch.save([1, 2], tmp_path / "w.pt")
        with pytest.raises(CostcertError, match="holds a list, expected a dict of weights by name"):
            read_weights(tmp_path / "w.pt")
        with pytest.raises(CostcertError, match="is not there"):
            read_weights(tmp_path / "nowhere.pt")

    @pytest.mark.parametrize("classes", [6, 9])
    def test_initialise_training_but_for_a_last_layer_of_other_classes(self, trained, checkpoint, classes):
        fresh = build(VIT, num_classes=classes, image_size=32).mutants.network
        head = fresh.head.weight.clone()
        start_from(fresh, checkpoint)
        assert torch.equal(fresh.head.weight, trained.head.weight if classes == 6 else head)
        assert torch.equal(fresh.blocks[0].mlp.fc1.weight, trained.blocks[0].mlp.fc1.weight)


class TestSpelling:
    @pytest.mark.parametrize(
        ("spelling", "words"),
        [
            ("timm:vit_bse_patch16_224", r"did you mean 'vit_base_patch16_\w+'"),
            ("vit_base_patch16_224", "unknown model .* write timm:NAME"),
            ("timm:", "unknown model"),
            ("strip:smal", "did you mean 'small'"),
            ("onnx:nowhere.onnx", "is not there"),
        ],
    )
    def test_unknown_models_are_refused(self, spelling, words):
        with pytest.raises(CostcertError, match=words):
            load_model(spelling, ablation=COLUMNS, **SMALL)

    def test_a_file_as_a_model_is_refused_with_advice(self, checkpoint):
        with pytest.raises(CostcertError, match=r"is a file: write onnx:.* or timm:NAME"):
            load_model(checkpoint)

    def test_a_model_without_weights_is_refused(self):
        with pytest.raises(CostcertError, match="has no weights: pass a checkpoint"):
            load_model(VIT, **SMALL)

    def test_weights_that_cannot_be_downloaded_are_an_error(self):
        with pytest.raises(CostcertError, match="cannot load its pretrained weights"):
            load_model("timm:vit_tiny_patch16_224", pretrained=True)

    def test_a_strip_network_names_missing_options(self):
        with pytest.raises(CostcertError, match="needs an image size"):
            build("strip:small", num_classes=3, ablation="columns:4")
        with pytest.raises(CostcertError, match="needs the number of classes"):
            build("strip:small", image_size=32, ablation="columns:4")
        with pytest.raises(CostcertError, match="needs an ablation"):
            build("strip:small", image_size=32, num_classes=3)
        with pytest.raises(CostcertError, match="use hide='crop', got 'zero'"):
            build("strip:small", image_size=32, num_classes=3, ablation="columns:4", hide="zero")

    def test_hiding_that_does_not_fit_the_network_is_refused(self):
        with pytest.raises(CostcertError, match="did you mean 'zero'"):
            build(VIT, hide="zeros", **SMALL)
        with pytest.raises(CostcertError, match="takes images of one size only"):
            build(VIT, hide="crop", ablation="columns:4", **SMALL)
        with pytest.raises(CostcertError, match="timm:resnet18 is a ResNet"):
            build("timm:resnet18", hide="drop-tokens", **SMALL)

    def test_a_network_that_shrinks_crops_to_nothing_is_refused(self):
        with pytest.raises(CostcertError, match=r"cannot take crops of 32x1: .* strip:small"):
            build("timm:inception_v3", hide="crop", ablation="columns:1", **SMALL)

    @pytest.mark.parametrize("spelling", ["timm:resnet10t", "strip:small", "strip:base"])
    @pytest.mark.parametrize("ablation", ["columns:4", "rows:3", "blocks:9/stride=4", "columns:4+rows:4"])
    @pytest.mark.parametrize("channels", [1, pytest.param(3, marks=pytest.mark.slow)])
    def test_crops_of_every_shape_are_classified(self, spelling, ablation, channels):
        torch.manual_seed(0)
        mutants, settings = build(
            spelling, num_classes=4, image_size=(28, 30), channels=channels, ablation=ablation, hide="crop"
        )
        model = TorchClassifier(mutants, settings, name=spelling)
        regions = cc.parse_ablation(ablation).regions((28, 30))[:40:9]
        images = RNG.integers(0, 256, (1, 28, 30, channels), dtype=np.uint8)
        assert model.logits(images, regions).shape == (1, len(regions), 4)

    def test_strip_networks_have_the_documented_size(self):
        sizes = [
            sum(
                weight.numel()
                for weight in build(
                    spelling, num_classes=43, image_size=32, ablation="columns:4"
                ).mutants.parameters()
            )
            for spelling in ("strip:small", "strip:base")
        ]
        assert 0.3e6 < sizes[0] < 1e6 < sizes[1] < 2.5e6


class TestTrainedFolder:
    def card(self, **more):
        settings = Preprocessing((32, 32), (0.5,) * 3, (0.5,) * 3)
        standard = {
            "architecture": "strip:small",
            "num_classes": 3,
            "preprocessing": settings,
            "ablation": "columns:6/stride=5",
            "hide": "crop",
            "class_names": ("a", "b", "ü"),
            "training": {"epochs": 2},
        }
        return ModelCard(**standard | more)

    def saved(self, folder, **more):
        torch.manual_seed(8)
        card = self.card(**more)
        network = build(
            card.architecture,
            num_classes=card.num_classes,
            hide=card.hide,
            ablation=card.ablation,
            preprocessing=card.preprocessing,
        ).mutants.network
        save_model(folder, network, card)
        return card, network

    @pytest.mark.parametrize(
        "more",
        [
            pytest.param({}, id="strip"),
            pytest.param({"architecture": VIT, "hide": "drop-tokens"}, id="vit", marks=pytest.mark.slow),
        ],
    )
    def test_loads_as_it_was_saved(self, tmp_path, more):
        card, network = self.saved(tmp_path / "m", **more)
        mutants, read, checksum = load_saved(tmp_path / "m")
        assert (read, checksum) == (card, digest(network))
        expected = TorchClassifier(mutants, card.preprocessing, name="x").logits(IMAGES, REGIONS)
        for path in (tmp_path / "m", str(tmp_path / "m"), tmp_path / "m" / "model.json"):
            model = load_model(path)
            assert (model.num_classes, model.class_names) == (3, ("a", "b", "ü"))
            assert model.ablation == COLUMNS
            assert model.metadata() == {
                "name": card.architecture,
                "digest": checksum,
                "preprocessing": card.preprocessing.to_json(),
                "hide": card.hide,
                "precision": "float32",
            }
            assert np.array_equal(model.logits(IMAGES, REGIONS), expected)

    def test_holds_everything_that_voting_needs(self, tmp_path):
        self.saved(tmp_path)
        content = json.loads((tmp_path / "model.json").read_text())
        assert {
            "format": "costcert model",
            "version": 1,
            "image_size": [32, 32],
            "channels": 3,
        }.items() <= content.items()
        assert read_card(tmp_path).training == {"epochs": 2}

    def test_may_hide_pixels_in_another_way_if_compatible(self, tmp_path):
        self.saved(tmp_path / "vit", architecture=VIT, hide="drop-tokens")
        assert load_model(tmp_path / "vit", hide="black").metadata()["hide"] == "black"
        self.saved(tmp_path / "strip")
        with pytest.raises(StoreError, match="'crop', which cannot become 'zero'"):
            load_model(tmp_path / "strip", hide="zero")

    def test_of_other_classes_is_refused(self, tmp_path):
        self.saved(tmp_path)
        with pytest.raises(CostcertError, match="has 3 classes, but 43 are requested"):
            load_model(tmp_path, num_classes=43)

    def test_takes_no_option_that_its_card_holds(self, tmp_path):
        self.saved(tmp_path)
        with pytest.raises(CostcertError, match="takes no checkpoint"):
            load_model(tmp_path, checkpoint="w.pt")

    def test_mixed_from_two_models_is_detected(self, tmp_path):
        self.saved(tmp_path / "one")
        _, network = self.saved(tmp_path / "two")
        nn.init.normal_(network.head.weight)
        save_model(tmp_path / "two", network, self.card())
        (tmp_path / "two" / "model.safetensors").replace(tmp_path / "one" / "model.safetensors")
        with pytest.raises(StoreError, match="mixes two models"):
            load_model(tmp_path / "one")

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("{", "cannot be read as JSON"),
            ("[]", "does not describe"),
            ('{"format": "costcert votes"}', "does not describe"),
            ('{"format": "costcert model", "version": 2}', "version 2, this costcert reads 1"),
            ('{"format": "costcert model", "version": 1}', "missing or invalid field: 'class_names'"),
        ],
    )
    def test_with_a_damaged_card_is_refused(self, tmp_path, content, words):
        (tmp_path / "model.json").write_text(content)
        with pytest.raises(StoreError, match=words):
            load_model(tmp_path)

    def test_an_empty_folder_is_refused(self, tmp_path):
        with pytest.raises(StoreError, match=r"holds no model\.json"):
            load_model(tmp_path)

    def test_a_full_disk_keeps_the_old_model(self, tmp_path, monkeypatch):
        _, network = self.saved(tmp_path)
        before = digest(load_saved(tmp_path).mutants.network)

        def full(*_, **__):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("costcert.models.saved.save_file", full)
        with pytest.raises(StoreError, match="the disk is full"):
            save_model(tmp_path, network, self.card())
        assert digest(load_saved(tmp_path).mutants.network) == before


def brightness(images):
    """Logits of three classes: the mean red, green and blue of an image."""
    return images.reshape(len(images), -1, 3).mean(axis=1, dtype=np.float64) / 255


class TestPython:
    def test_a_function_takes_uint8_pixels_black_where_hidden(self):
        inputs = []
        model = load_model(lambda x: [inputs.append(x), brightness(x)][1], image_size=32, class_names="rgb")
        inputs.clear()
        logits = model.logits(IMAGES, REGIONS)
        mutants = np.concatenate(inputs).reshape(len(IMAGES), len(REGIONS), 32, 32, 3)
        assert mutants.dtype == np.uint8
        for place, region in enumerate(REGIONS):
            mask = region.columns.pixels(32)[None, None, :, None]
            assert np.array_equal(mutants[:, place], IMAGES * mask)
            assert np.array_equal(logits[:, place], brightness(IMAGES * mask).astype(np.float32))
        assert (model.num_classes, model.class_names) == (3, ("r", "g", "b"))
        assert model.metadata()["hide"] == "black"

    def test_a_function_may_take_normalised_pixels(self):
        kinds = []
        model = load_model(
            lambda x: [kinds.append((x.dtype, x.shape[1:])), brightness(x)][1],
            image_size=32,
            mean=0.5,
            std=0.25,
        )
        model.logits(IMAGES, REGIONS)
        assert set(kinds) == {(np.dtype(np.float32), (32, 32, 3))}
        assert model.metadata()["hide"] == "zero"

    def test_the_name_of_a_function_is_recorded(self):
        metadata = load_model(brightness, image_size=32).metadata()
        assert (metadata["name"], metadata["digest"]) == (
            f"python:{__name__}.brightness",
            "unknown: a Python function",
        )

    def test_a_module_needs_a_normalisation(self, trained):
        plain = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4))
        with pytest.raises(CostcertError, match="torch:Sequential does not store its input size"):
            load_model(plain)
        with pytest.raises(CostcertError, match="how pixels are normalised: pass mean and std"):
            load_model(plain, image_size=32)
        assert load_model(plain, image_size=32, mean=0, std=1).num_classes == 4
        model = load_model(trained, image_size=32, hide="drop-tokens")
        assert (model.preprocessing.mean, model.metadata()["digest"]) == ((0.5, 0.5, 0.5), digest(trained))

    @pytest.mark.parametrize(
        ("function", "words"),
        [
            (lambda _: "no", "returned a str, expected an array of logits"),
            (lambda x: np.zeros(len(x)), r"returns shape \[1\] for one image"),
            (
                lambda x: np.zeros((1, 4)) if len(x) < 3 else np.zeros((2, 4)),
                r"shape \[2, 4\] for 12 mutants",
            ),
        ],
    )
    def test_outputs_that_are_not_logits_are_refused(self, function, words):
        with pytest.raises(CostcertError, match=words):
            load_model(function, image_size=32).logits(IMAGES, REGIONS)

    def test_logits_must_not_depend_on_other_images(self):
        def relative(images):
            return brightness(images) - brightness(images).mean(axis=0)

        with pytest.raises(CostcertError, match="must not use batch statistics"):
            load_model(relative, image_size=32)

    def test_images_of_another_shape_are_refused(self):
        model = load_model(brightness, image_size=32)
        for wrong in (IMAGES[:, :31], IMAGES[..., :1], IMAGES.astype(np.float32), IMAGES[0]):
            with pytest.raises(CostcertError, match=r"uint8 pixels of shape \[images, 32, 32, 3\], got"):
                model.logits(wrong, REGIONS)

    def test_no_images_give_no_logits(self):
        assert load_model(brightness, image_size=32).logits(IMAGES[:0], REGIONS).shape == (0, len(REGIONS), 3)


class TestOnnx:
    @pytest.mark.parametrize(
        "shape", [["n", 3, 32, 32], [1, 3, 32, 32], [5, 3, 32, 32], ["n", 32, 32, 3]], ids=str
    )
    def test_computes_what_the_file_describes(self, tmp_path, shape):
        weights = onnx_file(tmp_path / "m.onnx", shape)
        model = load_model(f"onnx:{tmp_path / 'm.onnx'}", mean=0.5, std=0.5)
        logits = model.logits(IMAGES, REGIONS)
        for place, region in enumerate(REGIONS):
            masked = np.where(region.columns.pixels(32)[None, None, :, None], IMAGES / 127.5 - 1, 0)
            np.testing.assert_allclose(logits[:, place], masked.mean(axis=(1, 2)) @ weights, atol=1e-5)
        assert model.metadata()["digest"].startswith("sha256:")

    def test_of_raw_pixels_hides_them_as_black(self, tmp_path):
        weights = onnx_file(tmp_path / "m.onnx", ["n", "h", "w", 3], TensorProto.UINT8)
        model = load_model(f"onnx:{tmp_path / 'm.onnx'}", image_size=32)
        masked = IMAGES * REGIONS[1].columns.pixels(32)[None, None, :, None]
        np.testing.assert_allclose(
            model.logits(IMAGES, REGIONS)[:, 1], masked.mean(axis=(1, 2)) @ weights, rtol=1e-4
        )
        assert model.metadata()["hide"] == "black"

    def test_names_missing_options(self, tmp_path):
        onnx_file(tmp_path / "m.onnx", ["n", 3, "h", "w"])
        with pytest.raises(CostcertError, match="pass image_size"):
            load_model(f"onnx:{tmp_path / 'm.onnx'}", mean=0, std=1)
        with pytest.raises(CostcertError, match="pass mean and std"):
            load_model(f"onnx:{tmp_path / 'm.onnx'}", image_size=32)
        for hide in ("crop", "drop-tokens"):
            with pytest.raises(CostcertError, match=hide):
                load_model(f"onnx:{tmp_path / 'm.onnx'}", image_size=32, mean=0, std=1, hide=hide)

    @pytest.mark.parametrize("autocast", [False, True])
    def test_computes_in_the_precision_of_the_file(self, tmp_path, autocast):
        onnx_file(tmp_path / "m.onnx", ["n", 3, 32, 32])
        onnx_file(tmp_path / "half.onnx", ["n", 3, 32, 32], TensorProto.FLOAT16)
        for name, precision in (("m.onnx", "float32"), ("half.onnx", "float16")):
            model = load_model(f"onnx:{tmp_path / name}", mean=0.5, std=0.5, autocast=autocast)
            assert (model.precision, model.metadata()["precision"]) == (precision, precision)

    def test_damaged_files_are_refused(self, tmp_path):
        (tmp_path / "m.onnx").write_bytes(b"nonsense")
        with pytest.raises(CostcertError, match="cannot be read as ONNX"):
            load_model(f"onnx:{tmp_path / 'm.onnx'}")

    def test_a_size_that_the_file_cannot_take_is_refused(self, tmp_path):
        onnx_file(tmp_path / "m.onnx", ["n", 3, 32, 32])
        with pytest.raises(CostcertError, match=r"fails on \[1, 3, 16, 16\]"):
            load_model(f"onnx:{tmp_path / 'm.onnx'}", image_size=16, mean=0, std=1)


class LimitedMemory(nn.Module):
    """Runs out of memory on more than `most` images."""

    def __init__(self, most):
        super().__init__()
        self.most = most
        self.sizes = []

    def forward(self, pixels):
        self.sizes.append(len(pixels))
        if len(pixels) > self.most:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")
        return pixels.mean(dim=(2, 3))


class TestRunning:
    def model(self, network, **more):
        settings = Preprocessing((32, 32))
        return TorchClassifier(
            Mutants(network, Painted("zero", settings)), settings, name="m", num_classes=3, **more
        )

    def test_batches_shrink_until_they_fit(self):
        large, small = self.model(LimitedMemory(999)), self.model(LimitedMemory(3))
        for model in (large, small):
            model.mutants.network.sizes.clear()
        assert np.array_equal(small.logits(IMAGES, REGIONS), large.logits(IMAGES, REGIONS))
        sizes = small.mutants.network.sizes
        assert sizes[0] == 14
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] <= 3

    def test_a_model_that_never_fits_is_an_error(self):
        with pytest.raises(CostcertError, match="not even one mutant fits into the memory of cpu"):
            self.model(LimitedMemory(0)).logits(IMAGES, REGIONS)

    def test_other_errors_are_raised_as_they_are(self):
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            self.model(nn.Linear(5, 3)).logits(IMAGES, REGIONS)

    def test_an_unavailable_device_is_refused(self):
        with pytest.raises(CostcertError, match="the device 'cuda:77' is not available"):
            resolve_device("cuda:77")
        for device in ("gpu", "meta-physics"):
            with pytest.raises(
                CostcertError, match=f"unknown device '{device}': use cpu, cuda, mps, or auto"
            ):
                resolve_device(device)
        assert resolve_device("auto").type in ("cpu", "cuda", "mps")

    def test_class_names_must_match_the_classes(self):
        with pytest.raises(CostcertError, match="2 class names for 3 classes"):
            self.model(LimitedMemory(9), class_names=["a", "b"])

    def test_autocast_is_recorded(self):
        assert self.model(LimitedMemory(9), autocast=True).metadata()["precision"] == "bfloat16"

    def test_repeated_runs_agree_bit_for_bit(self, trained):
        model = load_model(trained, image_size=32, hide="drop-tokens")
        assert np.array_equal(model.logits(IMAGES, REGIONS), model.logits(IMAGES, REGIONS))


def test_unknown_spellings_are_spelling_errors():
    with pytest.raises(SpellingError):
        build("resnet18")


def test_a_torchvision_that_cannot_be_repaired_is_one_sentence(monkeypatch):
    def fails(name):
        raise RuntimeError("Couldn't load custom C++ ops.\nRecompile it.")

    monkeypatch.setattr(torchvision_repair, "import_module", fails)
    says = r"torchvision .+ cannot be imported beside torch .+ \(Couldn't load custom C\+\+ ops\): install"
    with pytest.raises(CostcertError, match=says):
        torchvision_repair.import_torchvision()
