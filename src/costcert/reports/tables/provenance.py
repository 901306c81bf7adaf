"""The dataset and the model of a run, and whether runs are comparable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from costcert.reports.published import Published
from costcert.reports.results import Results


class Data(NamedTuple):
    """The images that a run was evaluated on."""

    name: str | None
    images: int
    classes: int

    @classmethod
    def of(cls, results: Results) -> Data:
        data = _recorded(results, "data")
        name, split = data.get("name"), data.get("split")
        return cls(f"{name} ({split})" if name and split else name, results.images, results.num_classes)

    @classmethod
    def published(cls, published: Published) -> Data:
        return cls(f"{published.title} ({published.split})", published.images, published.classes)

    def __str__(self) -> str:
        images = f"{self.images:,} image{'s' if self.images > 1 else ''}"
        return f"{images} of {self.name}" if self.name else images


def model_name(results: Results) -> str | None:
    name = _recorded(results, "model").get("name")
    return None if name is None else str(name)


def run_names(runs: Sequence[Results]) -> list[str]:
    """The names of the runs, numbered where two are equal."""
    seen: Counter[str] = Counter()
    names = []
    for results in runs:
        seen[results.name] += 1
        again = seen[results.name]
        names.append(results.name if again == 1 else f"{results.name} ({again})")
    return names


def difference(runs: Sequence[Results], published: Published | None) -> str | None:
    """Why these numbers are not comparable; None if they are.

    Runs have to be on the same images. Published numbers only need the same number of classes, because names
    of datasets are not standardised and a run may use a part of the images.
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


def unlike_published(runs: Sequence[Results], published: Published) -> str | None:
    """Says that the data of comparable runs have another name than the published ones; None if they have not.

    No reason to refuse them (see `difference`), but ten classes may be digits, clothes or CIFAR-10.
    """
    name = Data.of(runs[0]).name if runs else None
    if name is None or _plain(published.title) in _plain(name):
        return None
    return (
        f"{runs[0].name} is on {name}, but the published numbers are on {Data.published(published).name}: "
        "compare them only if these are the same pictures."
    )


def _plain(name: str) -> str:
    """CIFAR-10 as cifar10, as in torchvision:CIFAR10."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _recorded(results: Results, part: str) -> Mapping[str, Any]:
    found = results.provenance.get(part)
    return found if isinstance(found, Mapping) else {}
