"""Models whose logits depend on the rest of the batch are refused, and no others."""

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
from costcert.models.batch_dependence import ROUNDING, probe_images, refuse_batch_dependence
from costcert.models.checkpoints import digest
from costcert.models.loading import load_model
from costcert.models.torchvision_repair import import_timm
from tiny import Tiny, pictures

timm = import_timm()
torch.set_num_threads(1)

IMAGES = np.random.default_rng(3).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
REGIONS = cc.Columns(6, stride=5).regions((32, 32))
DEPENDS = "depend on the others in its batch"
TINY_REGIONS = cc.Columns(3).regions(Tiny.image_size)


def brightness(images):
    return images.reshape(len(images), -1, 3).mean(axis=1, dtype=np.float64) / 255


def contrast(images):
    return images.reshape(len(images), -1, 3).std(axis=1, dtype=np.float64) / 255


def without_batch_mean(images):
    return brightness(images) - brightness(images).mean(axis=0)


def hardly_without_batch_mean(images):
    return brightness(images) - 5e-3 * brightness(images).mean(axis=0)


def by_batch_maximum(images):
    return brightness(images / max(images.max(), 1))


def by_batch_contrast(images):
    return contrast(images) / (contrast(images).std(axis=0) + 1e-3)


def sorted_by_batch(images):
    return np.sort(brightness(images), axis=0)


def softmax_over_batch(images):
    return np.exp(brightness(images)) / np.exp(brightness(images)).sum(axis=0)


def counting_batch(images):
    return brightness(images) + len(images)


def mixed_with_neighbour(images):
    return brightness(images) + 0.01 * np.roll(brightness(images), 1, axis=0)


def nan_in_larger_batches(images):
    return brightness(images) if len(images) == 1 else np.full((len(images), 3), np.nan)


def without_batch_mean_if_bright(images):
    """Depends on its batch only if one of the images is bright."""
    bright = (images.mean(axis=(1, 2, 3)) > 200).any()
    return brightness(images) - bright * brightness(images).mean(axis=0)


@pytest.mark.parametrize(
    "batch_size",
    [None, 1, pytest.param(2, marks=pytest.mark.slow)],
    ids=lambda size: f"batch size {size}",
)
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
        mixed_with_neighbour,
        nan_in_larger_batches,
    ],
)
def test_functions_that_depend_on_their_batch_are_refused(function, normalised, batch_size):
    """With any batch size, because another run may set another."""
    with pytest.raises(CostcertError, match=DEPENDS):
        load_model(function, image_size=32, batch_size=batch_size, **normalised)


@pytest.mark.parametrize("function", [brightness, contrast, lambda x: np.zeros((len(x), 3))])
@pytest.mark.parametrize("normalised", [{}, {"mean": 0.5, "std": 0.25}], ids=["raw", "normalised"])
def test_independent_functions_pass(function, normalised):
    refuse_batch_dependence(load_model(function, image_size=32, **normalised), IMAGES, REGIONS)


def test_dependence_that_only_real_images_trigger_is_refused_there():
    model = load_model(without_batch_mean_if_bright, image_size=32)
    refuse_batch_dependence(model, IMAGES, REGIONS)
    everything = cc.Columns(32, stride=32).regions((32, 32))
    with pytest.raises(CostcertError, match=DEPENDS):
        refuse_batch_dependence(model, 200 + IMAGES // 5, everything)


def test_random_models_are_refused_as_such():
    rng = np.random.default_rng(0)
    with pytest.raises(CostcertError, match=r"not deterministic: two evaluations .* disable what is random"):
        load_model(lambda x: brightness(x) + rng.normal(size=(len(x), 3)), image_size=32)


def test_mutants_are_evaluated_one_by_one_and_in_one_batch():
    sizes = []
    model = load_model(lambda x: [sizes.append(len(x)), brightness(x)][1], image_size=32, batch_size=1)
    sizes.clear()
    refuse_batch_dependence(model, IMAGES, REGIONS)
    alone, mixed, batched = len(IMAGES) * len(REGIONS), (len(IMAGES) + 2) * len(REGIONS), 2 * len(REGIONS)
    assert sizes == [1] * alone + [mixed, batched]
    assert model.batch_size == 1


def test_batches_that_do_not_fit_into_memory_are_compared_at_the_largest_size_that_fits():
    class LimitedMemory:
        def __init__(self, function):
            self.function, self.sizes = function, []

        def __call__(self, images):
            self.sizes.append(len(images))
            if len(images) > 3:
                raise MemoryError
            return self.function(images)

    independent = LimitedMemory(brightness)
    model = load_model(independent, image_size=32)
    assert model.batch_size is None, "the test must not change the batch size of a run"
    assert 3 in independent.sizes
    with pytest.raises(CostcertError, match=DEPENDS):
        load_model(LimitedMemory(without_batch_mean), image_size=32)


@pytest.mark.parametrize("precision", ROUNDING)
def test_rounding_depends_on_the_precision(precision):
    """For any classifier, not only those of `load_model`."""
    images = np.stack([Tiny().prepare(pictures().image(n)) for n in range(2)])
    largest = np.abs(Tiny().logits(images, TINY_REGIONS)).max()
    others = (len(images) + 2) * len(TINY_REGIONS) - 1

    def drifting(share):
        return Tiny(drift=share * largest / others, precision=precision)

    refuse_batch_dependence(drifting(0.9 * ROUNDING[precision]), images, TINY_REGIONS)
    with pytest.raises(CostcertError, match=f"the logits of tiny .* {DEPENDS}"):
        refuse_batch_dependence(drifting(1.2 * ROUNDING[precision] + 1e-5), images, TINY_REGIONS)


def test_without_mutants_nothing_is_evaluated():
    model = Tiny(drift=1)
    refuse_batch_dependence(model, np.zeros((0, 6, 8, 1), np.uint8), TINY_REGIONS)
    refuse_batch_dependence(model, np.zeros((2, 6, 8, 1), np.uint8), [])
    assert model.evaluated == []


def test_probe_images_are_always_the_same_and_differ_from_each_other():
    images = probe_images(3, (40, 30, 3))
    assert np.array_equal(images, probe_images(3, (40, 30, 3)))
    means, spreads, maxima = (getattr(images, name)(axis=(1, 2)) for name in ("mean", "std", "max"))
    for statistics in (means, spreads, maxima):
        assert len(np.unique(statistics.round(2), axis=0)) == 3
    assert spreads.min() > 0


class StuckNorm(nn.BatchNorm2d):
    """Stays in training mode, as in networks that override `train`."""

    def train(self, mode=True):
        return super().train(True)


class BatchNorm(nn.Module):
    """In evaluation mode, but uses batch statistics."""

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
def test_batch_statistics_are_found_behind_statistics_of_single_images(norm):
    with pytest.raises(CostcertError, match=DEPENDS):
        load_model(behind(norm, BatchNorm()), image_size=32, mean=0.5, std=0.5)


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_layer_that_stays_in_training_mode_is_named(norm):
    with pytest.raises(CostcertError, match=r"training mode after eval\(\): its layer '1' \(a StuckNorm\)"):
        load_model(behind(norm, StuckNorm(3)), image_size=32, mean=0.5, std=0.5)


def test_a_network_that_stays_in_training_mode_itself_is_refused():
    class StuckNetwork(nn.Sequential):
        def train(self, mode=True):
            return super().train(True)

    with pytest.raises(CostcertError, match=r"after eval\(\): it \(a StuckNetwork\) may"):
        load_model(StuckNetwork(nn.Flatten(), nn.LazyLinear(3)), image_size=32, mean=0.5, std=0.5)


def test_a_layer_replaced_later_is_refused_too():
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
        pytest.param("vit_tiny_patch16_224", "zero", marks=pytest.mark.slow),
        pytest.param("resnet50", "black", marks=pytest.mark.slow),
        pytest.param("resnet18", "crop", marks=pytest.mark.slow),
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


def statically_quantised(seed):
    network = Quantisable(seed).eval()
    network.qconfig = torch.ao.quantization.get_default_qconfig("x86")
    prepared = torch.ao.quantization.prepare(network)
    prepared(torch.randn(8, 3, 32, 32))
    return torch.ao.quantization.convert(prepared)


# torch.ao.quantization is deprecated in favour of another package of torch.
@pytest.mark.filterwarnings("ignore")
class TestQuantisedTorch:
    @pytest.mark.parametrize("seed", range(3))
    def test_dynamically_is_refused(self, seed):
        network = torch.ao.quantization.quantize_dynamic(Quantisable(seed).eval(), {nn.Linear})
        with pytest.raises(CostcertError, match=f"the logits of torch:Quantisable .* {DEPENDS}"):
            load_model(network, image_size=32, mean=0.5, std=0.5)

    def test_statically_votes(self):
        model = load_model(statically_quantised(0), image_size=32, mean=0.5, std=0.5)
        refuse_batch_dependence(model, IMAGES, REGIONS)
        votes = cc.vote(model, ArrayDataset("two", IMAGES, np.array([0, 3])), "columns:6/stride=5")
        assert votes.provenance["model"]["digest"] == model.metadata()["digest"]

    def test_has_a_digest_of_all_its_weights(self):
        network, weights = statically_quantised(0), statically_quantised(0).state_dict()
        found = {digest(network), digest(statically_quantised(1))}
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

    def test_state_without_a_digest_is_an_error(self):
        with pytest.raises(CostcertError, match="the weights hold a set under 'odd'"):
            digest(Stateful({"odd": {1, 2}}))


class Stateful(nn.Module):
    """A network with this state_dict."""

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
        helper.make_node("Conv", ["images", "first"], ["a"]),
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
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch, 3, 32, 32])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, 4])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return path


class Noise(quantization.CalibrationDataReader):
    def __init__(self):
        rng = np.random.default_rng(1)
        self.left = [{"images": rng.normal(size=(1, 3, 32, 32)).astype(np.float32)} for _ in range(4)]

    def get_next(self):
        return self.left.pop() if self.left else None


@pytest.mark.parametrize("batch", ["n", 5], ids=lambda batch: f"batch {batch}")
@pytest.mark.parametrize("kinds", [None, ["MatMul"], ["Conv"]], ids=str)
def test_dynamically_quantised_onnx_is_refused(tmp_path, batch, kinds):
    plain = onnx_network(tmp_path / "plain.onnx", batch)
    quantization.quantize_dynamic(plain, tmp_path / "m.onnx", op_types_to_quantize=kinds)
    with pytest.raises(CostcertError, match=f"{DEPENDS} .* dynamic quantisation"):
        load_model(f"onnx:{tmp_path / 'm.onnx'}", mean=0.5, std=0.5)


@pytest.mark.parametrize("batch", ["n", 1, 5], ids=lambda batch: f"batch {batch}")
def test_float_onnx_passes(tmp_path, batch):
    model = load_model(f"onnx:{onnx_network(tmp_path / 'm.onnx', batch)}", mean=0.5, std=0.5)
    refuse_batch_dependence(model, IMAGES, REGIONS)


@pytest.mark.parametrize("form", quantization.QuantFormat)
def test_statically_quantised_onnx_passes(tmp_path, form):
    plain = onnx_network(tmp_path / "plain.onnx")
    quantization.quantize_static(plain, tmp_path / "m.onnx", Noise(), quant_format=form)
    refuse_batch_dependence(load_model(f"onnx:{tmp_path / 'm.onnx'}", mean=0.5, std=0.5), IMAGES, REGIONS)


def test_dynamically_quantised_onnx_of_batch_size_one_passes(tmp_path):
    """A file that takes one image at a time cannot depend on a batch."""
    plain = onnx_network(tmp_path / "plain.onnx", batch=1)
    quantization.quantize_dynamic(plain, tmp_path / "m.onnx")
    refuse_batch_dependence(load_model(f"onnx:{tmp_path / 'm.onnx'}", mean=0.5, std=0.5), IMAGES, REGIONS)
