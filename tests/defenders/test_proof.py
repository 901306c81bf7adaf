"""CostCert's condition, proved for all vote counts by a solver instead of sampled.

Fixed are the number of labels and k; clean votes α, the budget q and the attack d are any integers.
Label 0 is the true one here, and `tie[y]` is 1 where rival y loses its ties.
"""

from itertools import combinations, product

import pytest
import z3
from hypothesis import given, settings

import costcert as cc
import naive
from strategies import elections, examples, scenes, ties
from waiting import HANGS

SIZES = [(labels, k) for labels in (2, 3, 4, 5) for k in range(1, labels)]


class Votes:
    """Symbolic clean votes, budget and gaps of the rivals."""

    def __init__(self, labels, tie=None):
        self.rivals = range(1, labels)
        self.tie = tie or [0] * labels
        self.alpha = [z3.Int(f"alpha{y}") for y in range(labels)]
        self.q = z3.Int("q")
        self.given = z3.And(self.q >= 0, *[votes >= 0 for votes in self.alpha])
        self.gap = {y: larger(0, self.alpha[0] + self.tie[y] - self.alpha[y]) for y in self.rivals}

    def affordable(self, k):
        """lifted ≥ k: some k rivals have gaps that sum to at most q."""
        return z3.Or(
            [z3.Sum([self.gap[y] for y in chosen]) <= self.q for chosen in combinations(self.rivals, k)]
        )

    def cheapest_first(self, k):
        """lifted ≥ k as it is computed: the k smallest gaps, after sorting, sum to at most q."""
        gaps = [self.gap[y] for y in self.rivals]
        for end in range(len(gaps) - 1, 0, -1):
            for i in range(end):
                gaps[i], gaps[i + 1] = smaller(gaps[i], gaps[i + 1]), larger(gaps[i], gaps[i + 1])
        return z3.Sum(gaps[:k]) <= self.q

    def ahead(self, attack):
        """How many rivals are ahead of the true label after the attack."""
        return z3.Sum(
            [
                z3.If(self.alpha[y] + attack[y] >= self.alpha[0] + attack[0] + self.tie[y], 1, 0)
                for y in self.rivals
            ]
        )


def larger(a, b):
    return z3.If(a >= b, a, b)


def smaller(a, b):
    return z3.If(a <= b, a, b)


def proved(*claims):
    """Whether the claims cannot all hold."""
    solver = z3.Solver()
    solver.set("timeout", HANGS * 1000)
    solver.add(*claims)
    return solver.check() == z3.unsat


def all_ties(labels):
    """Every way in which some rivals lose their ties and others win them."""
    return [[0, *rest] for rest in product((0, 1), repeat=labels - 1)]


@pytest.mark.parametrize(("labels", "k"), SIZES)
def test_no_attack_beats_the_certificate(labels, k):
    """Soundness: lifted < k, and no d ≥ 0 with Σd ≤ q brings k rivals ahead."""
    for tie in all_ties(labels):
        votes = Votes(labels, tie)
        attack = [z3.Int(f"d{y}") for y in range(labels)]
        allowed = z3.And(z3.Sum(attack) <= votes.q, *[d >= 0 for d in attack])
        assert proved(votes.given, z3.Not(votes.affordable(k)), allowed, votes.ahead(attack) >= k)


@pytest.mark.parametrize(("labels", "k"), SIZES)
def test_some_attack_reaches_the_certificate(labels, k):
    """Completeness: lifted ≥ k, and these whole ballots bring k rivals ahead.

    Each chosen rival gets its gap, the first of them what is left: Σd = q, as no ballot may abstain.
    """
    for tie in all_ties(labels):
        votes = Votes(labels, tie)
        for chosen in combinations(votes.rivals, k):
            cost = z3.Sum([votes.gap[y] for y in chosen])
            attack = [votes.gap[y] if y in chosen else z3.IntVal(0) for y in range(labels)]
            attack[chosen[0]] += votes.q - cost
            succeeds = z3.And(z3.Sum(attack) == votes.q, votes.ahead(attack) >= k, *[d >= 0 for d in attack])
            assert proved(votes.given, cost <= votes.q, z3.Not(succeeds))


@pytest.mark.parametrize(("labels", "k"), SIZES)
def test_cheapest_first_is_best(labels, k):
    """Sorting the gaps finds an affordable set of k rivals just when there is one."""
    votes = Votes(labels)
    assert proved(votes.given, votes.affordable(k) != votes.cheapest_first(k))


@pytest.mark.parametrize("labels", [2, 3, 4])
def test_pairwise_bounds_are_never_better(labels):
    """CBN counts every rival that CostCert lifts, and the two agree on whether any is lifted."""
    votes = Votes(labels)
    alone = z3.Sum([z3.If(votes.alpha[y] + votes.q >= votes.alpha[0], 1, 0) for y in votes.rivals])
    for k in votes.rivals:
        assert proved(votes.given, votes.affordable(k), alone < k)
    assert proved(votes.given, z3.Not(votes.affordable(1)), alone >= 1)


def test_the_solver_can_say_no():
    """A wrong certificate, one ballot too generous, is refuted."""
    votes = Votes(3)
    attack = [z3.Int(f"d{y}") for y in range(3)]
    allowed = z3.And(z3.Sum(attack) <= votes.q + 1, *[d >= 0 for d in attack])
    assert not proved(votes.given, z3.Not(votes.affordable(1)), allowed, votes.ahead(attack) >= 1)


@settings(max_examples=examples(60))
@given(elections(scenes(largest_side=5), most_images=1), ties)
def test_the_library_computes_what_was_proved(election, ties):
    """min-k of the library is 1 + the largest k that the proved condition affords at some T_p."""
    truth, classes = election.truth[0], election.num_classes
    labels = [truth, *(y for y in range(classes) if y != truth)]
    votes = Votes(classes, [naive.extra(y, truth, ties) for y in labels])
    lifted = 0
    for attacked in election.scene.sets:
        alpha = naive.clean_votes(election.ballots(0), attacked, classes)
        values = [(votes.alpha[i], z3.IntVal(alpha[y])) for i, y in enumerate(labels)]
        values.append((votes.q, z3.IntVal(len(attacked))))
        for k in range(lifted + 1, classes):
            if not z3.is_true(z3.simplify(z3.substitute(votes.affordable(k), *values))):
                break
            lifted = k
    patch = election.scene.patch
    found = cc.certify(election.votes(), patches=[patch], defenders=["costcert"], ties=ties)
    assert found.min_k("costcert", patch).tolist() == [1 + lifted]
