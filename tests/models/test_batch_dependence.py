"""A model that says something else about a mutant when others are beside it is refused, and no other is."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization
from torch import nn
from torch.nn import functional

import costcert as cc
from costcert.datasets.arrays import ArrayDataset
from costcert.errors import CostcertError
from costcert.models.batch_dependence import ROUNDING, refuse_batch_dependence, unlike_pictures
from costcert.models.checkpoints import digest
from costcert.models.loading import load_model
from costcert.models.torchvision_repair import import_timm
from tiny import Tiny, pictures

timm = import_timm()
torch.set_num_threads(1)

IMAGES = np.random.default_rng(3).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
REGIONS = cc.Columns(6, stride=5).regions((32, 32))
DEPENDS = "when others are beside it"
TINY_REGIONS = cc.Columns(3).regions(Tiny.image_size)


def brightness(pictures):
    return pictures.reshape(len(pictures), -1, 3).mean(axis=1, dtype=np.float64) / 255


def contrast(pictures):
    return pictures.reshape(len(pictures), -1, 3).std(axis=1, dtype=np.float64) / 255


def without_batch_mean(pictures):
    return brightness(pictures) - brightness(pictures).mean(axis=0)


def hardly_without_batch_mean(pictures):
    return brightness(pictures) - 5e-3 * brightness(pictures).mean(axis=0)


def by_batch_maximum(pictures):
    return brightness(pictures / max(pictures.max(), 1))


def by_batch_contrast(pictures):
    return contrast(pictures) / (contrast(pictures).std(axis=0) + 1e-3)


def sorted_by_batch(pictures):
    return np.sort(brightness(pictures), axis=0)


def softmax_over_batch(pictures):
    return np.exp(brightness(pictures)) / np.exp(brightness(pictures)).sum(axis=0)


def counting_batch(pictures):
    return brightness(pictures) + len(pictures)


def seeing_its_neighbour(pictures):
    return brightness(pictures) + 0.01 * np.roll(brightness(pictures), 1, axis=0)


def broken_by_others(pictures):
    return brightness(pictures) if len(pictures) == 1 else np.full((len(pictures), 3), np.nan)


def without_bright_ones(pictures):
    """Depends on its batch only where one of the pictures is bright."""
    bright = (pictures.mean(axis=(1, 2, 3)) > 200).any()
    return brightness(pictures) - bright * brightness(pictures).mean(axis=0)


@pytest.mark.parametrize("batch_size", [None, 1, 2], ids=lambda size: f"batch size {size}")
@pytest.mark.parametrize("normalised", [{}, {"mean": 0.5, "std": 0.25}], ids=["raw", "normalised"])
@pytest.mark.parametrize(
    "function",
    [
        without_batch_mean,
        hardly_without_batch_mean,
        by_batch_maximum,
        by_batch_contrast,
        sorted_by_batch,
        softmax_over_batch,
        counting_batch,
        seeing_its_neighbour,
        broken_by_others,
    ],
)
def test_functions_that_depend_on_their_batch_are_refused(function, normalised, batch_size):
    """Whatever batch size is set: another run may set another."""
    with pytest.raises(CostcertError, match=DEPENDS):
        load_model(function, image_size=32, batch_size=batch_size, **normalised)


@pytest.mark.parametrize("function", [brightness, contrast, lambda x: np.zeros((len(x), 3))])
@pytest.mark.parametrize("normalised", [{}, {"mean": 0.5, "std": 0.25}], ids=["raw", "normalised"])
def test_honest_functions_pass(function, normalised):
    refuse_batch_dependence(load_model(function, image_size=32, **normalised), IMAGES, REGIONS)


def test_dependence_that_only_real_images_show_is_refused_there():
    model = load_model(without_bright_ones, image_size=32)
    refuse_batch_dependence(model, IMAGES, REGIONS)
    everything = cc.Columns(32, stride=32).regions((32, 32))
    with pytest.raises(CostcertError, match=DEPENDS):
        refuse_batch_dependence(model, 200 + IMAGES // 5, everything)


def test_what_is_random_is_refused_as_such():
    rng = np.random.default_rng(0)
    with pytest.raises(CostcertError, match=r"each time it is asked .* switch off what is random"):
        load_model(lambda x: brightness(x) + rng.normal(size=(len(x), 3)), image_size=32)


def test_alone_is_a_batch_of_one_and_together_a_batch_of_all():
    sizes = []
    model = load_model(lambda x: [sizes.append(len(x)), brightness(x)][1], image_size=32, batch_size=1)
    sizes.clear()
    refuse_batch_dependence(model, IMAGES, REGIONS)
    alone, beside, together = len(IMAGES) * len(REGIONS), (len(IMAGES) + 2) * len(REGIONS), 2 * len(REGIONS)
    assert sizes == [1] * alone + [beside, together]
    assert model.batch_size == 1


def test_batches_that_do_not_fit_into_memory_are_compared_as_large_as_they_fit():
    class Narrow:
        def __init__(self, function):
            self.function, self.sizes = function, []

        def __call__(self, pictures):
            self.sizes.append(len(pictures))
            if len(pictures) > 3:
                raise MemoryError
            return self.function(pictures)

    honest = Narrow(brightness)
    model = load_model(honest, image_size=32)
    assert model.batch_size is None, "the size of a trial is not that of a run"
    assert 3 in honest.sizes
    with pytest.raises(CostcertError, match=DEPENDS):
        load_model(Narrow(without_batch_mean), image_size=32)


@pytest.mark.parametrize("precision", ROUNDING)
def test_rounding_depends_on_the_precision(precision):
    """Any classifier can be asked, not only those that are loaded here."""
    images = np.stack([Tiny().prepare(pictures().image(n)) for n in range(2)])
    largest = np.abs(Tiny().logits(images, TINY_REGIONS)).max()
    further = (len(images) + 2) * len(TINY_REGIONS) - 1

    def moving(share):
        return Tiny(drift=share * largest / further, precision=precision)

    refuse_batch_dependence(moving(0.9 * ROUNDING[precision]), images, TINY_REGIONS)
    with pytest.raises(CostcertError, match=f"tiny says .* {DEPENDS}"):
        refuse_batch_dependence(moving(1.2 * ROUNDING[precision]), images, TINY_REGIONS)


def test_nothing_asked_is_nothing_refused():
    model = Tiny(drift=1)
    refuse_batch_dependence(model, np.zeros((0, 6, 8, 1), np.uint8), TINY_REGIONS)
    refuse_batch_dependence(model, np.zeros((2, 6, 8, 1), np.uint8), [])
    assert model.asked == []


def test_the_try_out_is_the_same_every_time_and_its_pictures_are_unlike():
    once = unlike_pictures(3, (40, 30, 3))
    assert np.array_equal(once, unlike_pictures(3, (40, 30, 3)))
    means, spreads, maxima = (getattr(once, name)(axis=(1, 2)) for name in ("mean", "std", "max"))
    for statistics in (means, spreads, maxima):
        assert len(np.unique(statistics.round(2), axis=0)) == 3
    assert spreads.min() > 0


class StuckNorm(nn.BatchNorm2d):
    """Stays in training mode, as some networks freeze what they want to keep."""

    def train(self, mode=True):
        return super().train(True)


class BatchNorm(nn.Module):
    """Says that it evaluates, and looks at the batch."""

    def forward(self, features):
        return functional.batch_norm(features, None, None, training=True)


def behind(norm, batch_norm):
    torch.manual_seed(0)
    return nn.Sequential(
        norm,
        batch_norm,
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 3),
    )


NORMS = [nn.InstanceNorm2d(3), nn.GroupNorm(1, 3), nn.GroupNorm(3, 3), nn.Identity()]


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_statistics_of_the_batch_are_found_behind_those_of_a_picture(norm):
    with pytest.raises(CostcertError, match=DEPENDS):
        load_model(behind(norm, BatchNorm()), image_size=32, mean=0.5, std=0.5)


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_layer_that_stays_in_training_mode_is_named(norm):
    with pytest.raises(CostcertError, match=r"training mode after eval\(\): its layer '1' \(a StuckNorm\)"):
        load_model(behind(norm, StuckNorm(3)), image_size=32, mean=0.5, std=0.5)


def test_a_network_that_stays_in_training_mode_itself_is_refused():
    class Stubborn(nn.Sequential):
        def train(self, mode=True):
            return super().train(True)

    with pytest.raises(CostcertError, match=r"after eval\(\): it \(a Stubborn\) may"):
        load_model(Stubborn(nn.Flatten(), nn.LazyLinear(3)), image_size=32, mean=0.5, std=0.5)


def test_a_layer_put_in_later_is_refused_too():
    network = behind(nn.Identity(), nn.BatchNorm2d(3))
    model = load_model(network, image_size=32, mean=0.5, std=0.5)
    model.logits(IMAGES, REGIONS)
    network[1] = StuckNorm(3)
    with pytest.raises(CostcertError, match="its layer '1'"):
        model.logits(IMAGES, REGIONS)


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_running_statistics_pass(norm):
    model = load_model(behind(norm, nn.BatchNorm2d(3)), image_size=32, mean=0.5, std=0.5)
    refuse_batch_dependence(model, IMAGES, REGIONS)


@pytest.mark.parametrize("name", ["fashion", "gtsrb"])
def test_shipped_models_pass(name):
    model = load_model(f"shipped:{name}")
    shape = (3, *model.image_size, model.channels)
    images = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    refuse_batch_dependence(model, images, model.ablation.regions(model.image_size)[::7])


@pytest.mark.parametrize(
    ("name", "hide"),
    [
        ("vit_tiny_patch16_224", "drop-tokens"),
        ("vit_tiny_patch16_224", "zero"),
        pytest.param("resnet50", "black", marks=pytest.mark.slow),
        ("resnet18", "crop"),
        pytest.param("efficientnet_b0", "mean", marks=pytest.mark.slow),
    ],
)
def test_deep_networks_of_timm_pass(name, hide):
    torch.manual_seed(0)
    options = {"img_size": 32} if name.startswith("vit") else {"in_chans": 4 if hide == "crop" else 3}
    network = timm.create_model(name, num_classes=6, **options)
    model = load_model(network, image_size=32, mean=0.5, std=0.5, hide=hide, ablation="columns:6")
    refuse_batch_dependence(model, IMAGES, REGIONS)


class Quantisable(nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.quantise, self.restore = torch.ao.quantization.QuantStub(), torch.ao.quantization.DeQuantStub()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 5, stride=3), nn.ReLU(), nn.Flatten())
        self.last = nn.LazyLinear(4)
        self(torch.randn(1, 3, 32, 32))

    def forward(self, pixels):
        return self.restore(self.last(self.features(self.quantise(pixels))))


def quantised_beforehand(seed):
    network = Quantisable(seed).eval()
    network.qconfig = torch.ao.quantization.get_default_qconfig("x86")
    prepared = torch.ao.quantization.prepare(network)
    prepared(torch.randn(8, 3, 32, 32))
    return torch.ao.quantization.convert(prepared)


# torch announces that a package of its own will take over.
@pytest.mark.filterwarnings("ignore")
class TestQuantisedTorch:
    @pytest.mark.parametrize("seed", range(3))
    def test_by_the_range_of_the_batch_is_refused(self, seed):
        network = torch.ao.quantization.quantize_dynamic(Quantisable(seed).eval(), {nn.Linear})
        with pytest.raises(CostcertError, match=f"torch:Quantisable says .* {DEPENDS}"):
            load_model(network, image_size=32, mean=0.5, std=0.5)

    def test_by_ranges_fixed_beforehand_votes(self):
        model = load_model(quantised_beforehand(0), image_size=32, mean=0.5, std=0.5)
        refuse_batch_dependence(model, IMAGES, REGIONS)
        votes = cc.vote(model, ArrayDataset("two", IMAGES, np.array([0, 3])), "columns:6/stride=5")
        assert votes.provenance["model"]["digest"] == model.metadata()["digest"]

    def test_has_a_digest_that_all_its_weights_decide(self):
        network, weights = quantised_beforehand(0), quantised_beforehand(0).state_dict()
        found = {digest(network), digest(quantised_beforehand(1))}
        packed, bias = weights["last._packed_params._packed_params"]
        numbers, zeros = packed.int_repr(), packed.q_per_channel_zero_points()
        scales, convolution = packed.q_per_channel_scales(), weights["features.0.weight"]
        rescaled = torch._make_per_channel_quantized_tensor(numbers, 2 * scales, zeros, 0)
        shifted = torch._make_per_channel_quantized_tensor(numbers, scales, zeros + 1, 0)
        single = torch._make_per_tensor_quantized_tensor(convolution.int_repr(), 0.5, 0)
        for name, value in (
            ("last._packed_params._packed_params", (packed, bias + 1)),
            ("last._packed_params._packed_params", (rescaled, bias)),
            ("last._packed_params._packed_params", (shifted, bias)),
            ("last._packed_params.dtype", torch.float16),
            ("features.0.weight", single),
        ):
            found.add(digest(Stateful(weights | {name: value})))
        assert len(found) == 7
        assert digest(Stateful(weights)) == digest(network)

    def test_state_that_has_no_digest_is_a_sentence(self):
        with pytest.raises(CostcertError, match="the weights hold a set under 'odd'"):
            digest(Stateful({"odd": {1, 2}}))


class Stateful(nn.Module):
    """A network of this state."""

    def __init__(self, state):
        super().__init__()
        self.state = state

    def state_dict(self):
        return self.state


def onnx_network(path, batch="n"):
    """Two convolutions and a linear layer."""
    rng = np.random.default_rng(0)
    shapes = {"first": (8, 3, 3, 3), "second": (8, 8, 3, 3), "last": (8, 4)}
    weights = [
        numpy_helper.from_array(rng.normal(0, 0.3, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["pictures", "first"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "second"], ["c"]),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("MatMul", ["f", "last"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("pictures", TensorProto.FLOAT, [batch, 3, 32, 32])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, 4])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


class Noise(quantization.CalibrationDataReader):
    def __init__(self):
        rng = np.random.default_rng(1)
        self.left = [{"pictures": rng.normal(size=(1, 3, 32, 32)).astype(np.float32)} for _ in range(4)]

    def get_next(self):
        return self.left.pop() if self.left else None


@pytest.mark.parametrize("batch", ["n", 5], ids=lambda batch: f"batch {batch}")
@pytest.mark.parametrize("kinds", [None, ["MatMul"], ["Conv"]], ids=str)
def test_onnx_quantised_by_the_range_of_the_batch_is_refused(tmp_path, batch, kinds):
    plain = onnx_network(tmp_path / "plain.onnx", batch)
    quantization.quantize_dynamic(plain, tmp_path / "m.onnx", op_types_to_quantize=kinds)
    with pytest.raises(CostcertError, match=f"{DEPENDS} .* dynamic quantisation"):
        load_model(f"onnx:{tmp_path / 'm.onnx'}", mean=0.5, std=0.5)


@pytest.mark.parametrize("batch", ["n", 1, 5], ids=lambda batch: f"batch {batch}")
def test_onnx_in_float_passes(tmp_path, batch):
    model = load_model(f"onnx:{onnx_network(tmp_path / 'm.onnx', batch)}", mean=0.5, std=0.5)
    refuse_batch_dependence(model, IMAGES, REGIONS)


@pytest.mark.parametrize("form", quantization.QuantFormat)
def test_onnx_quantised_by_ranges_fixed_beforehand_passes(tmp_path, form):
    plain = onnx_network(tmp_path / "plain.onnx")
    quantization.quantize_static(plain, tmp_path / "m.onnx", Noise(), quant_format=form)
    refuse_batch_dependence(load_model(f"onnx:{tmp_path / 'm.onnx'}", mean=0.5, std=0.5), IMAGES, REGIONS)


def test_onnx_quantised_by_its_own_range_passes(tmp_path):
    """A file that takes one picture at a time has no batch to look at."""
    plain = onnx_network(tmp_path / "plain.onnx", batch=1)
    quantization.quantize_dynamic(plain, tmp_path / "m.onnx")
    refuse_batch_dependence(load_model(f"onnx:{tmp_path / 'm.onnx'}", mean=0.5, std=0.5), IMAGES, REGIONS)
