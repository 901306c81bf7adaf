"""Certificates in one file, also for other programs: Parquet, CSV or JSON, by the file name's suffix.

The manifest is that of a folder, sealed in the same way: its digests cover the rows and the manifest itself.
A `.parquet` holds it in its metadata, a `.json` next to its rows. A `.csv` has no place for it that other
programs would skip, so it is a second file: `certs.csv.manifest.json`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from costcert.certification.certificates import Certificates
from costcert.errors import StoreError
from costcert.store.certificates import VERSION, CertificatesSource, certificates_table
from costcert.store.files import atomic_write, manifest_text, read_json, sealed_content, unsealed
from costcert.store.locations import Location, fetched, locate
from costcert.store.tables import METADATA, read_rows

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("image_id", "defender", "patch", "rank", "min_k")
# The name of the rows among the digests.
ROWS = "rows"


class RowsDigest:
    """The SHA-256 of rows, the same for every format.

    Each column is hashed as lines of JSON, one value per line; the result is the hash of these hashes.
    """

    def __init__(self) -> None:
        self._columns = [hashlib.sha256() for _ in COLUMNS]

    def add(self, rows: Any) -> RowsDigest:
        for name, digest in zip(COLUMNS, self._columns, strict=True):
            # One call for all values; JSON escapes line breaks within them.
            lines = json.dumps(rows.column(name).to_pylist(), separators=("\n", ""))[1:-1]
            digest.update(lines.encode() + b"\n")
        return self

    def hexdigest(self) -> str:
        return hashlib.sha256(b"".join(each.digest() for each in self._columns)).hexdigest()


def manifest_beside(path: Location) -> Location:
    """The file that holds the manifest of a .csv."""
    return path.with_name(f"{path.name}.manifest.json")


def stored_manifest(path: Location, more: Mapping[str, Any]) -> tuple[Any, Location]:
    """The manifest of a file of certificates and the file that holds it.

    Args:
        more: what the file records beside its rows.
    """
    where = manifest_beside(path) if path.suffix == ".csv" else path
    if path.suffix == ".csv":
        if not where.is_file():
            raise StoreError(
                f"{where} is not there, which certify writes next to {path} to say what was certified: keep "
                "both files together, or certify again"
            )
        return read_json(where), where
    content = more.get("manifest") if path.suffix == ".json" else more
    if not content:
        raise StoreError(f"{path} does not record how it was certified: costcert certify did not write it")
    return content, where


class CertificatesFile(CertificatesSource):
    """The certificates of a file that `certify` or `write_certificates` wrote, in memory."""

    def __init__(self, path: str | Location) -> None:
        path = locate(path)
        if not path.is_file():
            raise StoreError(f"{path} is not there: expected certificates")
        with fetched(path) as copy, copy.open("rb") as file:
            table = read_rows(file, path)
        content, where = stored_manifest(path, table.more)
        sealed = unsealed(content, where, path, "certificates", VERSION)
        if any(name not in table.rows.column_names for name in COLUMNS):
            raise StoreError(f"{path} does not hold certificates: they have columns {', '.join(COLUMNS)}")
        if not isinstance(sealed.shards, dict):
            raise StoreError(
                f"{path} does not record the digest of its rows, as files of older versions: certify again"
            )
        if sealed.shards.get(ROWS) != RowsDigest().add(table.rows).hexdigest():
            raise StoreError(f"{path} is not the file that was sealed: it was changed since; make it again")
        super().__init__(path, sealed.content, str(where))
        self._rows = table.rows.select(list(COLUMNS))
        expected = sum(map(len, self._ranges)) * len(self.keys)
        if self._rows.num_rows != expected:
            raise StoreError(
                f"{path} holds {self._rows.num_rows} certificates, expected {expected}: make it again"
            )

    def shard(self, number: int) -> Certificates:
        images = self._ranges[number]
        first, count = images.start * len(self.keys), len(images) * len(self.keys)
        return self._certificates(self._rows.slice(first, count), number, self.path)


class Export:
    """A file that is written shard by shard and renamed to its path once it is complete."""

    def __init__(self, path: Location, manifest: Mapping[str, Any]) -> None:
        self._path = path
        self._manifest = manifest
        self._digest = RowsDigest()
        self._stack = ExitStack()
        self._writer: _Writer | None = None

    def __enter__(self) -> Export:
        self._beside = (
            self._stack.enter_context(atomic_write(manifest_beside(self._path)))
            if self._path.suffix == ".csv"
            else None
        )
        # The last one entered is the one that an error names.
        self._temporary = self._stack.enter_context(atomic_write(self._path))
        return self

    def __exit__(self, *failure: Any) -> None:
        if self._writer is not None:
            self._writer.close()
        self._stack.__exit__(*failure)

    def add(self, certificates: Certificates) -> None:
        table = certificates_table(certificates)
        if self._writer is None:
            self._writer = EXPORTS[self._path.suffix](self._temporary, table.schema)
        self._writer.write(table)
        self._digest.add(table)

    def finish(self, accuracy: pd.DataFrame) -> None:
        if self._writer is None:
            return
        sealed = sealed_content(self._manifest, {ROWS: self._digest.hexdigest()})
        self._writer.finish(sealed, accuracy)
        if self._beside is not None:
            self._beside.write_text(manifest_text(sealed), encoding="utf-8")


class _Writer:
    """Writes tables to a file of one format."""

    def __init__(self, path: Path, schema: Any) -> None:
        raise NotImplementedError

    def write(self, table: Any) -> None:
        raise NotImplementedError

    def finish(self, manifest: Mapping[str, Any], accuracy: pd.DataFrame) -> None:
        pass

    def close(self) -> None:
        raise NotImplementedError


class _Parquet(_Writer):
    def __init__(self, path: Path, schema: Any) -> None:
        self._file = pq.ParquetWriter(path, schema, compression="zstd")

    def write(self, table: Any) -> None:
        self._file.write_table(table)

    def finish(self, manifest: Mapping[str, Any], accuracy: pd.DataFrame) -> None:
        self._file.add_key_value_metadata({METADATA: json.dumps(manifest)})

    def close(self) -> None:
        self._file.close()


class _Csv(_Writer):
    def __init__(self, path: Path, schema: Any) -> None:
        self._file = pc.CSVWriter(pa.OSFile(str(path), "wb"), schema)

    def write(self, table: Any) -> None:
        self._file.write_table(table)

    def close(self) -> None:
        self._file.close()


class _Json(_Writer):
    """One object: the certificates (one object per row), the manifest and the accuracies."""

    def __init__(self, path: Path, schema: Any) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._file.write('{"certificates": [')
        self._separator = "\n"

    def write(self, table: Any) -> None:
        for row in table.to_pylist():
            self._file.write(self._separator + json.dumps(row, ensure_ascii=False))
            self._separator = ",\n"

    def finish(self, manifest: Mapping[str, Any], accuracy: pd.DataFrame) -> None:
        rows = json.dumps(accuracy.to_dict(orient="records"), ensure_ascii=False)
        described = json.dumps(manifest, ensure_ascii=False)
        self._file.write(f'\n],\n"manifest": {described},\n"accuracy": {rows}}}\n')

    def close(self) -> None:
        self._file.close()


EXPORTS: dict[str, Callable[[Path, Any], _Writer]] = {
    ".parquet": _Parquet,
    ".csv": _Csv,
    ".json": _Json,
}
