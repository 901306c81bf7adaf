"""What makes a changed byte in a finished folder noticeable.

A finished folder is sealed: its manifest ends with the SHA-256 of every shard and, last, with that of its own
text without this last line. So one digest stands for all bytes of a folder, and certificates name the votes
they came from by it. Sealing comes last and is the same whoever does it, so a run that was killed before is
sealed by the one that completes it. `costcert check` compares; reading does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import Any

from costcert.errors import StoreError
from costcert.locations import Location
from costcert.store.files import MANIFEST, OF_MANIFEST, OF_SHARDS, manifest_text, read_json, write_json
from costcert.store.parquet import shard_path


def file_digest(path: Location) -> str:
    try:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
        return digest.hexdigest()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None


def seal(folder: Location, num_shards: int, made: Collection[int]) -> None:
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
    sealed = _sealed(there, shards)
    if sealed != there:
        write_json(folder / MANIFEST, sealed)


def replace_manifest(folder: Location, content: Mapping[str, Any]) -> None:
    """Another manifest for the same shards: a sealed folder stays sealed."""
    shards = read_json(folder / MANIFEST).get(OF_SHARDS)
    write_json(folder / MANIFEST, content if shards is None else _sealed(content, shards))


def folder_digest(folder: Location, num_shards: int) -> str:
    """The digest of a complete folder: as it is sealed with, or would be."""
    there = read_json(folder / MANIFEST)
    if isinstance(there.get(OF_MANIFEST), str):
        return str(there[OF_MANIFEST])
    paths = [shard_path(folder, number) for number in range(num_shards)]
    return str(_sealed(there, {path.name: file_digest(path) for path in paths})[OF_MANIFEST])


def _sealed(content: Mapping[str, Any], shards: Mapping[str, str]) -> dict[str, Any]:
    plain = {key: value for key, value in content.items() if key not in (OF_SHARDS, OF_MANIFEST)}
    plain[OF_SHARDS] = dict(shards)
    return {**plain, OF_MANIFEST: hashlib.sha256(manifest_text(plain).encode()).hexdigest()}
