"""The deployed classifier is the one that was certified."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from PIL import Image

import costcert as cc
from costcert.defenders import find
from costcert.defenders.cbn import Cbn
from costcert.errors import CostcertError
from costcert.geometry.touch import touched
from costcert.models.classifier import Soft, ballots_of
from costcert.votes.voting import vote
from tiny import Tiny, for_masks, pictures

ABLATION = "columns:3"
PATCH = cc.Square(2)


@pytest.mark.parametrize(
    "defender", ["costcert", "cbn", "drs", "patchguard", "costcert-masks", "double-masking"]
)
@pytest.mark.parametrize("soft", [None, Soft(0.3, 2)], ids=["hard", "soft"])
def test_the_true_label_has_the_rank_of_its_certificate(defender, soft):
    data = pictures(30)
    votes = vote(Tiny(), data, ABLATION, soft=soft)
    rank = cc.certify(votes, [PATCH], [defender]).rank(defender, PATCH)
    deployed = cc.Deployed(Tiny(), ABLATION, defender=defender, patch=PATCH, soft=soft)
    listed = deployed.predict([data.image(n) for n in range(30)], k=4)
    assert (np.argmax(listed == data.labels[:, None], axis=1) + 1 == rank).all()


def test_images_are_pillow_images_or_pixels():
    data = pictures(3)
    deployed = cc.Deployed(Tiny(), ABLATION)
    expected = deployed.predict([data.image(n) for n in range(3)], k=2)
    assert (deployed.predict(list(data.images), k=2) == expected).all()
    assert (deployed.predict(data.images[1], k=2) == expected[1]).all()
    assert (deployed.predict(data.images[1][..., None], k=2) == expected[1]).all()
    assert (deployed.predict(Image.fromarray(data.images[2]), k=2) == expected[2]).all()


@pytest.mark.parametrize("colour", [False, True])
def test_a_batch_is_an_array_a_tensor_or_a_list(colour):
    images = np.random.default_rng(5).integers(0, 256, (4, 6, 8), dtype=np.uint8)
    images = images[..., None].repeat(3, axis=3) if colour else images
    deployed = cc.Deployed(Tiny(), ABLATION)
    expected = deployed.predict([Image.fromarray(image) for image in images], k=2)
    tensor = pytest.importorskip("torch").tensor(images)
    for batch in (images, tensor, list(images), list(tensor), iter(images), tuple(images)):
        assert (deployed.predict(batch, k=2) == expected).all()
    first = expected[:, 0]
    certified = [deployed.certify(batch, first, PATCH) for batch in (images, list(images))]
    assert [len(each) for each in certified] == [4, 4]
    assert certified[0].to_pandas().equals(certified[1].to_pandas())
    assert len(deployed.certify(images[0], int(first[0]), PATCH)) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a.jpg", "got 'a.jpg': open it with PIL.Image.open"),
        (["a.jpg"], "got 'a.jpg': open it with PIL.Image.open"),
        (None, "an image must be a Pillow image, .* got None"),
        (4.5, "an image must be a Pillow image, .* got 4.5"),
        (np.zeros((2, 6, 8, 3)), "got float64 of shape"),
        (np.zeros((2, 3, 6, 8), np.uint8), "put the channels last"),
        (np.zeros((0, 6, 8, 3), np.uint8), "holds no images"),
        ([], "holds no images"),
    ],
)
def test_what_is_no_picture(given, message):
    with pytest.raises(CostcertError, match=message):
        cc.Deployed(Tiny(), ABLATION).predict(given, k=2)


def test_a_deployed_classifier_says_what_it_is():
    assert repr(cc.Deployed(Tiny(), ABLATION, defender="patchguard", patch=2)) == (
        "Deployed(Tiny(4 classes, 6x8 input): columns:3, hard ballots, ranked by patchguard masking square:2)"
    )


def test_certificates_of_labels_chosen_afterwards():
    data = pictures(8)
    deployed = cc.Deployed(Tiny(), ABLATION)
    shown = list(data.images)
    first = deployed.predict(shown, k=1)[:, 0]
    found = deployed.certify(shown, first, PATCH).min_k("costcert", PATCH)
    votes = vote(Tiny(), data, ABLATION)
    expected = cc.Votes(
        votes.ballots, first, num_classes=4, ablation=votes.ablation, image_size=votes.image_size
    )
    assert (found == cc.certify(expected, PATCH, "costcert").min_k("costcert", PATCH)).all()


def test_a_masking_defender_predicts_for_its_patch():
    votes = vote(Tiny(), pictures(6), ABLATION)
    defender = find("patchguard")
    windows = touched(votes.ablation, PATCH, votes.image_size)
    deployed = cc.Deployed(Tiny(), ABLATION, defender="patchguard", patch=PATCH)
    assert (deployed.predict(list(pictures(6).images), k=3) == defender.predict(votes, windows, 3)).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "has no ablation of its own: pass one"),
        ({"ablation": ABLATION, "defender": "patchguard"}, "PatchGuard predicts by masking a patch"),
        (
            {"ablation": ABLATION, "defender": "patchcleanser"},
            "patchcleanser needs votes of masks, but these are of columns:3",
        ),
        ({"ablation": ABLATION, "defender": "costcerd"}, "costcert"),
        ({"ablation": ABLATION, "patch": 99}, "does not fit"),
    ],
)
def test_classifiers_that_cannot_be_deployed(options, message):
    with pytest.raises(CostcertError, match=message):
        cc.Deployed(Tiny(), **options)


@pytest.mark.parametrize(
    "picture", [np.zeros((4, 4)), np.zeros((4, 4, 2), np.uint8), np.zeros((0, 4), np.uint8)]
)
def test_values_that_are_not_images(picture):
    with pytest.raises(CostcertError, match="an image must be a Pillow image"):
        cc.Deployed(Tiny(), ABLATION).predict([picture], k=2)


def test_a_list_longer_than_the_classes():
    with pytest.raises(CostcertError, match="k must be at most 4, the number of classes, got 5"):
        cc.Deployed(Tiny(), ABLATION).predict(list(pictures(1).images), k=5)


def test_a_soft_ballot_names_the_best_labels_as_a_stable_sort_would():
    """Ties go to the lowest label, however many labels tie at the last kept position."""
    rng = np.random.default_rng(0)
    for classes, best in ((2, 1), (5, 2), (7, 7), (9, 4)):
        logits = rng.integers(0, 3, (40, 6, classes)).astype(np.float32)
        expected = np.argsort(-logits, axis=-1, kind="stable")[..., :best]
        assert (ballots_of(logits, Soft(0.5, best)).soft_labels == expected).all()


@pytest.mark.parametrize("soft", [None, Soft(0.3, 3)], ids=["hard", "soft"])
@pytest.mark.parametrize("defender", ["patchguard", "costcert-masks"])
def test_certificates_are_of_the_classifier_that_predicts(defender, soft):
    """Masking for one patch, certified against a smaller one: rewriting its pixels never exceeds min-k."""
    mask, patch = "rectangle:1x3", "rectangle:1x1"
    rng = np.random.default_rng(3)
    deployed = cc.Deployed(Tiny(), "columns:1", defender=defender, patch=mask, soft=soft)
    shown = rng.integers(0, 256, (40, 6, 8), dtype=np.uint8)
    first = deployed.predict(list(shown), k=1)[:, 0]
    min_k = deployed.certify(list(shown), first, patch).min_k(defender, patch)
    assert (min_k < 4).any()
    for column in range(8):
        for value in (0, 255):
            attacked = shown.copy()
            # With columns, a rectangle as tall as the image touches the same mutants as a single pixel.
            attacked[:, :, column] = value
            listed = deployed.predict(list(attacked), k=4)
            positions = np.argmax(listed == first[:, None], axis=1) + 1
            assert (positions <= min_k).all()
    # The certificate against the masked patch is the one for every patch that fits inside it.
    own = deployed.certify(list(shown), first, mask)
    assert (min_k == own.min_k(defender, mask)).all()
    assert own.classifier.mask == cc.Rectangle(1, 3)


def test_a_patch_beyond_the_mask_is_refused():
    deployed = cc.Deployed(Tiny(), "columns:1", defender="patchguard", patch="rectangle:1x3")
    with pytest.raises(CostcertError, match="rectangle:1x4 touches mutants outside the windows of"):
        deployed.certify(pictures(2).images[0], [0], "rectangle:1x4")
    assert cc.Deployed(Tiny(), "columns:1", patch="rectangle:1x3").certify(
        pictures(2).images[0], [0], "rectangle:1x4"
    ), "a defender that does not mask is certified against any patch"


@pytest.mark.parametrize("soft", [None, Soft(0.3, 2)], ids=["hard", "soft"])
def test_a_finished_run_is_deployed_as_it_was_certified(tmp_path, soft):
    data = pictures(20)
    vote(Tiny(), data, ABLATION, soft=soft, out=tmp_path / "votes")
    votes = cc.read_votes(tmp_path / "votes")
    certs = cc.certify(votes.select("columns:3/stride=2"), [2, 3], ties="lowest")
    cc.write_certificates(certs, tmp_path / "certs", votes=tmp_path / "votes")
    deployed = cc.Deployed.from_run(tmp_path / "certs", Tiny())
    assert deployed.classifier == cc.Defence(
        cc.Columns(3, stride=2), "crop", soft, defender="costcert", ties="lowest"
    )
    listed = deployed.predict(list(data.images), k=4)
    assert (np.argmax(listed == data.labels[:, None], axis=1) + 1 == certs.rank("costcert", 2)).all()
    again = deployed.certify(list(data.images), data.labels, [2, 3])
    assert (again.min_k("costcert", 3) == certs.min_k("costcert", 3)).all()
    assert cc.Deployed.from_run(tmp_path / "votes", Tiny()).classifier == cc.Defence(
        cc.Columns(3), "crop", soft, defender="costcert"
    )
    with pytest.raises(CostcertError, match="masking a patch: say which, as in square:2"):
        cc.Deployed.from_run(tmp_path / "certs", Tiny(), defender="patchguard")
    with pytest.raises(CostcertError, match="square:4 was not certified, only square:2, square:3"):
        cc.Deployed.from_run(tmp_path / "certs", Tiny(), defender="patchguard", patch=4)
    masking = cc.Deployed.from_run(tmp_path / "certs", Tiny(), defender="patchguard", patch=3)
    assert masking.classifier.mask == cc.Square(3)
    found = masking.certify(list(data.images), data.labels, 3).min_k("patchguard", 3)
    assert (found == certs.min_k("patchguard", 3)).all()
    with pytest.raises(CostcertError, match="is not the model that cast these votes"):
        cc.Deployed.from_run(tmp_path / "certs", Tiny(seed=1))


class OneLabel(Cbn):
    """A defender of another package that reads one label per ballot."""

    name = "one-label"
    reads_soft = False


def test_a_defender_that_reads_one_label_refuses_soft_ballots(monkeypatch):
    monkeypatch.setattr("costcert.defenders._find", lambda name: OneLabel())
    votes = vote(Tiny(), pictures(4), ABLATION, soft=Soft(0.5, 3))
    says = (
        "one-label reads one label per ballot, but these votes are soft: certify their hard ballots, or use"
    )
    with pytest.raises(CostcertError, match=says):
        cc.certify(votes, PATCH, "one-label")
    with pytest.raises(CostcertError, match=says):
        cc.Deployed(Tiny(), ABLATION, defender="one-label", soft=Soft(0.5, 3))
    for promise in (OneLabel().rank, lambda *given: OneLabel().min_k(given[0], [given[1]])):
        with pytest.raises(CostcertError, match=says):
            promise(votes, touched(votes.ablation, PATCH, votes.image_size))
    assert cc.certify(votes.hard(), PATCH, "one-label").defenders == ["one-label"]


MASKS, COVERED = "masks:3/patch=2", cc.Rectangle(2, 2)


@pytest.mark.parametrize("soft", [None, Soft(0.3, 4)], ids=["hard", "soft"])
def test_no_pixels_break_what_masks_certify(soft):
    """Patches of random pixels, black and white, at every position."""
    rng = np.random.default_rng(3)
    deployed = cc.Deployed(Tiny(), MASKS, defender="patchcleanser", soft=soft)
    shown = for_masks(24).images
    first = deployed.predict(list(shown), k=1)[:, 0]
    certs = deployed.certify(list(shown), first, COVERED)
    min_k = certs.min_k("patchcleanser", COVERED)
    assert (certs.rank("patchcleanser", COVERED) == 1).all()
    assert 0 < (min_k == 1).sum() < 24
    moved = 0
    for top, left in product(range(5), range(7)):
        for pixels in (0, 255, rng.integers(0, 256, (24, 2, 2))):
            attacked = shown.copy()
            attacked[:, top : top + 2, left : left + 2] = pixels
            listed = deployed.predict(list(attacked), k=4)
            positions = np.argmax(listed == first[:, None], axis=1) + 1
            assert (positions <= min_k).all(), (top, left)
            moved += (positions > 1).sum()
    assert moved, "the patches do harm where nothing is certified"


@pytest.mark.parametrize("soft", [None, Soft(0.3, 4)], ids=["hard", "soft"])
def test_a_run_of_masks_is_deployed_as_it_was_certified(tmp_path, soft):
    data = for_masks(20)
    vote(Tiny(), data, MASKS, soft=soft, out=tmp_path / "votes")
    certs = cc.certify(cc.read_votes(tmp_path / "votes"), [1, 2])
    cc.write_certificates(certs, tmp_path / "certs", votes=tmp_path / "votes")
    for folder in ("votes", "certs"):
        deployed = cc.Deployed.from_run(tmp_path / folder, Tiny())
        assert deployed.classifier == cc.Defence(cc.Masks(3, patch=2), "crop", soft, "patchcleanser")
        listed = deployed.predict(list(data.images), k=4)
        rank = certs.rank("patchcleanser", 2)
        assert (np.argmax(listed == data.labels[:, None], axis=1) + 1 == rank).all()
        again = deployed.certify(list(data.images), data.labels, [1, 2])
        assert (again.min_k("patchcleanser", 2) == certs.min_k("patchcleanser", 2)).all()
    with pytest.raises(CostcertError, match="cover patches of up to 2x2 pixels, but square:3 has 3x3"):
        deployed.certify(list(data.images), data.labels, 3)


def test_estimates_and_other_classifiers_are_refused():
    votes = vote(Tiny(), pictures(4), ABLATION, soft=Soft(0.5, 3))
    estimate = replace(votes.tempered(2).classifier, defender="costcert")
    with pytest.raises(CostcertError, match="the temperature of these soft ballots is unknown"):
        cc.Deployed.of(Tiny(), estimate)
    with pytest.raises(CostcertError, match=r"turned into soft ballots of 3 labels at temperature 0\.25"):
        votes.under(cc.Defence(votes.ablation, "crop", Soft(0.25, 3)))
    with pytest.raises(CostcertError, match="has hide='crop', but the classifier has hide='zero'"):
        cc.Deployed.of(Tiny(), cc.Defence(votes.ablation, "zero", defender="costcert"))
