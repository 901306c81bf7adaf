"""What is deployed is what was certified."""

import numpy as np
import pytest
from PIL import Image

import costcert as cc
from costcert.defenders import find
from costcert.errors import CostcertError
from costcert.geometry.touch import touched
from costcert.models.classifier import Soft, ballots_of
from costcert.voting import vote
from tiny import Tiny, pictures

ABLATION = "columns:3"
PATCH = cc.Square(2)


@pytest.mark.parametrize("defender", ["costcert", "cbn", "drs", "patchguard", "costcert-masks"])
@pytest.mark.parametrize("soft", [None, Soft(0.3, 2)], ids=["hard", "soft"])
def test_the_true_label_stands_where_its_certificate_says(defender, soft):
    if soft and not find(defender).reads_soft:
        pytest.skip("this defender reads hard ballots only, which is refused (tested below)")
    data = pictures(30)
    votes = vote(Tiny(), data, ABLATION, soft=soft)
    rank = cc.certify(votes, [PATCH], [defender]).rank(defender, PATCH)
    deployed = cc.Deployed(Tiny(), ABLATION, defender=defender, patch=PATCH, soft=soft)
    listed = deployed.predict([data.image(n) for n in range(30)], k=4)
    assert (np.argmax(listed == data.labels[:, None], axis=1) + 1 == rank).all()


def test_pictures_come_from_pillow_or_as_pixels():
    data = pictures(3)
    deployed = cc.Deployed(Tiny(), ABLATION)
    expected = deployed.predict([data.image(n) for n in range(3)], k=2)
    assert (deployed.predict(list(data.images), k=2) == expected).all()
    assert (deployed.predict(data.images[1], k=2) == expected[1]).all()
    assert (deployed.predict(data.images[1][..., None], k=2) == expected[1]).all()
    assert (deployed.predict(Image.fromarray(data.images[2]), k=2) == expected[2]).all()


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
    guard = find("patchguard")
    case = touched(votes.ablation, PATCH, votes.image_size)
    deployed = cc.Deployed(Tiny(), ABLATION, defender="patchguard", patch=PATCH)
    assert (deployed.predict(list(pictures(6).images), k=3) == guard.predict(votes, case, 3)).all()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({}, "does not say what mutants keep: pass an ablation"),
        ({"ablation": ABLATION, "defender": "patchguard"}, "PatchGuard predicts by masking a patch"),
        (
            {"ablation": ABLATION, "defender": "patchguard", "patch": 2, "soft": Soft(1, 2)},
            "does not read soft ballots",
        ),
        ({"ablation": ABLATION, "defender": "costcerd"}, "costcert"),
        ({"ablation": ABLATION, "patch": 99}, "does not fit"),
    ],
)
def test_what_cannot_be_deployed(how, said):
    with pytest.raises(CostcertError, match=said):
        cc.Deployed(Tiny(), **how)


@pytest.mark.parametrize(
    "picture", [np.zeros((4, 4)), np.zeros((4, 4, 2), np.uint8), np.zeros((0, 4), np.uint8)]
)
def test_what_is_no_picture(picture):
    with pytest.raises(CostcertError, match="a picture is an image of Pillow"):
        cc.Deployed(Tiny(), ABLATION).predict([picture], k=2)


def test_a_list_longer_than_the_classes():
    with pytest.raises(CostcertError, match="4 classes apart, so k is no 5"):
        cc.Deployed(Tiny(), ABLATION).predict(list(pictures(1).images), k=5)


def test_a_soft_ballot_names_the_best_labels_as_a_stable_sort_would():
    """Ties go to the lowest label, however many labels tie at the last place that is kept."""
    rng = np.random.default_rng(0)
    for classes, best in ((2, 1), (5, 2), (7, 7), (9, 4)):
        logits = rng.integers(0, 3, (40, 6, classes)).astype(np.float32)
        expected = np.argsort(-logits, axis=-1, kind="stable")[..., :best]
        assert (ballots_of(logits, Soft(0.5, best)).soft_labels == expected).all()
