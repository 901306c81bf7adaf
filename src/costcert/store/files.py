"""Atomic writes, and manifests that describe what a folder holds."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from costcert.errors import StoreError
from costcert.store.locations import Location, Url

MANIFEST = "manifest.json"
# The last two entries of a finished folder's manifest; see digests.py.
SHARD_DIGESTS, MANIFEST_DIGEST = "shard_digests", "manifest_digest"


@contextmanager
def atomic_write(path: Location, *, only_if_new: bool = False) -> Iterator[Path]:
    """A temporary path to write to; it is renamed to `path` once all of it is on disk.

    If anything fails, the temporary file is removed and `path` stays as it was. A URL is uploaded in one
    request when the file is complete.

    Args:
        only_if_new: do not replace a file that another process has uploaded in the meantime.
    """
    if isinstance(path, Url):
        with _uploaded(path, only_if_new) as temporary:
            yield temporary
        return
    temporary = path.with_name(f".{path.name}.{_host()}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        raise StoreError(_write_failure(path, error)) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def _uploaded(url: Url, only_if_new: bool) -> Iterator[Path]:
    try:
        with tempfile.TemporaryDirectory(prefix="costcert-") as folder:
            temporary = Path(folder) / url.name
            yield temporary
            url.put(temporary, only_if_new=only_if_new)
    except OSError as error:
        raise StoreError(_write_failure(url, error)) from error


def sweep(folder: Location) -> None:
    """Remove temporary files of killed processes of this machine; uploads to a URL leave none."""
    if isinstance(folder, Url):
        return
    for leftover in folder.glob(".*.tmp"):
        *_, host, number, _ = leftover.name.split(".")
        # Another machine's process may still be running, and that cannot be checked from here.
        if host == _host() and number.isdigit() and not _alive(int(number)):
            with suppress(OSError):
                leftover.unlink()


def write_json(path: Location, content: Mapping[str, Any], *, only_if_new: bool = False) -> None:
    with atomic_write(path, only_if_new=only_if_new) as temporary:
        temporary.write_text(manifest_text(content), encoding="utf-8")


def manifest_text(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def read_json(path: Location) -> Any:
    if not path.is_file():
        raise StoreError(f"{path} is not there, or is not a file")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError):
        raise StoreError(f"{path} cannot be read as JSON: it is damaged or not of costcert") from None


class Sealed(NamedTuple):
    """A manifest without its digests, and these digests; they are None where the folder is not sealed.

    Args:
        shards: SHA-256 of each shard, by file name.
        digest: the manifest's own, which covers all bytes of the folder.
    """

    content: dict[str, Any]
    shards: dict[str, str] | None
    digest: str | None


def read_sealed(folder: Location, kind: str, *versions: int) -> Sealed:
    """The manifest of a folder of this kind; raises if it is another kind, or changed after it was sealed."""
    path = folder / MANIFEST
    if not folder.is_dir():
        raise StoreError(f"{folder} is not there: expected a folder of {kind}")
    if not path.is_file():
        raise StoreError(f"{folder} holds no {MANIFEST}, so it is not a folder of {kind}")
    return unsealed(read_json(path), path, folder, kind, *versions)


def unsealed(content: Any, path: Location, made: Location, kind: str, *versions: int) -> Sealed:
    """The manifest of this kind in the file `path`, of the folder or file `made`; raises as `read_sealed`."""
    if not isinstance(content, dict) or content.get("format") != f"costcert {kind}":
        raise StoreError(f"{path} is not the manifest of {kind}: its format is {_format_of(content)}")
    plain = without_digests(content)
    shards, digest = content.get(SHARD_DIGESTS), content.get(MANIFEST_DIGEST)
    if (shards is not None or digest is not None) and content != sealed_content(plain, shards):
        raise StoreError(
            f"{path} is not the manifest that was sealed: it was changed since; make {made} again"
        )
    if content.get("version") not in versions:
        raise StoreError(
            f"{path} has format version {content.get('version')!r}, this costcert reads "
            f"{' and '.join(map(str, versions))}: make {made} again with this version"
        )
    return Sealed(plain, shards, digest)


def sealed_content(plain: Mapping[str, Any], shards: Any) -> dict[str, Any]:
    """A manifest with the digests of its shards and, last, that of its own text without this last entry."""
    sealed = {**plain, SHARD_DIGESTS: shards}
    return {**sealed, MANIFEST_DIGEST: hashlib.sha256(manifest_text(sealed).encode()).hexdigest()}


def without_digests(content: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest as it was before sealing."""
    return {key: value for key, value in content.items() if key not in (SHARD_DIGESTS, MANIFEST_DIGEST)}


def join_manifest(folder: Location, content: Mapping[str, Any], kind: str, version: int) -> None:
    """Begin a folder with this manifest, or continue one that has the same; refuse any other."""
    plain = json.loads(json.dumps(content))
    if not folder.exists() or (folder.is_dir() and all(map(_is_temporary, folder.iterdir()))):
        write_json(folder / MANIFEST, plain, only_if_new=True)
    elif not folder.is_dir():
        raise StoreError(f"{folder} is a file, but a folder is to be written there: choose another name")
    # Read back even after writing: another run may have begun the folder at the same moment.
    found = read_sealed(folder, kind, version).content
    if found != plain:
        key, theirs, ours = _difference(found, plain)
        raise StoreError(
            f"{folder} holds another run: its {key} is {_short(theirs)}, this run's is {_short(ours)}; "
            "choose another folder, or remove that one"
        )


def clear(folder: Location, kind: str) -> None:
    """Remove a folder's shards and then its manifest, so that a new run can be written to it."""
    if not folder.exists() or not any(True for _ in folder.iterdir()):
        return
    manifest = folder / MANIFEST
    content = read_json(manifest) if manifest.is_file() else {}
    if not isinstance(content, dict) or content.get("format", f"costcert {kind}") != f"costcert {kind}":
        raise StoreError(f"{folder} is not a folder of {kind}, so it is not overwritten: choose another")
    ours = [path for path in folder.iterdir() if re.fullmatch(r"shard-\d{5,}\.parquet", path.name)]
    for path in [*ours, manifest]:
        path.unlink(missing_ok=True)


def _is_temporary(path: Location) -> bool:
    """Whether this is a file of a run that is just beginning, or was killed before it wrote a manifest."""
    return path.name.startswith(".") and path.suffix == ".tmp"


def _difference(theirs: Any, ours: Any) -> tuple[str, Any, Any]:
    """The first entry in which two manifests differ, as a path of keys, and both values."""
    path = []
    while isinstance(theirs, dict) and isinstance(ours, dict):
        keys = {**theirs, **ours}
        # A key with the value null differs from a missing key.
        key = next(key for key in keys if (key in theirs, theirs.get(key)) != (key in ours, ours.get(key)))
        path.append(key)
        theirs, ours = theirs.get(key), ours.get(key)
    return ".".join(path), theirs, ours


def _format_of(content: Any) -> str:
    return repr(content.get("format")) if isinstance(content, dict) else "unknown"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _write_failure(path: Location, error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return f"the disk is full: {path} was not written; files finished before it are kept"
    # The message of Arrow would name the temporary file.
    return f"cannot write {path}: {(os.strerror(error.errno) if error.errno else str(error)).lower()}"


def _host() -> str:
    """This machine's name, made safe for a file name."""
    return re.sub(r"[^\w-]", "-", platform.node()) or "here"


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _sync_folder(folder: Path) -> None:
    # Not every system can open a folder; there the rename cannot be made more durable.
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
