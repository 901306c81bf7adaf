"""Digests that make any changed byte of a finished folder detectable.

A finished folder is sealed: its manifest ends with the SHA-256 of every shard and, last, with that of its own
text without this last entry. So one digest covers all bytes of a folder, and certificates identify the votes
they came from by it. Sealing is the last step and its result does not depend on which process does it: if a
run is killed before it seals, the run that completes the folder seals it. Every reader verifies the digests.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import IO, Any

from costcert.errors import StoreError
from costcert.store.files import (
    MANIFEST,
    MANIFEST_DIGEST,
    SHARD_DIGESTS,
    Sealed,
    read_json,
    sealed_content,
    without_digests,
    write_json,
)
from costcert.store.locations import Location
from costcert.store.parquet import read_table, shard_path


def file_digest(path: Location) -> str:
    try:
        with path.open("rb") as file:
            return stream_digest(file)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None


def stream_digest(file: IO[bytes]) -> str:
    """The SHA-256 of the rest of an open file."""
    digest = hashlib.sha256()
    while part := file.read(1 << 20):
        digest.update(part)
    return digest.hexdigest()


def seal(folder: Location, num_shards: int, made: Collection[int]) -> dict[str, str]:
    """Write digests into the manifest of a complete folder, and return those of the shards.

    Shards in `made` are hashed; digests that the manifest already has for the others are kept.
    """
    manifest = read_json(folder / MANIFEST)
    old = manifest.get(SHARD_DIGESTS)
    old = old if isinstance(old, dict) else {}
    paths = [shard_path(folder, number) for number in range(num_shards)]
    new = {paths[number].name for number in made}
    shards = {
        path.name: old[path.name] if path.name in old and path.name not in new else file_digest(path)
        for path in paths
    }
    sealed = sealed_content(without_digests(manifest), shards)
    if sealed != manifest:
        write_json(folder / MANIFEST, sealed)
    return shards


def replace_manifest(folder: Location, content: Mapping[str, Any]) -> None:
    """Replace a folder's manifest and keep its shards; a sealed folder is sealed again."""
    shards = read_json(folder / MANIFEST).get(SHARD_DIGESTS)
    if shards is not None:
        content = sealed_content(without_digests(content), shards)
    write_json(folder / MANIFEST, content)


class Shards:
    """The shards of a folder; where the folder is sealed, each is compared with its digest when read."""

    def __init__(self, folder: Location, sealed: Sealed, num_shards: int) -> None:
        self._folder, self._num_shards = folder, num_shards
        self._manifest, self._digests, self._digest = sealed

    def read(self, number: int, columns: list[str] | None = None) -> Any:
        """One shard as a table, or those of these columns that it has."""
        path = shard_path(self._folder, number)
        expected = None if self._digests is None else self._digests.get(path.name, "")
        return read_table(path, columns, digest=expected)

    def seal(self, made: Collection[int]) -> None:
        """Write the digests of a complete folder; `made` are the shards that this run wrote."""
        self._digests = seal(self._folder, self._num_shards, made)
        self._digest = self._manifest_digest(self._digests)

    def digest(self) -> str:
        """The digest that covers all bytes of the folder; computed if the folder is not sealed yet."""
        if self._digest is None:
            paths = [shard_path(self._folder, number) for number in range(self._num_shards)]
            self._digests = {path.name: file_digest(path) for path in paths}
            self._digest = self._manifest_digest(self._digests)
        return self._digest

    def _manifest_digest(self, shards: dict[str, str]) -> str:
        return str(sealed_content(self._manifest, shards)[MANIFEST_DIGEST])
