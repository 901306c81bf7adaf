"""Images that are files of their own: `folder:` and `imagenet:`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from costcert.datasets.base import Dataset, reading
from costcert.errors import CostcertError
from costcert.locations import Location, Url

ENDINGS = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


class Found(NamedTuple):
    """An image file: its path from the folder of all, and its size where the list of files told it."""

    id: str
    size: int | None = None

    @property
    def folder(self) -> str:
        """The folder at the top that it lies in; empty if it lies beside those folders."""
        return self.id.partition("/")[0] if "/" in self.id else ""


class FileDataset(Dataset):
    """Image files below `root`, named by their path from there."""

    def __init__(
        self,
        name: str,
        root: Location,
        found: Sequence[Found],
        labels: Sequence[int],
        *,
        class_names: Sequence[str],
        split: str | None = None,
    ) -> None:
        super().__init__(name, [each.id for each in found], labels, class_names=class_names, split=split)
        self._root = root
        self._sizes = [each.size for each in found]

    def image(self, index: int) -> Image.Image:
        path = self._root / self.ids[index]
        # A store that does not answer says nothing about the image, so it is asked before decoding begins.
        source = BytesIO(path.read_bytes()) if isinstance(path, Url) else path
        with reading(str(path)), Image.open(source) as image:
            image.load()
            return image

    def fingerprint(self, index: int) -> str:
        path, listed = self._root / self.ids[index], self._sizes[index]
        try:
            return str(path.stat().st_size if isinstance(path, Path) else listed)
        except OSError:
            return "gone"


def subfolders(root: Location) -> list[str]:
    """Names of the folders in `root`, sorted, hidden ones left out."""
    if isinstance(root, Url):
        return sorted(filter(_shown, root.folders()))
    try:
        return sorted(entry.name for entry in root.iterdir() if _shown(entry.name) and entry.is_dir())
    except OSError as error:
        raise CostcertError(
            f"cannot read the folder {root}: {(error.strerror or str(error)).lower()}"
        ) from None


def images_below(root: Location) -> Iterator[Found]:
    """Image files in `root` and its folders, in an order that does not depend on the disk's.

    The files of a folder come before those of its folders, both sorted.
    """
    if isinstance(root, Url):
        listed = (Found(*each) for each in root.files())
        shown = (each for each in listed if all(map(_shown, each.id.split("/"))))
        yield from sorted((each for each in shown if _is_image(each.id)), key=_as_walked)
        return
    for where, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(filter(_shown, folders))
        below = Path(where).relative_to(root)
        for name in sorted(filter(_shown, files)):
            if _is_image(name):
                yield Found((below / name).as_posix())


def _as_walked(found: Found) -> list[tuple[bool, str]]:
    *folders, name = found.id.split("/")
    return [*((True, each) for each in folders), (False, name)]


def _is_image(name: str) -> bool:
    return name.lower().endswith(ENDINGS)


def _shown(name: str) -> bool:
    return not name.startswith(".")
