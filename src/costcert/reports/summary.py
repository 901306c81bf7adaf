"""What a run found, in a few sentences and numbers, for readers who do not know the paper."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from costcert.reports.patch_names import size_and_share, sticker
from costcert.reports.results import Results
from costcert.reports.style import defender_title


class Headline(NamedTuple):
    """The share of images that a defender certifies against a patch at some k."""

    share: float
    defender: str
    patch: str
    k: int


def headline(results: Results) -> Headline:
    """The best defender against the middle one of the patches, at a k that suits the number of classes."""
    k = 5 if results.num_classes > 20 else 3 if results.num_classes > 5 else 1
    patch = results.patches[len(results.patches) // 2]
    certified = {
        defender: float(counts[: k + 1].sum()) / results.images
        for (defender, each), counts in results.tally.min_ks.items()
        if each == patch
    }
    best = max(certified, key=lambda defender: certified[defender])
    return Headline(certified[best], best, patch, k)


def promise(results: Results, found: Headline) -> str:
    """The headline as a sentence."""
    top = "the first place" if found.k == 1 else f"the top {found.k}"
    return (
        f"For {100 * found.share:.1f} % of the {results.images:,} test images "
        f"{defender_title(found.defender)} proves, from {ballots(results)}, that no "
        f"{sticker(found.patch, results.image_size)}, anywhere, with any pixels, can push the right label "
        f"out of {top}."
    )


def ballots(results: Results) -> str:
    return "hard ballots" if results.classifier.soft is None else "soft ballots"


class Number(NamedTuple):
    """A number of a run: its name, its value and what to know about it."""

    name: str
    value: str
    remark: str


def key_numbers(results: Results, found: Headline) -> list[Number]:
    """What is certified by the headline's defender against its patch, and what is not."""
    rows = {
        row["k"]: row
        for row in results.accuracy(sorted({1, found.k})).to_dict(orient="records")
        if (row["defender"], row["patch"]) == (found.defender, found.patch)
    }
    against = f"against {size_and_share(found.patch, results.image_size)}"
    numbers = [
        Number(
            f"certified top {k}",
            _percent(row["certified"]),
            f"{against}; 95 % interval {100 * row['certified_low']:.1f} to {100 * row['certified_high']:.1f}",
        )
        for k, row in sorted(rows.items(), reverse=True)
    ]
    clean = Number(f"clean top {found.k}", _percent(rows[found.k]["clean"]), "without a patch")
    nothing = results.tally.min_ks[found.defender, found.patch][results.num_classes] / results.images
    return [*numbers, clean, Number("no promise", _percent(nothing), f"of the images, {against}")]


def just_missing(results: Results, found: Headline) -> int:
    """How many images miss the headline's promise by one place."""
    if found.k + 1 >= results.num_classes:
        return 0
    return int(results.tally.min_ks[found.defender, found.patch][found.k + 1])


class ClassAccuracy(NamedTuple):
    """Clean and certified accuracy of the images of one class."""

    label: int
    name: str
    images: int
    clean: float
    certified: float


def classes(results: Results, defender: str, patch: str, k: int) -> list[ClassAccuracy]:
    """Classes with images, by certified accuracy and then by clean accuracy, best first."""
    counts = results.by_class
    assert counts is not None
    names = results.class_names
    prefix = "" if results.votes.get("class_names") else "class "
    found = [
        ClassAccuracy(
            int(label),
            prefix + names[label],
            int(counts.images[label]),
            float(counts.clean[defender, patch, k][label] / counts.images[label]),
            float(counts.certified[defender, patch, k][label] / counts.images[label]),
        )
        for label in np.flatnonzero(counts.images)
    ]
    return sorted(found, key=lambda each: (-each.certified, -each.clean, each.label))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
