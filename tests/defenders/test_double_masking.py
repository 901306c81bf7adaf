"""Double masking: its definition, every attack there is, and what it certifies beyond PatchGuard."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import costcert as cc
import naive
from costcert.defenders import double_masking, find
from costcert.geometry.touch import touched
from strategies import by_masking, elections, examples, long_elections, scenes, soft_elections, ties

ballots = st.one_of(elections(scenes(largest_side=6)), soft_elections(scenes(largest_side=6), largest_cap=9))


def certified(election, ties="against", defender="double-masking", **more):
    patch = election.scene.patch
    certs = cc.certify(election.votes(), patches=[patch], defenders=defender, ties=ties, **more)
    return certs.min_k(defender, patch).tolist()


def defined(election, ties, uncertain=None, tau=0):
    return by_masking(naive.double_masking, election, ties, uncertain, tau)


@settings(max_examples=examples(200))
@given(ballots, ties)
def test_min_k_is_its_definition(election, ties):
    assert certified(election, ties) == defined(election, ties)


@settings(max_examples=examples(100))
@given(ballots, ties)
def test_the_kernel_alone_is_the_definition(election, ties):
    """Also for images that PatchGuard's bound decides at once."""
    votes, defender = election.votes(), double_masking.DoubleMasking()
    windows = touched(votes.ablation, election.scene.patch.at(votes.image_size), votes.image_size)
    rank, passing = np.zeros((2, len(votes)), np.int64)
    defender._run(votes, windows, ties, rank=rank, passing=passing)
    assert (1 + passing).tolist() == defined(election, ties)
    assert rank.tolist() == [
        naive.rank(
            naive.double_masked_scores(election.ballots(n), election.scene.windows, election.num_classes),
            election.truth[n],
        )
        for n in election.images
    ]


@given(elections(scenes(largest_side=5), st.integers(5, 60)), ties)
def test_labels_without_votes_are_counted(election, ties):
    assert certified(election, ties) == defined(election, ties)


@settings(max_examples=examples(25))
@given(st.booleans().flatmap(lambda soft: long_elections(soft=soft, most_classes=5, most_mutants=16)), ties)
def test_long_walks(election, ties):
    assert certified(election, ties) == defined(election, ties)


@given(st.data(), soft_elections(scenes(largest_side=5), largest_cap=9), ties, st.integers(0, 2))
def test_unknown_ballots_and_shifts(data, election, ties, tau):
    size = len(election.scene.mutants)
    row = st.lists(st.sampled_from([False, False, True]), min_size=size, max_size=size)
    uncertain = [data.draw(row) for _ in election.images]
    found = certified(election, ties, uncertain=np.array(uncertain), tau=tau)
    assert found == defined(election, ties, uncertain, min(tau, election.cap))


@settings(max_examples=examples(150))
@given(elections(scenes(largest_side=5, most_touched=5), st.integers(2, 4), most_images=1), ties)
def test_it_survives_every_attack(election, ties):
    """No hard ballots of touched mutants bring the true label below min-k."""
    sets, windows, num_classes = election.scene.sets, election.scene.windows, election.num_classes
    assume(sum(num_classes ** len(attacked) for attacked in sets) * len(windows) ** 2 <= 20_000)
    reached = naive.reachable_double_masked(election.ballots(0), sets, windows, num_classes)
    assert naive.worst_position(reached, election.truth[0], ties) <= certified(election, ties)[0]


@settings(max_examples=examples(150))
@given(soft_elections(scenes(largest_side=5, most_touched=4), st.integers(2, 3), most_images=1), ties)
def test_it_survives_every_soft_attack(election, ties):
    """The same for ballots of at most U units."""
    sets, windows = election.scene.sets, election.scene.windows
    ways = naive.spreads(election.num_classes, election.cap)
    assume(sum(len(ways) ** len(attacked) for attacked in sets) * len(windows) ** 2 <= 10_000)
    reached = naive.reachable_double_masked(election.ballots(0), sets, windows, election.num_classes, ways)
    assert naive.worst_position(reached, election.truth[0], ties) <= certified(election, ties)[0]


@given(
    soft_elections(
        scenes(largest_side=4).filter(lambda scene: len(scene.mutants) <= 4),
        st.integers(2, 3),
        largest_cap=2,
        most_images=1,
    ),
    ties,
)
def test_it_survives_shifts_of_clean_ballots(election, ties):
    """Every clean ballot may be off by one unit per label, besides every attack."""
    scene = election.scene
    (min_k,) = certified(election, ties, tau=1)
    anything = naive.spreads(election.num_classes, election.cap)
    near = [
        [way for way in anything if all(abs(units - ballot.get(y, 0)) <= 1 for y, units in enumerate(way))]
        for ballot in election.ballots(0)
    ]
    for attacked in scene.windows:
        choices = [anything if i in attacked else near[i] for i in range(len(near))]
        assume(np.prod([len(each) for each in choices]) <= 1000)
        after = [[]]
        for each in choices:
            after = [[*cast, dict(enumerate(way))] for cast in after for way in each]
        for cast in after:
            scores = naive.double_masked_scores(cast, scene.windows, election.num_classes)
            assert naive.position(scores, election.truth[0], ties) <= min_k


@settings(max_examples=examples(200))
@given(ballots)
def test_at_k_1_it_certifies_what_patchguard_does(election):
    """And so, where all windows have one size, what CostCert does."""
    stronger = certified(election)
    for n, min_k in enumerate(certified(election, defender="patchguard")):
        if min_k == 1:
            assert stronger[n] == 1


def test_it_certifies_more_than_patchguard_at_k_1():
    """The one vote for label 1 is hidden together with what label 0 loses to a second window.

    With columns 0 to 2 hidden, label 0 has 3 votes left, and loses 2 of them to the window of columns 3 to 5
    or 4 to 6: PatchGuard compares the 1 that remains with the vote for label 1, which both windows hold.
    """
    votes = cc.Votes([[0, 0, 0, 0, 1, 0, 0]], [0], num_classes=2, ablation="columns:1", image_size=(1, 7))
    certs = cc.certify(votes, "rectangle:1x3", ["patchguard", "double-masking"])
    assert certs.min_k("patchguard", "rectangle:1x3").tolist() == [2]
    assert certs.min_k("double-masking", "rectangle:1x3").tolist() == [1]


@given(ballots)
def test_predictions_are_by_score_then_the_lowest_label(election):
    votes, defender = election.votes(), find("double-masking")
    windows = touched(votes.ablation, election.scene.patch.at(votes.image_size), votes.image_size)
    ranks = cc.certify(votes, [election.scene.patch], "double-masking").rank(
        "double-masking", election.scene.patch
    )
    for n in election.images:
        scores = naive.double_masked_scores(election.ballots(n), election.scene.windows, election.num_classes)
        assert defender.scores(votes, windows)[n].tolist() == scores
        assert defender.predict(votes, windows, election.num_classes)[n].tolist() == naive.order(scores)
        assert ranks[n] == naive.rank(scores, election.truth[n])


def test_a_sum_of_large_caps_does_not_overflow():
    cap = 2**30
    votes = cc.Votes.soft(
        np.zeros((1, 12, 1), int), np.full((1, 12, 1), cap), [0], num_classes=3, cap=cap,
        ablation="columns:2", image_size=(1, 12),
    )  # fmt: skip
    assert cc.certify(votes, "rectangle:1x2", "double-masking").min_k(
        "double-masking", "rectangle:1x2"
    ).tolist() == [1]


def test_too_many_windows_are_refused_in_a_sentence(monkeypatch):
    monkeypatch.setattr(double_masking, "_MOST_WINDOWS", 7)
    votes = cc.Votes([[0] * 9], [0], num_classes=2, ablation="columns:4", image_size=(1, 9))
    with pytest.raises(cc.CostcertError, match="8 windows have too many pairs to mask: use costcert"):
        cc.certify(votes, "rectangle:1x2", "double-masking")
