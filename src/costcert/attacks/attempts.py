"""One patch on one image, and the simplest attack: random pixels."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from costcert.attacks.judging import Judge, rewritten
from costcert.attacks.placements import Placement, Placements
from costcert.models.classifier import Pending, Pixels, ballots_of
from costcert.votes.table import Votes

# Trials of one image that are evaluated at the same time.
_TRIALS_AT_ONCE = 16


@dataclass(eq=False)
class Attempt:
    """One patch on one image: the pixels it starts from, and the best ones so far.

    Args:
        image: its row among the images.
        start: [H, W, C], the image with the initial patch; outside of the patch it is the clean image.
        by_votes: the objective: votes, or else ballots (see `optimizer`).
        pixels: the best image so far.
        position: of the true label in the prediction for `pixels`.
        short: the votes that the attack still lacks, in a soft count.
    """

    image: int
    placement: Placement
    start: Pixels
    by_votes: bool = True
    pixels: Pixels | None = None
    position: int = 0
    short: float = float("inf")

    def better_than(self, other: Attempt | None) -> bool:
        return other is None or (self.position, -self.short) > (other.position, -other.short)


def noisy(image: Pixels, placements: Placements, placement: Placement, rng: np.random.Generator) -> Pixels:
    """The image with random pixels under the patch."""
    noise = rng.integers(0, 256, image.shape, dtype=np.uint8)
    return np.where(placements.pixels(placement.places)[..., None], noise, image)


def judged(
    judge: Judge,
    placements: Placements,
    votes: Votes,
    image: int,
    trials: Iterable[tuple[Placement, Pixels]],
) -> Iterator[Attempt]:
    """Patched versions [R, H, W, C] of one image at each placement, judged by the touched mutants alone.

    Few mutants are touched, so several trials are evaluated at once to keep all cores busy.
    """
    begun: deque[tuple[Placement, Pixels, Pending]] = deque()
    for placement, patched in trials:
        regions = [placements.regions[mutant] for mutant in placement.touched.tolist()]
        begun.append((placement, patched, judge.model.begin(judge.inputs(patched), regions)))
        if len(begun) == _TRIALS_AT_ONCE:
            yield from _attempts(judge, votes, image, *begun.popleft())
    while begun:
        yield from _attempts(judge, votes, image, *begun.popleft())


def _attempts(
    judge: Judge, votes: Votes, image: int, placement: Placement, patched: Pixels, logits: Pending
) -> list[Attempt]:
    count, touched = len(patched), placement.touched
    ballots = ballots_of(logits.result(), judge.soft)
    rows = np.repeat(np.arange(count), len(touched)).reshape(count, -1)
    changed = rewritten(votes, np.full(count, image), rows, np.tile(touched, (count, 1)), ballots)
    positions = judge.positions(changed).tolist()
    return [
        Attempt(image, placement, shown, pixels=shown, position=position)
        for shown, position in zip(patched, positions, strict=True)
    ]


def best_of(attempts: Iterable[Attempt]) -> Attempt | None:
    """The first of those that no other is better than."""
    best: Attempt | None = None
    for attempt in attempts:
        best = attempt if attempt.better_than(best) else best
    return best


def random_patches(
    judge: Judge,
    placements: Placements,
    votes: Votes,
    image: int,
    pixels: Pixels,
    candidates: list[Placement],
    count: int,
    rng: np.random.Generator,
) -> Attempt | None:
    """The best of `count` patches of random pixels, distributed over the candidates."""

    def trials() -> Iterator[tuple[Placement, Pixels]]:
        for number, placement in enumerate(candidates):
            share = count // len(candidates) + (number < count % len(candidates))
            if share:
                yield placement, np.stack([noisy(pixels, placements, placement, rng) for _ in range(share)])

    return best_of(judged(judge, placements, votes, image, trials()))
