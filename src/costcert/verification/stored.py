"""Stored certificates that are to be checked: a folder, or one file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Protocol

from rich.console import Console

from costcert.certification.accuracy import wilson
from costcert.errors import StoreError
from costcert.store.exports import COLUMNS, EXPORTS, stored_manifest
from costcert.store.locations import Location, fetched
from costcert.store.parquet import read_table, shard_path
from costcert.store.tables import read_rows
from costcert.verification.digests import FolderDigests, num_shards, verify_digests, verify_rows

Row = Mapping[str, Any]
Manifest = Mapping[str, Any]

_METRICS = {"clean": "rank", "certified": "min_k"}


class Stored(Protocol):
    """Stored certificates, to be compared with derived ones."""

    @property
    def manifest(self) -> Manifest: ...

    def problems(self, console: Console) -> list[str]:
        """What is wrong without looking at the votes: digests or number of rows; one sentence each."""

    def rows(self, shard: int, first: int, count: int) -> Sequence[Row]:
        """The certificates of a shard: `count` rows, after `first` rows of earlier shards."""

    def row_name(self, number: int) -> str:
        """A prefix for problems of a row, counted over all shards; empty where it would not help."""

    def content_problems(self) -> list[str]:
        """Stored digests and accuracies that do not follow from the stored rows, one sentence each."""


class StoredFolder:
    """A folder that `certify` wrote. It is read without the code that wrote it."""

    def __init__(self, folder: Location) -> None:
        self._folder = folder
        self._digests = read_digests(folder, "certificates", 2)
        self.manifest: Manifest = self._digests.manifest

    def problems(self, console: Console) -> list[str]:
        return digest_problems(console, self._folder, self._digests)

    def rows(self, shard: int, first: int, count: int) -> Sequence[Row]:
        return _Rows(read_table(shard_path(self._folder, shard)))

    def row_name(self, number: int) -> str:
        return ""

    def content_problems(self) -> list[str]:
        return []


class StoredFile:
    """A .parquet, .csv or .json that `certify` exported: the certificates of all shards in one table."""

    def __init__(self, path: Location) -> None:
        self._path = path
        with fetched(path) as copy, copy.open("rb") as file:
            table = read_rows(file, path)
        content, _ = stored_manifest(path, table.more)
        self._accuracy: list[Row] | None = table.more["accuracy"] if path.suffix == ".json" else None
        self._all = _Rows(table.rows)
        self._digests = verify_rows(content, map(self._all.column, COLUMNS))
        self.manifest: Manifest = self._digests.manifest
        if self.manifest.get("format") != "costcert certificates" or self.manifest.get("version") != 2:
            raise StoreError(f"{path} does not hold certificates of this version: certify again")

    def problems(self, console: Console) -> list[str]:
        if not self._digests.sealed:
            console.print(f"Digests: {self._path} has none; it was made by an older version")
        elif not self._digests.problems:
            console.print(f"Digests: {self._path} is as it was written, {len(self._all):,} rows")
        expected = len(self.manifest["defenders"]) * len(self.manifest["patches"])
        expected *= int(self.manifest["votes"]["images"])
        if len(self._all) != expected:
            return [f"{self._path} holds {len(self._all)} certificates, expected {expected}"]
        return []

    def rows(self, shard: int, first: int, count: int) -> Sequence[Row]:
        part: Sequence[Row] = self._all[first : first + count]
        return part

    def row_name(self, number: int) -> str:
        return f"row {number + 1}: "

    def content_problems(self) -> list[str]:
        return [*(f"{self._path}: {each}" for each in self._digests.problems), *self._accuracy_problems()]

    def _accuracy_problems(self) -> list[str]:
        if self._accuracy is None:
            return []
        accuracy, images = self._accuracy, int(self.manifest["votes"]["images"])
        named = [(row["defender"], row["patch"], row["k"]) for row in accuracy]
        ks = dict.fromkeys(row["k"] for row in accuracy)
        if named != list(product(self.manifest["defenders"], self.manifest["patches"], ks)):
            return [f"{self._path} does not hold the accuracy of each defender and patch at the same k"]
        counts: Counter[tuple[str, str, str, int]] = Counter()
        for row in self._all:
            for metric, column in _METRICS.items():
                counts[metric, row["defender"], row["patch"], row[column]] += 1
        problems = []
        for row in accuracy:
            expected: dict[str, float] = {"images": images}
            for metric in _METRICS:
                wanted = (metric, row["defender"], row["patch"])
                hits = sum(n for key, n in counts.items() if key[:3] == wanted and key[3] <= row["k"])
                # A forged file may have more such rows than images; those are reported row by row.
                low, high = wilson(min(hits, images), images)
                expected |= {metric: hits / images, f"{metric}_low": low, f"{metric}_high": high}
            problems += [
                f"accuracy of {row['defender']}, {row['patch']}, top {row['k']}: {key} is {row[key]!r}, but "
                f"the rows give {value!r}"
                for key, value in expected.items()
                if row[key] != value
            ]
        return problems


class _Rows(Sequence[Row]):
    """The rows of an Arrow table; each is converted to a dict only when it is read."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def column(self, name: str) -> list[Any]:
        return list(self._table.column(name).to_pylist())

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _Rows(self._table.slice(index.start, index.stop - index.start))
        return self._table.slice(index, 1).to_pylist()[0]


def is_export(path: Location) -> bool:
    """Whether this is a file that `certify` may have exported, rather than a folder."""
    return path.suffix in EXPORTS and path.is_file()


def read_digests(folder: Location, kind: str, *versions: int) -> FolderDigests:
    """Hash a folder of this kind; raises if it is another kind or version."""
    if not (folder / "manifest.json").is_file():
        raise StoreError(f"{folder} holds no manifest.json: expected a folder of {kind}")
    found = verify_digests(folder)
    if found.manifest.get("format") != f"costcert {kind}" and not found.problems:
        raise StoreError(
            f"{folder} is not a folder of {kind}: its format is {found.manifest.get('format')!r}"
        )
    if found.manifest.get("version") not in versions:
        raise StoreError(
            f"{folder} has format version {found.manifest.get('version')!r}, this costcert checks "
            f"{' and '.join(map(str, versions))}: make it again with this version"
        )
    return found


def digest_problems(console: Console, folder: Location, found: FolderDigests) -> list[str]:
    """Print whether a folder matches its digests; one sentence per file that does not."""
    if not found.sealed:
        console.print(f"Digests: {folder} has none; it was made by an older version, or is not finished")
    elif not found.problems:
        count = num_shards(found.manifest)
        console.print(f"Digests: {folder} is as it was written, {count:,} shard{'' if count == 1 else 's'}")
    return [f"{folder}: {problem}" for problem in found.problems]
