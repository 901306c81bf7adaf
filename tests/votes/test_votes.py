"""What `Votes` refuses, in one clear sentence each, and what it keeps."""

import numpy as np
import pytest

import costcert as cc

GOOD = {"num_classes": 5, "ablation": cc.Columns(3), "image_size": (4, 6)}


def ballots(count=2):
    return np.arange(count * 6).reshape(count, 6) % 5


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ballots": np.zeros((2, 5), int)}, "got 5 ballots per image, but columns:3 on 4x6 makes 6"),
        ({"ballots": np.full((2, 6), 5)}, "ballots[0, 0] is 5, but 5 classes are labelled 0 to 4"),
        ({"ballots": np.full((2, 6), -1)}, "ballots[0, 0] is -1"),
        ({"ballots": np.full((2, 6), np.nan)}, "ballots must be integers, got NaN"),
        ({"ballots": np.full((2, 6), 0.5)}, "ballots must be integers, got 0.5"),
        ({"ballots": np.full((2, 6), np.inf)}, "got NaN or infinity"),
        ({"ballots": np.full((2, 6), "a")}, "ballots must be integers"),
        ({"ballots": np.full((2, 6), True)}, "ballots must be integers, got bool"),
        ({"ballots": [[1, 2], [3]]}, "rectangular"),
        ({"ballots": np.zeros((0, 6), int), "truth": []}, "votes need at least one image"),
        ({"ballots": np.zeros(6, int)}, "shape [images, mutants]"),
        ({"truth": [0, 9]}, "truth[1] is 9"),
        ({"truth": [0, 1, 2]}, "truth of shape (3,)"),
        ({"num_classes": 0}, "the number of classes must be at least 1"),
        ({"num_classes": 2.5}, "the number of classes must be an integer"),
        ({"num_classes": 1 << 40}, "at most"),
        ({"ablation": cc.Columns(7)}, "columns:7 does not fit"),
        ({"ablation": "colums:3"}, "did you mean 'columns'?"),
        ({"image_size": (4, 6, 3)}, "(height, width)"),
        ({"image_size": (4, 0)}, "the image width must be at least 1"),
        ({"image_ids": ["a"]}, "image ids of shape (1,)"),
        ({"image_ids": ["a", "a"]}, "image ids must differ"),
        ({"class_names": ["cat"]}, "got 1 class names for 5 classes"),
        ({"margins": np.full((2, 6), np.nan)}, "margins"),
        ({"margins": np.zeros((2, 5))}, "got margins of shape (2, 5)"),
    ],
)
def test_bad_votes_get_one_sentence(change, says):
    good = {"ballots": ballots(), "truth": [0, 1], **GOOD}
    with pytest.raises(cc.CostcertError) as caught:
        cc.Votes(**{**good, **change})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "units", "cap", "says"),
    [
        (np.zeros((2, 6, 2), int), np.full((2, 6, 2), 3), 5, "a mutant gives 6 units, but the cap is 5"),
        (np.zeros((2, 6, 2), int), np.full((2, 6, 2), -1), 5, "units must not be negative"),
        (np.zeros((2, 6, 2), int), np.zeros((2, 6, 1), int), 5, "labels and units of one shape"),
        (np.zeros((2, 6), int), np.zeros((2, 6), int), 5, "labels and units of one shape"),
        (np.full((2, 6, 2), 7), np.zeros((2, 6, 2), int), 5, "labels[0, 0, 0] is 7"),
        (np.zeros((2, 6, 2), int), np.full((2, 6, 2), 0.25), 5, "units must be integers, got 0.25"),
        (
            np.zeros((2, 6, 2), int),
            np.zeros((2, 6, 2), int),
            0,
            "the cap of a soft ballot must be at least 1",
        ),
        (
            np.zeros((2, 6, 2), int),
            np.zeros((2, 6, 2), int),
            1 << 40,
            "the cap of a soft ballot must be at most",
        ),
        (np.zeros((2, 5, 2), int), np.zeros((2, 5, 2), int), 5, "got 5 ballots per image"),
    ],
)
def test_bad_soft_ballots_get_one_sentence(labels, units, cap, says):
    with pytest.raises(cc.CostcertError) as caught:
        cc.Votes.soft(labels, units, [0, 1], cap=cap, **GOOD)
    assert says in str(caught.value)


def test_integral_floats_are_accepted():
    votes = cc.Votes(ballots().astype(np.float32), [0.0, 1.0], **GOOD)
    assert votes.ballots.dtype == np.int32
    assert (votes.ballots == ballots()).all()


def test_hard_ballots_beside_soft_ones_are_the_best_label():
    labels = np.array([[[0, 1], [2, 3], [4, 0], [1, 2], [3, 4], [0, 2]]])
    units = np.array([[[1, 3], [3, 1], [0, 2], [2, 2], [1, 0], [0, 0]]])
    votes = cc.Votes.soft(labels, units, [0], cap=4, **GOOD)
    assert votes.ballots.tolist() == [[1, 2, 0, 1, 3, 0]]
    assert votes.is_soft
    assert not votes.hard().is_soft
    assert votes.hard().cap == 1


def test_taking_images_takes_all_their_fields():
    votes = cc.Votes(
        ballots(4), [0, 1, 2, 3], image_ids=list("abcd"), margins=np.arange(24.0).reshape(4, 6), **GOOD
    )
    part = votes.take(slice(1, 3))
    assert part.image_ids.tolist() == ["b", "c"]
    assert part.truth.tolist() == [1, 2]
    assert part.margins.tolist() == np.arange(24.0).reshape(4, 6)[1:3].tolist()
    with pytest.raises(cc.CostcertError, match="votes need at least one image, and none was selected"):
        votes.take(slice(4, 9))


def test_selecting_mutants_that_were_never_evaluated_is_refused():
    votes = cc.Votes(ballots(), [0, 1], num_classes=5, ablation="columns:3/stride=2", image_size=(4, 12))
    with pytest.raises(cc.CostcertError, match="6 of the 12 mutants of columns:3 were never evaluated"):
        votes.select("columns:3")
    assert (votes.select("columns:3/stride=4").ballots == ballots()[:, ::2]).all()


def test_epsilon_needs_margins_and_tau_needs_soft_ballots():
    votes = cc.Votes(ballots(), [0, 1], **GOOD)
    with pytest.raises(cc.CostcertError, match="hold no margins"):
        cc.certify(votes, [1], epsilon=0.1)
    with pytest.raises(cc.CostcertError, match="tau is in units of soft ballots"):
        cc.certify(votes, [1], tau=1)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda v: cc.certify(v, []), "no patch is named"),
        (lambda v: cc.certify(v, [9]), "square:9 does not fit a 4x6 image"),
        (lambda v: cc.certify(v, ["sqare:2"]), "did you mean 'square'?"),
        (lambda v: cc.certify(v, [2], ["costcrt"]), "did you mean 'costcert'?"),
        (lambda v: cc.certify(v, [2], []), "no defender given"),
        (lambda v: cc.certify(v, [2], ties="random"), "ties are 'against' or 'lowest', got 'random'"),
        (lambda v: cc.certify(v, [2], uncertain=np.zeros((1, 6), bool)), "uncertain must be true or false"),
        (lambda v: cc.certify(v, [2], ["cbn"]).min_k("drs", 2), "nothing was certified for drs"),
        (lambda v: cc.certify(v, [2]).accuracy(k=0), "k must be at least 1"),
        (lambda v: cc.exclusion(v, 2, 7, 1), "labels[] is 7"),
        (lambda v: cc.exclusion(v, 2, [[1]], 1), "labels must be one label"),
        (lambda v: cc.stability(v, 2, 0), "k must be at least 1"),
        (lambda v: cc.min_k_any(v, 2, [[0]]), "got true labels of 1 images for votes of 2"),
        (lambda v: cc.min_k_all(v, 2, [[0], []]), "image 1 has no true label"),
        (lambda v: cc.witness(v, 5, 2, 1), "image 5 is not one of the 2 images"),
        (lambda v: cc.bounds(v, 2, np.ones((2, 6))), "known must be true or false"),
    ],
)
def test_bad_requests_get_one_sentence(call, says):
    with pytest.raises(cc.CostcertError) as caught:
        call(cc.Votes(ballots(), [0, 1], **GOOD))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_voting_defender_reads_soft_votes():
    votes = cc.Votes.soft(np.zeros((1, 6, 1), int), np.ones((1, 6, 1), int), [0], cap=2, **GOOD)
    everyone = ["costcert", "costcert-masks", "patchguard", "cbn", "drs"]
    assert cc.certify(votes, [1]).defenders == everyone
