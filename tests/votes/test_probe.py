"""The probe measures how far logits move, and `certify` takes that into account."""

import numpy as np
import pytest

import costcert as cc
from costcert.errors import CostcertError
from costcert.geometry.ablations import Columns
from costcert.models.classifier import Soft, ballots_of
from costcert.votes.probe import SAFETY, probe
from costcert.votes.voting import vote
from tiny import Tiny, pictures

REGIONS = Columns(3).regions(Tiny.image_size)


def images(model, count=5):
    data = pictures(count)
    return np.stack([model.prepare(data.image(n)) for n in range(count)])


def test_a_model_that_does_not_move_has_no_epsilon():
    model = Tiny()
    found = probe(model, images(model), REGIONS, soft=Soft(0.5, 2))
    assert (found.epsilon, found.tau, found.flips, found.mutants) == (0.0, 0, 0, 5 * len(REGIONS))
    assert (1, 1) in model.evaluated
    assert (1, 3) in model.evaluated


def test_epsilon_is_twice_the_largest_shift_with_room_to_spare():
    model, soft = Tiny(drift=0.01), Soft(0.5, 4)
    pixels = images(model)
    found = probe(model, pixels, REGIONS, soft=soft)
    largest = 0.01 * (len(pixels) * len(REGIONS) - 1)
    assert found.epsilon == pytest.approx(2 * SAFETY * largest, rel=1e-4)
    assert found.shifts["one mutant at a time"] == max(found.shifts.values())
    assert found.shifts["once more"] == 0
    assert 0 < found.tau <= soft.cap
    still = Tiny()
    usual, moved = still.logits(pixels, REGIONS), still.logits(pixels, REGIONS)
    usual[..., 0] += 0.01 * len(pixels) * len(REGIONS)
    moved[..., 0] += 0.01
    assert found.flips >= (usual.argmax(-1) != moved.argmax(-1)).sum()
    # As the docstring says: no label with a margin above epsilon changed.
    top = np.sort(usual, axis=-1)
    sure = top[..., -1] - top[..., -2] > found.epsilon
    assert (usual.argmax(-1) == moved.argmax(-1))[sure].all()


def test_tau_is_twice_what_any_label_moved_in_any_way_with_room_to_spare():
    """Only one of the ways moves, and not the last: one image at a time."""

    class Nervous(Tiny):
        def logits(self, images, regions):
            alone = len(images) == 1 and len(regions) == len(REGIONS)
            return super().logits(images, regions) + np.array([0.01 * alone, 0, 0, 0])

    soft, pixels = Soft(0.5, 4), images(Tiny())
    found = probe(Nervous(), pixels, REGIONS, soft=soft)
    usual = Tiny().logits(pixels, REGIONS)
    given = []
    for logits in (usual, usual + np.array([0.01, 0, 0, 0])):
        ballots = ballots_of(logits, soft)
        given.append(np.take_along_axis(ballots.soft_units, ballots.soft_labels.argsort(axis=-1), axis=-1))
    moved = np.abs(given[0] - given[1]).max()
    assert 0 < found.tau == 2 * SAFETY * moved < soft.cap


def test_a_probe_of_nothing():
    with pytest.raises(CostcertError, match="at least one image and one region"):
        probe(Tiny(), np.zeros((0, 6, 8, 1), np.uint8), REGIONS)


class Undecided(Tiny):
    """The third and the fourth logit are nearly equal, and evaluating one mutant alone swaps them."""

    def logits(self, images, regions):
        answers = np.broadcast_to(np.float32([3, 2, 1, 1]), (len(images), len(regions), 4)).copy()
        answers[..., 3] += 1e-5 if len(images) * len(regions) == 1 else -1e-5
        return answers


def test_a_ballot_with_a_small_cut_is_uncertain():
    """A swap at the cut moves all units of a label; tau is measured on ballots that keep their labels."""
    soft, pixels = Soft(1.0, 3), images(Tiny())
    found = probe(Undecided(), pixels, REGIONS, soft=soft)
    assert found.epsilon == pytest.approx(2 * SAFETY * 2e-5, rel=1e-2)
    # The entry that moves holds thousands of units.
    assert ballots_of(Undecided().logits(pixels, REGIONS), soft).soft_units[0, 0, 2] > 5000
    assert found.tau < 100
    votes = vote(Undecided(), pictures(5), "columns:3", soft=soft)
    assert (votes.cuts < found.epsilon).all()
    careful = cc.certify(votes, 1, "costcert", epsilon=found.epsilon, tau=found.tau)
    assert (careful.min_k("costcert", 1) == 4).all(), "every ballot may change"
    all_named = vote(Undecided(), pictures(5), "columns:3", soft=Soft(1.0, 4))
    assert np.isinf(all_named.cuts).all(), "where all labels are named nothing is cut"


@pytest.mark.parametrize("best", [1, 2, 3])
def test_cuts_are_distances_to_the_first_label_left_out(best):
    logits = np.random.default_rng(2).normal(size=(7, 5, 4)).astype(np.float32)
    found = ballots_of(logits, Soft(0.5, best))
    ordered = -np.sort(-logits, axis=-1)
    assert (found.cuts == ordered[..., best - 1] - ordered[..., best]).all()
    assert (found.margins == ordered[..., 0] - ordered[..., 1]).all()


def test_epsilon_of_soft_ballots_needs_cuts():
    votes = vote(Tiny(), pictures(5), "columns:3", soft=Soft(1.0, 2)).replace(cuts=None)
    with pytest.raises(CostcertError, match="these soft ballots hold no cuts, which epsilon needs"):
        cc.certify(votes, 1, epsilon=0.1)


@pytest.mark.parametrize("soft", [None, Soft(0.5, 2)])
def test_what_was_found_is_said_in_words(soft):
    still = probe(Tiny(), images(Tiny()), REGIONS, soft=soft)
    assert still.in_words(soft) == (
        f"no logit of {still.mutants} mutants moved in {len(still.shifts)} ways of computing it (epsilon 0"
        + (")" if soft is None else ", tau 0)")
    )
    moved = probe(Tiny(drift=1e-4), images(Tiny()), REGIONS, soft=soft)
    words = moved.in_words(soft)
    assert f"moved by up to {max(moved.shifts.values()):.2g}" in words
    assert f"{moved.flips} changed their vote" in words
    assert f"of at most epsilon = {moved.epsilon:.2g} may change" in words
    assert (f"tau = {moved.tau:,} of 65,536 units" in words) == (soft is not None)
    assert ("margin or cut" in words) == (soft is not None)
