"""How time and memory grow with images, classes, sizes, patches and mutants."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import ballots as synthetic
import costcert as cc
import plain
from costcert.compiled import cores
from costcert.geometry.touch import touched
from memory import MEGABYTE, in_new_process
from ratios import CLASSES, IMAGE, SIZES, WIDTH, agree, hard_votes, soft_votes, squares
from stopwatch import Timing, medians, timing


@dataclass(frozen=True)
class Measure:
    """A measured value as text, and its target if there is one."""

    name: str
    value: str
    target: str = ""
    met: bool | None = None


def entire_dataset(images: int) -> Iterator[Measure]:
    """The size of ImageNet's validation set, for which the paper reports 1048 s."""
    votes = hard_votes(images)
    time = timing(lambda: cc.certify(votes, squares(), ["costcert"]))
    yield Measure(f"{images:,} images x {len(SIZES)} sizes", f"{time.passed:.2f} s")
    yield Measure("  cores in use", f"{time.busy / time.passed:.2f} of {cores()}")


def soft_to_hard(images: int, rounds: int) -> Measure:
    """Time for soft ballots of four labels, relative to hard ballots of the same mutants."""
    soft = soft_votes(images)
    hard = soft.hard()
    times = medians(
        [lambda votes=votes: cc.certify(votes, squares(), ["costcert"]) for votes in (soft, hard)], rounds
    )
    ratio = times[0].busy / times[1].busy
    return Measure(f"soft j=4 to hard, {images:,} images", f"{ratio:.1f} x", "<= 15 x", ratio <= 15)


def windows_to_counting(images: int, rounds: int) -> Measure:
    """PatchGuard, which masks windows, relative to CostCert, which counts, on the same soft ballots."""
    votes = soft_votes(images)
    times = medians(
        [lambda name=name: cc.certify(votes, squares(), [name]) for name in ("patchguard", "costcert")],
        rounds,
    )
    ratio = times[0].busy / times[1].busy
    return Measure(f"soft: patchguard to costcert, {images:,}", f"{ratio:.1f} x", "<= 3 x", ratio <= 3)


def pairs_of_windows(images: int, rounds: int) -> Measure:
    """Double masking, whose time grows with the square of the number of positions."""
    times = medians(
        [
            lambda votes=votes: cc.certify(votes, squares(), ["double-masking"])
            for votes in (hard_votes(images), soft_votes(images))
        ],
        rounds,
    )
    each = " and ".join(f"{1e3 * time.busy / images / len(SIZES):.1f}" for time in times)
    return Measure("double-masking, hard and soft j=4", f"{each} ms/image")


def two_patches(images: int, checked: int, rounds: int) -> Iterator[Measure]:
    """Two squares of 32 px at once: 18,721 unions of touched sets."""
    votes, pair = hard_votes(images), cc.Several(cc.Square(32), 2)
    first = timing(lambda: cc.certify(votes.take(slice(1)), [pair], ["costcert"]))
    few = votes.take(slice(checked))
    touched = plain.touched_columns(WIDTH, 32, IMAGE)
    expected = [
        plain.costcert_one(row, true, CLASSES, (~union for union in plain.touched_by_two(touched)))
        for row, true in zip(few.ballots, few.truth, strict=True)
    ]
    agree(str(pair), cc.certify(few, [pair], ["costcert"]).min_k("costcert", pair), np.array(expected))
    [time] = medians([lambda: cc.certify(votes, [pair], ["costcert"])], rounds)
    per_image = 1e3 * time.passed / images
    yield Measure(
        f"two 32 px patches, {images} images", f"{per_image:.2f} ms/image", "< 10 ms", per_image < 10
    )
    yield Measure("  once, finding touched sets", f"{first.passed:.2f} s")


def three_patches(rounds: int) -> Iterator[Measure]:
    """Three squares of 16 px at once: touched sets are found once for all images."""
    ablation, size = cc.Columns(WIDTH), (IMAGE, IMAGE)
    several = [cc.Several(cc.Square(16), times) for times in (2, 3)]

    def find(patch: cc.Several) -> int:
        touched.cache_clear()
        return len(touched(ablation, patch, size))

    two, three = (find(patch) for patch in several)
    times = medians([lambda patch=patch: find(patch) for patch in several], rounds)
    yield Measure(
        f"{three:,} sets of three 16 px patches", f"{times[1].passed:.2f} s", "< 10 s", times[1].passed < 10
    )
    ratio = times[1].busy / three / (times[0].busy / two)
    yield Measure("  per set, to two patches", f"{ratio:.1f} x")


def few_votes_each(images: int, rounds: int) -> Iterator[Measure]:
    """PatchGuard's masks if all ballots are for distinct labels, relative to typical ballots.

    With the true label on three mutants far apart, all other labels are rivals wherever one is touched.
    """
    typical = hard_votes(images)
    rng = np.random.default_rng(0)
    distinct = np.stack([rng.permutation(CLASSES)[:IMAGE] for _ in range(images)])
    spread = distinct.copy()
    spread[:, : IMAGE - IMAGE // 3 : IMAGE // 3] = spread[:, :1]
    kwargs = {"num_classes": CLASSES, "ablation": cc.Columns(WIDTH), "image_size": (IMAGE, IMAGE)}
    kinds = [typical, *(cc.Votes(ballots, ballots[:, 0], **kwargs) for ballots in (distinct, spread))]
    for name, twin in (("patchguard", plain.patchguard_plain), ("costcert-masks", plain.masks_plain)):
        for votes in kinds:
            few = votes.take(slice(1))
            expected = twin(few.ballots, few.truth, CLASSES, WIDTH, 32, IMAGE)
            agree(f"{name}, few votes each", cc.certify(few, [32], [name]).min_k(name, 32), expected)
        times = medians(
            [lambda votes=votes, name=name: cc.certify(votes, squares(), [name]) for votes in kinds], rounds
        )
        for title, time in zip(("all labels distinct", "the same, true one on 3"), times[1:], strict=True):
            ratio = time.busy / times[0].busy
            yield Measure(f"{name}, {title}, to typical", f"{ratio:.1f} x", "<= 5 x", ratio <= 5)


def blocks(images: int, checked: int, rounds: int) -> Iterator[Measure]:
    """Blocks of 75 px: 50,176 mutants, 37,249 positions of a 32 px square."""
    patch = cc.Square(32)
    ballots, truth = synthetic.blocks(images)
    votes = cc.Votes(ballots, truth, num_classes=CLASSES, ablation=cc.Blocks(75), image_size=(IMAGE, IMAGE))
    first = timing(lambda: cc.certify(votes.take(slice(1)), [patch], ["costcert"]))
    if checked:
        few = votes.take(slice(checked))
        expected = [
            plain.costcert_one(row, true, CLASSES, plain.clean_blocks(75, 32, IMAGE))
            for row, true in zip(few.ballots, few.truth, strict=True)
        ]
        agree(
            "blocks:75", cc.certify(few, [patch], ["costcert"]).min_k("costcert", patch), np.array(expected)
        )
    [time] = medians([lambda: cc.certify(votes, [patch], ["costcert"])], rounds)
    added = in_new_process("blocks", str(images))["added"] / MEGABYTE
    yield Measure(f"blocks:75, {images} images", f"{1e3 * time.passed / images:.0f} ms/image")
    yield Measure("  once, finding touched sets", f"{first.passed:.2f} s")
    yield Measure("  memory beyond compiling", f"{added:.0f} MB", "< 100 MB", added < 100)


def linearity(images: int, rounds: int) -> Iterator[Measure]:
    """CPU time per image and size, which should not depend on their number."""
    votes = hard_votes(4 * images)
    parts = [votes.take(slice(times * images)) for times in (1, 2, 4)]
    times = medians([lambda part=part: cc.certify(part, squares(), ["costcert"]) for part in parts], rounds)
    yield _per_image(
        f"{images:,}, {2 * images:,}, {4 * images:,} images",
        [time / len(part) / len(SIZES) for time, part in zip(times, parts, strict=True)],
    )
    classes = (100, 1000, 21843)
    parts = [hard_votes(images, count) for count in classes]
    for count, part in zip(classes, parts, strict=True):
        few = part.take(slice(2))
        expected = plain.costcert_plain(few.ballots, few.truth, count, WIDTH, 32, IMAGE)
        agree(f"{count:,} classes", cc.certify(few, [32], ["costcert"]).min_k("costcert", 32), expected)
    times = medians([lambda part=part: cc.certify(part, squares(), ["costcert"]) for part in parts], rounds)
    yield _per_image("100, 1,000, 21,843 classes", [time / images / len(SIZES) for time in times])
    counts = (1, 2, 4, 7)
    times = medians(
        [lambda n=n: cc.certify(parts[1], squares(SIZES[:n]), ["costcert"]) for n in counts], rounds
    )
    yield _per_image(
        f"{', '.join(map(str, counts))} sizes",
        [time / images / n for time, n in zip(times, counts, strict=True)],
    )


def mutants(images: int, rounds: int) -> Iterator[Measure]:
    """CPU time per image and size as sides grow, with as many mutants and patches in proportion."""
    sides = (56, 112, 224, 448)
    patches = [[side // 14, side // 7, 2 * side // 7] for side in sides]
    for name, title, kind in (
        ("costcert", "costcert hard", hard_votes),
        ("costcert", "costcert soft", soft_votes),
        ("patchguard", "patchguard", hard_votes),
        ("patchguard", "patchguard soft", soft_votes),
        ("costcert-masks", "costcert-masks", hard_votes),
    ):
        parts = [kind(images, side=side) for side in sides]
        times = medians(
            [
                lambda part=part, sizes=sizes, name=name: cc.certify(part, sizes, [name])
                for part, sizes in zip(parts, patches, strict=True)
            ],
            rounds,
        )
        yield _per_image(
            f"{', '.join(map(str, sides))} mutants, {title}",
            [time / images / len(sizes) for time, sizes in zip(times, patches, strict=True)],
        )


def folders(images: tuple[int, int]) -> Iterator[Measure]:
    """Peak memory of `costcert certify` on votes on disk, which should not depend on their number."""
    if find_spec("costcert.cli") is None:
        return
    peaks = []
    with tempfile.TemporaryDirectory() as folder:
        for count in images:
            votes = Path(folder, f"votes-{count}")
            cc.write_votes(hard_votes(count), votes)
            certified = in_new_process("folder", str(votes), str(Path(folder, f"certificates-{count}")))
            peaks.append(certified["peak"] / MEGABYTE)
    growth = peaks[1] - peaks[0]
    yield Measure(
        f"peak, {images[0]:,}, {images[1]:,} from disk",
        ", ".join(f"{peak:.0f}" for peak in peaks) + " MB",
        "+ < 10 %",
        growth < 0.1 * peaks[0],
    )


def _per_image(name: str, times: list[Timing]) -> Measure:
    return Measure(name, ", ".join(f"{1e6 * time.busy:.1f}" for time in times) + " µs")
