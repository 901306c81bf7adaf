"""Votes of masks from part of the ballots: bounds, stopping and prediction, against every completion."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import costcert as cc
import naive
from costcert.errors import CostcertError
from costcert.models.classifier import Soft
from costcert.votes.adaptive import StoppingRule
from costcert.votes.rows import TopRows
from costcert.votes.voting import vote
from strategies import examples, masked_elections, masked_scenes
from tiny import Tiny, for_masks

soft = st.sampled_from([None, Soft(0.3, 2), Soft(1.0, 4)])
masks = st.sampled_from(["masks:2/patch=2", "masks:3/patch=2", "masks:3/patch=1"])


def some_unknown(data, election, most):
    """[N, B] which ballots are known: all but up to `most` of each image."""
    known = np.ones((len(election.truth), len(election.scene.mutants)), bool)
    for image in known:
        unknown = st.lists(st.integers(0, len(image) - 1), max_size=most, unique=True)
        image[data.draw(unknown)] = False
    return known


@settings(max_examples=examples(100))
@given(st.data(), masked_elections(masked_scenes()))
def test_bounds_are_their_definition(data, election):
    known = some_unknown(data, election, len(election.scene.mutants))
    found = np.transpose(cc.bounds(election.votes(), election.scene.patch, known))
    scene = election.scene
    for n in election.images:
        counted = frozenset(np.flatnonzero(known[n]).tolist())
        world = (scene.sets, scene.rows, election.truth[n], election.num_classes, election.cap)
        assert tuple(found[n]) == naive.mask_bounds(election.ballots(n), counted, *world)


# Ten mutants, of which up to three are unknown, so that every completion can be tried.
tiny = masked_scenes(most_masks=2, largest_side=5)


@settings(max_examples=examples(60))
@given(st.data(), masked_elections(tiny, st.integers(2, 3), largest_cap=2, most_images=1))
def test_bounds_hold_for_every_completion(data, election):
    """The lower bounds are attained; the upper ones hold, and min-k is 1 throughout iff its bound is 1."""
    known = some_unknown(data, election, 3 if election.cap == 1 else 2)
    bounds = cc.bounds(election.votes(), election.scene.patch, known)
    scene, truth, classes = election.scene, election.truth[0], election.num_classes
    ways = naive.single_labels(classes) if election.units is None else naive.spreads(classes, election.cap)
    ranks, min_ks = set(), set()
    for ballots in naive.rewritten(election.ballots(0), np.flatnonzero(~known[0]).tolist(), ways):
        ranks.add(naive.pair_order(ballots, scene.rows, classes).index(truth) + 1)
        min_ks.add(naive.patchcleanser(ballots, scene.sets, scene.rows, truth, classes, election.cap))
    assert (bounds.rank_low[0], bounds.min_k_low[0]) == (min(ranks), min(min_ks))
    assert bounds.rank_high[0] >= max(ranks)
    assert bounds.min_k_high[0] >= max(min_ks)
    assert (bounds.min_k_high[0] == 1) == (max(min_ks) == 1)


@settings(max_examples=examples(100))
@given(st.data(), masked_elections(tiny, st.integers(2, 3), largest_cap=2, most_images=1))
def test_a_settled_prediction_is_that_of_every_completion(data, election):
    known = some_unknown(data, election, 3 if election.cap == 1 else 2)
    classes, rows = election.num_classes, election.scene.rows
    k = data.draw(st.integers(1, classes))
    votes, until = election.votes().replace(known=known), TopRows(k)
    ways = naive.single_labels(classes) if election.units is None else naive.spreads(classes, election.cap)
    possible = {
        tuple(naive.pair_order(ballots, rows, classes)[:k])
        for ballots in naive.rewritten(election.ballots(0), np.flatnonzero(~known[0]).tolist(), ways)
    }
    if until.lacking(votes)[0] == 0:
        assert possible == {tuple(until.predict(votes)[0].tolist())}
    else:
        assert not known.all()


@settings(max_examples=examples(25))
@given(st.integers(0, 10**6), st.lists(st.integers(1, 4), min_size=1, max_size=2, unique=True), soft, masks)
def test_the_decision_is_that_of_all_ballots(seed, ks, soft, masks):
    model, data = Tiny(), for_masks(12, seed)
    side = cc.parse_ablation(masks).sides[0]
    complete = vote(model, data, masks, soft=soft)
    stopped = vote(model, data, masks, soft=soft, until=StoppingRule.parse(side, ks, model.image_size))
    full, part = (cc.certify(votes, side) for votes in (complete, stopped))
    for name in ("rank", "min_k"):
        of_part, of_full = (getattr(found, name)("patchcleanser", side) for found in (part, full))
        assert (of_part >= of_full).all()
        for k in ks:
            assert ((of_part <= k) == (of_full <= k)).all()
    if stopped.known is not None:
        assert ((stopped.ballots == complete.ballots) | ~stopped.known).all()


@settings(max_examples=examples(25))
@given(st.integers(0, 10**6), st.integers(1, 4), soft, masks)
def test_an_adaptive_prediction_is_the_full_one(seed, k, soft, masks):
    images = list(for_masks(12, seed).images)
    deployed = cc.Deployed(Tiny(), masks, soft=soft, defender="patchcleanser")
    assert (deployed.predict(images, k, adaptive=True) == deployed.predict(images, k)).all()


def test_a_unanimous_first_label_takes_single_masks_and_one_row():
    class Sure(Tiny):
        def logits(self, images, regions):
            self.evaluated.append((len(images), len(regions)))
            return np.tile(np.float32([0, 9, 1, 2]), (len(images), len(regions), 1))

    model = Sure()
    deployed = cc.Deployed(model, "masks:3/patch=2", defender="patchcleanser")
    images = list(for_masks(2).images)
    deployed.votes(images)
    model.evaluated.clear()
    assert deployed.predict(images, k=1, adaptive=True).tolist() == [[1], [1]]
    assert model.evaluated == [(2, 9), (2, 8)]


def test_a_refusal_takes_fewer_mutants_than_a_certificate():
    """An image that is wrong is decided by the row in which another label stands."""

    class Sure(Tiny):
        def logits(self, images, regions):
            return np.tile(np.float32([0, 9, 1, 2]), (len(images), len(regions), 1))

    data = for_masks(2)
    data.labels[:] = [0, 1]
    votes = vote(Sure(), data, "masks:3/patch=2", until=StoppingRule.parse(2, 1, (6, 8)))
    assert votes.known.sum(axis=1)[0] == 17
    assert votes.known.sum(axis=1)[1] > 17


def test_a_patch_that_masks_do_not_cover_is_refused_before_anything_is_written(tmp_path):
    rule = StoppingRule.parse(3, 1, (6, 8))
    with pytest.raises(CostcertError, match="cover patches of up to 2x2 pixels, but square:3 has 3x3"):
        vote(Tiny(), for_masks(2), "masks:3/patch=2", until=rule, out=tmp_path / "votes")
    assert not (tmp_path / "votes").exists()
