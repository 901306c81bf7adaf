"""What a run says about where it comes from, and whether runs may stand in one table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from costcert.reports.published import Published
from costcert.reports.results import Results


class Data(NamedTuple):
    """The images that a run was measured on."""

    name: str | None
    images: int
    classes: int

    @classmethod
    def of(cls, results: Results) -> Data:
        made = _made(results, "data")
        name, split = made.get("name"), made.get("split")
        return cls(f"{name} ({split})" if name and split else name, results.images, results.num_classes)

    @classmethod
    def in_print(cls, published: Published) -> Data:
        return cls(f"{published.title} ({published.split})", published.images, published.classes)

    def __str__(self) -> str:
        images = f"{self.images:,} image{'s' if self.images > 1 else ''}"
        return f"{images} of {self.name}" if self.name else images


def model_name(results: Results) -> str | None:
    name = _made(results, "model").get("name")
    return None if name is None else str(name)


def run_names(runs: Sequence[Results]) -> list[str]:
    """The runs' names, numbered where two are called the same."""
    seen: Counter[str] = Counter()
    names = []
    for results in runs:
        seen[results.name] += 1
        again = seen[results.name]
        names.append(results.name if again == 1 else f"{results.name} ({again})")
    return names


def mixture(runs: Sequence[Results], published: Published | None) -> str | None:
    """What keeps these numbers from being compared, if anything does.

    Only numbers of the same images compare; the paper's have to agree in the number of classes alone, since
    everybody spells the name of the data differently and part of them tells as much.
    """
    if not runs:
        return None
    first = Data.of(runs[0])
    for results in runs[1:]:
        if (data := Data.of(results)) != first:
            return (
                f"{runs[0].name} is on {first} in {first.classes:,} classes, but {results.name} is on {data} "
                f"in {data.classes:,}"
            )
    if published is not None and published.classes != first.classes:
        return (
            f"{runs[0].name} is on {first} in {first.classes:,} classes, but the published numbers are on "
            f"{published.title} in {published.classes:,}"
        )
    return None


def _made(results: Results, what: str) -> Mapping[str, Any]:
    found = (results.votes.get("made") or {}).get(what)
    return found if isinstance(found, Mapping) else {}
