"""Attacks the images of one shard together, so that they share batches of gradients and evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from costcert.attacks.attempts import Attempt, noisy, random_patches
from costcert.attacks.effort import Effort
from costcert.attacks.evidence import Inspector
from costcert.attacks.judging import Judge
from costcert.attacks.placements import Placement, Placements, best_placements, prices_of
from costcert.attacks.results import AttackResults
from costcert.models.classifier import Pixels
from costcert.votes.table import Votes

if TYPE_CHECKING:
    from costcert.attacks.universal import UniversalPatch

# A short run, which compares positions, takes the steps of a full run divided by this.
_TRIAL = 5

Candidates = dict[int, list[Placement]]
# The best attempt so far on each image of the shard.
Found = list[Attempt | None]


class Shard:
    """The images of one shard.

    Args:
        clean, votes: the images and their votes.
        rngs: one generator per image, so that results do not depend on the other images of the shard.
    """

    def __init__(
        self,
        judge: Judge,
        placements: Placements,
        k: int,
        effort: Effort,
        clean: Pixels,
        votes: Votes,
        rngs: Sequence[np.random.Generator],
    ) -> None:
        self.judge, self.placements, self.k, self.effort = judge, placements, k, effort
        self.clean, self.votes, self.rngs = clean, votes, rngs
        self.rank, self.min_k = judge.positions(votes), judge.certified(votes)
        self.targets: list[int] = np.flatnonzero(self.rank <= k).tolist()
        self.efforts = [effort if bound > k else effort.on_certified() for bound in self.min_k]

    def attacked(self, inspector: Inspector, shared: UniversalPatch | None) -> AttackResults:
        """Run all attacks, and verify their results from scratch."""
        candidates = {image: self._candidates(image) for image in self.targets}
        random, universal = self._harmful(self._random(candidates)), self._harmful(self._universal(shared))
        _, _, under_random = inspector.verify(random)
        _, _, under_universal = inspector.verify(universal)
        best = [_better(one, other) for one, other in zip(random, universal, strict=True)]
        if self.effort.steps:
            best = self._harmful(self._optimized(candidates, best))
        patched, after, attacked = inspector.verify(best)
        count = len(self.votes)
        return AttackResults(
            image_id=self.votes.image_ids,
            truth=self.votes.truth.astype(np.int64),
            rank=self.rank,
            min_k=self.min_k,
            random=under_random,
            universal=under_universal,
            attacked=attacked,
            places=np.array([_flat(attempt, self.placements) for attempt in best], dtype=np.int64),
            touched=np.array([0 if a is None else len(a.placement.touched) for a in best], dtype=np.int64),
            won=self._won(after, best),
            patched=patched.reshape(count, -1),
        )

    def _candidates(self, image: int) -> list[Placement]:
        count, rng = self.efforts[image].places, self.rngs[image]
        return best_placements(self.votes, image, self.placements, self.k, count, rng)

    def _random(self, candidates: Candidates) -> Found:
        found: Found = [None] * len(self.votes)
        for image, where in candidates.items():
            found[image] = random_patches(
                self.judge,
                self.placements,
                self.votes,
                image,
                self.clean[image],
                where,
                self.efforts[image].random,
                self.rngs[image],
            )
        return found

    def _universal(self, shared: UniversalPatch | None) -> Found:
        found: Found = [None] * len(self.votes)
        if shared is not None:
            for image in self.targets:
                prices = prices_of(self.votes, image, self.k)
                found[image] = shared.tried(
                    self.judge,
                    self.placements,
                    prices,
                    self.clean[image],
                    self.effort.places,
                    self.rngs[image],
                )
        return found

    def _optimized(self, candidates: Candidates, best: Found) -> Found:
        """Short runs at all positions, then full runs at the best of them."""
        from costcert.attacks.optimizer import PatchOptimizer

        optimizer = PatchOptimizer(self.judge, self.placements, self.clean, self.votes, self.k)
        best = list(best)
        # All images at their first position, then all at their second: images that are broken drop out early.
        turns = range(max(map(len, candidates.values()), default=0))
        trials = [
            self._from_noise(image, candidates[image][turn])
            for turn in turns
            for image in self._unbroken(best)
            if turn < len(candidates[image])
        ]
        optimizer.optimize(trials, -(-self.effort.steps // _TRIAL))
        ranked: dict[int, list[Attempt]] = {image: [] for image in candidates}
        for trial in trials:
            ranked[trial.image].append(trial)
            best[trial.image] = _better(best[trial.image], trial)
        for tried in ranked.values():
            tried.sort(key=lambda trial: (-trial.position, trial.short))
        for turn in range(self.effort.restarts):
            runs = [
                self._restart(ranked[image], turn)
                for image in self._unbroken(best)
                if turn < self.efforts[image].restarts and ranked[image]
            ]
            optimizer.optimize(runs, self.effort.steps)
            for run in runs:
                best[run.image] = _better(best[run.image], run)
        return best

    def _won(self, after: Votes, best: Found) -> npt.NDArray[np.float64]:
        """[N], the share of the touched ballots that went to the k best placed rivals."""
        won = np.zeros(len(after))
        listed = self.judge.deployed.ranked(after, self.k + 1)
        for row, attempt in enumerate(best):
            if attempt is not None:
                rivals = [label for label in listed[row] if label != after.truth[row]][: self.k]
                won[row] = _won(after, row, rivals, attempt.placement.touched)
        return won

    def _harmful(self, found: Found) -> Found:
        """Without attempts that improve the true label's position: the attacker would not use them."""
        return [
            attempt if attempt is not None and attempt.position >= rank else None
            for attempt, rank in zip(found, self.rank, strict=True)
        ]

    def _unbroken(self, best: Found) -> list[int]:
        return [image for image in self.targets if (found := best[image]) is None or found.position <= self.k]

    def _from_noise(self, image: int, placement: Placement, *, by_votes: bool = True) -> Attempt:
        start = noisy(self.clean[image], self.placements, placement, self.rngs[image])
        return Attempt(image, placement, start, by_votes)

    def _restart(self, ranked: list[Attempt], turn: int) -> Attempt:
        """The attempt of a full run. Each of the best positions gets two turns.

        The first continues from the short run, by votes; the second starts from noise, by ballots, and from
        the second position on with random rivals.
        """
        trial = ranked[turn // 2 % len(ranked)]
        if turn % 2 == 0:
            return Attempt(
                trial.image, trial.placement, trial.start if trial.pixels is None else trial.pixels
            )
        placement = trial.placement
        if turn > 1:
            prices = prices_of(self.votes, trial.image, self.k)
            placement = prices.placement(self.placements, placement.places, self.rngs[trial.image])
        return self._from_noise(trial.image, placement, by_votes=False)


def _better(one: Attempt | None, other: Attempt | None) -> Attempt | None:
    return other if other is not None and other.better_than(one) else one


def _flat(attempt: Attempt | None, placements: Placements) -> list[int]:
    if attempt is None:
        return [-1] * (2 * placements.times)
    return [side for place in attempt.placement.places for side in place]


def _won(after: Votes, row: int, listed: Sequence[int], touched: npt.NDArray[np.int64]) -> float:
    """The share of the touched ballots that went to the listed rivals."""
    if after.labels is None or after.units is None:
        return float(np.isin(after.ballots[row, touched], listed).mean())
    given = after.units[row, touched] * np.isin(after.labels[row, touched], listed)
    return float(given.sum() / (after.cap * len(touched)))
