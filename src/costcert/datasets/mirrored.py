"""Training images together with their mirror images, where it is known what a mirrored object is."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from costcert.datasets.base import Dataset
from costcert.errors import CostcertError, SpellingError

if TYPE_CHECKING:
    from PIL.Image import Image


class WithMirrorImages(Dataset):
    """A dataset, followed by the mirror images of some of its classes.

    Args:
        becomes: the class of the mirror image, for each class that has one: its own where the object is
            symmetric, another where left and right make two classes.
    """

    def __init__(self, dataset: Dataset, becomes: Mapping[int, int]) -> None:
        unknown = {each for pair in becomes.items() for each in pair} - set(range(dataset.num_classes))
        if unknown:
            raise CostcertError(
                f"{dataset.name} has no class {min(unknown)} to mirror: its classes are 0 to "
                f"{dataset.num_classes - 1}"
            )
        self._sources = [index for index, label in enumerate(dataset.labels) if int(label) in becomes]
        mirrored = [becomes[dataset.label(index)] for index in self._sources]
        super().__init__(
            f"{dataset.name} (mirrored {spelled(becomes)})",
            [*dataset.ids, *(f"{dataset.ids[index]} (mirrored)" for index in self._sources)],
            np.concatenate([dataset.labels, np.array(mirrored, dtype=dataset.labels.dtype)]),
            class_names=dataset.class_names,
            split=dataset.split,
        )
        self.num_classes = dataset.num_classes
        self._dataset = dataset

    def image(self, index: int) -> Image:
        if index < len(self._dataset):
            return self._dataset.image(index)
        from PIL import ImageOps

        return ImageOps.mirror(self._dataset.image(self._sources[index - len(self._dataset)]))

    def fingerprint(self, index: int) -> str:
        if index < len(self._dataset):
            return self._dataset.fingerprint(index)
        return f"mirrored {self._dataset.fingerprint(self._sources[index - len(self._dataset)])}"


def parse_mirrored(text: str) -> dict[int, int]:
    """Classes that mirroring leaves as they are, or turns into each other: `11,12,19:20`."""
    becomes: dict[int, int] = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,6})(?::(\d{1,6}))?\s*", part)
        if not found:
            raise SpellingError(f"cannot read classes {text!r}: write 11,12 or 19:20, as in 11,12,19:20")
        one, other = int(found[1]), int(found[2] or found[1])
        twice = {one, other} & becomes.keys()
        if twice:
            raise SpellingError(f"class {min(twice)} is named twice in {text!r}: once is enough")
        becomes |= {one: other, other: one}
    return becomes


def spelled(becomes: Mapping[int, int]) -> str:
    """The inverse of `parse_mirrored`."""
    return ",".join(str(a) if a == b else f"{a}:{b}" for a, b in sorted(becomes.items()) if a <= b)
