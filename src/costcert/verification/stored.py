"""Certificates as they are stored, to be checked: a folder with digests, or a file for other programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
from rich.console import Console

from costcert.certification.accuracy import wilson
from costcert.errors import StoreError
from costcert.store.exports import EXPORTS
from costcert.store.locations import Location
from costcert.store.parquet import read_table, shard_path
from costcert.verification.digests import Chain, num_shards, verify_digests

Row = Mapping[str, Any]
Manifest = Mapping[str, Any]

_COLUMNS = {
    "image_id": pa.string(),
    "defender": pa.string(),
    "patch": pa.string(),
    "rank": pa.int64(),
    "min_k": pa.int64(),
}

_METRICS = {"clean": "rank", "certified": "min_k"}


class Stored(Protocol):
    """What a check compares with what it derives."""

    @property
    def manifest(self) -> Manifest: ...

    def noted(self, console: Console) -> list[str]:
        """What the certificates by themselves contradict, a sentence each."""

    def rows(self, shard: int, first: int, count: int) -> Sequence[Row]:
        """The certificates of a shard; there should be `count` of them, and `first` of earlier shards."""

    def name(self, number: int) -> str:
        """What to call the row of this number, counted over all shards, where that helps to find it."""

    def summed_up(self) -> list[str]:
        """Accuracies beside the certificates that are not theirs."""


class StoredFolder:
    """A folder that `certify` made."""

    def __init__(self, folder: Location) -> None:
        self._folder = folder
        self._chain = followed(folder, "certificates", 2)
        self.manifest: Manifest = self._chain.manifest

    def noted(self, console: Console) -> list[str]:
        return digests(console, self._folder, self._chain)

    def rows(self, shard: int, first: int, count: int) -> Sequence[Row]:
        return _Rows(read_table(shard_path(self._folder, shard)))

    def name(self, number: int) -> str:
        return ""

    def summed_up(self) -> list[str]:
        return []


class StoredFile:
    """A .parquet, .csv or .json that `certify` made: every shard's certificates, one after the other.

    Args:
        images: how many voted.
        asked: makes the manifest that a .csv lacks, of its defenders and patches.
    """

    def __init__(
        self, path: Location, images: int, asked: Callable[[list[str], list[str]], Manifest]
    ) -> None:
        self._path = path
        self._accuracy: list[Row] | None = None
        self._all: Sequence[Row]
        if path.suffix == ".csv":
            self._all = rows = _Rows(_csv(path))
            self.manifest = asked(*_asked_for(rows, images))
        elif path.suffix == ".parquet":
            self._all, self.manifest = _Rows(read_table(path)), _said(path)
        else:
            content = json.loads(path.read_text(encoding="utf-8"))
            self._all, self.manifest = content["certificates"], content["manifest"]
            self._accuracy = content["accuracy"]

    def noted(self, console: Console) -> list[str]:
        console.print(f"Digests: {self._path} has none, it is a file for other programs")
        expected = len(self.manifest["defenders"]) * len(self.manifest["patches"])
        expected *= int(self.manifest["votes"]["images"])
        if len(self._all) != expected:
            return [f"{self._path} holds {len(self._all)} certificates, not {expected}"]
        return []

    def rows(self, shard: int, first: int, count: int) -> Sequence[Row]:
        return self._all[first : first + count]

    def name(self, number: int) -> str:
        return f"row {number + 1}: "

    def summed_up(self) -> list[str]:
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
                case = (metric, row["defender"], row["patch"])
                hits = sum(n for key, n in counts.items() if key[:3] == case and key[3] <= row["k"])
                # More rows than images are of another case in truth; they are wrong, whatever they sum up to.
                low, high = wilson(min(hits, images), images)
                expected |= {metric: hits / images, f"{metric}_low": low, f"{metric}_high": high}
            problems += [
                f"accuracy of {row['defender']}, {row['patch']}, top {row['k']}: {key} is {row[key]!r}; that "
                f"of the rows is {value!r}"
                for key, value in expected.items()
                if row[key] != value
            ]
        return problems


class _Rows(Sequence[Row]):
    """Of a table; only those that are looked at become Python's."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def column(self, name: str) -> list[Any]:
        return list(self._table.column(name).to_pylist())

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return _Rows(self._table.slice(place.start, place.stop - place.start))
        return self._table.slice(place, 1).to_pylist()[0]


def is_file(path: Location) -> bool:
    return path.suffix in EXPORTS and path.is_file()


def followed(folder: Location, kind: str, *versions: int) -> Chain:
    """The digests of a folder of this kind."""
    if not (folder / "manifest.json").is_file():
        raise StoreError(f"{folder} holds no manifest.json: expected a folder of {kind}")
    chain = verify_digests(folder)
    if chain.manifest.get("format") != f"costcert {kind}" and not chain.problems:
        raise StoreError(f"{folder} is no folder of {kind}: its format is {chain.manifest.get('format')!r}")
    if chain.manifest.get("version") not in versions:
        raise StoreError(
            f"{folder} has format version {chain.manifest.get('version')!r}, this costcert checks "
            f"{' and '.join(map(str, versions))}: make it again with this version"
        )
    return chain


def digests(console: Console, folder: Location, chain: Chain) -> list[str]:
    """Say whether a folder is as its digests say; what is not."""
    if not chain.sealed:
        console.print(f"Digests: {folder} has none; it was made by an older version, or is not finished")
    elif not chain.problems:
        console.print(f"Digests: {folder} is as it was written, {num_shards(chain.manifest):,} shards")
    return [f"{folder}: {problem}" for problem in chain.problems]


def _said(path: Location) -> Manifest:
    """What a Parquet file says about itself."""
    with path.open("rb") as file:
        metadata = (pq.read_schema(file).metadata or {}).get(b"costcert")
    if metadata is None:
        raise StoreError(f"{path} does not say how it was certified: costcert certify did not make it")
    manifest: Manifest = json.loads(metadata)
    return manifest


def _csv(path: Location) -> Any:
    with path.open("rb") as file:
        return pc.read_csv(
            file,
            parse_options=pc.ParseOptions(newlines_in_values=True),
            convert_options=pc.ConvertOptions(column_types=_COLUMNS, include_columns=list(_COLUMNS)),
        )


def _asked_for(rows: _Rows, images: int) -> tuple[list[str], list[str]]:
    """Defenders and patches of a file, in their order; a few changed cells do not change the question."""
    found = []
    for name in ("defender", "patch"):
        places: dict[str, list[int]] = {}
        for place, value in enumerate(rows.column(name)):
            places.setdefault(value, []).append(place)
        often = {value: fmean(at) for value, at in places.items() if 2 * len(at) > images}
        found.append(sorted(often, key=often.__getitem__))
    return found[0], found[1]
