"""Patches on original pictures: certified, and deployed."""

from itertools import product

import numpy as np
import pytest
import torch
from PIL import Image

import costcert as cc
from costcert.geometry.footprints import footprint
from costcert.models.preprocessing import Preprocessing
from costcert.votes.adaptive import StoppingRule
from mixed_sizes import CLASSES, model_of, pictures, votes_of

DEFENDERS = ("costcert", "cbn", "drs", "patchguard", "costcert-masks")


def brightness(fit, interpolation, part=1.0):
    """A model whose strips vote by how bright they are, so that most of them agree."""
    network = torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(1, CLASSES)
    )
    with torch.no_grad():
        network[2].weight[:] = torch.tensor([[-9.0], [0.0], [9.0]])
        network[2].bias[:] = torch.tensor([0.0, 0.1, 0.0])
    preprocessing = Preprocessing(
        (8, 24), (0.5,), (0.25,), channels=1, crop_pct=part, crop_mode=fit, interpolation=interpolation
    )
    return cc.load_model(network, preprocessing=preprocessing)


@pytest.fixture(scope="module")
def model():
    return model_of()


@pytest.fixture(scope="module")
def votes(model):
    return votes_of(model)


@pytest.mark.parametrize("defender", DEFENDERS)
def test_images_are_certified_by_the_size_of_their_original(votes, defender):
    """All together give what each gives alone, and what its own footprint touches."""
    together = cc.certify(votes, ["original:2", "square:3"], defender)
    for image in range(len(votes)):
        alone = cc.certify(votes.take([image]), ["original:2", "square:3"], defender)
        for patch in ("original:2", "square:3"):
            assert together.min_k(defender, patch)[image] == alone.min_k(defender, patch)[0]
            assert together.rank(defender, patch)[image] == alone.rank(defender, patch)[0]
    assert list(map(str, together.patches)) == ["original:2", "square:3"]


def test_a_picture_at_input_size_is_the_original(model):
    """Nothing is resized, so that a patch on the original is a patch on the input."""
    votes = cc.vote(model, (np.stack(pictures([(9, 12)] * 8)), [0, 1, 2, 0, 1, 2, 0, 1]), "blocks:4")
    certs = cc.certify(votes, ["original:2", "2", "original:2x4", "rectangle:2x4"])
    for defender in certs.defenders:
        np.testing.assert_array_equal(certs.min_k(defender, "original:2"), certs.min_k(defender, "2"))
        np.testing.assert_array_equal(
            certs.min_k(defender, "original:2x4"), certs.min_k(defender, "rectangle:2x4")
        )


WORLDS = [
    ((6, 18), "squash", "bicubic", 1.0),
    ((5, 12), "center", "nearest", 1.0),
    ((10, 28), "border", "lanczos", 1.0),
    ((7, 18), "center", "bilinear", 0.8),
]
CLASSIFIERS = [("costcert", "columns:2"), ("patchguard", "columns:2"), ("patchcleanser", "masks:3/patch=7x8")]


@pytest.mark.parametrize(
    ("defender", "ablation", "original", "fit", "interpolation", "part"),
    [
        # Every way of resizing, and every classifier, in the essential tests.
        pytest.param(*classifier, *world, marks=[] if (row + column) % 3 == 0 else pytest.mark.slow)
        for row, world in enumerate(WORLDS)
        for column, classifier in enumerate(CLASSIFIERS)
    ],
)
def test_rewritten_originals_never_break_a_deployed_certificate(
    defender, ablation, original, fit, interpolation, part
):
    """Pixels of originals are rewritten at every place, and the deployed classifier predicts them."""
    model = brightness(fit, interpolation, part)
    deployed = cc.Deployed(model, ablation, defender=defender, patch="original:1")
    rng = np.random.default_rng(4)
    # Brighter to the right, so that the attacker has a rival to lift.
    slope = np.linspace(60, 190, original[1])
    shown = [
        np.clip(slope + rng.normal(shift, 20, original), 0, 255).astype(np.uint8) for shift in (-45, 0, 45)
    ]
    labels = deployed.predict(shown, 1)[:, 0]
    min_k = deployed.certify(shown, labels, "original:1").min_k(defender, "original:1")
    assert min_k.min() < CLASSES
    for picture, label, k in zip(shown, labels, min_k, strict=True):
        attacked = []
        for top, left in product(range(original[0]), range(original[1])):
            for value in (0, 255, rng.integers(0, 256)):
                attacked.append(picture.copy())
                attacked[-1][top, left] = value
        assert (deployed.predict(attacked, int(k)) == label).any(axis=1).all()


def test_unread_pictures_count_as_wrong(model, tmp_path):
    folder = tmp_path / "data"
    for label, name in enumerate("abc"):
        (folder / name).mkdir(parents=True)
        for number, picture in enumerate(pictures([(5, 6), (8, 9)], seed=label)):
            Image.fromarray(picture).save(folder / name / f"{number}.png")
    (folder / "b" / "0.png").write_bytes(b"no picture")
    votes = cc.vote(model, f"folder:{folder}", "columns:3", skip_corrupt=True)
    certs = cc.certify(votes, "original:1")
    assert votes.originals[votes.unread].tolist() == [[0, 0]]
    assert (certs.min_k("costcert", "original:1")[votes.unread] == CLASSES).all()
    alone = cc.certify(votes.take(np.flatnonzero(votes.unread)), "original:1")
    assert alone.min_k("costcert", "original:1").tolist() == [CLASSES]


def test_masks_cover_a_footprint_or_are_refused(model):
    shown = (pictures([(5, 6)] * 2), [0, 1])
    votes = cc.vote(model, shown, "masks:2/patch=2")
    with pytest.raises(cc.CostcertError, match=r"up to 2x2 pixels, but original:1 of 5x6 changes up to 7x8 "):
        cc.certify(votes, "original:1", "patchcleanser")
    wide = cc.vote(model_of(interpolation="nearest"), shown, "masks:3/patch=2")
    certs = cc.certify(wide, "original:1", "patchcleanser")
    assert certs.min_k("patchcleanser", "original:1").shape == (2,)


def test_refusals(votes, model):
    with pytest.raises(cc.CostcertError, match="do not record how large the originals were: vote again"):
        cc.certify(votes.replace(originals=None), "original:2")
    with pytest.raises(cc.CostcertError, match="how pictures became these inputs is not recorded"):
        cc.certify(votes.replace(provenance={}), "original:2")
    with pytest.raises(cc.CostcertError, match="original:6 does not fit an original of 5x6 pixels"):
        cc.certify(votes, "original:6")
    with pytest.raises(cc.CostcertError, match="without pixels"):
        cc.certify(votes.replace(originals=votes.originals * 0), "original:2")
    with pytest.raises(cc.CostcertError, match="these images have 3 sizes: take images of one size"):
        cc.exclusion(votes, "original:2", 1, k=1)
    floats = np.random.default_rng(0).normal(size=(2, 1, 9, 12)).astype(np.float32)
    with pytest.raises(cc.CostcertError, match="vote on pictures instead of normalised floats"):
        cc.certify(cc.vote(model, (floats, [0, 1]), "columns:3"), "original:2")
    shown = (pictures([(5, 6)]), [0])
    with pytest.raises(cc.CostcertError, match="how pictures became these inputs is not recorded"):
        cc.vote(model, shown, "columns:3", until=StoppingRule((cc.Original(cc.Square(1)),), (1,)))
    for refused in (
        lambda: cc.tune(votes.take([*range(6)] * 2).replace(image_ids=None), "original:2"),
        lambda: StoppingRule.parse("original:2", 1, (9, 12)),
        lambda: cc.certified_accuracy(model, shown, ablation="columns:3", patches="original:2"),
    ):
        with pytest.raises(cc.CostcertError, match="original:2 is a patch on the original picture"):
            refused()


def test_other_guarantees_of_one_size(votes):
    some = votes.take([0, 2, 5])
    assert cc.exclusion(some, "original:1", 1, k=1).shape == (3,)
    assert cc.stability(some, "original:1", k=2).shape == (3,)


@pytest.mark.parametrize("interpolation", ["bicubic", "nearest"])
def test_witnesses_are_what_is_not_certified(interpolation):
    """An attack exists exactly where there is no certificate, and it touches what its footprint does."""
    model = model_of(interpolation=interpolation, seed=2)
    shown = pictures([(5, 6), (9, 12), (14, 20), (5, 6)])
    votes = cc.vote(model, (shown, [0, 1, 2, 1]), "columns:2")
    min_k = cc.certify(votes, "original:1", "costcert").min_k("costcert", "original:1")
    for image, k in product(range(len(votes)), range(1, CLASSES)):
        found = cc.witness(votes, image, "original:1", k)
        assert (found is None) == (min_k[image] <= k)
        if found is None:
            continue
        original = tuple(votes.originals[image].tolist())
        ((top, left),) = found.places
        reach = footprint(found.patch, original, model.preprocessing.geometry).pixels(top, left)
        kept = [region.pixels(votes.image_size) for region in votes.ablation.regions(votes.image_size)]
        assert found.touched.tolist() == [n for n, pixels in enumerate(kept) if (pixels & reach).any()]
        drawn = np.zeros(votes.image_size, bool)
        for piece in found.rectangles():
            drawn[piece.top : piece.top + piece.height, piece.left : piece.left + piece.width] = True
        np.testing.assert_array_equal(drawn, reach)
        assert "original:1 at" in found._repr_html_()


def test_bounds_of_partly_known_votes_hold():
    votes = cc.vote(model_of(), (pictures([(5, 6)] * 3), [0, 1, 2]), "columns:3")
    known = np.random.default_rng(0).random(votes.ballots.shape) < 0.8
    found = cc.bounds(votes, "original:1", known)
    min_k = cc.certify(votes, "original:1", "costcert").min_k("costcert", "original:1")
    assert (found.min_k_low <= min_k).all()
    assert (min_k <= found.min_k_high).all()
