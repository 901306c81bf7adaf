"""One sticker on one image, and the simplest way to make some: random pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from costcert.attacks.judging import Judge, rewritten
from costcert.attacks.placements import Sites, Spot
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
    spot: Spot
    start: Pixels
    by_votes: bool = True
    pixels: Pixels | None = None
    position: int = 0
    short: float = float("inf")

    def better_than(self, other: Attempt | None) -> bool:
        return other is None or (self.position, -self.short) > (other.position, -other.short)


def noisy(image: Pixels, sites: Sites, spot: Spot, rng: np.random.Generator) -> Pixels:
    """The image with random pixels where the patch lies."""
    noise = rng.integers(0, 256, image.shape, dtype=np.uint8)
    return np.where(sites.pixels(spot.places)[..., None], noise, image)


def judged(
    judge: Judge, sites: Sites, votes: Votes, image: int, spot: Spot, pictures: Pixels
) -> list[Attempt]:
    """These pictures [R, H, W, C] of one image with the patch at one spot, asked through touched mutants."""
    regions = [sites.regions[mutant] for mutant in spot.touched.tolist()]
    count = len(pictures)
    said = ballots_of(judge.model.logits(pictures, regions), judge.soft)
    rows = np.repeat(np.arange(count), len(regions)).reshape(count, -1)
    changed = rewritten(votes, np.full(count, image), rows, np.tile(spot.touched, (count, 1)), said)
    positions = judge.positions(changed).tolist()
    return [
        Attempt(image, spot, shown, pixels=shown, position=position)
        for shown, position in zip(pictures, positions, strict=True)
    ]


def random_patches(
    judge: Judge,
    sites: Sites,
    votes: Votes,
    image: int,
    pixels: Pixels,
    spots: list[Spot],
    count: int,
    rng: np.random.Generator,
) -> Attempt | None:
    """The best of `count` patches of random pixels, shared out among the spots."""
    best: Attempt | None = None
    for number, spot in enumerate(spots):
        share = count // len(spots) + (number < count % len(spots))
        if share == 0:
            break
        pictures = np.stack([noisy(pixels, sites, spot, rng) for _ in range(share)])
        for attempt in judged(judge, sites, votes, image, spot, pictures):
            best = attempt if attempt.better_than(best) else best
    return best
