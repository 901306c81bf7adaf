"""Every defender against its definition, and against every attack there is."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import costcert as cc
import naive
from costcert.defenders import kernels, worst_case
from costcert.defenders.base import Defender
from costcert.defenders.costcert import CostCert
from costcert.errors import CostcertError
from costcert.geometry.touch import touched
from strategies import (
    TIES,
    Election,
    Scene,
    elections,
    examples,
    long_elections,
    patches,
    scenes,
    small_enough_to_rewrite,
    soft_elections,
    ties,
)

PLAIN = {"costcert": naive.costcert, "cbn": naive.cbn, "drs": naive.drs}
MASKED = {"patchguard": naive.patchguard, "costcert-masks": naive.costcert_masks}
HARD = [*PLAIN, *MASKED]

small = scenes(largest_side=6, most_touched=7)


def certified(election, defenders, ties="against", **more):
    """min-k by defender, each a list over images."""
    patch = election.scene.patch
    certs = cc.certify(election.votes(), patches=[patch], defenders=list(defenders), ties=ties, **more)
    return {name: certs.min_k(name, patch).tolist() for name in defenders}


def ranked(election, defenders):
    """Rank by defender, each a list over images."""
    patch = election.scene.patch
    certs = cc.certify(election.votes(), patches=[patch], defenders=list(defenders))
    return {name: certs.rank(name, patch).tolist() for name in defenders}


def defined(election, name, ties, sets=None, **more):
    """min-k by the naive twin, a list over images; all T_p for votes, the maximal ones for masks."""
    scene = election.scene
    if name in MASKED:
        sets, formula = scene.windows, MASKED[name]
    else:
        sets, formula = sets or scene.sets, PLAIN[name]
    return [
        formula(election.ballots(n), sets, election.truth[n], election.num_classes, ties, **more)
        for n in election.images
    ]


@settings(max_examples=examples(600))
@given(elections(scenes()), ties)
def test_min_k_is_its_definition(election, ties):
    """Every defender gives the min-k of its formula, taken over every place of the patch."""
    assert certified(election, HARD, ties) == {name: defined(election, name, ties) for name in HARD}


@given(elections(scenes(largest_side=5), st.integers(5, 60)), ties)
def test_min_k_with_more_classes_than_votes(election, ties):
    """The same where most labels have no vote at all and may not be worth listing."""
    assert certified(election, HARD, ties) == {name: defined(election, name, ties) for name in HARD}


@given(soft_elections(scenes(largest_side=6)), ties)
def test_soft_min_k_is_its_definition(election, ties):
    """The same formulas with units for votes and U·q_p for the budget."""
    expected = {name: defined(election, name, ties, cap=election.cap) for name in PLAIN}
    assert certified(election, PLAIN, ties) == expected


@settings(max_examples=examples(150))
@given(long_elections(), ties)
def test_long_walks(election, ties):
    """The same on axes of dozens of mutants, where most places cannot beat the worst one so far."""
    assert certified(election, PLAIN, ties) == {name: defined(election, name, ties) for name in PLAIN}


@settings(max_examples=examples(40))
@given(long_elections(most_classes=5, most_mutants=30), ties)
def test_long_walks_with_masks(election, ties):
    """The same for windows."""
    assert certified(election, MASKED, ties) == {name: defined(election, name, ties) for name in MASKED}


@settings(max_examples=examples(150))
@given(long_elections(soft=True), ties, st.integers(0, 3))
def test_long_soft_walks(election, ties, tau):
    """The same for soft ballots, on all maximal T_p, with clean ballots that may be off by tau."""
    found = certified(election, ["costcert", "cbn"], ties, tau=tau)
    sets = election.scene.windows
    expected = {name: defined(election, name, ties, sets, cap=election.cap, tau=tau) for name in found}
    assert found == expected


@settings(max_examples=examples(150))
@given(soft_elections(scenes(largest_side=4), st.integers(2, 9), largest_cap=2**30, most_images=1), ties)
def test_soft_sums_never_overflow(election, ties):
    """Units of 2**30 a mutant still add up exactly."""
    expected = {name: defined(election, name, ties, cap=election.cap) for name in PLAIN}
    assert certified(election, PLAIN, ties) == expected


@settings(max_examples=examples(500))
@given(elections(small), ties)
def test_costcert_is_the_worst_attack(election, ties):
    """CostCert is exact: no attack does worse than min-k, and some attack does just this.

    CBN and DRS, whose prediction is the same, are never below it.
    """
    found = certified(election, PLAIN, ties)
    ways = naive.single_labels(election.num_classes)
    for n in election.images:
        reached = naive.reachable_votes(election.ballots(n), election.scene.sets, election.num_classes, ways)
        worst = naive.worst_position(reached, election.truth[n], ties)
        assert found["costcert"][n] == worst
        assert found["cbn"][n] >= worst
        assert found["drs"][n] >= worst


@given(soft_elections(scenes(largest_side=5, most_touched=4), st.integers(2, 3)), ties)
def test_soft_costcert_is_the_worst_attack(election, ties):
    """Exact for soft ballots too, where a touched mutant may spread its units at will."""
    found = certified(election, PLAIN, ties)
    ways = naive.spreads(election.num_classes, election.cap)
    for n in election.images:
        reached = naive.reachable_votes(election.ballots(n), election.scene.sets, election.num_classes, ways)
        worst = naive.worst_position(reached, election.truth[n], ties)
        assert found["costcert"][n] == worst
        assert found["cbn"][n] >= worst
        assert found["drs"][n] >= worst


@settings(max_examples=examples(500))
@given(elections(small, st.integers(2, 3), most_images=2), ties)
def test_masked_defenders_survive_every_attack(election, ties):
    """No rewriting of touched ballots brings the true label below min-k in PatchGuard's own prediction."""
    scene = election.scene
    assume(small_enough_to_rewrite(scene, election.num_classes, most=1200))
    found = certified(election, MASKED, ties)
    for n in election.images:
        ballots = election.ballots(n)
        reached = naive.reachable_masked(ballots, scene.sets, scene.windows, election.num_classes)
        worst = naive.worst_position(reached, election.truth[n], ties)
        assert found["patchguard"][n] >= worst
        assert found["costcert-masks"][n] >= worst


@given(elections(scenes()))
def test_rank_is_the_position_in_the_clean_prediction(election):
    """Labels sorted by votes, ties to the lowest; PatchGuard and its masks sort by their own score."""
    found = ranked(election, HARD)
    for n in election.images:
        ballots, truth = election.ballots(n), election.truth[n]
        plain = naive.rank(naive.votes(ballots, election.num_classes), truth)
        masked = naive.rank(naive.masked_scores(ballots, election.scene.windows, election.num_classes), truth)
        assert {name: found[name][n] for name in PLAIN} == dict.fromkeys(PLAIN, plain)
        assert {name: found[name][n] for name in MASKED} == dict.fromkeys(MASKED, masked)


@given(soft_elections(scenes(largest_side=5)))
def test_soft_rank_sorts_by_units(election):
    """Labels sorted by units, ties to the lowest."""
    found = ranked(election, PLAIN)
    for n in election.images:
        scores = naive.votes(election.ballots(n), election.num_classes)
        expected = naive.rank(scores, election.truth[n])
        assert {name: found[name][n] for name in PLAIN} == dict.fromkeys(PLAIN, expected)


@given(elections(scenes(), st.integers(2, 9)), ties)
def test_order_of_the_defenders(election, ties):
    """CostCert ≤ CBN ≤ DRS, masks ≤ PatchGuard, rank ≤ min-k ≤ L, and CBN is CostCert at k = 1."""
    found, ranks = certified(election, HARD, ties), ranked(election, HARD)
    for n in election.images:
        assert found["costcert"][n] <= found["cbn"][n] <= found["drs"][n]
        assert found["costcert-masks"][n] <= found["patchguard"][n]
        assert (found["costcert"][n] == 1) == (found["cbn"][n] == 1)
        for name in HARD:
            assert 1 <= ranks[name][n] <= found[name][n] <= election.num_classes


@given(elections(scenes(), st.integers(2, 9)))
def test_known_ties_only_help(election):
    """A rival that loses its ties is no easier to lift: ties="lowest" is never above ties="against"."""
    against, lowest = certified(election, HARD, "against"), certified(election, HARD, "lowest")
    for name in HARD:
        assert all(low <= high for low, high in zip(lowest[name], against[name], strict=True))


@given(soft_elections(scenes(largest_side=5)), ties)
def test_soft_order_of_the_defenders(election, ties):
    """The order holds for soft ballots."""
    found, ranks = certified(election, PLAIN, ties), ranked(election, PLAIN)
    for n in election.images:
        assert ranks["costcert"][n] <= found["costcert"][n] <= found["cbn"][n] <= found["drs"][n]


@given(elections(scenes()), ties)
def test_hard_ballots_are_soft_ones_of_one_unit(election, ties):
    """U = 1, j = 1 is the hard ballot."""
    soft = election._replace(
        labels=[[[label] for label in image] for image in election.labels],
        units=[[[1] for _ in image] for image in election.labels],
    )
    assert certified(election, PLAIN, ties) == certified(soft, PLAIN, ties)
    assert ranked(election, PLAIN) == ranked(soft, PLAIN)


@given(elections(scenes()), ties, st.integers(2, 70000))
def test_scaling_all_units_changes_nothing_against_ties(election, ties, factor):
    """Hard ballots of `factor` units each: the same comparisons, and the same gaps but for broken ties."""
    soft = election._replace(
        labels=[[[label] for label in image] for image in election.labels],
        units=[[[factor] for _ in image] for image in election.labels],
        cap=factor,
    )
    found, hard = certified(soft, PLAIN, ties), certified(election, PLAIN, ties)
    if ties == "against":
        assert found == hard
    else:
        assert all(a >= b for name in PLAIN for a, b in zip(found[name], hard[name], strict=True))


@given(elections(scenes()), st.randoms(use_true_random=False))
def test_names_of_labels_do_not_matter(election, random):
    """Renaming labels leaves min-k alone when all ties count against the true label."""
    names = list(range(election.num_classes))
    random.shuffle(names)
    renamed = election._replace(
        labels=[[names[label] for label in image] for image in election.labels],
        truth=[names[label] for label in election.truth],
    )
    assert certified(election, HARD) == certified(renamed, HARD)


@given(elections(scenes(), most_images=3), ties)
def test_images_do_not_meet(election, ties):
    """An image has the same certificate alone, twice, or among others."""
    together = certified(election, HARD, ties)
    for n in election.images:
        twice = election._replace(labels=[election.labels[n]] * 2, truth=[election.truth[n]] * 2)
        assert certified(twice, HARD, ties) == {name: [together[name][n]] * 2 for name in HARD}


@given(st.data(), elections(scenes(), most_images=2), ties)
def test_patches_do_not_meet(data, election, ties):
    """A patch has the same certificates alone and in a list of patches."""
    scene = election.scene
    others = [Scene(scene.image_size, scene.families, *data.draw(patches(scene.image_size))) for _ in "ab"]
    listed = [others[0], scene, others[1]]
    certs = cc.certify(election.votes(), patches=[each.patch for each in listed], defenders=HARD, ties=ties)
    for each in listed:
        alone = election._replace(scene=each)
        for name in HARD:
            assert certs.min_k(name, each.patch).tolist() == defined(alone, name, ties)
            assert certs.rank(name, each.patch).tolist() == ranked(alone, [name])[name]


@pytest.mark.parametrize("rule", [kernels.CHEAPEST_FIRST, kernels.PAIRWISE])
def test_walks_that_are_too_long_to_be_joined_do_not_meet_either(monkeypatch, rule):
    """Patches are taken together up to so many flips; each keeps its own further budget."""
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 4, 30)
    ballots = np.where(rng.random((30, 12)) < 0.7, truth[:, None], rng.integers(0, 4, (30, 12)))
    votes = cc.Votes(ballots, truth, num_classes=4, ablation="columns:2", image_size=(2, 12))
    cases = [touched(votes.ablation, cc.Square(side), votes.image_size) for side in (1, 2, 1, 2)]
    extras = [0, 3, 6, 1]
    found = []
    for longest in (1 << 20, 1, len(cases[0].flips) + len(cases[1].flips)):
        monkeypatch.setattr(worst_case, "_LONG_WALK", longest)
        found.append(
            worst_case.worst_case(rule, votes, cases, members=truth[:, None], extras=extras).tolist()
        )
    assert found[0] == found[1] == found[2]
    assert len({tuple(row) for row in found[0]}) == 4


@given(elections(scenes(), st.integers(2, 4)), st.integers(1, 3), ties)
def test_classes_nobody_votes_for(election, added, ties):
    """A label without votes is the dearest to lift: where not all are lifted, more of them change nothing."""
    more = election._replace(num_classes=election.num_classes + added)
    before, after = certified(election, HARD, ties), certified(more, HARD, ties)
    assert after == {name: defined(more, name, ties) for name in HARD}
    for n in election.images:
        if before["costcert"][n] < election.num_classes:
            assert after["costcert"][n] == before["costcert"][n]
        for name in HARD:
            assert before[name][n] <= after[name][n] <= before[name][n] + added


@st.composite
def growing(draw):
    """Two patches of which the second covers all that the first can."""
    height, width = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    kind = draw(st.sampled_from(["square", "rectangle", "shape", "several"]))
    rows, columns = draw(st.integers(1, height)), draw(st.integers(1, width))
    if kind == "square":
        side = draw(st.integers(1, min(height, width)))
        return (height, width), cc.Square(draw(st.integers(1, side))), cc.Square(side)
    if kind == "rectangle":
        inner = cc.Rectangle(draw(st.integers(1, rows)), draw(st.integers(1, columns)))
        return (height, width), inner, cc.Rectangle(rows, columns)
    row = st.lists(st.booleans(), min_size=columns, max_size=columns)
    mask = draw(st.lists(row, min_size=rows, max_size=rows).filter(lambda mask: any(map(any, mask))))
    if kind == "shape":
        return (height, width), cc.Shape(mask), cc.Rectangle(rows, columns)
    return (height, width), cc.Shape(mask), cc.Several(cc.Shape(mask), 2)


@given(st.data(), growing(), ties)
def test_a_larger_patch_is_never_easier(data, pair, ties):
    """min-k grows with what the attacker may cover."""
    image_size, smaller, larger = pair
    world = scenes().map(lambda scene: Scene(image_size, scene.families, smaller, naive.rectangle(1, 1)))
    fitting = world.filter(lambda scene: fits(scene.ablation, image_size))
    votes = data.draw(elections(fitting)).votes()
    certs = cc.certify(votes, patches=[smaller, larger], defenders=list(PLAIN), ties=ties)
    for name in PLAIN:
        assert (certs.min_k(name, smaller) <= certs.min_k(name, larger)).all()


def fits(ablation, image_size):
    """Whether the mutants fit the image."""
    try:
        ablation.count(image_size)
    except CostcertError:
        return False
    return True


def some_uncertain(data, election):
    """A random mask of uncertain mutants."""
    size = len(election.scene.mutants)
    row = st.lists(st.sampled_from([False, False, True]), min_size=size, max_size=size)
    return [data.draw(row) for _ in election.images]


def attacked_with(election, uncertain, image):
    """Every T_p together with the uncertain mutants of this image."""
    doubtful = frozenset(i for i, doubt in enumerate(uncertain[image]) if doubt)
    return [attacked | doubtful for attacked in election.scene.sets]


@given(st.data(), st.one_of(elections(scenes()), soft_elections(scenes(largest_side=5))), ties)
def test_uncertain_mutants_are_touched_by_every_patch(data, election, ties):
    """A mutant that may vote differently on another machine belongs to every T_p.

    DRS, which has one budget for all places, is then between CBN and a budget of Δ plus all of them.
    """
    uncertain = some_uncertain(data, election)
    found = certified(election, PLAIN, ties, uncertain=np.array(uncertain))
    for n in election.images:
        world = (election.truth[n], election.num_classes, ties, election.cap)
        sets = attacked_with(election, uncertain, n)
        assert found["costcert"][n] == naive.costcert(election.ballots(n), sets, *world)
        assert found["cbn"][n] == naive.cbn(election.ballots(n), sets, *world)
        largest = [range(election.scene.most + sum(uncertain[n]))]
        assert found["cbn"][n] <= found["drs"][n] <= naive.drs(election.ballots(n), largest, *world)


@given(st.data(), elections(scenes(), st.integers(2, 9), most_images=2), ties)
def test_uncertain_mutants_are_not_masked(data, election, ties):
    """PatchGuard's windows are those of the patch, so what uncertain mutants outside them vote counts."""
    uncertain = some_uncertain(data, election)
    found = certified(election, MASKED, ties, uncertain=np.array(uncertain))
    for n in election.images:
        doubtful = frozenset(i for i, doubt in enumerate(uncertain[n]) if doubt)
        world = (election.ballots(n), election.scene.windows, election.truth[n], election.num_classes)
        assert found["patchguard"][n] == naive.patchguard(*world, ties, doubtful)
        assert found["costcert-masks"][n] == naive.costcert_masks(*world, ties, doubtful)


@given(st.data(), elections(small, st.integers(2, 3), most_images=1), ties)
def test_masked_defenders_survive_uncertain_mutants(data, election, ties):
    """PatchGuard's prediction masks windows of T_p alone, the attacker also has the uncertain mutants."""
    scene, uncertain = election.scene, some_uncertain(data, election)
    sets = naive.distinct(attacked_with(election, uncertain, 0))
    assume(sum(election.num_classes ** len(attacked) for attacked in sets) <= 1200)
    found = certified(election, MASKED, ties, uncertain=np.array(uncertain))
    reached = naive.reachable_masked(election.ballots(0), sets, scene.windows, election.num_classes)
    worst = naive.worst_position(reached, election.truth[0], ties)
    assert found["patchguard"][0] >= worst
    assert found["costcert-masks"][0] >= worst
    assert found["costcert-masks"][0] <= found["patchguard"][0]


@pytest.mark.parametrize("ties", TIES)
@given(election=elections(scenes()))
def test_certain_mutants_change_nothing_and_uncertain_ones_everything(ties, election):
    """No mutant uncertain: as without saying so. All uncertain: the attacker has every ballot."""
    shape = (len(election.truth), len(election.scene.mutants))
    plain = certified(election, HARD, ties)
    assert certified(election, HARD, ties, uncertain=np.zeros(shape, bool)) == plain
    if ties == "against":
        everything = certified(election, ["costcert", "cbn"], ties, uncertain=np.ones(shape, bool))
        worst = [election.num_classes for _ in election.images]
        assert everything == {"costcert": worst, "cbn": worst}


@given(st.data(), soft_elections(scenes(largest_side=6), largest_cap=9), ties, st.integers(0, 3))
def test_shifted_clean_ballots(data, election, ties, tau):
    """Every clean ballot may lose tau units for the true label and gain tau for each rival."""
    uncertain = some_uncertain(data, election)
    found = certified(election, ["costcert", "cbn"], ties, uncertain=np.array(uncertain), tau=tau)
    for n in election.images:
        sets = naive.maximal(attacked_with(election, uncertain, n))
        for name in ("costcert", "cbn"):
            assert found[name][n] == defined(election, name, ties, sets, cap=election.cap, tau=tau)[n]


@given(
    soft_elections(scenes(largest_side=4).filter(lambda scene: len(scene.mutants) <= 5), st.integers(2, 3)),
    ties,
    st.integers(1, 2),
)
def test_shifted_clean_ballots_survive_every_attack(election, ties, tau):
    """No shift of clean ballots by tau per label, together with any attack, does worse than min-k."""
    found = certified(election, PLAIN, ties, tau=tau)
    for n in election.images:
        reached = naive.reachable_shifted(
            election.ballots(n), election.scene.sets, election.num_classes, election.cap, tau
        )
        worst = naive.worst_position(reached, election.truth[n], ties)
        assert worst <= found["costcert"][n] <= found["cbn"][n] <= found["drs"][n]


@pytest.mark.parametrize(("voting", "there"), [(10, 4), (19, 2)])
def test_shifts_weigh_more_where_fewer_mutants_are_touched(voting, there):
    """Four silent mutants at column 0, one elsewhere: the smaller T_p leaves more clean ballots to shift.

    By hand, with cap 10 and tau 4: at column 0 the true label keeps 100 - 44 and rivals gain 44, so three of
    them are paid for with 40; at column 1 it keeps 100 - 56, which all rivals pass without any attack. With
    19 voters one rival is paid for at column 0, and for that no other place may be passed over.
    """
    extra = [naive.Strips("columns", 1, span=(0, 0))] * 3
    families = [naive.Strips("columns", 1), *extra]
    scene = Scene((1, voting + 2), families, cc.Rectangle(1, 1), naive.rectangle(1, 1))
    units = [0, 0, *[10] * voting, 0, 0, 0]
    election = Election(scene, [[[0]] * len(units)], [0], 9, units=[[[given] for given in units]], cap=10)
    first = frozenset({0, voting + 2, voting + 3, voting + 4})
    assert naive.costcert(election.ballots(0), [first], 0, 9, cap=10, tau=4) == there
    assert certified(election, ["costcert", "cbn"], tau=4) == {"costcert": [9], "cbn": [9]}


@pytest.mark.parametrize("ties", TIES)
def test_many_rivals_that_lack_much(ties):
    """Seventy rivals with units of their own, in no order, of whom a patch can pay for some."""
    rng = np.random.default_rng(6)
    scene = Scene((1, 72), [naive.Strips("columns", 1)], cc.Rectangle(1, 3), naive.rectangle(1, 3))
    labels, units = rng.permutation(72), rng.integers(0, 4001, 72)
    labels[::24], units[::24] = 35, 2000
    one = [labels[:, None].tolist()]
    election = Election(scene, one, [35], 80, units=[units[:, None].tolist()], cap=4000)
    found = certified(election, PLAIN, ties)
    assert found == {name: defined(election, name, ties, cap=4000) for name in PLAIN}
    assert 8 < found["costcert"][0] < 71


def test_uncertain_mutants_of_one_image_are_not_those_of_the_next():
    rng = np.random.default_rng(8)
    truth = rng.integers(0, 3, 12)
    ballots = np.where(rng.random((12, 20)) < 0.8, truth[:, None], rng.integers(0, 3, (12, 20)))
    options = {"num_classes": 3, "ablation": "columns:1", "image_size": (1, 20)}
    uncertain = np.zeros((12, 20), dtype=bool)
    uncertain[::2] = rng.random((6, 20)) < 0.4
    together = cc.certify(cc.Votes(ballots, truth, **options), "1", HARD, uncertain=uncertain)
    for n in range(12):
        part = slice(n, n + 1)
        alone = cc.certify(
            cc.Votes(ballots[part], truth[part], **options), "1", HARD, uncertain=uncertain[part]
        )
        for name in HARD:
            assert together.min_k(name, 1)[n] == alone.min_k(name, 1)[0], name


def test_mutants_are_uncertain_if_named_or_close():
    truth, margins = np.zeros(1, int), np.float32([[0, 0, 1, 1, 1, 1, 1, 1, 1]])
    options = {"num_classes": 2, "ablation": "columns:1", "image_size": (1, 9), "margins": margins}
    votes = cc.Votes(np.zeros((1, 9), int), truth, **options)
    named = np.arange(9)[None] >= 7
    # Two and two are four of nine, which is what it takes.
    for doubts in ({"uncertain": named}, {"epsilon": 0.5}, {}):
        assert cc.certify(votes, "1", "costcert", **doubts).min_k("costcert", 1).tolist() == [1]
    both = cc.certify(votes, "1", "costcert", uncertain=named, epsilon=0.5)
    assert both.min_k("costcert", 1).tolist() == [2]


def test_a_label_nobody_votes_for_may_be_the_only_one_to_pass():
    """It comes before the true label and wins the tie; label 2, which is voted for, would need a unit more.

    By hand: three mutants at column 0, one of which gives a unit to label 2, and three that give 2,000 each
    to the true label 1. At column 0 the attacker has the 6,000 that label 0 lacks; elsewhere it lacks 4,000
    and he has 2,000.
    """
    extra = [naive.Strips("columns", 1, span=(0, 0))] * 2
    families = [naive.Strips("columns", 1), *extra]
    scene = Scene((1, 4), families, cc.Rectangle(1, 1), naive.rectangle(1, 1))
    ballots = [[[2], [1], [1], [1], [1], [1]]]
    units = [[[1], [2000], [2000], [2000], [0], [0]]]
    election = Election(scene, ballots, [1], 3, units=units, cap=2000)
    assert defined(election, "costcert", "lowest", cap=2000) == [2]
    assert certified(election, ["costcert"], "lowest") == {"costcert": [2]}


@pytest.mark.parametrize("tau", [3, 2**31, 2**62, 2**63, 2**70])
def test_a_shift_beyond_all_units_certifies_nothing(tau):
    """Where every clean ballot may be off by all it holds, every rival may be ahead, or tau is refused."""
    scene = Scene((1, 9), [naive.Strips("columns", 1)], cc.Square(1), naive.rectangle(1, 1))
    election = Election(scene, [[[0]] * 9], [0], 4, units=[[[3]] * 9], cap=3)
    assert defined(election, "costcert", "against", cap=3, tau=tau) == [4]
    try:
        found = certified(election, PLAIN, tau=tau)
    except CostcertError:
        return
    assert found == {name: [4] for name in PLAIN}


@settings(max_examples=examples(100))
@given(st.data(), elections(small, most_images=4))
def test_accuracy_counts_every_image(data, election):
    """clean(k) is the share of images with rank ≤ k, certified(k) that with min-k ≤ k, of all images."""
    patch = election.scene.patch
    certs = cc.certify(election.votes(), patches=[patch], defenders=HARD)
    table = certs.accuracy(k=[1, 2, 3])
    assert len(table) == 3 * len(HARD)
    for row in table.itertuples():
        ranks, found = certs.rank(row.defender, patch), certs.min_k(row.defender, patch)
        assert row.clean == pytest.approx(sum(r <= row.k for r in ranks.tolist()) / len(election.truth))
        assert row.certified == pytest.approx(sum(m <= row.k for m in found.tolist()) / len(election.truth))


@given(st.data(), elections(scenes()), ties)
def test_what_is_certified_is_what_predicts(data, election, ties):
    """After an attack the library's own rank is never beyond the min-k it gave before."""
    attacked = data.draw(st.sampled_from(election.scene.sets))
    label = st.integers(0, election.num_classes - 1)
    after = [
        [data.draw(label) if i in attacked else b for i, b in enumerate(image)] for image in election.labels
    ]
    found = certified(election, HARD, ties)
    ranks = ranked(election._replace(labels=after), HARD)
    for name in HARD:
        assert all(rank <= min_k for rank, min_k in zip(ranks[name], found[name], strict=True))


def test_a_label_nobody_votes_for_has_the_worst_min_k():
    """y0 without a clean vote, or a patch that touches every mutant: min-k = L, however many labels."""
    scene = Scene((3, 9), [naive.Strips("columns", 2)], cc.Square(1), naive.rectangle(1, 1))
    silent = Election(scene, [[0] * 9], [1], 1_000_000)
    assert certified(silent, ["costcert", "cbn"]) == {"costcert": [1_000_000], "cbn": [1_000_000]}
    whole = Scene((3, 9), [naive.Strips("columns", 2)], cc.Rectangle(1, 9), naive.rectangle(1, 9))
    assert certified(Election(whole, [[0] * 9], [0], 77), ["costcert"]) == {"costcert": [77]}


class Forgetful(Defender):
    """Counts every ballot, whether it was cast or not, as a newcomer's first defender would."""

    name = "forgetful"
    title = "Forgetful"

    def rivals(self, votes, patches, ties):
        complete = votes.replace(known=None, tau=0)
        return CostCert().rivals(complete, patches, ties)


def test_a_defender_that_says_nothing_about_unknown_ballots_promises_nothing_for_them(monkeypatch):
    rng = np.random.default_rng(5)
    truth = rng.integers(0, 4, 59)
    ballots = np.where(rng.random((59, 8)) < 0.8, truth[:, None], rng.integers(0, 4, (59, 8)))
    known = rng.random((59, 8)) < 0.95
    world = {"num_classes": 4, "ablation": "columns:2", "image_size": (3, 8)}
    full = cc.Votes(ballots, truth, **world)
    sets = [touched(full.ablation, cc.Square(2), full.image_size)]
    for unsure in (full.replace(known=known), full):
        found = Forgetful().min_k(unsure, sets)[0]
        exact = CostCert().min_k(unsure, sets)[0]
        assert (found >= exact).all()
        assert ((found == 4) | (unsure.known is None) | known.all(axis=1)).all()
    monkeypatch.setattr("costcert.defenders.find", lambda name: Forgetful())
    with pytest.raises(cc.CostcertError, match="forgetful needs the ballots of all mutants"):
        cc.certify(full.replace(known=known), 2, "forgetful")
    uncertain = cc.certify(full, 2, "forgetful", uncertain=~known).min_k("forgetful", 2)
    assert (uncertain[~known.all(axis=1)] == 4).all()
    soft = cc.Votes.soft(ballots[..., None], np.full((59, 8, 1), 9), truth, cap=9, **world)
    assert (cc.certify(soft, 2, "forgetful", tau=1).min_k("forgetful", 2) == 4).all()


@pytest.mark.parametrize("method", ["min_k", "rank"])
def test_what_looks_after_unknown_ballots_cannot_be_overridden(method):
    with pytest.raises(cc.CostcertError, match=f"must not define {method}"):
        type("Mine", (Defender,), {"name": "mine", "title": "Mine", method: lambda *args, **more: None})


@st.composite
def scattered_elections(draw):
    """Ballots among which most labels have one vote or a few, and the true one some, near or far apart."""
    length = draw(st.integers(12, 40))
    family = naive.Strips("columns", draw(st.integers(1, 6)), draw(st.integers(1, 2)), draw(st.booleans()))
    side = draw(st.integers(1, 4))
    scene = Scene((1, length), [family], cc.Rectangle(1, side), naive.rectangle(1, side))
    size, classes = len(scene.mutants), draw(st.sampled_from([45, 90]))
    random = draw(st.randoms(use_true_random=False))
    labels, truth = [], []
    for _ in range(3):
        each = random.choice([1, 1, 2, 3, 5])
        ballots = [label for label in random.sample(range(classes), -(-size // each)) for _ in range(each)][
            :size
        ]
        if random.random() < 0.7:
            random.shuffle(ballots)
        true = random.choice([*ballots, *range(classes)])
        for i in range(0, size, random.choice([1, 2, 3, 5, size])):
            ballots[i] = true
        labels.append(ballots)
        truth.append(true)
    return Election(scene, labels, truth, classes)


@settings(max_examples=examples(150))
@given(st.data(), scattered_elections(), ties)
def test_masks_where_most_labels_have_few_votes(data, election, ties):
    """The same formulas where nearly every ballot names another label, some of them uncertain."""
    uncertain = some_uncertain(data, election) if data.draw(st.booleans()) else None
    found = certified(election, MASKED, ties, uncertain=None if uncertain is None else np.array(uncertain))
    for n in election.images:
        doubtful = frozenset(i for i, doubt in enumerate(uncertain[n]) if doubt) if uncertain else frozenset()
        world = (election.ballots(n), election.scene.windows, election.truth[n], election.num_classes)
        assert found["patchguard"][n] == naive.patchguard(*world, ties, doubtful)
        assert found["costcert-masks"][n] == naive.costcert_masks(*world, ties, doubtful)


@pytest.mark.parametrize("priced", [False, True])
@pytest.mark.parametrize("spots", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_what_a_label_costs_does_not_depend_on_how_many_there_are(monkeypatch, priced, spots):
    """Work is counted: one table of windows an image, and at most one search for a flip.

    All labels but the true one have one vote. With three votes far apart the true one keeps one of them
    where the patch touches one; then all 188 rivals outside contend, and 34 ballots pay for as many.
    """
    walk = touched(cc.Columns(19), cc.Square(16), (224, 224))
    ballots = np.arange(224, dtype=np.int32)[None]
    ballots[0, : 224 - 224 % spots : 224 // spots] = 0
    votes = cc.Votes(ballots, [0], num_classes=1000, ablation="columns:19", image_size=224)
    members = np.zeros((1, 1), np.int32)
    geometry = (walk.words, walk.clean_first, walk.offsets)
    scratch = (kernels.blank_image(224, 1, 1, 1000), *kernels.blank_windows(224, len(walk)))
    arrays = worst_case.Arrays.of(votes)
    rest = (*arrays, members, 1000, *geometry, False, priced, *scratch, np.empty(0, np.int64))
    counted, expected = np.empty(1, np.int64), np.empty(1, np.int64)
    kernels.masked(*rest, expected)
    called = dict.fromkeys(["_by_votes", "_best_window_of_rival"], 0)

    def counting(name, kernel):
        def call(*given):
            called[name] += 1
            return kernel(*given)

        return call

    for name in called:
        monkeypatch.setattr(kernels, name, counting(name, getattr(kernels, name)))
    for name in ("_masked_rivals", "_masked_price"):
        monkeypatch.setattr(kernels, name, getattr(kernels, name).py_func)
    kernels.masked.py_func(*rest, counted)
    assert counted.tolist() == expected.tolist() == ([999] if spots == 1 else [34] if priced else [188])
    assert called["_by_votes"] == 1
    assert called["_best_window_of_rival"] <= len(walk.flips) + 224


@given(scenes(), st.data())
def test_best_windows_of_all_labels_at_once(scene, data):
    """One walk finds for each label the most of its votes that one window holds, and where."""
    size = len(scene.mutants)
    voted = data.draw(st.lists(st.integers(-1, 4), min_size=size, max_size=size))
    walk = touched(scene.ablation, scene.patch, scene.image_size)
    windows = [frozenset(np.flatnonzero(mask).tolist()) for mask in walk.sets()]
    held, best, where = np.empty(5, np.int64), np.empty(5, np.int64), np.empty(5, np.int64)
    image = kernels.blank_image(size, 1, 1, 5)
    image.slots[:], image.units[:] = voted, 1
    kernels._best_windows(walk.clean_first, walk.offsets, image, 1, 5, held, best, where)
    for slot in range(5):
        ballots = [{label: 1} for label in voted]
        assert best[slot] == naive.most_in_a_window(ballots, windows, slot)
        assert best[slot] == sum(voted[i] == slot for i in windows[where[slot]])


@given(
    st.sampled_from([0, 3, 40, 1000]),
    st.lists(st.floats(0, 1), max_size=9),
    st.integers(0, 4),
    st.integers(0, 4),
    st.integers(0, 1),
    st.floats(0, 6),
    st.integers(0, 3),
)
def test_eq_1_counted_and_sorted(threshold, shares, count, late_count, late, wealth, found):
    """Lifting cheapest first and its shortfall, with gaps counted (hard) and sorted (soft)."""
    gaps = [round(share * threshold) for share in shares]
    late_gap, late_count = threshold + late, late_count * late
    budget, found = round(wealth * threshold), min(found, len(gaps) + count + late_count)
    every = sorted([*gaps, *[threshold] * count, *[late_gap] * late_count])
    lifted = max(naive.cheapest_first(every, budget), found)
    shortfall = sum(every[: lifted + 1]) - budget if lifted < len(every) else kernels.NEVER
    unlisted = kernels.Unlisted(threshold, count, late_gap, late_count)
    lacking = np.empty(late_gap + 1, np.int64)
    array = np.array(gaps, np.int64)
    assert kernels.cheapest_first(array, unlisted, budget, found, lacking) == (lifted, shortfall)
    assert kernels.cheapest_first_soft(array, unlisted, budget, found) == (lifted, shortfall)


@pytest.mark.parametrize(
    ("kept", "side", "classes", "ballots"),
    [
        (3, 1, 6, [3, 3, 3, 3, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0]),
        (3, 2, 7, [0, 0, 4, 4, 2, 2, 0, 0, 4, 4, 1, 1, 3, 3, 0, 0, 1, 1, 4]),
        (3, 2, 6, [0, 3, 0, 2, 0, 2, 2, 0, 1, 1, 0, 2, 0, 0, 3, 3, 0, 1, 3, 1]),
    ],
)
def test_the_best_window_of_a_rival_is_another_where_the_patch_covers_part_of_it(
    kept, side, classes, ballots
):
    """Its best window is then not the best outside T_p, and taking it for that min-k would be too high."""
    family, patch = naive.Strips("columns", kept), cc.Rectangle(1, side)
    scene = Scene((1, len(ballots)), [family], patch, naive.rectangle(1, side))
    election = Election(scene, [ballots], [0], classes)
    assert certified(election, MASKED) == {name: defined(election, name, "against") for name in MASKED}
