"""One patch on one image, and the simplest attack: random pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costcert.attacks.judging import Judge, rewritten
from costcert.attacks.placements import Placement, Placements
from costcert.models.classifier import Pixels, ballots_of
from costcert.votes.table import Votes


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
    judge: Judge, placements: Placements, votes: Votes, image: int, placement: Placement, patched: Pixels
) -> list[Attempt]:
    """Patched versions [R, H, W, C] of one image, judged by evaluating only the touched mutants."""
    regions = [placements.regions[mutant] for mutant in placement.touched.tolist()]
    count = len(patched)
    ballots = ballots_of(judge.model.logits(patched, regions), judge.soft)
    rows = np.repeat(np.arange(count), len(regions)).reshape(count, -1)
    changed = rewritten(votes, np.full(count, image), rows, np.tile(placement.touched, (count, 1)), ballots)
    positions = judge.positions(changed).tolist()
    return [
        Attempt(image, placement, shown, pixels=shown, position=position)
        for shown, position in zip(patched, positions, strict=True)
    ]


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
    best: Attempt | None = None
    for number, placement in enumerate(candidates):
        share = count // len(candidates) + (number < count % len(candidates))
        if share == 0:
            break
        patched = np.stack([noisy(pixels, placements, placement, rng) for _ in range(share)])
        for attempt in judged(judge, placements, votes, image, placement, patched):
            best = attempt if attempt.better_than(best) else best
    return best
