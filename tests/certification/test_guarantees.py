"""Several labels, exclusion, stability, bounds, witnesses and selected mutants, each against all attacks."""

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import costcert as cc
import naive
from strategies import (
    TIES,
    Election,
    Scene,
    elections,
    examples,
    long_elections,
    patches,
    placed,
    scenes,
    soft_elections,
    ties,
)

small = scenes(largest_side=6, most_touched=7)
hard_worlds = elections(small, most_images=2)
soft_worlds = soft_elections(scenes(largest_side=5, most_touched=4), st.integers(2, 3))
worlds = st.one_of(hard_worlds, soft_worlds)
large_worlds = st.one_of(
    elections(scenes(), st.integers(2, 12)),
    soft_elections(scenes(largest_side=5), st.integers(2, 6), 9),
    long_elections(most_mutants=30),
    long_elections(most_mutants=30, soft=True),
)


def reached(election, image):
    """Every vote count some attack on this image reaches."""
    if election.units is None:
        ways = naive.single_labels(election.num_classes)
    else:
        ways = naive.spreads(election.num_classes, election.cap)
    return naive.reachable_votes(election.ballots(image), election.scene.sets, election.num_classes, ways)


def some_truths(data, election):
    """One to all labels for every image, in any order."""
    label = st.integers(0, election.num_classes - 1)
    return [data.draw(st.lists(label, min_size=1, max_size=4, unique=True)) for _ in election.images]


@given(st.data(), worlds, ties)
def test_several_labels_are_exact(data, election, ties):
    """All of them, or at least one of them, stay in the top-k for exactly these k."""
    truths, votes, patch = some_truths(data, election), election.votes(), election.scene.patch
    every, one = cc.min_k_all(votes, patch, truths, ties=ties), cc.min_k_any(votes, patch, truths, ties=ties)
    for n in election.images:
        after = reached(election, n)
        assert every[n] == naive.worst_of_all(after, truths[n], ties)
        assert one[n] == naive.worst_of_any(after, truths[n], ties)


@given(st.data(), large_worlds, ties)
def test_several_labels_are_their_definition(data, election, ties):
    """The formulas, on more labels than all attacks can be tried for."""
    truths, votes, patch = some_truths(data, election), election.votes(), election.scene.patch
    every, one = cc.min_k_all(votes, patch, truths, ties=ties), cc.min_k_any(votes, patch, truths, ties=ties)
    for n in election.images:
        world = (
            election.ballots(n),
            election.scene.sets,
            truths[n],
            election.num_classes,
            ties,
            election.cap,
        )
        assert every[n] == naive.min_k_all(*world)
        assert one[n] == naive.min_k_any(*world)


@given(large_worlds, ties)
def test_one_true_label_is_the_plain_certificate(election, ties):
    """All of one label, any of one label: CostCert."""
    votes, patch = election.votes(), election.scene.patch
    truths = [[label] for label in election.truth]
    plain = cc.certify(votes, patches=[patch], defenders=["costcert"], ties=ties).min_k("costcert", patch)
    assert cc.min_k_all(votes, patch, truths, ties=ties).tolist() == plain.tolist()
    assert cc.min_k_any(votes, patch, truths, ties=ties).tolist() == plain.tolist()


@given(worlds, st.integers(1, 4), ties)
def test_exclusion_is_exact(election, k, ties):
    """A label is excluded from the top-k exactly if no attack brings it there."""
    labels = list(range(election.num_classes))
    found = cc.exclusion(election.votes(), election.scene.patch, labels, k, ties=ties)
    assert found.shape == (len(election.truth), len(labels))
    for n in election.images:
        after = reached(election, n)
        assert found[n].tolist() == [not naive.can_enter(after, label, k, ties) for label in labels]


@given(st.data(), large_worlds, st.integers(1, 6), ties)
def test_exclusion_is_its_definition(data, election, k, ties):
    """The formula, for one label and for a list."""
    label = st.integers(0, election.num_classes - 1)
    labels = data.draw(st.lists(label, min_size=1, max_size=4))
    votes, patch = election.votes(), election.scene.patch
    found = cc.exclusion(votes, patch, labels, k, ties=ties)
    alone = cc.exclusion(votes, patch, labels[0], k, ties=ties)
    assert alone.shape == (len(election.truth),)
    assert alone.tolist() == found[:, 0].tolist()
    for n in election.images:
        ballots = election.ballots(n)
        expected = [
            naive.excluded(ballots, election.scene.sets, label, election.num_classes, k, ties, election.cap)
            for label in labels
        ]
        assert found[n].tolist() == expected


@given(worlds, st.data(), ties)
def test_stability_is_exact(election, data, ties):
    """This many of the clean top-k stay under every attack, and some attack leaves no more."""
    k = data.draw(st.integers(1, election.num_classes))
    found = cc.stability(election.votes(), election.scene.patch, k, ties=ties)
    for n in election.images:
        ballots = election.ballots(n)
        fewest = naive.fewest_staying(ballots, reached(election, n), election.num_classes, k, ties)
        assert found[n] == fewest


@given(large_worlds, st.data(), ties)
def test_stability_is_its_definition(election, data, ties):
    """The formula, on more labels than all attacks can be tried for."""
    k = data.draw(st.integers(1, election.num_classes))
    found = cc.stability(election.votes(), election.scene.patch, k, ties=ties)
    for n in election.images:
        ballots = election.ballots(n)
        expected = naive.stability(ballots, election.scene.sets, election.num_classes, k, ties, election.cap)
        assert found[n] == expected


def some_known(data, election, most_unknown=None):
    """Which ballots of each image are known."""
    size = len(election.scene.mutants)
    known = []
    for _ in election.images:
        unknown = data.draw(st.sets(st.integers(0, size - 1), max_size=most_unknown))
        known.append([i not in unknown for i in range(size)])
    return known


def bounds_of(election, known, ties):
    """The library's four bounds, image by image."""
    found = cc.bounds(election.votes(), election.scene.patch, known=np.array(known), ties=ties)
    return list(zip(found.rank_low, found.rank_high, found.min_k_low, found.min_k_high, strict=True))


@given(st.data(), elections(small, st.integers(2, 3), most_images=2), ties)
def test_bounds_are_attained_by_some_completion(data, election, ties):
    """The bounds are the smallest and largest rank and min-k over all ways to fill in unknown ballots."""
    known = some_known(data, election, most_unknown=4)
    scene = election.scene
    for n, found in enumerate(bounds_of(election, known, ties)):
        counted = frozenset(i for i, seen in enumerate(known[n]) if seen)
        ranks, min_ks = set(), set()
        for ballots in naive.completions(election.ballots(n), counted, election.num_classes):
            ranks.add(naive.rank(naive.votes(ballots, election.num_classes), election.truth[n]))
            min_ks.add(naive.costcert(ballots, scene.windows, election.truth[n], election.num_classes, ties))
        assert found == (min(ranks), max(ranks), min(min_ks), max(min_ks))


@given(st.data(), large_worlds, ties)
def test_bounds_are_their_definition(data, election, ties):
    """Below, unknown mutants vote for the true label; above, they belong to the attacker."""
    known = some_known(data, election)
    for n, found in enumerate(bounds_of(election, known, ties)):
        counted = frozenset(i for i, seen in enumerate(known[n]) if seen)
        ballots, truth, classes = election.ballots(n), election.truth[n], election.num_classes
        ranks = naive.rank_bounds(ballots, counted, truth, classes, election.cap)
        min_ks = naive.min_k_bounds(ballots, counted, election.scene.sets, truth, classes, ties, election.cap)
        assert found == ranks + min_ks


@given(st.data(), large_worlds, ties)
def test_unknown_ballots_are_never_read(data, election, ties):
    """The content of an unknown ballot changes nothing."""
    known = some_known(data, election)
    label = st.integers(0, election.num_classes - 1)
    labels = []
    for image, seen in zip(election.labels, known, strict=True):
        row = []
        for ballot, counted in zip(image, seen, strict=True):
            if counted:
                row.append(ballot)
            elif election.units is None:
                row.append(data.draw(label))
            else:
                row.append([data.draw(label) for _ in ballot])
        labels.append(row)
    assert bounds_of(election, known, ties) == bounds_of(election._replace(labels=labels), known, ties)


@given(large_worlds, ties)
def test_bounds_meet_when_all_is_known(election, ties):
    """With every ballot known both bounds are the certificate."""
    votes, patch = election.votes(), election.scene.patch
    known = np.ones((len(election.truth), len(election.scene.mutants)), dtype=bool)
    found = cc.bounds(votes, patch, known=known, ties=ties)
    certs = cc.certify(votes, patches=[patch], defenders=["costcert"], ties=ties)
    assert found.min_k_low.tolist() == found.min_k_high.tolist() == certs.min_k("costcert", patch).tolist()
    assert found.rank_low.tolist() == found.rank_high.tolist() == certs.rank("costcert", patch).tolist()


@settings(max_examples=examples(500))
@given(st.data(), large_worlds, ties)
def test_a_witness_is_an_attack(data, election, ties):
    """Exists exactly if an image is not k-certified: a place, ballots of its T_p, and y0 below position k."""
    scene, votes = election.scene, election.votes()
    n = data.draw(st.sampled_from(list(election.images)))
    k = data.draw(st.integers(1, election.num_classes))
    truth, before = election.truth[n], election.ballots(n)
    min_k = naive.costcert(before, scene.sets, truth, election.num_classes, ties, election.cap)
    attack = cc.strongest(votes, n, scene.patch, ties=ties)
    is_an_attack(attack, election, n, ties)
    assert attack.position == min_k
    witness = cc.witness(votes, n, scene.patch, k, ties=ties)
    if min_k <= k:
        assert witness is None
    else:
        is_an_attack(witness, election, n, ties)
        assert witness.position > k


def is_an_attack(witness, election, n, ties):
    """It lies inside the image, rewrites only ballots it touches, and its scores are those of its ballots."""
    scene, before = election.scene, election.ballots(n)
    assert len(witness.places) == scene.times
    place = placed(scene, [(int(top), int(left)) for top, left in witness.places])
    assert all(0 <= y < scene.image_size[0] and 0 <= x < scene.image_size[1] for y, x in place)
    attacked = naive.touched(scene.mutants, place)
    assert sorted(int(i) for i in witness.touched) == sorted(attacked)
    after = [{} if i in attacked else ballot for i, ballot in enumerate(before)]
    for mutant, label, units in zip(witness.mutants, witness.labels, witness.units, strict=True):
        assert int(mutant) in attacked
        assert int(units) > 0
        after[mutant][int(label)] = after[mutant].get(int(label), 0) + int(units)
    assert all(sum(after[i].values()) <= election.cap for i in attacked)
    scores = naive.votes(after, election.num_classes)
    assert [int(score) for score in witness.scores] == scores
    assert witness.position == naive.position(scores, election.truth[n], ties)


@given(st.data(), elections(scenes(), st.integers(2, 6), most_images=2), ties)
def test_a_witness_for_hard_ballots_casts_hard_ballots(data, election, ties):
    """A hard mutant votes for one label: no touched mutant abstains and none votes twice."""
    n = data.draw(st.sampled_from(list(election.images)))
    witness = cc.witness(election.votes(), n, election.scene.patch, 1, ties=ties)
    assume(witness is not None)
    assert sorted(int(i) for i in witness.mutants) == sorted(int(i) for i in witness.touched)
    assert {int(units) for units in witness.units} <= {1}


@given(st.data(), st.integers(2, 7), st.integers(2, 7), ties)
def test_selected_mutants_vote_as_if_alone(data, height, width, ties):
    """Votes of a stride, a span, no wrap or one part of a pool are votes with that ablation."""
    full = [
        naive.Strips("columns", data.draw(st.integers(1, width - 1))),
        naive.Strips("rows", data.draw(st.integers(1, height - 1))),
    ]
    everything = data.draw(
        elections(st.just(Scene((height, width), full, *data.draw(patches((height, width))))))
    )
    part = full[data.draw(st.integers(0, 1))]
    length = width if part.kind == "columns" else height
    wrap = data.draw(st.booleans())
    last = length - 1 if wrap else length - part.width
    first = data.draw(st.integers(0, last))
    span = data.draw(st.sampled_from([None, (first, data.draw(st.integers(first, last)))]))
    chosen = part._replace(stride=data.draw(st.integers(1, 3)), wrap=wrap, span=span)
    offset = 0 if part.kind == "columns" else width
    start, stop = span or (0, last)
    mutants = [offset + i for i in range(start, stop + 1, chosen.stride)]
    scene = Scene(
        (height, width), [chosen], everything.scene.patch, everything.scene.pixels, everything.scene.times
    )
    labels = [[image[i] for i in mutants] for image in everything.labels]
    alone = everything._replace(scene=scene, labels=labels)
    selected = everything.votes().select(scene.ablation)
    assert selected.ballots.tolist() == alone.labels
    found = cc.certify(selected, patches=[scene.patch], defenders=["costcert", "patchguard"], ties=ties)
    direct = cc.certify(alone.votes(), patches=[scene.patch], defenders=["costcert", "patchguard"], ties=ties)
    for name in ("costcert", "patchguard"):
        assert found.min_k(name, scene.patch).tolist() == direct.min_k(name, scene.patch).tolist()


@given(st.data(), st.integers(2, 7), ties)
def test_selected_soft_mutants_keep_their_units(data, width, ties):
    """Selecting every second mutant keeps its labels and its units."""
    full = Scene((1, width), [naive.Strips("columns", 1)], cc.Square(1), naive.rectangle(1, 1))
    half = Scene((1, width), [naive.Strips("columns", 1, 2)], cc.Square(1), naive.rectangle(1, 1))
    election = data.draw(soft_elections(st.just(full)))
    found = cc.certify(
        election.votes().select(half.ablation), patches=[half.patch], defenders=["costcert"], ties=ties
    ).min_k("costcert", half.patch)
    for n in election.images:
        ballots, truth = election.ballots(n)[::2], election.truth[n]
        assert found[n] == naive.costcert(ballots, half.sets, truth, election.num_classes, ties, election.cap)


@given(st.data(), ties)
def test_a_mutant_that_no_patch_reaches(data, ties):
    """A ring as large as the image does not touch its middle: T_p is empty, and only ties matter."""
    ring = [[1, 1, 1], [1, 0, 1], [1, 1, 1]]
    middle = naive.Strips("blocks", 1, span=(1, 1))
    scene = Scene((3, 3), [middle], cc.Shape(ring), naive.shape(ring))
    assert scene.sets == [frozenset()]
    election = data.draw(elections(st.just(scene), st.integers(2, 5), most_images=2))
    votes, labels = election.votes(), list(range(election.num_classes))
    certs = cc.certify(votes, patches=[scene.patch], defenders=["costcert"], ties=ties)
    for n in election.images:
        after = reached(election, n)
        assert certs.min_k("costcert", scene.patch)[n] == naive.worst_position(after, election.truth[n], ties)
        for k in labels[1:]:
            out = cc.exclusion(votes, scene.patch, labels, k, ties=ties)[n]
            stays = cc.stability(votes, scene.patch, k, ties=ties)[n]
            assert out.tolist() == [not naive.can_enter(after, label, k, ties) for label in labels]
            assert stays == naive.fewest_staying(election.ballots(n), after, len(labels), k, ties)


@pytest.mark.parametrize("ties", TIES)
def test_exhaustive_tiny_elections(ties):
    """All 1024 elections of five ballots and four labels: every guarantee against every attack."""
    scene = Scene((1, 5), [naive.Strips("columns", 2)], cc.Square(1), naive.rectangle(1, 1))
    rows = [list(row) for row in product(range(4), repeat=5)]
    election = Election(scene, rows, [1] * len(rows), 4)
    votes, patch = election.votes(), scene.patch
    min_k = cc.certify(votes, patches=[patch], defenders=["costcert"], ties=ties).min_k("costcert", patch)
    one = cc.min_k_any(votes, patch, [[3, 1]] * len(rows), ties=ties)
    stays = {k: cc.stability(votes, patch, k, ties=ties) for k in (1, 2, 3)}
    out = {k: cc.exclusion(votes, patch, 2, k, ties=ties) for k in (1, 2, 3)}
    for n in election.images:
        after = reached(election, n)
        assert min_k[n] == naive.worst_position(after, 1, ties)
        assert one[n] == naive.worst_of_any(after, [1, 3], ties)
        for k in (1, 2, 3):
            assert stays[k][n] == naive.fewest_staying(election.ballots(n), after, 4, k, ties)
            assert out[k][n] == (not naive.can_enter(after, 2, k, ties))


def test_the_strongest_attack_comes_nearest_to_lifting_one_more():
    """Label 1 can be lifted at every position; where the truth loses a ballot, label 2 lacks only one."""
    ballots = [[2, 0, 0, 0, 0, 1, 1, 1]]
    votes = cc.Votes(ballots, [0], num_classes=3, ablation="columns:1", image_size=(1, 8))
    attack = cc.strongest(votes, 0, cc.Square(1))
    assert attack.places == ((0, 1),)
    assert attack.scores.tolist() == [3, 3, 2]


def test_unread_images_have_no_guarantee():
    ballots, unread = np.zeros((3, 8), dtype=int), np.array([False, True, False])
    votes = cc.Votes(
        ballots, [0, 0, 0], num_classes=4, ablation="columns:1", image_size=(1, 8), unread=unread
    )
    patch = cc.Square(1)
    assert cc.min_k_all(votes, patch, [[0]] * 3).tolist() == [1, 4, 1]
    assert cc.min_k_any(votes, patch, [[0]] * 3).tolist() == [1, 4, 1]
    for bound in cc.bounds(votes, patch, np.ones((3, 8), dtype=bool)):
        assert bound.tolist() == [1, 4, 1]


def test_bounds_never_count_a_ballot_that_is_not_known():
    """`known` selects among the ballots that are known in the votes, and by default takes them all."""
    rng = np.random.default_rng(11)
    ballots, truth = rng.integers(0, 3, (60, 8)), rng.integers(0, 3, 60)
    cast = rng.random((60, 8)) < 0.7
    world = {"num_classes": 3, "ablation": "columns:2", "image_size": (3, 8)}
    full, part = cc.Votes(ballots, truth, **world), cc.Votes(ballots, truth, known=cast, **world)
    found = cc.bounds(part, 2, np.ones((60, 8), bool))
    for mine, default, exact in zip(found, cc.bounds(part, 2), cc.bounds(full, 2, cast), strict=True):
        assert np.array_equal(mine, exact)
        assert np.array_equal(default, exact)
    assert (found.min_k_high > cc.bounds(full, 2, np.ones((60, 8), bool)).min_k_high).any()
