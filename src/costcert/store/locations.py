"""Locations of files and folders: a local path, or a URL such as s3://bucket/votes.

A `Url` has the few methods of `pathlib.Path` that this package uses, over fsspec. It is our own class so that
every request to an object store goes through one place: each store fails with exceptions of its own, which
become one error sentence here; and listings are never cached, because other processes write to the folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, Any

from costcert.errors import CostcertError, SpellingError, StoreError

# Stores with atomic uploads: the package that reads and writes each, and the extra that installs it.
_STORES = {
    "s3": ("s3fs", "s3"),
    "s3a": ("s3fs", "s3"),
    "gs": ("gcsfs", "gs"),
    "gcs": ("gcsfs", "gs"),
    "az": ("adlfs", "az"),
    "abfs": ("adlfs", "az"),
    "abfss": ("adlfs", "az"),
    "memory": ("fsspec", "s3"),
}
# Azure writes container@account; in other URLs the part before an @ is a user name or a secret.
_WITH_ACCOUNT = ("az", "abfs", "abfss")


@dataclass(frozen=True)
class Url:
    """A file or a folder in an object store.

    Args:
        path: bucket and key.
    """

    scheme: str
    path: PurePosixPath

    def __str__(self) -> str:
        return f"{self.scheme}://{self.path}"

    def __truediv__(self, name: str) -> Url:
        return Url(self.scheme, self.path / name)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def stem(self) -> str:
        return self.path.stem

    @property
    def suffix(self) -> str:
        return self.path.suffix

    @property
    def parents(self) -> list[Url]:
        """The folders that contain it, the innermost first and the bucket last."""
        return [Url(self.scheme, path) for path in self.path.parents if path.name]

    @property
    def parent(self) -> Url:
        if not self.parents:
            raise StoreError(f"{self} is a bucket and has no parent folder: name a folder in it")
        return self.parents[0]

    def with_name(self, name: str) -> Url:
        return self.parent / name

    def resolve(self) -> Url:
        """The URL itself: it is absolute already."""
        return self

    def exists(self) -> bool:
        return self._kind() is not None

    def is_file(self) -> bool:
        return self._kind() == "file"

    def is_dir(self) -> bool:
        return self._kind() == "directory"

    def iterdir(self) -> Iterator[Url]:
        return (self / name for name, _ in self._listed())

    def glob(self, pattern: str) -> Iterator[Url]:
        return (path for path in self.iterdir() if fnmatchcase(path.name, pattern))

    def folders(self) -> list[str]:
        """Names of the folders in it."""
        return [name for name, kind in self._listed() if kind == "directory"]

    def files(self) -> list[tuple[str, int]]:
        """All files below it, from one listing: their relative paths and their sizes."""
        with self._request("list") as (store, path):
            store.invalidate_cache()
            root = store._strip_protocol(path).rstrip("/")
            found = store.find(path, detail=True).items()
            below = [(name[len(root) + 1 :], int(info["size"])) for name, info in found]
        # A key may have empty parts, which a path cannot express.
        return [(name, size) for name, size in below if "" not in name.split("/")]

    def read_bytes(self) -> bytes:
        with self._request("read") as (store, path):
            content: bytes = store.cat_file(path)
            return content

    def read_text(self, encoding: str) -> str:
        return self.read_bytes().decode(encoding)

    @contextmanager
    def open(self, mode: str) -> Iterator[IO[bytes]]:
        """Open for reading; only the parts that are read are downloaded."""
        with self._request("read") as (store, path), store.open(path, mode) as file:
            yield file

    def fetch(self, copy: Path) -> None:
        """Download it to a local path."""
        with self._request("read") as (store, path):
            store.get_file(path, str(copy))

    def put(self, content: Path, *, only_if_new: bool = False) -> None:
        """Upload a file in one request, so that no reader sees it half-written."""
        if self.scheme not in _STORES:
            raise StoreError(
                f"cannot write {self}: at {self.scheme}:// a file can be seen half-written; write to a "
                f"store ({', '.join(_STORES)}) or to this machine"
            )
        with self._request("write") as (store, path):
            try:
                store.put_file(str(content), path, mode="create" if only_if_new else "overwrite")
            except Exception:
                # Stores report differently that another process was first, so look for its file.
                if not (only_if_new and self.exists()):
                    raise

    def unlink(self, missing_ok: bool = False) -> None:
        if not missing_ok or self.exists():
            with self._request("remove") as (store, path):
                store.rm_file(path)

    def _kind(self) -> str | None:
        """`file` or `directory`, or None if it does not exist."""
        with self._request("read") as (store, path):
            store.invalidate_cache()
            try:
                return str(store.info(path)["type"])
            except FileNotFoundError:
                return None

    def _listed(self) -> list[tuple[str, str]]:
        """Names and kinds of its entries."""
        with self._request("list") as (store, path):
            store.invalidate_cache()
            root = store._strip_protocol(path).rstrip("/")
            found = [(info["name"].rstrip("/"), str(info["type"])) for info in store.ls(path, detail=True)]
        # Some stores list the folder itself.
        return [(name.rpartition("/")[2], kind) for name, kind in found if name != root]

    @contextmanager
    def _request(self, action: str) -> Iterator[tuple[Any, str]]:
        """The store and the path in it; any exception becomes a `StoreError` with one sentence."""
        try:
            yield self._store(), str(self)
        except CostcertError:
            raise
        except Exception as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            if isinstance(error, FileNotFoundError) and action != "write":
                # The message of many stores is only the file's name.
                reason = "it is not there"
            raise StoreError(f"cannot {action} {self}: {_as_clause(reason)}") from error

    def _store(self) -> Any:
        """The file system of fsspec, which keeps one per process and bucket."""
        package, extra = _STORES.get(self.scheme, (f"a package of fsspec for {self.scheme}://", ""))
        try:
            from fsspec.core import url_to_fs

            store, _ = url_to_fs(f"{self.scheme}://{self.path.parts[0]}")
            return store
        except ImportError as error:
            hint = f"pip install 'costcert[{extra}]'" if extra else _as_clause(str(error))
            raise StoreError(f"{self} needs {package}: {hint}") from error


Location = Path | Url


def locate(text: str | Location) -> Location:
    """The local path or the `Url` that a text names; a URL that contains credentials is refused.

    Manifests and reports record where data came from, so credentials belong where each store looks for them:
    in the environment, or in files in the home folder.
    """
    if isinstance(text, Path | Url):
        return text
    given: Any = text
    if not isinstance(given, str):
        raise SpellingError(f"expected a path or a URL, got {given!r}")
    scheme, found, rest = text.partition("://")
    if not found:
        return Path(text)
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        raise SpellingError(f"cannot read a URL that begins with {scheme!r}: expected a scheme such as s3://")
    scheme, host = scheme.lower(), rest.partition("/")[0]
    account, _, _ = host.rpartition("@")
    if "?" in rest or (account and (scheme not in _WITH_ACCOUNT or ":" in account)):
        raise SpellingError(
            f"a {scheme}:// URL with a name, a password or a query in it is refused, because manifests and "
            "reports record URLs: leave them out, and set them where the store looks for them (see "
            "docs/scale.md)"
        )
    if scheme in ("file", "local"):
        return Path(rest)
    path = PurePosixPath(rest)
    if not path.name or ".." in path.parts:
        raise SpellingError(f"cannot read the URL {text!r}: expected one like {scheme}://bucket/votes")
    return Url(scheme, path)


@contextmanager
def fetched(path: Location) -> Iterator[Path]:
    """The file as a local path: itself, or a temporary download."""
    if isinstance(path, Path):
        yield path
        return
    with TemporaryDirectory(prefix="costcert-") as folder:
        copy = Path(folder) / path.name
        path.fetch(copy)
        yield copy


def _as_clause(reason: str) -> str:
    """The first line of a message, ready to follow a colon."""
    line = (reason.strip().splitlines() or [""])[0].rstrip(".")
    return line[:1].lower() + line[1:]
