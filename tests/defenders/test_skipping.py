"""The rule that skips positions, and the walk that uses it: docs/theory.md#positions-that-need-no-pricing."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import costcert as cc
import naive
from costcert.defenders import kernels, worst_case
from costcert.defenders.patchguard import PatchGuard
from costcert.geometry.touch import Touched
from strategies import examples, ties

RULES = {
    "cheapest first": (kernels.CHEAPEST_FIRST, kernels.worst),
    "pairwise": (kernels.PAIRWISE, kernels.worst),
    "expel": (kernels.CHEAPEST_FIRST, kernels.most_expelled),
}


def gaps_at(ballots, touched, truth, num_classes, ties):
    alpha = naive.clean_votes(ballots, touched, num_classes)
    rivals = [y for y in range(num_classes) if y != truth]
    return alpha, sorted(max(0, alpha[truth] + naive.extra(y, truth, ties) - alpha[y]) for y in rivals)


@st.composite
def two_positions(draw):
    """Soft ballots, and two touched sets that need not have anything in common."""
    num_classes, size = draw(st.integers(2, 6)), draw(st.integers(1, 12))
    cap = draw(st.integers(1, 9))
    ballots = []
    for _ in range(size):
        units = draw(st.integers(0, cap))
        first, second = draw(st.integers(0, num_classes - 1)), draw(st.integers(0, num_classes - 1))
        ballots.append({first: cap - units, second: units} if first != second else {first: cap})
    sets = [frozenset(draw(st.sets(st.integers(0, size - 1)))) for _ in "ab"]
    return ballots, sets, draw(st.integers(0, num_classes - 1)), num_classes, cap


@given(two_positions(), ties, st.data())
def test_the_lemma(world, ties, data):
    """What the lemma skips lifts no more than was found: by the definitions, without any kernel."""
    ballots, (here, there), truth, num_classes, cap = world
    before, gaps = gaps_at(ballots, here, truth, num_classes, ties)
    after, others = gaps_at(ballots, there, truth, num_classes, ties)
    lifted = naive.cheapest_first(gaps, cap * len(here))
    if lifted == len(gaps):
        return
    found = data.draw(st.integers(lifted, len(gaps) - 1))
    shortfall = sum(gaps[: found + 1]) - cap * len(here)
    fallen = max(0, before[truth] - after[truth])
    risen = sum(max(0, after[y] - before[y]) for y in range(num_classes) if y != truth)
    if shortfall > cap * (len(there) - len(here)) + (found + 1) * fallen + risen:
        assert naive.cheapest_first(others, cap * len(there)) <= found


def walk(sets, size):
    """The touched sets as a walk, in the order given."""
    flips, offsets, before = [], [0], frozenset()
    for touched in sets:
        flips += [~i for i in sorted(before - touched)] + sorted(touched - before)
        offsets.append(len(flips))
        before = touched
    return Touched(
        size,
        np.zeros((len(sets), 1, 2), np.int32),
        np.array([len(touched) for touched in sets], np.int32),
        np.array(flips, np.int32),
        np.array(offsets, np.int64),
    )


@st.composite
def walks(draw, kinds=("hard", "soft")):
    """Votes of a few images, some ballots unknown; and any sets in any order."""
    num_classes, size = draw(st.integers(2, 7)), draw(st.integers(2, 16))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, num_classes, 3)
    right = rng.random((3, size)) < draw(st.sampled_from([0.3, 0.6, 0.9]))
    ballots = np.where(right, truth[:, None], rng.integers(0, num_classes, (3, size)))
    shape = {"num_classes": num_classes, "ablation": "columns:1", "image_size": (1, size)}
    if draw(st.booleans()):
        shape["known"] = rng.random((3, size)) < 0.9
    if draw(st.sampled_from(kinds)) == "hard":
        votes = cc.Votes(ballots, truth, **shape)
    else:
        cap = draw(st.sampled_from([1, 7, 65_536]))
        second = rng.integers(0, num_classes, (3, size))
        # Some mutants give next to nothing: only tau changes when those become clean.
        units = np.where(
            rng.random((3, size)) < 0.7, rng.integers(cap // 2, cap, (3, size), endpoint=True), 0
        )
        rest = rng.integers(0, cap - units, endpoint=True) * rng.integers(0, 1, (3, size), endpoint=True)
        given = np.stack([units, np.where(second == ballots, 0, rest)], axis=-1)
        tau = round(cap * draw(st.sampled_from([0, 0.1, 0.2, 0.3, 0.4])))
        votes = cc.Votes.soft(np.stack([ballots, second], axis=-1), given, truth, cap=cap, **shape)
        votes = votes.replace(tau=tau)
    count = draw(st.integers(1, 20))
    sets = [frozenset(np.flatnonzero(rng.random(size) < rng.random()).tolist()) for _ in range(count)]
    return votes, sets


@pytest.mark.parametrize("rule", RULES)
@given(walks(), ties, st.integers(1, 3))
def test_a_walk_finds_what_pricing_every_position_finds(rule, world, ties, members):
    votes, sets = world
    members = min(members, votes.num_classes) if rule != "pairwise" else 1
    table = (votes.truth[:, None] + np.arange(members)) % votes.num_classes
    code, kernel = RULES[rule]
    options = {"members": table, "ties": ties, "kernel": kernel}
    walked = worst_case.worst_case(code, votes, [walk(sets, votes.num_mutants)], **options)
    # One patch for each position: a walk of one step is priced at once and skips nothing.
    alone = [walk([touched], votes.num_mutants) for touched in sets]
    each = worst_case.worst_case(code, votes, alone, **options)
    assert walked[0].tolist() == each.max(axis=0).tolist()


@settings(max_examples=examples(400))
@given(walks(kinds=["soft"]), ties)
def test_a_walk_over_windows_finds_what_the_definition_says(world, ties):
    """PatchGuard on soft ballots, which bounds what a window takes from the true label before it looks."""
    votes, sets = world
    found = PatchGuard().rivals(votes, [walk(sets, votes.num_mutants)], ties)[0]
    for image, truth in enumerate(votes.truth.tolist()):
        ballots = [
            dict(zip(labels[units > 0].tolist(), units[units > 0].tolist(), strict=True))
            for labels, units in zip(votes.labels[image], votes.units[image], strict=True)
        ]
        known = np.ones(votes.num_mutants, bool) if votes.known is None else votes.known[image]
        unknown = frozenset(np.flatnonzero(~known).tolist())
        expected = naive.patchguard(
            ballots, sets, truth, votes.num_classes, ties, unknown, votes.cap, votes.tau
        )
        assert 1 + found[image] == expected


def test_a_mutant_that_becomes_clean_may_be_off():
    """A mutant without units costs the attacker its budget, but tau lowers the threshold for every rival.

    Touched: 4·10 − 2·4·4 = 8 to reach with 10 units, one rival. Clean: 4·10 − 2·4·5 = 0, all six.
    """
    units = np.full((1, 5, 1), 10)
    units[0, 4] = 0
    shape = {"num_classes": 7, "ablation": "columns:1", "image_size": (1, 5), "cap": 10}
    votes = cc.Votes.soft(np.zeros((1, 5, 1), int), units, [0], **shape).replace(tau=4)
    path = walk([frozenset({4}), frozenset()], 5)
    found = worst_case.worst_case(kernels.CHEAPEST_FIRST, votes, [path], members=votes.truth[:, None])
    assert found.tolist() == [[6]]


def test_most_positions_are_skipped(monkeypatch):
    """The comparison above would say little if the walk priced every position anyway."""
    rng = np.random.default_rng(0)
    ballots = np.where(rng.random((1, 40)) < 0.9, 0, rng.integers(0, 5, (1, 40)))
    votes = cc.Votes(ballots, [0], num_classes=5, ablation="columns:2", image_size=(1, 40))
    sets = [frozenset(range(start, start + 3)) for start in range(37)]
    labels, units = worst_case.Arrays.of(votes)
    path = walk(sets, 40)
    priced = []
    for name in ("_worst_position", "_lift_past_strongest", "_lift"):
        monkeypatch.setattr(kernels, name, getattr(kernels, name).py_func)
    lift = kernels._lift
    monkeypatch.setattr(kernels, "_lift", lambda *args: priced.append(args) or lift(*args))
    out, members = np.empty((1, 1), np.int64), np.zeros((1, 1), np.int32)
    terms = kernels.Terms(5, 1, 0, False, kernels.CHEAPEST_FIRST)
    walks = kernels.Walks(path.flips, path.offsets, np.array([0, len(sets)]))
    scratch = kernels.blank_image(40, 1, 1, 5), kernels.blank_scratch(40, 1, 1, hard=True)
    kernels.worst.py_func(labels, units, members, walks, np.zeros(1, np.int64), terms, *scratch, out)
    assert 1 <= len(priced) <= len(sets) // 4
    assert out.tolist() == [[0]]


def test_few_windows_are_looked_at(monkeypatch):
    """Where the true label leads by far, the bound on what a window takes is enough at every position."""
    rng = np.random.default_rng(0)
    labels = np.stack([np.where(rng.random((1, 40)) < 0.95, 0, 1), np.full((1, 40), 2)], axis=-1)
    units = np.stack([rng.integers(5, 9, (1, 40)), np.ones((1, 40), int)], axis=-1)
    votes = cc.Votes.soft(labels, units, [0], cap=10, num_classes=5, ablation="columns:2", image_size=(1, 40))
    path = walk([frozenset(range(start, start + 3)) for start in range(37)], 40)
    compiled = kernels.masked_soft
    looked, counted = [], []
    for name, calls in (("_largest_outside", looked), ("_soft_passing", counted)):
        plain = getattr(kernels, name).py_func

        def counting(*args, plain=plain, calls=calls):
            calls.append(0)
            return plain(*args)

        monkeypatch.setattr(kernels, name, counting)
    monkeypatch.setattr(kernels, "_soft_masked_rivals", kernels._soft_masked_rivals.py_func)
    monkeypatch.setattr(kernels, "masked_soft", compiled.py_func)
    monkeypatch.setattr("costcert.defenders.patchguard.ready", lambda kernel, no_work: None)
    assert PatchGuard().rivals(votes, [path], "against").tolist() == [[0]]
    assert looked == []
    assert 1 <= len(counted) <= len(path) // 4
