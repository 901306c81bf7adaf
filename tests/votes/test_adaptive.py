"""Adaptive stopping: fewer mutants are evaluated, and the decision is that of all ballots."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import costcert as cc
import naive
from command_line import invoke
from costcert.errors import CostcertError, VotesError
from costcert.models.classifier import Soft
from costcert.votes.adaptive import StoppingRule, TopK, next_step, spread_out
from costcert.votes.voting import vote
from strategies import examples
from tiny import Tiny, pictures


@given(st.integers(1, 400))
def test_every_mutant_is_evaluated_once_and_first_those_far_apart(mutants):
    order = spread_out(mutants)
    assert sorted(order) == list(range(mutants))
    step = next_step(np.array([1, 1]), mutants, 16)
    assert step * 16 >= mutants
    gaps = [b - a for a, b in pairwise(sorted(order[:step]))]
    assert not gaps or max(gaps) <= 2 * min(gaps)


@settings(max_examples=examples(25))
@given(
    st.integers(0, 10**6),
    st.lists(st.integers(1, 4), min_size=1, max_size=2, unique=True),
    st.lists(st.integers(1, 4), min_size=1, max_size=2, unique=True),
    st.sampled_from([None, Soft(0.3, 2)]),
    st.sampled_from(["columns:3", "rows:2", "columns:2+rows:2", "blocks:3/stride=2"]),
)
def test_the_decision_is_that_of_all_ballots(seed, sides, ks, soft, ablation):
    model, data = Tiny(seed), pictures(12, seed)
    complete = vote(model, data, ablation, soft=soft)
    stopped = vote(model, data, ablation, soft=soft, until=StoppingRule.parse(sides, ks, model.image_size))
    full, part = (cc.certify(votes, sides, ["costcert"]) for votes in (complete, stopped))
    for side in sides:
        # Never better than with all ballots, and the same for the k of the stopping rule.
        assert (part.min_k("costcert", side) >= full.min_k("costcert", side)).all()
        assert (part.rank("costcert", side) >= full.rank("costcert", side)).all()
        for k in ks:
            for name in ("rank", "min_k"):
                of_part, of_full = (getattr(found, name)("costcert", side) <= k for found in (part, full))
                assert (of_part == of_full).all()
    if stopped.known is not None:
        same = (stopped.ballots == complete.ballots) | ~stopped.known
        assert same.all()


def test_clear_decisions_take_few_evaluations():
    """All mutants vote right: little more than half of them decide that y0 is first."""

    class Sure(Tiny):
        def logits(self, images, regions):
            answers = super().logits(images, regions)
            answers[..., 1] += 100
            return answers

    data = pictures(6)
    data.labels[:] = 1
    votes = vote(Sure(), data, "columns:1", until=StoppingRule.parse([1], [1], (6, 8)))
    assert votes.known is not None
    assert votes.known.sum(axis=1).max() <= 6


def test_ballots_that_were_not_evaluated_are_never_counted():
    rng = np.random.default_rng(0)
    known = rng.random((20, 8)) < 0.6
    known[0, 0] = False
    ballots, truth = rng.integers(0, 4, (20, 8)), rng.integers(0, 4, 20)
    table = {"num_classes": 4, "ablation": "columns:3", "image_size": (6, 8), "known": known}
    votes = cc.Votes(ballots, truth, **table)
    other = cc.Votes(np.where(known, ballots, rng.integers(0, 4, (20, 8))), truth, **table)
    for found in ("costcert", "cbn", "drs"):
        one, two = (cc.certify(each, 2, [found]) for each in (votes, other))
        assert (one.min_k(found, 2) == two.min_k(found, 2)).all()
        assert (one.rank(found, 2) == two.rank(found, 2)).all()
        plain = {**table, "known": None}
        full = cc.certify(cc.Votes(ballots, truth, **plain), 2, [found], uncertain=~known)
        assert (one.min_k(found, 2) == full.min_k(found, 2)).all()
    for exclusive in (cc.exclusion(votes, 2, 1, k=2), cc.exclusion(other, 2, 1, k=2)):
        assert (exclusive == cc.exclusion(votes, 2, 1, k=2)).all()
    assert votes.select("columns:3/stride=2").known.shape == (20, 4)
    assert votes.take([0]).known.tolist() == known[:1].tolist()


def test_functions_that_need_all_ballots_refuse_others():
    known = np.ones((2, 8), dtype=bool)
    known[0, 0] = False
    votes = cc.Votes(
        np.zeros((2, 8), int), [0, 0], num_classes=3, ablation="columns:3", image_size=(6, 8), known=known
    )
    for call in (
        lambda: cc.certify(votes, 2, ["patchguard"]),
        lambda: cc.witness(votes, 0, 2, 1),
        lambda: cc.strongest(votes, 0, 2),
        lambda: cc.stability(votes, 2, 1),
    ):
        with pytest.raises(CostcertError, match="needs the ballots of all mutants"):
            call()
    assert cc.certify(votes, 2).defenders == ["costcert", "cbn", "drs"]
    with pytest.raises(VotesError, match="known must be true or false for each"):
        cc.Votes(
            np.zeros((2, 8), int), [0, 0], num_classes=3, ablation="columns:3", image_size=(6, 8), known=[1]
        )


def test_partial_votes_on_disk(tmp_path):
    model, data = Tiny(3), pictures(30, 3)
    rule = StoppingRule.parse([2], [1, 2], model.image_size)
    folder = vote(model, data, "columns:2", until=rule, out=tmp_path / "votes", shard_size=7)
    back, there = cc.read_votes(tmp_path / "votes"), vote(model, data, "columns:2", until=rule)
    assert (back.known == there.known).all()
    assert folder.evaluated() == there.known.sum() / 30
    full = vote(model, data, "columns:2", out=tmp_path / "full")
    words = ["certify", str(tmp_path / "votes"), "--patch", "2", "--k", "1,2", "--out"]
    assert invoke([*words, str(tmp_path / "certs")]).exit_code == 0
    found = cc.read_certificates(tmp_path / "certs")
    expected = cc.certify(cc.read_votes(full.folder), 2, ["costcert"])
    for k in (1, 2):
        assert ((found.min_k("costcert", 2) <= k) == (expected.min_k("costcert", 2) <= k)).all()


def _partial(cast, remaining, num_classes, cap):
    """Votes of one image: these ballots, and `remaining` ones that are not known."""
    count = len(cast) + remaining
    ablation = cc.Columns(1, span=(0, count - 1))
    known = np.array([[True] * len(cast) + [False] * remaining])
    shape = {"num_classes": num_classes, "ablation": ablation, "image_size": (2, count)}
    if cap == 1:
        # An unknown ballot holds any label.
        labels = [next(iter(ballot)) for ballot in cast] + [num_classes - 1] * remaining
        return cc.Votes([labels], [0], **shape).replace(known=known)
    units = np.zeros((1, count, num_classes), int)
    for at, ballot in enumerate(cast):
        for label, given_units in ballot.items():
            units[0, at, label] = given_units
    units[0, len(cast) :, -1] = cap
    labels = np.broadcast_to(np.arange(num_classes), units.shape)
    return cc.Votes.soft(labels, units, [0], cap=cap, **shape).replace(known=known)


def _possible(num_classes, cap):
    """Every ballot: one label, or any units up to the cap."""
    if cap == 1:
        return naive.hard(range(num_classes))
    spreads = product(range(cap + 1), repeat=num_classes)
    return [dict(enumerate(units)) for units in spreads if sum(units) <= cap]


@settings(max_examples=examples(150))
@given(st.data(), st.integers(2, 4), st.sampled_from([1, 1, 2]), st.integers(0, 3))
def test_a_prediction_stops_exactly_when_no_ballot_can_change_it(data, num_classes, cap, remaining):
    if cap > 1:
        num_classes, remaining = min(num_classes, 3), min(remaining, 2)
    k = data.draw(st.integers(1, num_classes))
    possible = _possible(num_classes, cap)
    cast = data.draw(st.lists(st.sampled_from(possible), min_size=1, max_size=9))
    votes = _partial(cast, remaining, num_classes, cap)
    found = naive.predictions(cast, remaining, possible, num_classes, k)
    until = TopK(k)
    lacking = int(until.lacking(votes)[0])
    assert (lacking == 0) == (len(found) == 1)
    if lacking == 0:
        assert {tuple(until.predict(votes)[0])} == found
    # Fewer ballots than it lacks decide nothing, whatever they are.
    for more in range(min(lacking, remaining + 1)):
        for rest in product(possible, repeat=more):
            left = remaining - more
            assert len(naive.predictions([*cast, *rest], left, possible, num_classes, k)) > 1


@settings(max_examples=examples(40))
@given(
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.sampled_from([None, Soft(0.3, 2), Soft(0.05, 4)]),
    st.sampled_from(["columns:3", "rows:2", "columns:2+rows:2", "blocks:3/stride=2"]),
    st.sampled_from(["costcert", "cbn", "drs"]),
)
def test_an_adaptive_prediction_is_the_full_one(seed, k, soft, ablation, defender):
    images = list(pictures(12, seed).images)
    deployed = cc.Deployed(Tiny(seed), ablation, soft=soft, defender=defender)
    assert (deployed.predict(images, k, adaptive=True) == deployed.predict(images, k)).all()


def test_an_adaptive_prediction_of_one_label_takes_half_of_the_mutants_if_they_agree():
    class Sure(Tiny):
        def logits(self, images, regions):
            self.evaluated.append((len(images), len(regions)))
            return np.tile(np.float32([0, 5, 1, 2]), (len(images), len(regions), 1))

    model = Sure()
    deployed = cc.Deployed(model, "columns:3")
    deployed.votes(list(pictures(2).images))
    model.evaluated.clear()
    assert deployed.predict(list(pictures(2).images), k=1, adaptive=True).tolist() == [[1], [1]]
    assert model.evaluated == [(2, 4), (2, 2)]


@pytest.mark.parametrize("defender", ["patchguard", "costcert-masks"])
def test_a_masking_defender_predicts_from_all_ballots(defender):
    deployed = cc.Deployed(Tiny(), "columns:3", defender=defender, patch=2)
    with pytest.raises(CostcertError, match="so it predicts from all ballots: leave adaptive out"):
        deployed.predict(list(pictures(1).images), k=1, adaptive=True)
