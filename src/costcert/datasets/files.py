"""Images that are files of their own: `folder:` and `imagenet:`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from costcert.datasets.base import Dataset, reading
from costcert.errors import CostcertError

ENDINGS = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


class FileDataset(Dataset):
    """Image files below `root`, named by their path from there."""

    def __init__(
        self,
        name: str,
        root: Path,
        ids: Sequence[str],
        labels: Sequence[int],
        *,
        class_names: Sequence[str],
        split: str | None = None,
    ) -> None:
        super().__init__(name, ids, labels, class_names=class_names, split=split)
        self._root = root

    def image(self, index: int) -> Image.Image:
        path = self._root / self.ids[index]
        with reading(str(path)), Image.open(path) as image:
            image.load()
            return image

    def fingerprint(self, index: int) -> str:
        try:
            return str((self._root / self.ids[index]).stat().st_size)
        except OSError:
            return "gone"


def subfolders(root: Path) -> list[str]:
    """Names of the folders in `root`, sorted, hidden ones left out."""
    try:
        return sorted(entry.name for entry in root.iterdir() if _shown(entry.name) and entry.is_dir())
    except OSError as error:
        raise CostcertError(
            f"cannot read the folder {root}: {(error.strerror or str(error)).lower()}"
        ) from None


def images_below(folder: Path) -> Iterator[Path]:
    """Image files in `folder` and its folders, in an order that does not depend on the disk's."""
    for where, folders, files in os.walk(folder, followlinks=True):
        folders[:] = sorted(filter(_shown, folders))
        for name in sorted(filter(_shown, files)):
            if name.lower().endswith(ENDINGS):
                yield Path(where, name)


def _shown(name: str) -> bool:
    return not name.startswith(".")
