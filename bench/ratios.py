"""The speed-up of the library over the plain code, after checking that both agree, in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

import ballots as synthetic
import costcert as cc
import plain
from stopwatch import Timing, medians

SIZES = (16, 32, 48, 64, 80, 96, 112)
CLASSES, WIDTH, IMAGE = 1000, 19, 224

# Plain twin of each defender, and the target ratio.
PLAIN: dict[str, tuple[Callable[..., np.ndarray], int | None]] = {
    "costcert": (plain.costcert_plain, 800),
    "cbn": (plain.cbn_plain, None),
    "drs": (plain.drs_plain, None),
    "patchguard": (plain.patchguard_plain, 1000),
    "costcert-masks": (plain.masks_plain, 1000),
}
# These loop over all pairs of regions, so the plain code is timed on a few images only.
PAIRS_OF_REGIONS = ("patchguard", "costcert-masks")


class DisagreementError(Exception):
    """The library and the plain code returned different results, so timing them is pointless."""


@dataclass(frozen=True)
class Samples:
    """Numbers of images for library and plain code, and of rounds."""

    rounds: int
    library: int
    library_pairs: int
    plain: int
    plain_pairs: int


@dataclass(frozen=True)
class Ratio:
    """Time per image and size of the plain code and of the library."""

    name: str
    plain: Timing
    library: Timing
    target: int | None = None

    @property
    def times_faster(self) -> float:
        return self.plain.passed / self.library.passed

    @property
    def times_faster_per_core(self) -> float:
        return self.plain.busy / self.library.busy


def hard_votes(images: int, classes: int = CLASSES, seed: int = 0, side: int = IMAGE) -> cc.Votes:
    """Votes on images of this side, with as many mutants."""
    ballots, truth = synthetic.hard(images, classes, mutants=side, seed=seed)
    return cc.Votes(ballots, truth, num_classes=classes, ablation=cc.Columns(WIDTH), image_size=(side, side))


def soft_votes(images: int, each: int = 4, side: int = IMAGE) -> cc.Votes:
    labels, units, truth = synthetic.soft(images, CLASSES, mutants=side, each=each)
    return cc.Votes.soft(
        labels,
        units,
        truth,
        num_classes=CLASSES,
        ablation=cc.Columns(WIDTH),
        image_size=(side, side),
        cap=synthetic.CAP,
    )


def squares(sizes: tuple[int, ...] = SIZES) -> list[cc.Square]:
    return [cc.Square(side) for side in sizes]


def agree(what: str, library: np.ndarray, expected: np.ndarray) -> None:
    if not np.array_equal(library, expected):
        at = int(np.flatnonzero(library != expected)[0])
        raise DisagreementError(
            f"{what}: min-k of image {at} is {library[at]} in the library, {expected[at]} in the plain code"
        )


def measure(samples: Samples) -> Iterator[Ratio]:
    """CostCert size by size, then every defender over all sizes in one call."""
    every = hard_votes(samples.library)
    for patch in squares():
        yield _ratio(f"costcert {patch.side} px", "costcert", every, samples.plain, [patch], samples.rounds)
    for name, (_, target) in PLAIN.items():
        in_pairs = name in PAIRS_OF_REGIONS
        votes = every.take(slice(samples.library_pairs)) if in_pairs else every
        count = samples.plain_pairs if in_pairs else samples.plain
        yield replace(_ratio(name, name, votes, count, squares(), samples.rounds), target=target)


def _ratio(
    title: str, name: str, votes: cc.Votes, plain_count: int, patches: list[cc.Square], rounds: int
) -> Ratio:
    """Checks agreement first, which also makes the library compile and cache touched sets."""
    twin, _ = PLAIN[name]
    few = votes.take(slice(plain_count))

    def slow() -> list[np.ndarray]:
        return [twin(few.ballots, few.truth, CLASSES, WIDTH, patch.side, IMAGE) for patch in patches]

    certified = cc.certify(few, patches, [name])
    for patch, expected in zip(patches, slow(), strict=True):
        agree(f"{name} {patch}", certified.min_k(name, patch), expected)
    slow_time, fast_time = medians([slow, lambda: cc.certify(votes, patches, [name])], rounds)
    sizes = len(patches)
    return Ratio(title, slow_time / (len(few) * sizes), fast_time / (len(votes) * sizes))


def measure_soft(samples: Samples) -> Ratio:
    """CostCert on soft ballots of four labels, over all sizes."""
    many = soft_votes(samples.library_pairs)
    few = many.take(slice(samples.plain_pairs))

    def twin(side: int) -> np.ndarray:
        return plain.costcert_soft_plain(
            few.labels, few.units, few.truth, CLASSES, WIDTH, side, IMAGE, synthetic.CAP
        )

    certified = cc.certify(few, squares(), ["costcert"])
    for patch in squares():
        agree(f"soft costcert {patch}", certified.min_k("costcert", patch), twin(patch.side))
    slow, fast = medians(
        [lambda: [twin(side) for side in SIZES], lambda: cc.certify(many, squares(), ["costcert"])],
        samples.rounds,
    )
    return Ratio("costcert soft", slow / len(few) / len(SIZES), fast / len(many) / len(SIZES))
