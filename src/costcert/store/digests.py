"""What makes a changed byte in a finished folder noticeable.

A finished folder is sealed: its manifest ends with the SHA-256 of every shard and, last, with that of its own
text without this last line. So one digest stands for all bytes of a folder, and certificates name the votes
they came from by it. Sealing comes last and is the same whoever does it, so a run that was killed before is
sealed by the one that completes it. Whatever reads a sealed folder compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

from costcert.errors import StoreError
from costcert.store.files import (
    MANIFEST,
    OF_MANIFEST,
    OF_SHARDS,
    Sealed,
    read_json,
    sealed_content,
    write_json,
)
from costcert.store.locations import Location
from costcert.store.parquet import read_table, shard_path


def file_digest(path: Location) -> str:
    try:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
        return digest.hexdigest()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None


def seal(folder: Location, num_shards: int, made: Collection[int]) -> dict[str, str]:
    """Write digests into the manifest of a complete folder; those of shards not made just now are kept."""
    there = read_json(folder / MANIFEST)
    old = there.get(OF_SHARDS)
    old = old if isinstance(old, dict) else {}
    paths = [shard_path(folder, number) for number in range(num_shards)]
    fresh = {paths[number].name for number in made}
    shards = {
        path.name: old[path.name] if path.name in old and path.name not in fresh else file_digest(path)
        for path in paths
    }
    sealed = sealed_content(_plain(there), shards)
    if sealed != there:
        write_json(folder / MANIFEST, sealed)
    return shards


def replace_manifest(folder: Location, content: Mapping[str, Any]) -> None:
    """Another manifest for the same shards: a sealed folder stays sealed."""
    shards = read_json(folder / MANIFEST).get(OF_SHARDS)
    write_json(folder / MANIFEST, content if shards is None else sealed_content(_plain(content), shards))


class Shards:
    """The shards of one folder, each compared with its digest while it is read.

    Args:
        sealed: the folder's manifest.
    """

    def __init__(self, folder: Location, sealed: Sealed, num_shards: int) -> None:
        self._folder, self._count = folder, num_shards
        self._plain, self._digests, self._digest = sealed

    def read(self, number: int) -> Any:
        """One shard as a table."""
        path = shard_path(self._folder, number)
        expected = None if self._digests is None else self._digests.get(path.name, "")
        return read_table(path, digest=expected)

    def seal(self, made: Collection[int]) -> None:
        """Note the digests of a complete folder, of which this run made these shards."""
        self._digests = seal(self._folder, self._count, made)
        self._digest = str(sealed_content(self._plain, self._digests)[OF_MANIFEST])

    def digest(self) -> str:
        """What stands for all bytes of the folder: as it is sealed with, or would be."""
        if self._digest is None:
            paths = [shard_path(self._folder, number) for number in range(self._count)]
            self._digests = {path.name: file_digest(path) for path in paths}
            self._digest = str(sealed_content(self._plain, self._digests)[OF_MANIFEST])
        return self._digest


def _plain(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in (OF_SHARDS, OF_MANIFEST)}
