"""Follows the digests of a finished folder, by itself: it imports nothing of the package.

The manifest of a finished folder ends with the SHA-256 of every shard and with that of its own text without
this last line, so a single digest stands for all bytes of the folder. Certificates note that of their votes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

SHARDS, MANIFEST = "shard_digests", "manifest_digest"


class Folder(Protocol):
    """A `pathlib.Path`, or what behaves like one."""

    def __truediv__(self, name: str, /) -> Any: ...

    def glob(self, pattern: str, /) -> Iterable[Any]: ...


class Chain(NamedTuple):
    """What hashing every file of a folder tells.

    Args:
        digest: stands for all bytes of the folder.
        sealed: whether the folder notes digests at all; folders of older versions do not.
        problems: what contradicts them, a sentence each.
    """

    manifest: Mapping[str, Any]
    digest: str
    sealed: bool
    problems: list[str]


def verify_digests(folder: Folder) -> Chain:
    """Hash every file of a folder and compare with what its manifest notes.

    Raises ValueError, KeyError, TypeError, AttributeError or OSError where there is nothing to compare.
    """
    text = (folder / "manifest.json").read_bytes()
    noted = json.loads(text)
    count, present = num_shards(noted), {path.name for path in folder.glob("shard-*")}
    if count > len(present):
        raise ValueError(
            f"{count - len(present)} of its {count} shards are missing: finish the run that makes it"
        )
    names = [f"shard-{number:05d}.parquet" for number in range(count)]
    found = {name: file_digest(folder / name) for name in names}
    plain = {key: value for key, value in noted.items() if key not in (SHARDS, MANIFEST)}
    digest = _digest(_as_text({**plain, SHARDS: found}))
    if SHARDS not in noted and MANIFEST not in noted:
        return Chain(plain, digest, False, [])
    shards = noted.get(SHARDS, {})
    problems = [
        f"{name} is not the file that was written" for name in names if shards.get(name) != found[name]
    ]
    # The same content in other words is another file, too.
    if _as_text(noted) != text or noted.get(MANIFEST) != _digest(_as_text({**plain, SHARDS: shards})):
        problems.append("manifest.json is not the one that was written")
    problems += [f"{name} does not belong there" for name in sorted(present - set(names))]
    return Chain(plain, digest, True, problems)


def num_shards(manifest: Mapping[str, Any]) -> int:
    """Certificates have a shard for each shard of the votes they came from."""
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
