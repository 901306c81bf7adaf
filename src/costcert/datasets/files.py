"""Datasets with one file per image: `folder:` and `imagenet:`."""

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


class ImageFile(NamedTuple):
    """An image file; its id is its path relative to the root folder."""

    id: str

    @property
    def folder(self) -> str:
        """The subfolder of the root that contains it; empty if it is in the root itself."""
        return self.id.partition("/")[0] if "/" in self.id else ""


class FileDataset(Dataset):
    """Image files below `root`; ids are paths relative to it."""

    def __init__(
        self,
        name: str,
        root: Location,
        found: Sequence[ImageFile],
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
        # Download outside of `reading`: a failing object store does not mean that the image is unreadable.
        source = BytesIO(path.read_bytes()) if isinstance(path, Url) else path
        with reading(str(path)), Image.open(source) as image:
            image.load()
            return image

    def fingerprint(self, index: int) -> str:
        """The SHA-256 of the file; the file is hashed again only if it may have changed."""
        path = self._root / self.ids[index]
        try:
            stamp = _stamp(path)
            if index not in self._hashed or self._hashed[index][0] != stamp:
                self._hashed[index] = stamp, _sha256(path)
            return self._hashed[index][1]
        except OSError:
            return UNREADABLE


def _stamp(path: Location) -> tuple[int, ...]:
    """Changes when a local file is written to, even if its modification time is then set back."""
    if isinstance(path, Url):
        return ()
    status = path.stat()
    if not S_ISREG(status.st_mode):
        # Reading a pipe or a device may never end.
        raise OSError(f"{path} is not a regular file")
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _sha256(path: Location) -> str:
    # Checksums that object stores offer differ between stores; the digest of the bytes does not.
    if isinstance(path, Url):
        return hashlib.sha256(path.read_bytes()).hexdigest()
    total = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while content := file.read(1 << 20):
            total.update(content)
    return total.hexdigest()


def subfolders(root: Location) -> list[str]:
    """Names of the folders in `root`, sorted, without hidden ones."""
    if isinstance(root, Url):
        return sorted(filter(_shown, root.folders()))
    return [entry.name for entry in _entries(root) if _is_dir(entry)]


def images_below(root: Location) -> Iterator[ImageFile]:
    """Image files in `root` and its subfolders, in an order that does not depend on the file system.

    The files of a folder come before those of its subfolders, both sorted.
    """
    if isinstance(root, Url):
        names = [name for name, _ in root.files() if all(map(_shown, name.split("/")))]
    else:
        names = [entry.name for entry in _entries(root) if not _is_dir(entry)]
        names += [name for top in subfolders(root) for name in _files_below(root, top)]
    yield from sorted((ImageFile(name) for name in names if _is_image(name)), key=_walking_order)


def _files_below(root: Path, top: str) -> Iterator[str]:
    """Files below the subfolder `top`, relative to `root`; links to folders are followed.

    A folder is entered once, however many links lead to it: so cyclic links end, and a class does not hold an
    image twice. Two classes may link to the same images.
    """
    # Real paths, because inode numbers are not unique on some file systems.
    entered = {os.path.realpath(root)}
    # Links come last, so that a folder that is also linked to keeps its own name.
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
    """The entries of a folder, sorted by name, without hidden ones."""
    try:
        with os.scandir(folder) as found:
            return sorted((entry for entry in found if _shown(entry.name)), key=lambda entry: entry.name)
    except OSError as error:
        # If the folder were skipped, its images would be missing without notice.
        raise CostcertError(
            f"cannot read the folder {folder}: {(error.strerror or str(error)).lower()}"
        ) from None


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A link to itself is not a folder; reading it as an image reports the error.
        return False


def _walking_order(found: ImageFile) -> list[tuple[bool, str]]:
    *folders, name = found.id.split("/")
    return [*((True, each) for each in folders), (False, name)]


def _is_image(name: str) -> bool:
    return name.lower().endswith(ENDINGS)


def _shown(name: str) -> bool:
    return not name.startswith(".")
