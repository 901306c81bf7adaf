"""What people have: arrays, tensors, pictures, torch datasets and loaders, modules and functions."""

import json

import numpy as np
import pytest
from PIL import Image

import costcert as cc
from costcert.datasets.arrays import ArrayDataset
from costcert.datasets.given import as_dataset
from costcert.errors import CostcertError
from tiny import Tiny, pictures

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset  # noqa: E402
from torch.utils.data import Dataset as TorchDataset  # noqa: E402

ABLATION = "columns:3"
MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (7, 8, 9, 3), dtype=np.uint8)
LABELS = RNG.integers(0, 5, 7)


def network(channels=3, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 5),
    ).eval()


def normalised(images=IMAGES):
    pixels = torch.tensor(images).permute(0, 3, 1, 2).to(torch.float32) / 255
    mean, std = (torch.tensor(each).reshape(-1, 1, 1) for each in (MEAN, STD))
    return (pixels - mean) / std


class Items(TorchDataset):
    """A torch dataset of these pairs."""

    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def items(images, labels=LABELS):
    return Items(*zip(images, labels.tolist(), strict=True))


def same(votes, other):
    assert (votes.ballots == other.ballots).all()
    assert (votes.margins == other.margins).all()
    assert (votes.truth == other.truth).all()
    return True


@pytest.fixture(scope="module")
def model():
    return cc.load_model(network(), image_size=(8, 9), mean=MEAN, std=STD)


@pytest.fixture(scope="module")
def expected(model):
    return cc.vote(model, ArrayDataset("x", IMAGES, LABELS), ABLATION)


@pytest.mark.parametrize(
    "data",
    [
        (IMAGES, LABELS),
        [IMAGES, LABELS.tolist()],
        (torch.tensor(IMAGES), torch.tensor(LABELS)),
        (IMAGES.tolist(), LABELS.tolist()),
        (list(IMAGES), LABELS),
        ([Image.fromarray(each) for each in IMAGES], LABELS),
        items([Image.fromarray(each) for each in IMAGES]),
        items(IMAGES),
        items(torch.tensor(IMAGES)),
        # Floats are the network's input: they give the votes of the pictures they were made of, bit for bit.
        (normalised(), LABELS),
        (normalised().numpy(), LABELS),
        (normalised().requires_grad_(), LABELS),
        items(normalised()),
        TensorDataset(normalised(), torch.tensor(LABELS)),
        DataLoader(TensorDataset(normalised(), torch.tensor(LABELS)), batch_size=3),
        DataLoader(items(normalised()), batch_sampler=[[0, 1], [2, 3, 4], [5, 6]]),
        Subset(items(normalised()), range(7)),
    ],
    ids=lambda data: type(data).__name__,
)
def test_the_same_images_give_the_same_votes(model, expected, data):
    assert same(cc.vote(model, data, ABLATION), expected)


def test_a_spelling_is_a_dataset():
    assert len(as_dataset("sample")) == len(cc.parse_dataset("sample"))


@pytest.mark.parametrize("training", [False, True])
def test_a_module_votes_and_keeps_its_mode(expected, training):
    module = network().train(training)
    module[1].eval()
    loader = DataLoader(TensorDataset(normalised(), torch.tensor(LABELS)), batch_size=4)
    assert same(cc.vote(module, loader, ABLATION), expected)
    assert (module.training, module[0].training, module[1].training) == (training, training, False)


@pytest.mark.parametrize("hide", [None, "zero", "crop"])
def test_hidden_pixels_of_inputs_are_never_seen(hide):
    """Rewriting a column changes only the ballots of mutants that keep it."""
    # A network of crops gets their position as one more channel.
    module = network(4 if hide == "crop" else 3)
    inputs = normalised()
    attacked = inputs.clone()
    attacked[..., 4] = 100 * torch.randn(7, 3, 8, generator=torch.Generator().manual_seed(1))
    options = {} if hide is None else {"hide": hide}
    model = cc.load_model(module, image_size=(8, 9), mean=0.0, std=1.0, ablation=ABLATION, **options)
    votes, after = (cc.vote(model, (each, LABELS), ABLATION) for each in (inputs, attacked))
    kept = [region.columns.pixels(9)[4] for region in votes.ablation.regions((8, 9))]
    assert sum(kept) == 3
    assert (votes.margins == after.margins)[:, ~np.array(kept)].all()
    assert not (votes.margins == after.margins)[:, kept].any()


def test_hidden_pixels_of_inputs_are_painted_as_the_model_says():
    """Zero is 0 after normalisation, black is black: the same as of the pictures."""
    module = network()
    seen = []
    module.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    for hide, colour in (("zero", torch.zeros(3)), ("black", -torch.tensor(MEAN) / torch.tensor(STD))):
        model = cc.load_model(module, image_size=(8, 9), mean=MEAN, std=STD, hide=hide)
        seen.clear()
        model.logits(normalised().permute(0, 2, 3, 1).numpy()[:1], cc.Columns(3).regions((8, 9))[:1])
        assert torch.equal(seen[0][0, :, :, :3], normalised()[0, :, :, :3])
        assert torch.allclose(seen[0][0, :, :, 3:], colour[:, None, None])


def test_a_function_votes_on_arrays_and_on_inputs():
    def brightest(images):
        assert images.dtype == kind
        return images.astype(np.float64).reshape(len(images), -1)[:, :5]

    kind = np.uint8
    assert cc.vote(brightest, (IMAGES, LABELS), ABLATION).num_classes == 5
    assert cc.vote(brightest, (IMAGES[..., 0], LABELS), ABLATION).num_classes == 5
    kind = np.float32
    assert cc.vote(brightest, (normalised(), LABELS), ABLATION).num_classes == 5


class Jittered(Items):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image + torch.rand(1), label


class Endless(IterableDataset):
    def __iter__(self):
        yield from zip(normalised(), LABELS.tolist(), strict=True)


class Reversing:
    """A sampler with another order every time."""

    def __init__(self):
        self.order = [0, 1, 2]

    def __iter__(self):
        self.order.reverse()
        return iter(list(self.order))

    def __len__(self):
        return 3


def broken():
    raise OSError("the disk is gone")


class Broken(Items):
    def __getitem__(self, index):
        return broken() if index == 2 else super().__getitem__(index)


TENSORS = TensorDataset(normalised(), torch.tensor(LABELS))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "data must be a dataset, a spelling like 'folder:photos', a pair .* got None"),
        (4.5, "data must be a dataset, .* got 4.5"),
        (IMAGES, "data must be a dataset, .* got a ndarray"),
        ((IMAGES,), "data must be a dataset"),
        ("folder", "unknown data 'folder'"),
        ((IMAGES, LABELS[:3]), r"has 7 images, but labels of shape \(3,\)"),
        ((IMAGES, LABELS + 0.5), "labels of arrays must be integers"),
        ((IMAGES, LABELS - 9), r"labels of arrays\[0\] is -"),
        ((IMAGES, LABELS + 9), "has .* classes, but the model has 5"),
        ((IMAGES, None), "labels of arrays must be integers"),
        ((IMAGES[:0], LABELS[:0]), "holds no images"),
        ((normalised()[:0], LABELS[:0]), "normalised floats with the channels first"),
        ((IMAGES / 255, LABELS), r"images must be uint8 .* got float64 of shape \[7, 8, 9, 3\]"),
        ((IMAGES.astype(int) * 2, LABELS), "images must be 0 to 255, got integers from 0 to 510"),
        ((torch.tensor(IMAGES).permute(0, 3, 1, 2), LABELS), r"images must have the shape .*\(7, 3, 8, 9\)"),
        ((IMAGES[..., :2], LABELS), "images must have the shape"),
        ((IMAGES > 9, LABELS), "images must be 0 to 255 .uint8., got bool"),
        ((["a.jpg"], [1]), "got <U5"),
        ((normalised() * np.nan, LABELS), "image 0 holds NaN or infinite pixels"),
        ((normalised()[:, :, :4], LABELS), "inputs of 4x9 with 3 channels, but the model takes 8x9 with 3"),
        ((normalised()[:, :1], LABELS), "8x9 with 1 channels, but the model takes 8x9 with 3"),
        (DataLoader(TENSORS, shuffle=True), "shuffles its images, .* make it with shuffle=False"),
        (DataLoader(TENSORS, sampler=Reversing()), "in another order every time"),
        (DataLoader(TENSORS, batch_size=None), "batch_size=None: pass its dataset"),
        (DataLoader(Endless()), "torch:Endless cannot be read by index"),
        (Endless(), "torch:Endless cannot be read by index"),
        (Items(), "torch:Items is empty"),
        (DataLoader(Items()), "torch:Items is empty"),
        (TensorDataset(normalised()), r"image 0 of torch:TensorDataset is .*, expected a pair"),
        (Items(*LABELS), "image 0 of torch:Items is .*, expected a pair"),
        (Jittered(*zip(normalised(), LABELS, strict=True)), "image 0 .* remove what is random"),
        (Items((normalised()[0], 1), (IMAGES[0], 1)), "image 1 of torch:Items is a picture, but the first"),
        (Items((normalised()[0], 1), (normalised()[0, :, :4], 1)), r"an? input of shape \[3, 4, 9\], but"),
        (Items((normalised()[0, 0], 1)), "image 0 of torch:Items must be normalised floats"),
        (Items((IMAGES[0].astype(int), 1)), "an image must be a Pillow image, .* got int64"),
        (Items(("a.jpg", 1)), "an image must be a Pillow image, .* got 'a.jpg': open it"),
        (Items((IMAGES[0].transpose(2, 0, 1), 1)), "put the channels last"),
        (Items((IMAGES[0], [0, 1])), r"the label of image 0 .* is \[0, 1\], expected one integer"),
        (Items((IMAGES[0], "cat")), "the label of image 0 of torch:Items must be integers"),
        (Items((IMAGES[0], -1)), r"labels of torch:Items\[0\] is -1"),
        (Broken(*zip(normalised(), LABELS, strict=True)), "image 2 of torch:Broken .*the disk is gone"),
    ],
)
def test_data_that_are_refused(model, data, message):
    with pytest.raises(CostcertError, match=message):
        cc.vote(model, data, ABLATION)


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (None, (IMAGES, LABELS), "a model must be one that load_model returns, .* got None"),
        (4.5, (IMAGES, LABELS), "a model must be one that load_model returns, .* got 4.5"),
        ("nothing", (IMAGES, LABELS), "nothing"),
        (network(), (IMAGES, LABELS), "Sequential does not say how pictures become its input"),
        (Tiny(), (normalised(), LABELS), "holds normalised floats, but Tiny.* takes pictures"),
    ],
)
def test_models_that_are_refused(model, data, message):
    with pytest.raises(CostcertError, match=message):
        cc.vote(model, data, ABLATION)


def test_what_is_wrong_beside_the_data(model):
    for ablation in (None, 4.5, ["columns:3"]):
        with pytest.raises(CostcertError, match="an ablation must be a value like"):
            cc.vote(model, (IMAGES, LABELS), ablation)
    with pytest.raises(CostcertError, match="soft must be a value like Soft"):
        cc.vote(model, (IMAGES, LABELS), ABLATION, soft=0.35)


def test_a_run_is_resumed_with_the_same_pixels_only(model, tmp_path):
    loader = DataLoader(TENSORS, batch_size=3)
    made = cc.vote(model, loader, ABLATION, out=tmp_path / "votes", shard_size=2)
    assert repr(made) == f"VotesFolder({tmp_path / 'votes'}: 7 images, 5 classes, columns:3 on 8x9)"
    kept = (tmp_path / "votes" / "manifest.json").read_bytes()
    cc.vote(model, loader, ABLATION, out=tmp_path / "votes")
    assert (tmp_path / "votes" / "manifest.json").read_bytes() == kept
    changed = normalised()
    changed[6, 2, 7, 8] += 1e-6
    with pytest.raises(CostcertError, match="data"):
        cc.vote(model, (changed, LABELS), ABLATION, out=tmp_path / "votes")


def test_votes_on_inputs_do_not_claim_a_preprocessing(model, tmp_path):
    """What the caller did to the pictures is unknown, so no program may take the model's own for it."""
    folder = tmp_path / "votes"
    cc.vote(model, DataLoader(TENSORS), ABLATION, out=folder)
    assert json.loads((folder / "manifest.json").read_text())["made"]["model"]["preprocessing"] is None
    with pytest.raises(CostcertError, match="preprocessing"):
        cc.Deployed.from_run(folder, model)


def test_a_batch_dependent_module_is_refused():
    class Mixing(nn.Module):
        def forward(self, pixels):
            return pixels.flatten(1)[:, :5] - pixels.mean()

    with pytest.raises(CostcertError, match="depend on the others in its batch"):
        cc.vote(Mixing(), (normalised(), LABELS), ABLATION)


def test_the_names_of_classes_come_along(model):
    named = items(IMAGES)
    named.classes = list("abcde")
    assert cc.vote(model, named, ABLATION).class_names == tuple("abcde")
    named.classes = list("abc")
    with pytest.raises(CostcertError, match="3 classes"):
        cc.vote(model, named, ABLATION)


def test_datasets_and_models_say_what_they_are(model):
    assert repr(model) == "TorchClassifier(torch:Sequential: 5 classes, 8x9 input, RGB, hide=zero, on cpu)"
    assert repr(pictures(20)) == "ArrayDataset(pictures: 20 images, 4 classes)"
    assert repr(Tiny()) == "Tiny(4 classes, 6x8 input)"
    assert repr(as_dataset(TENSORS)) == "TorchInputs(torch:TensorDataset: 7 images, 4 classes)"
