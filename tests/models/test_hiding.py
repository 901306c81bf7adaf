"""Logits of a mutant depend on its kept pixels and their position, and on nothing else, bit for bit."""

import numpy as np
import pytest
import torch
from torch import nn

import costcert as cc
from costcert.errors import CostcertError
from costcert.geometry.ablations import Region, Segment
from costcert.models.callables import CallableNetwork
from costcert.models.crops import Crops
from costcert.models.hiding import Painted
from costcert.models.mutants import Mutants
from costcert.models.preprocessing import Preprocessing
from costcert.models.strips import StripNet
from costcert.models.tokens import DropTokens
from costcert.models.torch_classifier import TorchClassifier
from costcert.models.torchvision_repair import import_timm
from costcert.models.views import indices, kept

timm = import_timm()
# The networks here are too small for threads to be faster.
torch.set_num_threads(1)

SIZE = HEIGHT, WIDTH = 24, 32
CLASSES = 5
EVERYTHING = Region(Segment(0, HEIGHT), Segment(0, WIDTH))
RGB = Preprocessing(SIZE, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
RAW = Preprocessing(SIZE, mean=None, std=None)
IMAGES = np.random.default_rng(5).integers(0, 256, (3, HEIGHT, WIDTH, 3), dtype=np.uint8)
ABLATIONS = [
    cc.Columns(5),
    pytest.param(cc.Rows(3, stride=2), marks=pytest.mark.slow),
    pytest.param(cc.Blocks(7, stride=3), marks=pytest.mark.slow),
    cc.Pooled(cc.Columns(4), cc.Rows(4)),
]


def vit(**options):
    torch.manual_seed(1)
    shape = {"img_size": SIZE, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 2}
    network = timm.models.VisionTransformer(num_classes=CLASSES, **shape | options)
    # Weights large enough for every token to matter in float32.
    for weight in network.parameters():
        nn.init.normal_(weight, std=0.3)
    return network.eval()


VITS = {
    "class token": {},
    "register tokens": {"reg_tokens": 3, "no_embed_class": True},
    "mean of tokens": {"class_token": False, "global_pool": "avg"},
    "attention pooling": {"class_token": False, "global_pool": "map"},
    "norm before": {"pre_norm": True},
    "no positions": {"pos_embed": "none"},
    "any size": {"dynamic_img_size": True},
    "border left out": {"patch_size": 7},
    "border padded": {"patch_size": 7, "dynamic_img_size": True, "dynamic_img_pad": True},
    "patches not square": {"patch_size": (6, 4)},
}


def convolutional(channels=3):
    """A network with a large receptive field, so that a leak of hidden pixels is detected anywhere."""
    torch.manual_seed(2)
    network = nn.Sequential(
        nn.Conv2d(channels, 8, 5, padding=2),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 8, 9, padding=4, stride=2),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )
    network[1].running_mean.normal_()
    return network.eval()


def strip_net(ablation, size="small"):
    torch.manual_seed(3)
    crops = Crops(ablation, SIZE)
    return Mutants(StripNet(3, *max(crops.shapes), CLASSES, size, coordinates=crops.coordinates), crops)


def small_resnet(ablation):
    crops = Crops(ablation, SIZE)
    torch.manual_seed(4)
    options = {"layers": [1, 1, 1, 1], "channels": (8, 8, 16, 16), "in_chans": 3 + crops.coordinates}
    options["zero_init_last"] = False
    return Mutants(timm.models.ResNet(timm.models.resnet.BasicBlock, num_classes=CLASSES, **options), crops)


def nonlinear(images):
    """A nonlinear function of all pixels."""
    weights = np.random.default_rng(0).normal(size=(HEIGHT * WIDTH * 3, CLASSES))
    return np.tanh(images.reshape(len(images), -1) / 64 - 1) @ weights


WAYS = {
    **{
        hide: lambda _, hide=hide: Mutants(convolutional(), Painted(hide, RGB))
        for hide in ("zero", "black", "mean")
    },
    "zero before a ViT": lambda _: Mutants(vit(), Painted("zero", RGB)),
    "raw black": lambda _: Mutants(CallableNetwork(nonlinear), Painted("black", RAW)),
    "raw mean": lambda _: Mutants(CallableNetwork(nonlinear), Painted("mean", RAW)),
    "strip network": strip_net,
    "tall strip network": lambda ablation: strip_net(ablation, "tall"),
    "crops": small_resnet,
    **{
        f"dropped tokens, {name}": lambda _, options=options: Mutants(
            network := vit(**options), DropTokens(network, SIZE)
        )
        for name, options in VITS.items()
    },
}


def classifier(way, ablation, **more):
    settings = RAW if way.startswith("raw") else RGB
    return TorchClassifier(WAYS[way](ablation), settings, name=way, **more)


def visible(region):
    return np.outer(region.rows.pixels(HEIGHT), region.columns.pixels(WIDTH))


@pytest.mark.parametrize("ablation", ABLATIONS, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_rewriting_a_patch_changes_no_mutant_that_it_does_not_touch(way, ablation):
    model = classifier(way, ablation)
    regions = ablation.regions(SIZE)
    masks = np.array([visible(region) for region in regions])
    before = model.logits(IMAGES, regions)
    rng = np.random.default_rng(9)
    for height, width in ((1, 1), (5, 6), (9, 4)):
        top, left = rng.integers(0, HEIGHT - height + 1), rng.integers(0, WIDTH - width + 1)
        attacked = IMAGES.copy()
        place = np.s_[:, top : top + height, left : left + width]
        attacked[place] = rng.integers(0, 256, attacked[place].shape)
        touched = masks[place].any(axis=(1, 2))
        after = model.logits(attacked, regions)
        assert np.array_equal(after[:, ~touched], before[:, ~touched])
        if height > 1:
            assert (after[:, touched] != before[:, touched]).any(), "this test would detect nothing"


@pytest.mark.parametrize("ablation", ABLATIONS, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_network_inputs_do_not_depend_on_hidden_pixels(way, ablation):
    """With any values of hidden pixels, infinite and NaN too, the input is the same."""
    view = WAYS[way](ablation).view
    pixels = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).float()
    everyone = torch.arange(len(pixels))
    for region in ablation.regions(SIZE)[::5]:
        inputs = view.inputs(pixels, everyone, [region] * len(pixels))
        hidden = ~torch.from_numpy(visible(region))
        for value in (float("nan"), float("inf"), -1e30):
            other = pixels.masked_fill(hidden, value)
            again = view.inputs(other, everyone, [region] * len(pixels))
            for one, two in zip(
                inputs if isinstance(inputs, tuple) else [inputs],
                again if isinstance(again, tuple) else [again],
                strict=True,
            ):
                assert torch.equal(one, two)


@pytest.mark.parametrize("way", [way for way in WAYS if not way.startswith("raw")])
def test_gradients_reach_kept_pixels_and_no_others(way):
    ablation = cc.Columns(5)
    mutants = WAYS[way](ablation).eval()
    pixels = torch.randn(len(IMAGES), 3, *SIZE, requires_grad=True)
    regions = ablation.regions(SIZE)[29:32]
    mutants(pixels, regions).square().sum().backward()
    for gradient, region in zip(pixels.grad, regions, strict=True):
        reached = (gradient != 0).any(dim=0).numpy()
        assert not (reached & ~visible(region)).any()
        assert reached.any()


@pytest.mark.parametrize("options", VITS.values(), ids=VITS)
def test_with_every_token_kept_dropping_tokens_is_the_dense_model(options):
    network = vit(**options)
    mutants = Mutants(network, DropTokens(network, SIZE))
    pixels = torch.randn(4, 3, *SIZE)
    with torch.inference_mode():
        torch.testing.assert_close(mutants(pixels, EVERYTHING), network(pixels), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", VITS.values(), ids=VITS)
def test_dropping_tokens_matches_removing_them_from_the_dense_model(options):
    """The slow twin embeds all tokens, and then removes those that hold no kept pixel."""
    network = vit(**options)
    mutants = Mutants(network, DropTokens(network, SIZE))
    height, width = network.patch_embed.patch_size
    pixels = torch.randn(2, 3, *SIZE)
    for region in cc.Columns(5).regions(SIZE):
        mask = torch.from_numpy(visible(region))
        down, across = network.patch_embed.dynamic_feat_size(SIZE)
        keeps = [
            bool(mask[r * height : (r + 1) * height, c * width : (c + 1) * width].any())
            for r in range(down)
            for c in range(across)
        ]
        if not any(keeps):
            continue
        with torch.inference_mode():
            tokens = network._pos_embed(network.patch_embed(pixels * mask))
            chosen = [True] * network.num_prefix_tokens + keeps
            tokens = network.blocks(network.norm_pre(tokens[:, chosen]))
            slow = network.forward_head(network.norm(tokens))
            torch.testing.assert_close(mutants(pixels, region), slow, rtol=1e-5, atol=1e-5)


def test_a_distilled_vit_drops_tokens_too():
    torch.manual_seed(0)
    network = timm.create_model(
        "deit_tiny_distilled_patch16_224", img_size=32, depth=2, num_classes=CLASSES
    ).eval()
    mutants = Mutants(network, DropTokens(network, (32, 32)))
    pixels = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        everything = Region(Segment(0, 32), Segment(0, 32))
        torch.testing.assert_close(mutants(pixels, everything), network(pixels), rtol=1e-4, atol=1e-5)


def test_only_vits_drop_tokens():
    resnet = timm.create_model("resnet18")
    with pytest.raises(CostcertError, match=r"drop-tokens needs a ViT .*; timm:resnet18 is a ResNet"):
        DropTokens(resnet, (224, 224), "timm:resnet18")
    hybrid = timm.create_model("vit_tiny_r_s16_p8_224")
    with pytest.raises(CostcertError, match=r"depend on their own patch alone; timm:hybrid .* HybridEmbed"):
        DropTokens(hybrid, (224, 224), "timm:hybrid")


@pytest.mark.parametrize(("start", "columns"), [(0, [0, 1, 2, 3]), (7, [7, 8, 9, 10]), (30, [30, 31, 0, 1])])
def test_crops_hold_the_kept_pixels_and_their_coordinates(start, columns):
    view = Crops(cc.Columns(4), SIZE)
    pixels = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).float()
    region = Region(Segment(0, HEIGHT), Segment(start, 4))
    crops = view.inputs(pixels, torch.tensor([2]), [region])
    assert crops.shape == (1, 4, HEIGHT, 4)
    assert torch.equal(crops[0, :3], pixels[2][:, :, columns])
    expected = torch.tensor(columns) * (2 / (WIDTH - 1)) - 1
    assert torch.equal(crops[0, 3], expected.expand(HEIGHT, 4))


def test_crops_of_blocks_have_two_coordinates_and_wrap_both_ways():
    view = Crops(cc.Blocks(3), SIZE)
    pixels = torch.from_numpy(IMAGES).permute(0, 3, 1, 2).float()
    crops = view.inputs(pixels, torch.tensor([0]), [Region(Segment(22, 3), Segment(31, 3))])
    assert torch.equal(crops[0, :3], pixels[0][:, [22, 23, 0]][:, :, [31, 0, 1]])
    assert crops[0, 3, :, 0].tolist() == pytest.approx([22 * 2 / 23 - 1, 1, -1])
    assert crops[0, 4, 0].tolist() == pytest.approx([1, -1, -1 + 2 / 31])


def test_rows_have_the_coordinate_of_rows():
    view = Crops(cc.Rows(2), SIZE)
    crops = view.inputs(
        torch.zeros(1, 3, *SIZE), torch.tensor([0]), [Region(Segment(23, 2), Segment(0, WIDTH))]
    )
    assert view.coordinates == 1
    assert crops[0, 3, :, 0].tolist() == [1, -1]


@pytest.mark.parametrize(("hide", "value"), [("zero", [0, 0, 0]), ("black", [-2, -5 / 3, -2.4])])
def test_painted_pixels_have_their_colour(hide, value):
    painted = Painted(hide, RGB).inputs(
        RGB.normalise(torch.tensor(IMAGES)), torch.tensor([0]), [Region(Segment(0, HEIGHT), Segment(0, 1))]
    )
    assert painted[0, :, 0, 5].tolist() == pytest.approx(value)


def test_mean_is_the_nearest_uint8_colour():
    painted = Painted("mean", RGB).inputs(
        RGB.normalise(torch.tensor(IMAGES)), torch.tensor([0]), [Region(Segment(0, HEIGHT), Segment(0, 1))]
    )
    assert painted[0, :, 0, 5].tolist() == pytest.approx([0, (128 / 255 - 0.5) / 0.3, 0], abs=1e-6)


def test_zero_needs_a_normalisation():
    with pytest.raises(CostcertError, match="zero is a value after normalisation"):
        Painted("zero", RAW)


def test_masks_and_indices_match_the_geometry():
    for length in (1, 3, 7):
        segments = [Segment(start, length) for start in range(7)]
        slow = np.array([segment.pixels(7) for segment in segments])
        assert np.array_equal(kept(segments, 7, torch.device("cpu")).numpy(), slow)
        order = indices(segments, 7, torch.device("cpu")).numpy()
        assert order.tolist() == [[(s + n) % 7 for n in range(length)] for s in range(7)]


@pytest.mark.parametrize("each", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", WAYS)
def test_the_batch_size_changes_no_label(way, each):
    ablation = cc.Pooled(cc.Columns(5), cc.Blocks(9, stride=5))
    regions = ablation.regions(SIZE)[::each]
    one = classifier(way, ablation, batch_size=1).logits(IMAGES, regions)
    many = classifier(way, ablation, batch_size=64).logits(IMAGES, regions)
    assert np.array_equal(one.argmax(axis=-1), many.argmax(axis=-1))
    np.testing.assert_allclose(one, many, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_training_and_voting_give_the_same_logits(way):
    """With one region per image, of several shapes at once, as in training."""
    ablation = cc.Pooled(cc.Columns(5), cc.Rows(3))
    model = classifier(way, ablation)
    regions = [ablation.regions(SIZE)[index] for index in (2, 40, 30)]
    pixels = model.preprocessing.normalise(torch.from_numpy(IMAGES))
    with torch.inference_mode():
        trained = model.mutants.eval()(pixels, regions).numpy()
    voted = model.logits(IMAGES, regions)[[0, 1, 2], [0, 1, 2]]
    np.testing.assert_allclose(trained, voted, rtol=1e-4, atol=1e-4)


class Overwriting(nn.Module):
    """Sets its input to zero after reading it."""

    def forward(self, pixels):
        logits = pixels.mean(dim=(2, 3)).repeat(1, 2)[:, :CLASSES].clone()
        pixels.zero_()
        return logits


@pytest.mark.parametrize("hide", ["zero", "black"])
def test_a_network_that_writes_into_its_input_damages_nothing(hide):
    images = IMAGES.copy()
    model = TorchClassifier(Mutants(Overwriting(), Painted(hide, RGB)), RGB, name="overwriting", batch_size=4)
    regions = cc.Columns(5).regions(SIZE)
    first = model.logits(images, regions)
    assert np.array_equal(images, IMAGES)
    assert np.array_equal(first, model.logits(images, regions))
    assert len(np.unique(first.round(3))) > 100


def test_a_network_in_training_mode_is_evaluated_in_evaluation_mode():
    ablation = cc.Columns(5)
    model = classifier("strip network", ablation)
    regions = ablation.regions(SIZE)
    expected = model.logits(IMAGES, regions)
    model.mutants.train()
    assert np.array_equal(model.logits(IMAGES, regions), expected)


def test_batch_statistics_are_refused():
    network = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten(), nn.LazyLinear(5))
    with pytest.raises(CostcertError, match="depend on the others"):
        TorchClassifier(Mutants(network, Painted("zero", RGB)), RGB, name="x", num_classes=5)


def test_strip_networks_transpose_horizontal_strips():
    torch.manual_seed(0)
    network = StripNet(3, 4, 32, CLASSES).eval()
    horizontal = torch.randn(2, 4, 4, 32)
    with torch.inference_mode():
        assert torch.equal(network(horizontal), network(horizontal.transpose(2, 3)))
