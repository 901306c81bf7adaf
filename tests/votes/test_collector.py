"""What a classifier claims about its preparation of pictures, and what is recorded of it."""

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

import costcert as cc
from costcert.attacks.judging import Judge
from costcert.datasets.pictures import Pictures
from costcert.models.hiding import Painted
from costcert.models.mutants import Mutants
from costcert.models.preprocessing import Preprocessing
from costcert.models.torch_classifier import TorchClassifier
from costcert.votes.defence import Defence

SIZE = (6, 9)
NOT_RECORDED = r"do not record how large the originals were: .* a classifier that has a `preparation`"


class Blurring(TorchClassifier):
    """Blurs pictures first, so that a patch reaches further than the preprocessing says."""

    def prepare(self, image):
        return super().prepare(image.filter(ImageFilter.BoxBlur(2)))


class Claiming(Blurring):
    """The same with a false claim."""

    @property
    def preparation(self):
        return self.preprocessing


class Forgetful(TorchClassifier):
    """Records another preprocessing than it claims."""

    def metadata(self):
        return {**super().metadata(), "preprocessing": {}}


class Wrapping(cc.Classifier):
    """Does all that a model does, and claims what it claims."""

    def __init__(self, model):
        self.model = model
        self.num_classes, self.image_size, self.channels = model.num_classes, model.image_size, model.channels

    @property
    def preparation(self):
        return self.model.preparation

    def prepare(self, image):
        return self.model.prepare(image)

    def logits(self, images, regions):
        return self.model.logits(images, regions)

    def metadata(self):
        return self.model.metadata()


class Mirrored(Preprocessing):
    def prepare(self, image):
        return super().prepare(image)[:, ::-1]


class Cropped(Pictures):
    """A dataset that prepares images in a way of its own."""

    def prepared(self, index, model):
        found = super().prepared(index, model)
        return found._replace(pixels=255 - found.pixels)


def model_of(kind=TorchClassifier, preprocessing=Preprocessing):
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(SIZE[0] * SIZE[1], 3))
    prepared = preprocessing(SIZE, (0.5,), (0.25,), channels=1)
    return kind(Mutants(network, Painted("zero", prepared)), prepared, name="a model")


def shown(count=4):
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (5, 7), dtype=np.uint8) for _ in range(count)], [0, 1, 2, 0][:count]


@pytest.mark.parametrize("wrap", [lambda model: model, Wrapping])
def test_a_claimed_preparation_is_recorded(wrap):
    model = wrap(model_of())
    assert isinstance(model.preparation, Preprocessing)
    votes = cc.vote(model, shown(), "columns:2")
    assert votes.originals.tolist() == [[5, 7]] * 4
    deployed = cc.Deployed(model, "columns:2")
    assert deployed.certify(*shown(), "original:1").min_k("costcert", "original:1").shape == (4,)


def with_own_function():
    model = model_of()
    model.prepare = lambda image: model.preprocessing.prepare(image.transpose(Image.Transpose.ROTATE_180))
    return model


@pytest.mark.parametrize(
    "make", [lambda: model_of(Blurring), lambda: model_of(preprocessing=Mirrored), with_own_function]
)
def test_originals_of_another_preparation_are_not_followed(make):
    """Nobody knows how far a patch reaches; patches on the input are certified as before."""
    model = make()
    assert model.preparation is None
    votes = cc.vote(model, shown(), "columns:2")
    assert votes.originals is None
    assert cc.certify(votes, "1", "costcert").min_k("costcert", "1").shape == (4,)
    with pytest.raises(cc.CostcertError, match=NOT_RECORDED):
        cc.certify(votes, "original:1")
    with pytest.raises(cc.CostcertError, match=r"is not recorded: .* a classifier that has a `preparation`"):
        cc.Deployed(model, "columns:2").certify(*shown(), "original:1")
    patch = cc.Original(cc.Square(1))
    with pytest.raises(cc.CostcertError, match="does not say how it prepares pictures: define its"):
        Judge(model, Defence(cc.Columns(2), "zero", defender="costcert"), patch, (5, 7))


def test_a_picture_that_cannot_be_prepared_is_named():
    def into_border(size, mean, std, channels):
        return Preprocessing(size, mean, std, channels, crop_mode="border")

    thin = np.zeros((1, 500), np.uint8)
    with pytest.raises(cc.CostcertError, match=r"image 4: a picture of 1x500 pixels .* is too thin"):
        cc.vote(model_of(preprocessing=into_border), ([*shown()[0], thin], [*shown()[1], 0]), "columns:2")


def test_a_false_claim_is_refused():
    with pytest.raises(cc.CostcertError, match="image 00000 was prepared otherwise than by the"):
        cc.vote(model_of(Claiming), (np.stack(shown()[0]), shown()[1]), "columns:2")
    with pytest.raises(cc.CostcertError, match="image 0 was prepared otherwise"):
        cc.vote(model_of(), Cropped(*shown()), "columns:2")
    with pytest.raises(cc.CostcertError, match=r"but records \{\} as its preprocessing: return"):
        cc.vote(model_of(Forgetful), shown(), "columns:2")


def test_pictures_are_read_as_they_are_stored(tmp_path):
    """EXIF may ask for a turned picture (6: a quarter to the right), and nobody turns it."""
    for name in "abc":
        (tmp_path / "data" / name).mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = Image.fromarray(shown(1)[0][0])
    picture.save(tmp_path / "data" / "a" / "turned.jpg", exif=exif)
    for name in "abc":
        picture.save(tmp_path / "data" / name / "upright.jpg")
    votes = cc.vote(model_of(), f"folder:{tmp_path / 'data'}", "columns:2")
    assert votes.originals.tolist() == [[5, 7]] * 4
    # Where a mutant stands in its batch may change the last bits of its logits.
    np.testing.assert_allclose(votes.margins[0], votes.margins[1], rtol=1e-4)
