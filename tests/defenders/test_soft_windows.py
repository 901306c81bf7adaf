"""PatchGuard and CostCert over masks on soft ballots: their definition, and every attack there is."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import costcert as cc
import naive
from costcert.defenders import find, patchguard
from costcert.geometry.touch import touched
from strategies import by_masking, elections, examples, long_elections, scenes, soft_elections, ties

# On soft ballots, CostCert over masks does not price its rivals.
MASKED = dict.fromkeys(["patchguard", "costcert-masks"], naive.patchguard)


def certified(election, ties="against", defenders=MASKED, **more):
    patch = election.scene.patch
    certs = cc.certify(election.votes(), patches=[patch], defenders=list(defenders), ties=ties, **more)
    return {name: certs.min_k(name, patch).tolist() for name in defenders}


def defined(election, name, ties, uncertain=None, tau=0):
    return by_masking(MASKED[name], election, ties, uncertain, tau)


@settings(max_examples=examples(200))
@given(soft_elections(scenes(largest_side=6), largest_cap=9), ties)
def test_min_k_is_its_definition(election, ties):
    assert certified(election, ties) == {name: defined(election, name, ties) for name in MASKED}


@settings(max_examples=examples(60))
@given(long_elections(soft=True, most_mutants=30), ties, st.integers(0, 3))
def test_long_walks(election, ties, tau):
    """The same on axes of dozens of mutants, with clean ballots that may be off by tau."""
    assert certified(election, ties, tau=tau) == {
        name: defined(election, name, ties, tau=min(tau, election.cap)) for name in MASKED
    }


@given(st.data(), soft_elections(scenes(largest_side=5), largest_cap=9), ties, st.integers(0, 2))
def test_unknown_ballots_outside_a_window_are_not_masked(data, election, ties, tau):
    size = len(election.scene.mutants)
    row = st.lists(st.sampled_from([False, False, True]), min_size=size, max_size=size)
    uncertain = [data.draw(row) for _ in election.images]
    found = certified(election, ties, uncertain=np.array(uncertain), tau=tau)
    tau = min(tau, election.cap)
    assert found == {name: defined(election, name, ties, uncertain, tau) for name in MASKED}


@settings(max_examples=examples(150))
@given(soft_elections(scenes(largest_side=5, most_touched=4), st.integers(2, 3), most_images=1), ties)
def test_they_survive_every_attack(election, ties):
    """No ballots of at most U units from touched mutants bring the true label below min-k."""
    ways = naive.spreads(election.num_classes, election.cap)
    assume(sum(len(ways) ** len(attacked) for attacked in election.scene.sets) <= 1500)
    found = certified(election, ties)
    reached = naive.reachable_masked(
        election.ballots(0), election.scene.sets, election.scene.windows, election.num_classes, ways
    )
    worst = naive.worst_position(reached, election.truth[0], ties)
    assert worst <= found["costcert-masks"][0] <= found["patchguard"][0]


@given(
    soft_elections(
        scenes(largest_side=4).filter(lambda scene: len(scene.mutants) <= 4),
        st.integers(2, 3),
        largest_cap=2,
        most_images=1,
    ),
    ties,
)
def test_they_survive_shifts_of_clean_ballots(election, ties):
    """Every clean ballot may be off by one unit per label, besides every attack."""
    anything = naive.spreads(election.num_classes, election.cap)
    ballots = election.ballots(0)
    near = [
        [way for way in anything if all(abs(units - given.get(y, 0)) <= 1 for y, units in enumerate(way))]
        for given in ballots
    ]
    found = certified(election, ties, tau=1)
    for attacked in election.scene.windows:
        choices = [anything if i in attacked else near[i] for i in range(len(ballots))]
        assume(np.prod([len(each) for each in choices]) <= 1500)
        after = [[]]
        for each in choices:
            after = [[*cast, dict(enumerate(way))] for cast in after for way in each]
        scores = {
            tuple(naive.masked_scores(cast, election.scene.windows, election.num_classes)) for cast in after
        }
        worst = naive.worst_position(scores, election.truth[0], ties)
        assert worst <= found["costcert-masks"][0] <= found["patchguard"][0]


@given(soft_elections(scenes(largest_side=6), largest_cap=9))
def test_rank_is_the_position_by_masked_units(election):
    patch = election.scene.patch
    votes = election.votes()
    certs = cc.certify(votes, [patch], list(MASKED))
    windows = touched(votes.ablation, patch.at(votes.image_size), votes.image_size)
    for n in election.images:
        scores = naive.masked_scores(election.ballots(n), election.scene.windows, election.num_classes)
        expected = naive.rank(scores, election.truth[n])
        for name in MASKED:
            assert certs.rank(name, patch)[n] == expected
            assert find(name).scores(votes, windows)[n].tolist() == scores
            assert find(name).predict(votes, windows, election.num_classes)[n].tolist() == naive.order(scores)


@given(elections(scenes()), ties)
def test_hard_ballots_are_soft_ones_of_one_unit(election, ties):
    soft = election._replace(
        labels=[[[label] for label in image] for image in election.labels],
        units=[[[1] for _ in image] for image in election.labels],
    )
    assert certified(election, ties)["patchguard"] == certified(soft, ties)["patchguard"]


@given(soft_elections(scenes(largest_side=5), largest_cap=9), ties)
def test_the_price_that_is_left_out_could_only_lower_min_k(election, ties):
    scene = election.scene
    for n, found in enumerate(certified(election, ties)["costcert-masks"]):
        world = (election.ballots(n), scene.windows, election.truth[n], election.num_classes, ties)
        assert naive.costcert_masks(*world, cap=election.cap) <= found


@settings(max_examples=examples(150))
@given(soft_elections(scenes(largest_side=6, kinds=("columns",), most_families=1), largest_cap=9))
def test_windows_of_one_size_certify_at_k_1_what_costcert_does(election):
    """The true label gives away what it holds in a window, CostCert all that a window could hold."""
    scene = election.scene
    assume(len({len(window) for window in scene.windows}) == 1)
    found = certified(election, defenders=[*MASKED, "costcert"])
    for n in election.images:
        if found["costcert"][n] == 1:
            assert found["patchguard"][n] == found["costcert-masks"][n] == 1


def test_too_many_windows_are_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(patchguard, "_MOST_HELD", 39)
    votes = cc.Votes.soft(
        np.zeros((1, 9, 1), int), np.ones((1, 9, 1), int), [0], num_classes=2, cap=1, ablation="columns:4",
        image_size=(1, 9),
    )  # fmt: skip
    with pytest.raises(cc.CostcertError, match="8 windows of 9 mutants are too many to mask in soft ballots"):
        cc.certify(votes, "rectangle:1x2", "patchguard")
