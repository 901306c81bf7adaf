"""Synthetic ballots that resemble those of a real model, for examples and benchmarks.

The cost of certification depends on the ballots: how many labels an image's mutants vote for, how often the
label changes from one mutant to the next, and how often it is the true one. So each image has a share of
ballots for the true label (nearly all for an easy image, nearly none for a hard one), a pool of classes it
is confused with, the first of them most often, and a few random labels; neighbouring mutants keep nearly
the same pixels, so labels come in runs along the cyclic axis. The constants below are chosen so that 1,000
classes with columns:19 at 224 px come close to the paper's ImageNet results: clean accuracy 70 % (top-1) to
88 % (top-5), certified against a 32 px patch 41 % to 66 %.

    python bench/ballots.py ballots.npz --images 2000 --classes 1000 --seed 0
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

# The units of one soft ballot.
CAP = 65536

# Images generated at a time, to bound memory. Each group has its own generator and is truncated after
# sampling, so that the first n images of a seed do not depend on the number of images.
GROUP = 256

# Share of ballots for the true label: Beta(a, b) over images.
SHARE = (0.58, 0.78)
# Confusable classes of the easiest and of the hardest image, and the weight of the share in hardness.
POOL = (4.8, 93.0)
HARDNESS_FROM_SHARE = 0.90
# Range of the exponent that favours the first of the confusable classes.
LEAD = (1.3, 4.0)
# Share of ballots for a random class, and range of the mean length of a run.
STRAY = 0.03
RUN = (1.2, 2.8)


def hard(
    images: int, classes: int = 1000, *, mutants: int = 224, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Ballots [N, B] and truth [N]."""
    ballots = np.empty((images, mutants), label_type(classes))
    truth = np.empty(images, np.int64)
    confusions = _confusions(classes, seed)
    for part, rng in _groups(images, seed):
        count = part.stop - part.start
        group = _Group.drawn(classes, rng)
        truth[part] = group.truth[:count]
        ballots[part] = group.runs(confusions, mutants, rng)[:count]
    return ballots, truth


def soft(
    images: int, classes: int = 1000, *, mutants: int = 224, each: int = 4, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels [N, B, j], units [N, B, j] that sum to at most `CAP` per mutant, and truth [N].

    They resemble a softmax truncated to its j best labels and rounded down: the best label of a mutant is its
    hard ballot, the others are labels it could have voted for, with fewer units for easier images.
    """
    labels = np.empty((images, mutants, each), label_type(classes))
    units = np.empty((images, mutants, each), np.int32)
    truth = np.empty(images, np.int64)
    confusions = _confusions(classes, seed)
    for part, rng in _groups(images, seed):
        count = part.stop - part.start
        group = _Group.drawn(classes, rng)
        named = np.stack([group.runs(confusions, mutants, rng) for _ in range(each)], axis=2)
        weights = rng.random((GROUP, mutants, each)) ** (2 + 6 * group.share[:, None, None])
        weights = np.sort(weights, axis=2)[:, :, ::-1]
        given = np.floor(weights / weights.sum(axis=2, keepdims=True) * CAP).astype(np.int32)
        for place in range(1, each):
            repeated = _repeated(named, place)
            # A label occurs once per ballot: replace a repeated one by another confusable class, and give it
            # no units if that is in the ballot too.
            image = np.nonzero(repeated)[0]
            slot = rng.integers(0, confusions.shape[1], len(image))
            named[repeated, place] = confusions[group.truth[image], slot]
            given[_repeated(named, place), place] = 0
        truth[part], labels[part], units[part] = group.truth[:count], named[:count], given[:count]
    return labels, units, truth


def blocks(
    images: int, classes: int = 1000, *, side: int = 224, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Ballots [N, side * side] of block mutants in row-major order; groups of eight rows vote the same."""
    bands, truth = hard(images, classes, mutants=side // 8 * side, seed=seed)
    rows = np.repeat(bands.reshape(images, side // 8, side), 8, axis=1)
    return rows.reshape(images, side * side), truth


def label_type(classes: int) -> type[np.unsignedinteger]:
    return np.uint16 if classes <= 1 << 16 else np.uint32


def _groups(images: int, seed: int) -> Iterator[tuple[slice, np.random.Generator]]:
    for start in range(0, images, GROUP):
        yield slice(start, min(start + GROUP, images)), np.random.default_rng([seed, 1, start])


def _confusions(classes: int, seed: int) -> np.ndarray:
    """[L, pool]: the classes each class is confused with, most likely first; never the class itself."""
    steps = np.random.default_rng([seed, 0]).integers(1, classes, (classes, int(POOL[1]) + 1), dtype=np.int64)
    return (np.arange(classes)[:, None] + steps) % classes


class _Group(NamedTuple):
    """Random properties of `GROUP` images."""

    truth: np.ndarray
    share: np.ndarray
    pool: np.ndarray
    lead: np.ndarray
    run: np.ndarray

    @classmethod
    def drawn(cls, classes: int, rng: np.random.Generator) -> _Group:
        truth = rng.integers(0, classes, GROUP)
        share = rng.beta(*SHARE, GROUP)
        hardness = HARDNESS_FROM_SHARE * (1 - share) + (1 - HARDNESS_FROM_SHARE) * rng.random(GROUP)
        pool = POOL[0] * (POOL[1] / POOL[0]) ** hardness
        return cls(truth, share, pool, rng.uniform(*LEAD, GROUP), rng.uniform(*RUN, GROUP))

    def runs(self, confusions: np.ndarray, mutants: int, rng: np.random.Generator) -> np.ndarray:
        """Ballots [GROUP, B]."""
        turns = rng.random((GROUP, mutants)) < 1 / self.run[:, None]
        turns[:, 0] |= ~turns.any(axis=1)
        image = np.nonzero(turns)[0]
        slot = (self.pool[image] * rng.random(len(image)) ** self.lead[image]).astype(np.int64)
        label = confusions[self.truth[image], slot]
        stray = rng.random(len(image)) < STRAY
        label[stray] = rng.integers(0, len(confusions), np.count_nonzero(stray))
        label = np.where(rng.random(len(image)) < self.share[image], self.truth[image], label)

        # A run starts at each turn; mutants before the first turn belong to the last run, because they wrap.
        ends = np.cumsum(np.bincount(image, minlength=GROUP))
        firsts = np.concatenate([[0], ends[:-1]])
        last_turn = np.cumsum(turns.ravel()).reshape(GROUP, mutants) - 1
        last_turn = np.where(last_turn < firsts[:, None], ends[:, None] - 1, last_turn)
        return label[last_turn]


def _repeated(named: np.ndarray, place: int) -> np.ndarray:
    """[n, B]: whether the label at `place` occurs in the ballot before it."""
    return (named[:, :, :place] == named[:, :, place, None]).any(axis=2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write synthetic ballots that resemble those of a real model: arrays `ballots` "
        "[images, mutants], the label each mutant votes for, and `truth` [images].",
        epilog="The defaults imitate columns:19 on 224x224 for ImageNet. Certify the file with "
        "--ablation columns:19 --classes 1000 --image-size 224.",
    )
    parser.add_argument("out", type=Path, help="file to write, such as ballots.npz")
    parser.add_argument("--images", type=int, default=2000, help="number of images (default %(default)s)")
    parser.add_argument("--classes", type=int, default=1000, help="number of classes (default %(default)s)")
    parser.add_argument("--mutants", type=int, default=224, help="ballots per image (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (default %(default)s)")
    options = parser.parse_args()
    for name, least in (("images", 1), ("classes", 2), ("mutants", 1), ("seed", 0)):
        if getattr(options, name) < least:
            parser.error(f"--{name} must be at least {least}, got {getattr(options, name)}")
    if options.out.suffix != ".npz":
        parser.error(f"the file name must end in .npz, got {options.out}")
    ballots, truth = hard(options.images, options.classes, mutants=options.mutants, seed=options.seed)
    try:
        np.savez_compressed(options.out, ballots=ballots, truth=truth.astype(ballots.dtype))
    except OSError as error:
        parser.error(f"cannot write {options.out}: {error.strerror}")
    print(
        f"{options.out}: {options.images:,} images x {options.mutants} ballots, {options.classes:,} classes, "
        f"{(ballots == truth[:, None]).mean():.0%} of the ballots correct"
    )


if __name__ == "__main__":
    main()
