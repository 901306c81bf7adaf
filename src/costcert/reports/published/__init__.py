"""Published numbers, for comparison with a run: those of the paper as printed, and of other systems.

One JSON file per dataset of the paper, and one per dataset for the systems that others published.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from costcert.errors import SpellingError, nearest
from costcert.geometry.ablations import parse_ablation
from costcert.geometry.patches import Square
from costcert.geometry.sizes import ImageSize, as_image_size

# What the paper has results on, and the numbers of other systems.
DATASETS = ("imagenet", "gtsrb", "cifar100")
PEERS = ("imagenet-peers", "cifar10-peers")


@dataclass(frozen=True)
class Source:
    """The paper and the table that contain the numbers, or a list of several papers' numbers."""

    authors: tuple[str, ...]
    title: str
    venue: str
    table: int | None

    @property
    def short(self) -> str:
        if self.table is None:
            return self.title
        return f"{self.authors[0].split()[-1]} et al., Table {self.table}"

    @property
    def full(self) -> str:
        return str(self) if self.table is None else f"{self}, Table {self.table}"

    def __str__(self) -> str:
        authors = " and ".join([", ".join(self.authors[:-1]), self.authors[-1]]).removeprefix(" and ")
        return f"{authors}: {self.title}. {self.venue}"


class PublishedPatch(NamedTuple):
    """A square patch: how the paper spells it, and its side in pixels."""

    spelled: str
    side: int

    @property
    def patch(self) -> Square:
        return Square(self.side)

    def __str__(self) -> str:
        return f"{self.spelled} ({self.side} px)"


@dataclass(frozen=True)
class PublishedDefender:
    """A defender of the paper, or a system of others.

    Args:
        name: as in the table of the paper.
        defender: the name of the same certification in this package, if it has it.
        ablation: None for numbers that the paper takes from other papers.
        cited: a short name of where its numbers come from, if that is not the source of all.
    """

    name: str
    defender: str
    model: str
    ablation: str | None
    description: str
    cited: str | None = None


@dataclass(frozen=True)
class Published:
    """The numbers of one dataset in one table.

    Args:
        shares: clean and certified accuracy by (name of the defender, metric, spelling of the patch, k).
            None where it prints n/a; without an entry where it has no row.
    """

    dataset: str
    title: str
    split: str
    images: int
    classes: int
    image_size: ImageSize
    source: Source
    patches: tuple[PublishedPatch, ...]
    defenders: tuple[PublishedDefender, ...]
    shares: Mapping[tuple[str, str, str, int], float | None]

    def cited(self, defender: PublishedDefender) -> str:
        """Where the numbers of a defender come from, in a few words."""
        return defender.cited or self.source.short

    def passes(self, defender: PublishedDefender) -> int | None:
        """Mutants per image; None where the paper does not specify the ablation."""
        if defender.ablation is None:
            return None
        return parse_ablation(defender.ablation).count(self.image_size)


@cache
def published(dataset: str) -> Published:
    """The numbers of the paper on `imagenet`, `gtsrb` or `cifar100`; `…-peers` are other systems."""
    known = (*DATASETS, *PEERS)
    if dataset not in known:
        raise SpellingError(
            f"the paper has no results on {dataset!r}{nearest(dataset.lower(), known)}: use one of "
            f"{', '.join(known)}"
        )
    text = resources.files(__name__).joinpath(f"{dataset}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    patches = tuple(PublishedPatch(**patch) for patch in found["patches"])
    return Published(
        dataset=dataset,
        title=found["title"],
        split=found["split"],
        images=found["images"],
        classes=found["classes"],
        image_size=as_image_size(found["image_size"]),
        source=Source(**{**found["source"], "authors": tuple(found["source"]["authors"])}),
        patches=patches,
        defenders=tuple(PublishedDefender(**defender) for defender in found["defenders"]),
        shares={
            (row["defender"], metric, patch.spelled, row["k"]): _share(percent)
            for row in found["rows"]
            for metric in ("clean", "certified")
            for patch, percent in zip(patches, row[metric], strict=True)
        },
    )


def _share(percent: float | None) -> float | None:
    # Rounded, because 70.3 / 100 is not the float nearest to 0.703.
    return None if percent is None else round(percent / 100, 6)
