"""The attack behind a missing certificate of masks, against every attack there is."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import costcert as cc
import naive
from costcert.certification import max_min
from strategies import examples, masked_elections, masked_scenes, worst_attack_on_masks


def rewritten(election, image, found):
    """The ballots after the attack, each checked to be one that the attacker can write."""
    scene = election.scene
    ((top, left),) = found.places
    place = frozenset((y + top, x + left) for y, x in scene.pixels)
    attacked = naive.touched(scene.mutants, place)
    assert found.touched.tolist() == sorted(attacked)
    ballots = [{} if mutant in attacked else ballot for mutant, ballot in enumerate(election.ballots(image))]
    for mutant, label, units in zip(found.mutants, found.labels, found.units, strict=True):
        assert mutant in attacked
        assert label not in ballots[mutant]
        ballots[mutant][int(label)] = int(units)
    for mutant in attacked:
        assert 0 < sum(ballots[mutant].values()) <= election.cap
        assert election.units is not None or len(ballots[mutant]) == 1
    return ballots


def check_witness(election, image, found):
    """It does what it says, by the definition of the prediction."""
    scores = naive.max_min(rewritten(election, image, found), election.scene.rows, election.num_classes)
    assert found.scores.tolist() == scores
    assert found.position == naive.position(scores, election.truth[image], "against")
    assert found.truth == election.truth[image]


def min_k_of(election):
    certs = cc.certify(election.votes(), election.scene.patch, "patchcleanser")
    return certs.min_k("patchcleanser", election.scene.patch).tolist()


@settings(max_examples=examples(300))
@given(masked_elections(masked_scenes(), st.integers(2, 6)))
def test_a_witness_breaks_the_top_k_and_is_exact_at_k_1(election):
    votes, patch = election.votes(), election.scene.patch
    for image, min_k in enumerate(min_k_of(election)):
        strongest = cc.strongest(votes, image, patch)
        check_witness(election, image, strongest)
        assert strongest.position <= min_k
        for k in range(1, election.num_classes + 1):
            found = cc.witness(votes, image, patch, k)
            if found is not None:
                check_witness(election, image, found)
                assert k < found.position <= min_k
            assert (found is None) == (strongest.position <= k)
        assert (cc.witness(votes, image, patch, 1) is None) == (min_k == 1)


# Four masks and ten mutants, of which a patch touches at most six.
tiny = masked_scenes(most_masks=2, largest_side=4, smaller=False).filter(
    lambda scene: max(map(len, scene.sets)) <= 6
)


@settings(max_examples=examples(20))
@given(masked_elections(tiny, st.integers(2, 3), largest_cap=2, most_images=1))
def test_attacks_at_once_and_in_turn_are_the_same(election):
    ways = naive.single_labels(election.num_classes)
    attacks = [
        after
        for attacked in election.scene.sets
        for after in naive.rewritten(election.ballots(0), attacked, ways)
    ]
    scores = [naive.max_min(after, election.scene.rows, election.num_classes) for after in attacks]
    worst = max(naive.position(score, election.truth[0], "against") for score in scores)
    assert worst_attack_on_masks(election, 0, ways) == worst


@settings(max_examples=examples(60))
@given(masked_elections(tiny, st.integers(2, 3), largest_cap=1, most_images=1))
def test_no_attack_on_hard_ballots_is_stronger(election):
    worst = worst_attack_on_masks(election, 0, naive.single_labels(election.num_classes))
    assert cc.strongest(election.votes(), 0, election.scene.patch).position == worst


@settings(max_examples=examples(40))
@given(masked_elections(tiny, st.just(2), largest_cap=2, most_images=1))
def test_no_attack_on_soft_ballots_is_stronger(election):
    worst = worst_attack_on_masks(election, 0, naive.spreads(2, election.cap))
    assert cc.strongest(election.votes(), 0, election.scene.patch).position == worst


def votes_by(give, num_classes, cap):
    """Nine masks of one pixel each; `give(i, j)` are the units that a mutant gives to each label."""
    units = np.array([[give(i, j) for i in range(9) for j in range(i, 9)]])
    labels = np.broadcast_to(np.arange(num_classes), units.shape)
    world = {"num_classes": num_classes, "ablation": cc.Masks(3, patch=1), "image_size": 3}
    return cc.Votes.soft(labels, units, [0], cap=cap, **world)


@pytest.mark.parametrize("rivals", [4, 30], ids=["searched", "in turn"])
def test_rivals_share_ballots(rivals):
    """All of them stand where mask 8 is hidden, but for what a patch touches there, and a ballot has room."""
    votes = votes_by(lambda i, j: [1, *[int(8 in (i, j))] * rivals, 0], rivals + 2, cap=rivals + 1)
    found = cc.strongest(votes, 0, 1)
    assert found.position == cc.certify(votes, 1).min_k("patchcleanser", 1)[0] == rivals + 1
    assert cc.witness(votes, 0, 1, rivals).position == rivals + 1
    assert cc.witness(votes, 0, 1, rivals + 1) is None


def test_where_rivals_are_in_each_others_way_the_bound_is_not_attained():
    """Under mask 0, two rivals need mask 7 and two mask 8; the mutant of both has three units, not four."""
    given = {(0, 7): [1, 1, 1, 0, 0], (0, 8): [1, 0, 0, 1, 1]}
    votes = votes_by(lambda i, j: given.get((i, j), [1, 0, 0, 0, 0]), 5, cap=3)
    assert cc.certify(votes, 1).min_k("patchcleanser", 1)[0] == 5
    assert cc.witness(votes, 0, 1, 4) is None
    assert cc.witness(votes, 0, 1, 3).position == cc.strongest(votes, 0, 1).position == 4


@given(st.data())
def test_as_many_rivals_are_served_as_can_be(data):
    """Rows that conflict by touched mutants, as a graph, against all ways to serve."""
    n = data.draw(st.integers(1, 4))
    upper = {(i, j): data.draw(st.booleans()) for i in range(n) for j in range(i, n)}
    held = np.array([[upper[min(i, j), max(i, j)] for j in range(n)] for i in range(n)])
    room = data.draw(st.integers(1, 2))
    rows = st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True)
    options = dict(enumerate(data.draw(st.lists(rows, min_size=1, max_size=4))))

    def possible(chosen):
        serving = dict.fromkeys(upper, 0)
        for row in chosen:
            for j in range(n):
                serving[min(row, j), max(row, j)] += 1
        return all(count <= room for pair, count in serving.items() if upper[pair])

    ways = product(*([None, *options[rival]] for rival in options))
    most = max(
        len(way) - way.count(None) for way in ways if possible([row for row in way if row is not None])
    )
    found = max_min._served(options, held, room, len(options))
    assert possible(list(found.values()))
    assert all(row in options[rival] for rival, row in found.items())
    assert len(found) == most


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda votes: cc.witness(votes, 0, 3, 1), "cover patches of up to 2x2 pixels, but square:3 has 3x3"),
        (lambda votes: cc.strongest(votes, 0, "2*square:1"), "is several at once"),
        (
            lambda votes: cc.min_k_all(votes, 1, [[0, 1]] * 2),
            "masks:3/patch=2 rank a label by the mask under",
        ),
        (lambda votes: cc.min_k_any(votes, 1, [[0, 1]] * 2), "vote with columns, rows or blocks"),
        (lambda votes: cc.exclusion(votes, 1, 0, 1), "vote with columns, rows or blocks"),
        (lambda votes: cc.stability(votes, 1, 1), "vote with columns, rows or blocks"),
        (lambda votes: cc.bounds(votes, 3), "cover patches of up to 2x2 pixels, but square:3 has 3x3"),
    ],
)
def test_what_votes_of_masks_do_not_answer(call, sentence):
    votes = cc.Votes(np.zeros((2, 45), int), [0, 1], num_classes=3, ablation="masks:3/patch=2", image_size=8)
    with pytest.raises(cc.CostcertError, match=sentence):
        call(votes)
