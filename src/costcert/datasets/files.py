"""Images that are files of their own: `folder:` and `imagenet:`."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from stat import S_ISREG
from typing import NamedTuple

from PIL import Image

from costcert.datasets.base import UNREADABLE, Dataset, reading
from costcert.errors import CostcertError
from costcert.store.locations import Location, Url

ENDINGS = (".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


class Found(NamedTuple):
    """An image file: its path from the folder of all."""

    id: str

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
        self._hashed: dict[int, tuple[tuple[int, ...], str]] = {}

    def image(self, index: int) -> Image.Image:
        path = self._root / self.ids[index]
        # A store that does not answer says nothing about the image, so it is asked before decoding begins.
        source = BytesIO(path.read_bytes()) if isinstance(path, Url) else path
        with reading(str(path)), Image.open(source) as image:
            image.load()
            return image

    def fingerprint(self, index: int) -> str:
        """The SHA-256 of the file, which is read again only if it may have changed."""
        path = self._root / self.ids[index]
        try:
            stamp = _stamp(path)
            if index not in self._hashed or self._hashed[index][0] != stamp:
                self._hashed[index] = stamp, _sha256(path)
            return self._hashed[index][1]
        except OSError:
            return UNREADABLE


def _stamp(path: Location) -> tuple[int, ...]:
    """Changes when a file of this machine is written to, even by somebody who sets its time back."""
    if isinstance(path, Url):
        return ()
    status = path.stat()
    if not S_ISREG(status.st_mode):
        # A pipe or a device may never end.
        raise OSError(f"{path} is no regular file")
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _sha256(path: Location) -> str:
    # What a store itself tells of its files differs from store to store; of their bytes the digest is the
    # same wherever they lie.
    if isinstance(path, Url):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    total = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while content := file.read(1 << 20):
            total.update(content)
    return total.hexdigest()


def subfolders(root: Location) -> list[str]:
    """Names of the folders in `root`, sorted, hidden ones left out."""
    if isinstance(root, Url):
        return sorted(filter(_shown, root.folders()))
    return [entry.name for entry in _entries(root) if _is_dir(entry)]


def images_below(root: Location) -> Iterator[Found]:
    """Image files in `root` and its folders, in an order that does not depend on the disk's.

    The files of a folder come before those of its folders, both sorted.
    """
    if isinstance(root, Url):
        names = [name for name, _ in root.files() if all(map(_shown, name.split("/")))]
    else:
        names = [entry.name for entry in _entries(root) if not _is_dir(entry)]
        names += [name for top in subfolders(root) for name in _files_below(root, top)]
    yield from sorted((Found(name) for name in names if _is_image(name)), key=_as_walked)


def _files_below(root: Path, top: str) -> Iterator[str]:
    """Files in a folder of `root`, by their path from there; links to folders are followed.

    A folder is entered once, however many links lead to it: so links that lead back, or to each other, come
    to an end, and a class holds no picture twice. Two classes may link to the same pictures.
    """
    # By its real path: some disks give different folders the same number.
    entered = {os.path.realpath(root)}
    # Links come last, so that what lies there by itself goes by its own name.
    folders, links = deque([top]), deque[str]()
    while folders or links:
        below = (folders or links).popleft()
        real = os.path.realpath(root / below)
        if real in entered:
            continue
        entered.add(real)
        for entry in _entries(root / below):
            name = f"{below}/{entry.name}"
            if _is_dir(entry):
                (links if entry.is_symlink() else folders).append(name)
            else:
                yield name


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder, sorted by name, hidden entries left out."""
    try:
        with os.scandir(folder) as found:
            return sorted((entry for entry in found if _shown(entry.name)), key=lambda entry: entry.name)
    except OSError as error:
        # Were it left out, its images would be missing, and nobody would know.
        raise CostcertError(
            f"cannot read the folder {folder}: {(error.strerror or str(error)).lower()}"
        ) from None


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A link to itself is no folder, and no image either, which is said when it is read.
        return False


def _as_walked(found: Found) -> list[tuple[bool, str]]:
    *folders, name = found.id.split("/")
    return [*((True, each) for each in folders), (False, name)]


def _is_image(name: str) -> bool:
    return name.lower().endswith(ENDINGS)


def _shown(name: str) -> bool:
    return not name.startswith(".")
