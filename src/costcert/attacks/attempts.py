"""One sticker on one image, and the simplest way to make some: random pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costcert.attacks.judging import Judge, rewritten
from costcert.attacks.placements import Placement, Placements
from costcert.models.classifier import Pixels, ballots_of
from costcert.votes.table import Votes


@dataclass(eq=False)
class Attempt:
    """One patch on one image: what it starts from, and the best it has come to.

    Args:
        image: its row among the images.
        by_votes: which objective.
        start: [H, W, C], the image as it is first shown; only what the patch covers of it may differ.
        pixels: the best so far.
        position: of the true label on these.
        short: the votes that are missing, softly counted.
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
    """The image with random pixels where the patch lies."""
    noise = rng.integers(0, 256, image.shape, dtype=np.uint8)
    return np.where(placements.pixels(placement.places)[..., None], noise, image)


def judged(
    judge: Judge, placements: Placements, votes: Votes, image: int, placement: Placement, pictures: Pixels
) -> list[Attempt]:
    """Attempts [R, H, W, C] at one placement of one image, judged by evaluating the touched mutants alone."""
    regions = [placements.regions[mutant] for mutant in placement.touched.tolist()]
    count = len(pictures)
    said = ballots_of(judge.model.logits(pictures, regions), judge.soft)
    rows = np.repeat(np.arange(count), len(regions)).reshape(count, -1)
    changed = rewritten(votes, np.full(count, image), rows, np.tile(placement.touched, (count, 1)), said)
    positions = judge.positions(changed).tolist()
    return [
        Attempt(image, placement, shown, pixels=shown, position=position)
        for shown, position in zip(pictures, positions, strict=True)
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
    """The best of `count` patches of random pixels, shared out among the candidates."""
    best: Attempt | None = None
    for number, placement in enumerate(candidates):
        share = count // len(candidates) + (number < count % len(candidates))
        if share == 0:
            break
        pictures = np.stack([noisy(pixels, placements, placement, rng) for _ in range(share)])
        for attempt in judged(judge, placements, votes, image, placement, pictures):
            best = attempt if attempt.better_than(best) else best
    return best
