"""Results that were derived by hand or published, not computed by this package."""

import numpy as np
import pytest

import costcert as cc
import naive
from costcert.geometry.touch import touched

DOG, PANDA, CAT = range(3)
AT_224 = (224, 224)


def answers(votes, patch, defenders, **more):
    """min-k of the first image by defender."""
    certs = cc.certify(votes, patches=[patch], defenders=defenders, **more)
    return {name: int(certs.min_k(name, patch)[0]) for name in defenders}


def pandas():
    """The paper's example: 4 Dog, 9 Panda, 4 Cat in a row of 17 mutants."""
    ballots = [DOG] * 4 + [PANDA] * 9 + [CAT] * 4
    return cc.Votes([ballots], [PANDA], num_classes=3, ablation=cc.Columns(1), image_size=(1, 17))


def all_right(num_classes=1000, ablation=None):
    """All 224 mutants vote for the true label."""
    ablation = ablation or cc.Columns(19)
    ballots = np.full((1, ablation.count(AT_224)), 7)
    return cc.Votes(ballots, [7], num_classes=num_classes, ablation=ablation, image_size=AT_224)


def test_seventeen_mutants():
    """One region touches 3 Panda: 6 stay, Dog and Cat have 4. CBN lifts both with the same 3 ballots."""
    found = answers(pandas(), cc.Rectangle(1, 3), ["costcert", "cbn", "drs"])
    assert found == {"costcert": 2, "cbn": 3, "drs": 3}


def test_the_position_that_touches_three_pandas():
    """By hand: α = 4, 6, 4 and q = 3; gaps of 2 and 2 cost 4 together, one of them 2."""
    ballots = naive.hard([DOG] * 4 + [PANDA] * 9 + [CAT] * 4)
    middle = [frozenset({7, 8, 9})]
    assert naive.clean_votes(ballots, middle[0], 3) == [4, 6, 4]
    assert naive.costcert(ballots, middle, PANDA, 3) == 2
    assert naive.cbn(ballots, middle, PANDA, 3) == 3
    witness = cc.witness(pandas(), 0, cc.Rectangle(1, 3), 1)
    assert witness.scores[PANDA] <= max(witness.scores[DOG], witness.scores[CAT])
    assert cc.witness(pandas(), 0, cc.Rectangle(1, 3), 2) is None


def test_one_more_ballot_lifts_both():
    """A region of 4: five Panda stay, gaps of 1 and 1 are paid for."""
    assert answers(pandas(), cc.Rectangle(1, 4), ["costcert", "cbn"]) == {"costcert": 3, "cbn": 3}


def test_all_right_against_a_large_patch():
    """s = 19, m = 96: 110 clean ballots, 114 to spend. One rival ties, no second; pairwise, all 999 do."""
    found = answers(all_right(), cc.Square(96), ["costcert", "cbn", "patchguard"])
    assert found == {"costcert": 2, "cbn": 1000, "patchguard": 1000}


def test_all_right_against_a_smaller_patch():
    """m = 32: 174 clean ballots against 50, certified at k = 1 by all."""
    found = answers(all_right(), cc.Square(32), ["costcert", "cbn", "patchguard", "drs", "costcert-masks"])
    assert found == dict.fromkeys(["costcert", "cbn", "patchguard", "drs", "costcert-masks"], 1)


@pytest.mark.parametrize(("side", "expected"), [(93, 1), (94, 2), (206, 1000)])
def test_all_right_at_the_turning_points(side, expected):
    """224 - Δ against Δ = m + 18: 113 > 111 holds at 93, 112 ties 112 at 94; at 206 nothing is clean."""
    assert answers(all_right(), cc.Square(side), ["costcert"]) == {"costcert": expected}


def test_known_ties_at_the_turning_point():
    """At 94 a rival can only tie: the seven lower labels win that tie, but just one of them is paid for."""
    votes = all_right()
    assert answers(votes, cc.Square(94), ["costcert"], ties="lowest") == {"costcert": 2}
    lowest = cc.Votes(np.zeros((1, 224)), [0], num_classes=9, ablation=cc.Columns(19), image_size=AT_224)
    assert answers(lowest, cc.Square(94), ["costcert"], ties="lowest") == {"costcert": 1}


def test_drs_needs_a_margin_beyond_two_deltas():
    """Top-1 is certified iff the margin exceeds 2Δ: Δ = 2 here, so 5 ballots ahead and not 4."""
    for ahead, expected in [(5, 1), (4, 2)]:
        ballots = [0] * ahead + [1, 0] * 5
        size = (1, len(ballots))
        votes = cc.Votes([ballots], [0], num_classes=2, ablation=cc.Columns(2), image_size=size)
        assert answers(votes, cc.Square(1), ["drs"]) == {"drs": expected}


def test_no_clean_vote_for_the_truth():
    """Some region touches every ballot of the true label: min-k = L."""
    ballots = [0, 0, 0, 1, 2, 3, 1, 2, 3]
    votes = cc.Votes([ballots], [0], num_classes=50, ablation=cc.Columns(1), image_size=(1, 9))
    assert answers(votes, cc.Rectangle(1, 3), ["costcert", "cbn", "drs"]) == {
        "costcert": 50,
        "cbn": 50,
        "drs": 50,
    }


@pytest.mark.parametrize(
    ("ablation", "side", "published", "counted"),
    [("columns:19/stride=10", 32, 5, 6), ("blocks:75/stride=10", 32, 121, 144)],
)
def test_budgets_of_strides(ablation, side, published, counted):
    """⌈(m+s-1)/stride⌉ undercounts where the stride does not divide the width."""
    family = cc.parse_ablation(ablation)
    along = -(-(side + family.width - 1) // family.stride)
    assert published == along ** (2 if ablation.startswith("blocks") else 1)
    assert touched(family, cc.Square(side), AT_224).delta == counted


def test_budgets_of_the_paper():
    """W = 224, s = 19: Δ is 50 for 32 pixels and 114 for 96."""
    assert touched(cc.Columns(19), cc.Square(32), AT_224).delta == 50
    assert touched(cc.Columns(19), cc.Square(96), AT_224).delta == 114


def test_a_share_of_gtsrb():
    """2 of 32 and 5 of 32 px at the original resolution, columns of 4: Δ of 5 and 8."""
    assert touched(cc.Columns(4), cc.parse_patch("2/32", (32, 32)), (32, 32)).delta == 5
    assert touched(cc.Columns(4), cc.parse_patch("5/32", (32, 32)), (32, 32)).delta == 8


def test_a_counterfeit_is_kept_out():
    """Four ballots for 0, four for 1, one for 2, a patch worth one: 2 reaches 2 < 3, so it is out of two."""
    ballots = [0, 1, 0, 1, 2, 0, 1, 0, 1]
    votes = cc.Votes([ballots], [0], num_classes=3, ablation=cc.Columns(1), image_size=(1, 9))
    assert cc.exclusion(votes, cc.Square(1), 2, 2).tolist() == [True]
    assert cc.exclusion(votes, cc.Square(1), [0, 2], 1).tolist() == [[False, True]]
    assert cc.exclusion(votes, cc.Square(1), 2, 3).tolist() == [False]


def test_a_list_that_stays():
    """The same ballots: of the clean top-2 both stay; with a patch of four the weaker is expelled."""
    ballots = [0, 1, 0, 1, 2, 0, 1, 0, 1]
    votes = cc.Votes([ballots], [0], num_classes=3, ablation=cc.Columns(1), image_size=(1, 9))
    assert cc.stability(votes, cc.Square(1), 2).tolist() == [2]
    assert cc.stability(votes, cc.Rectangle(1, 4), 2).tolist() == [1]
