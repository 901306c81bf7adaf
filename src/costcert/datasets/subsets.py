"""Fixed subsets of a dataset, in its order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from costcert.datasets.base import Dataset
from costcert.errors import CostcertError, nearest
from costcert.geometry.sizes import positive_int
from costcert.store.locations import Location

if TYPE_CHECKING:
    from PIL.Image import Image


class Subset(Dataset):
    """Some images of another dataset."""

    def __init__(self, dataset: Dataset, indices: Sequence[int], description: str) -> None:
        super().__init__(
            f"{dataset.name} ({description})",
            [dataset.ids[index] for index in indices],
            dataset.labels[list(indices)],
            class_names=dataset.class_names,
            split=dataset.split,
        )
        # The subset may lack images of some classes, but has the same classes.
        self.num_classes = dataset.num_classes
        self._dataset = dataset
        self._indices = list(indices)

    def image(self, index: int) -> Image:
        return self._dataset.image(self._indices[index])

    def fingerprint(self, index: int) -> str:
        return self._dataset.fingerprint(self._indices[index])


def limited(dataset: Dataset, limit: int, seed: int = 0) -> Dataset:
    """A random subset of `limit` images, chosen by a hash of seed and id.

    So the choice does not depend on the machine or on library versions, and a larger limit only adds images.
    """
    limit = positive_int(limit, "the limit")
    if limit > len(dataset):
        raise CostcertError(f"requested {limit:,} images, but {dataset.name} has {len(dataset):,}")

    def random_key(index: int) -> bytes:
        return hashlib.sha256(f"{seed}/{dataset.ids[index]}".encode()).digest()

    chosen = sorted(sorted(range(len(dataset)), key=random_key)[:limit])
    return Subset(dataset, chosen, f"limit {limit}, seed {seed}")


def with_ids(dataset: Dataset, ids: Iterable[str]) -> Dataset:
    """The images with these ids."""
    wanted = dict.fromkeys(ids)
    if not wanted:
        raise CostcertError("the list of ids is empty: at least one is needed")
    where = {name: index for index, name in enumerate(dataset.ids)}
    unknown = [name for name in wanted if name not in where]
    if unknown:
        raise CostcertError(
            f"{len(unknown)} of {len(wanted)} ids are not in {dataset.name}, the first is "
            f"{unknown[0]!r}{nearest(unknown[0], dataset.ids[:2000])}"
        )
    return Subset(dataset, sorted(where[name] for name in wanted), f"{len(wanted)} by id")


def read_ids(path: Location) -> list[str]:
    """The ids in a text file, one per line; empty lines are ignored."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CostcertError(f"cannot read ids from {path}: expected a text file, one id per line") from error
    return [line.strip() for line in lines if line.strip()]
