"""Verifies the digests of a finished folder or file independently: it imports nothing of the package.

The manifest of a finished folder ends with the SHA-256 of every shard and with that of its own text without
this last entry, so a single digest covers all bytes of the folder. Certificates record that of their votes.
Certificates in one file have a digest of their rows in place of those of the shards.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

SHARDS, MANIFEST = "shard_digests", "manifest_digest"


class FolderPath(Protocol):
    """The part of `pathlib.Path` that is used here."""

    def __truediv__(self, name: str, /) -> Any: ...

    def glob(self, pattern: str, /) -> Iterable[Any]: ...


class FolderDigests(NamedTuple):
    """The result of hashing every file of a folder.

    Args:
        manifest: without its digests.
        digest: covers all bytes of the folder.
        sealed: whether the manifest records digests; those of older versions do not.
        problems: one sentence per file that differs from its recorded digest.
    """

    manifest: Mapping[str, Any]
    digest: str
    sealed: bool
    problems: list[str]


def verify_digests(folder: FolderPath) -> FolderDigests:
    """Hash every file of a folder and compare with the digests in its manifest.

    Raises ValueError, KeyError, TypeError, AttributeError or OSError if there is nothing to compare.
    """
    text = (folder / "manifest.json").read_bytes()
    recorded = json.loads(text)
    count, present = num_shards(recorded), {path.name for path in folder.glob("shard-*")}
    if count > len(present):
        raise ValueError(
            f"{count - len(present)} of its {count} shards are missing: finish the run that makes it"
        )
    names = [f"shard-{number:05d}.parquet" for number in range(count)]
    found = {name: file_digest(folder / name) for name in names}
    plain = {key: value for key, value in recorded.items() if key not in (SHARDS, MANIFEST)}
    digest = _digest(_as_text({**plain, SHARDS: found}))
    if SHARDS not in recorded and MANIFEST not in recorded:
        return FolderDigests(plain, digest, False, [])
    shards = recorded.get(SHARDS, {})
    problems = [
        f"{name} is not the file that was written" for name in names if shards.get(name) != found[name]
    ]
    # The same content with other whitespace or key order is another file, too.
    if _as_text(recorded) != text or recorded.get(MANIFEST) != _digest(_as_text({**plain, SHARDS: shards})):
        problems.append("manifest.json is not the one that was written")
    problems += [f"{name} does not belong there" for name in sorted(present - set(names))]
    return FolderDigests(plain, digest, True, problems)


def rows_digest(columns: Iterable[Iterable[str | int]]) -> str:
    """The digest of rows, given column by column: each is hashed as lines of JSON, and then their hashes."""
    texts = ("".join(json.dumps(value) + "\n" for value in column) for column in columns)
    return _digest(b"".join(hashlib.sha256(text.encode()).digest() for text in texts))


def verify_rows(recorded: Mapping[str, Any], columns: Iterable[Iterable[str | int]]) -> FolderDigests:
    """Compare the rows of a file, and its manifest, with the digests in the manifest."""
    plain = {key: value for key, value in recorded.items() if key not in (SHARDS, MANIFEST)}
    found = {"rows": rows_digest(columns)}
    digest = _digest(_as_text({**plain, SHARDS: found}))
    if SHARDS not in recorded and MANIFEST not in recorded:
        return FolderDigests(plain, digest, False, [])
    problems = [] if recorded.get(SHARDS) == found else ["its rows are not those that were written"]
    if recorded.get(MANIFEST) != _digest(_as_text({**plain, SHARDS: recorded.get(SHARDS)})):
        problems.append("its manifest is not the one that was written")
    return FolderDigests(plain, digest, True, problems)


def num_shards(manifest: Mapping[str, Any]) -> int:
    """The number of shards of a folder; certificates have as many as their votes."""
    votes = manifest.get("votes", manifest)
    count: int = math.ceil(votes["images"] / votes["shard_size"])
    if count < 1:
        raise ValueError("a folder has at least one shard")
    return count


def file_digest(path: Any) -> str:
    return _digest(path.read_bytes())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _as_text(manifest: Mapping[str, Any]) -> bytes:
    return (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode()
