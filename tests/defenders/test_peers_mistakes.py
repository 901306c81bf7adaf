"""One test for each mistake found in other systems: ours must not have one."""

from itertools import product

import numpy as np
import pytest

import costcert as cc
import naive
from costcert.errors import CostcertError
from costcert.geometry.touch import touched
from strategies import Election, Scene

AT_224 = (224, 224)
HARD = ["costcert", "cbn", "drs", "patchguard", "costcert-masks"]


def certify(votes, patch, defenders=HARD, **more):
    """min-k by defender, each a list over images."""
    certs = cc.certify(votes, patches=[patch], defenders=list(defenders), **more)
    return {name: certs.min_k(name, patch).tolist() for name in defenders}


def every_eighth():
    """224 mutants, y0 = 0 on every 8th, every other mutant a label of its own: 28 ballots against 1 each."""
    labels = [0 if i % 8 == 0 else i for i in range(224)]
    votes = cc.Votes([labels], [0], num_classes=225, ablation=cc.Columns(19), image_size=AT_224)
    return labels, votes


def after_a_patch_at_column_zero(labels):
    """All 50 mutants that a patch at columns 0 … 31 touches vote for label 224."""
    return [224 if i < 32 or i >= 206 else label for i, label in enumerate(labels)]


def test_windows_that_do_not_wrap_while_mutants_do():
    """Runs of 50 mutants that stop at the border claim k = 1, and a patch at column 0 wins against them."""
    labels, votes = every_eighth()
    straight = [frozenset(range(start, start + 50)) for start in range(224 - 50 + 1)]
    assert naive.patchguard(naive.hard(labels), straight, 0, 225) == 1
    broken = after_a_patch_at_column_zero(labels)
    assert naive.rank(naive.masked_scores(naive.hard(broken), straight, 225), 0) > 1

    round_the_end = [frozenset(i % 224 for i in range(left - 18, left + 32)) for left in range(193)]
    found = certify(votes, cc.Square(32), ["patchguard", "costcert-masks"])
    scores = naive.masked_scores(naive.hard(broken), round_the_end, 225)
    assert naive.position(scores, 0, "against") <= found["costcert-masks"][0] <= found["patchguard"][0]
    assert found["patchguard"] == [naive.patchguard(naive.hard(labels), round_the_end, 0, 225)]
    attacked = cc.Votes([broken], [0], num_classes=225, ablation=cc.Columns(19), image_size=AT_224)
    certs = cc.certify(attacked, patches=[cc.Square(32)], defenders=["patchguard"])
    assert certs.rank("patchguard", cc.Square(32)).tolist() == [naive.rank(scores, 0)]


def test_budget_from_a_formula():
    """⌈(m+s-1)/stride⌉ = 2 where 3 mutants are touched: it certifies elections that an attack turns."""
    scene = Scene((1, 22), [naive.Strips("columns", 2, 3)], cc.Rectangle(1, 4), naive.rectangle(1, 4))
    formula = -(-(4 + 2 - 1) // 3)
    assert (formula, scene.most) == (2, 3)
    assert touched(scene.ablation, scene.patch, scene.image_size).delta == 3
    rows = [list(row) for row in product(range(2), repeat=len(scene.mutants))]
    election = Election(scene, rows, [0] * len(rows), 2)
    found = certify(election.votes(), scene.patch, ["costcert", "cbn", "drs"])
    false_certificates = 0
    for n in election.images:
        ballots = election.ballots(n)
        reached = naive.reachable_votes(ballots, scene.sets, 2, naive.single_labels(2))
        worst = naive.worst_position(reached, 0, "against")
        mine, rival = naive.votes(ballots, 2)
        false_certificates += mine - formula > rival + formula and worst > 1
        assert worst == found["costcert"][n] <= found["cbn"][n] <= found["drs"][n]
    assert false_certificates > 0


@pytest.mark.parametrize(("width", "stride"), [(19, 2), (19, 3), (19, 5), (19, 7), (19, 10), (37, 10)])
def test_budget_from_a_formula_at_224(width, stride):
    """The counted budget is the largest number of kept strips that any 32 columns meet."""
    starts = range(0, 224, stride)
    most = max(
        sum(any((start + step) % 224 in range(left, left + 32) for step in range(width)) for start in starts)
        for left in range(193)
    )
    assert touched(cc.Columns(width, stride=stride), cc.Square(32), AT_224).delta == most
    assert most >= -(-(32 + width - 1) // stride)


def test_ties_that_depend_on_an_unstable_sort():
    """A label tied with 998 others has the rank its index gives, whatever the batch it comes in."""
    ballots = np.arange(1000, dtype=np.int64)[None, :].repeat(3, axis=0)
    truth = [0, 500, 999]
    votes = cc.Votes(ballots, truth, num_classes=1000, ablation=cc.Columns(1), image_size=(1, 1000))
    patch = cc.Rectangle(1, 1)
    certs = cc.certify(votes, patches=[patch], defenders=["costcert", "drs"])
    assert certs.rank("costcert", patch).tolist() == [1, 501, 1000]
    assert certs.rank("drs", patch).tolist() == [1, 501, 1000]
    shuffled = cc.Votes(
        np.random.default_rng(0).permuted(ballots, axis=1)[::-1],
        truth[::-1],
        num_classes=1000,
        ablation=cc.Columns(1),
        image_size=(1, 1000),
    )
    certs = cc.certify(shuffled, patches=[patch], defenders=["costcert"])
    assert certs.rank("costcert", patch).tolist() == [1000, 501, 1]


@pytest.mark.parametrize("image_size", [(1, 5), (5, 1), (31, 33), (96, 96), (225, 223), (384, 384)])
def test_224_hard_coded(image_size):
    """Every image size has its own number of mutants and its own places."""
    height, width = image_size
    for family, length in [(cc.Columns(1), width), (cc.Rows(1), height)]:
        assert family.count(image_size) == length
        walk = touched(family, cc.Square(1), image_size)
        assert len(walk) == length
        votes = cc.Votes(np.zeros((1, length)), [0], num_classes=3, ablation=family, image_size=image_size)
        expected = 3 if length == 1 else (2 if length == 2 else 1)
        assert certify(votes, cc.Square(1), ["costcert"]) == {"costcert": [expected]}


def test_a_patch_that_does_not_fit_dies_in_an_assertion():
    """A patch or a width that does not fit is a sentence that names it and the image."""
    votes = cc.Votes(np.zeros((1, 7)), [0], num_classes=2, ablation=cc.Columns(2), image_size=(5, 7))
    with pytest.raises(CostcertError, match=r"square:6.*5x7"):
        cc.certify(votes, patches=[cc.Square(6)], defenders=["costcert"])
    with pytest.raises(CostcertError, match=r"columns:8.*7"):
        cc.Votes(np.zeros((1, 7)), [0], num_classes=2, ablation=cc.Columns(8), image_size=(5, 7))


def test_votes_damaged_in_place():
    """Certifying changes nothing it was given, and a second time gives the same."""
    random = np.random.default_rng(3)
    ballots = random.integers(0, 4, (6, 9)).astype(np.int32)
    truth = random.integers(0, 4, 6).astype(np.int32)
    uncertain = random.random((6, 9)) < 0.2
    kept = ballots.copy(), truth.copy(), uncertain.copy()
    votes = cc.Votes(ballots, truth, num_classes=4, ablation=cc.Columns(2), image_size=(4, 9))
    first = certify(votes, cc.Square(2), uncertain=uncertain)
    cc.exclusion(votes, cc.Square(2), [0, 1], 2)
    cc.stability(votes, cc.Square(2), 2)
    cc.bounds(votes, cc.Square(2), known=~uncertain)
    cc.witness(votes, 0, cc.Square(2), 1)
    cc.min_k_any(votes, cc.Square(2), [[0, 1]] * 6)
    votes.select("columns:2/stride=2")
    assert certify(votes, cc.Square(2), uncertain=uncertain) == first
    for before, after in zip(kept, (ballots, truth, uncertain), strict=True):
        assert (before == after).all()


def test_soft_votes_damaged_in_place():
    """The same for soft ballots."""
    random = np.random.default_rng(4)
    labels = random.permuted(np.tile(np.arange(4, dtype=np.int32), (5, 9, 1)), axis=2)[..., :2].copy()
    units = random.integers(0, 3, (5, 9, 2)).astype(np.int32)
    kept = labels.copy(), units.copy()
    votes = cc.Votes.soft(
        labels, units, [0] * 5, num_classes=4, ablation=cc.Columns(2), image_size=(4, 9), cap=4
    )
    first = certify(votes, cc.Square(2), ["costcert", "cbn", "drs"], tau=1)
    cc.witness(votes, 0, cc.Square(2), 1)
    assert certify(votes, cc.Square(2), ["costcert", "cbn", "drs"], tau=1) == first
    assert (kept[0] == labels).all()
    assert (kept[1] == units).all()


def test_row_ablation_that_loops_over_the_width():
    """Rows of a 32×48 image: 32 mutants, and mutant i keeps rows i … i+3 whole."""
    regions = cc.Rows(4).regions((32, 48))
    assert len(regions) == 32
    for i, region in enumerate(regions):
        assert set(np.flatnonzero(region.rows.pixels(32)).tolist()) == {(i + step) % 32 for step in range(4)}
        assert region.columns.pixels(48).all()
    assert touched(cc.Rows(4), cc.Rectangle(2, 48), (32, 48)).delta == 5
    assert cc.Columns(4).count((32, 48)) == 48
    assert touched(cc.Columns(4), cc.Rectangle(32, 2), (32, 48)).delta == 5


def test_a_cache_that_omits_the_stride():
    """Neither stride, span, wrap nor kind may be forgotten by whatever remembers T_p."""
    families = [
        cc.Columns(4),
        cc.Columns(4, stride=2),
        cc.Columns(4, span=(1, 7)),
        cc.Columns(4, wrap=False),
        cc.Rows(4),
        cc.Blocks(4),
    ]
    assert len({str(family) for family in families}) == len(set(families)) == len(families)
    walks = [touched(family, cc.Square(3), (9, 12)) for family in families]
    again = [touched(family, cc.Square(3), (9, 12)) for family in families]
    signatures = {(walk.num_mutants, len(walk), walk.delta) for walk in walks}
    assert signatures == {(walk.num_mutants, len(walk), walk.delta) for walk in again}
    assert len(signatures) == len(families)


def test_only_the_runner_up_checked():
    """The true label leads by enough over the second, but a patch on its ballots lifts the third too."""
    ballots = [0] * 5 + [1] * 4 + [2] * 4 + [0] * 3
    votes = cc.Votes([ballots], [0], num_classes=3, ablation=cc.Columns(1), image_size=(1, 16))
    assert naive.rank(naive.votes(naive.hard(ballots), 3), 0) == 1
    assert certify(votes, cc.Rectangle(1, 3), ["cbn", "drs", "costcert"]) == {
        "cbn": [3],
        "drs": [3],
        "costcert": [3],
    }


def test_an_image_that_drops_out_of_the_denominator():
    """A ballot that is no label is an error that names it; every image accepted is counted."""
    for bad in (-1, 3, 0.5, np.nan):
        ballots = np.zeros((2, 4))
        ballots[1, 2] = bad
        with pytest.raises(CostcertError, match="ballots"):
            cc.Votes(ballots, [0, 0], num_classes=3, ablation=cc.Columns(1), image_size=(1, 4))
    for truth in ([0, 3], [0, -1], [0], [0, 0, 0]):
        with pytest.raises(CostcertError, match="truth"):
            cc.Votes(np.zeros((2, 4)), truth, num_classes=3, ablation=cc.Columns(1), image_size=(1, 4))
    votes = cc.Votes(
        [[0] * 4, [1] * 4, [2] * 4], [0, 0, 0], num_classes=3, ablation=cc.Columns(1), image_size=(1, 4)
    )
    table = cc.certify(votes, patches=[cc.Square(1)], defenders=["costcert"]).accuracy(k=[1, 3])
    assert table.certified.tolist() == pytest.approx([1 / 3, 1])
    assert table.clean.tolist() == pytest.approx([1 / 3, 1])


@pytest.mark.parametrize(
    ("labels", "units", "cap"),
    [
        ([[[0, 1]] * 3], [[[2, 2]] * 3], 3),
        ([[[0, 1]] * 3], [[[-1, 1]] * 3], 3),
        ([[[0, 2]] * 3], [[[1, 1]] * 3], 3),
        ([[[0, 1]] * 3], [[[1]] * 3], 3),
        ([[[0, 1]] * 3], [[[0.5, 0.5]] * 3], 3),
        ([[[0, 1]] * 3], [[[2**62, 2**62]] * 3], 3),
        ([[[0, 1]] * 3], [[[2**62] * 2] * 3], 2**30),
    ],
)
def test_ballots_worth_more_than_the_attacker_is_given(labels, units, cap):
    """A soft ballot of more than U units would be cheaper to rewrite than it counts: it is refused."""
    with pytest.raises(CostcertError):
        cc.Votes.soft(labels, units, [0], num_classes=2, ablation=cc.Columns(1), image_size=(1, 3), cap=cap)
