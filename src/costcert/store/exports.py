"""Certificates exported to one file for other programs: Parquet, CSV or JSON, by the file name's suffix."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from costcert.certification.certificates import Certificates
from costcert.store.certificates import certificates_table
from costcert.store.files import atomic_write
from costcert.store.locations import Location

if TYPE_CHECKING:
    import pandas as pd


class Export:
    """A file that is written shard by shard and renamed to its path once it is complete."""

    def __init__(self, path: Location, manifest: Mapping[str, Any]) -> None:
        self._path = path
        self._manifest = manifest
        self._stack = ExitStack()
        self._writer: _Writer | None = None

    def __enter__(self) -> Export:
        self._temporary = self._stack.enter_context(atomic_write(self._path))
        return self

    def __exit__(self, *failure: Any) -> None:
        if self._writer is not None:
            self._writer.close()
        self._stack.__exit__(*failure)

    def add(self, certificates: Certificates) -> None:
        table = certificates_table(certificates)
        if self._writer is None:
            self._writer = EXPORTS[self._path.suffix](self._temporary, table.schema, self._manifest)
        self._writer.write(table)

    def finish(self, accuracy: pd.DataFrame) -> None:
        if self._writer is not None:
            self._writer.finish(accuracy)


class _Writer:
    """Writes tables to a file of one format."""

    def __init__(self, path: Path, schema: Any, manifest: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def write(self, table: Any) -> None:
        raise NotImplementedError

    def finish(self, accuracy: pd.DataFrame) -> None:
        pass

    def close(self) -> None:
        raise NotImplementedError


class _Parquet(_Writer):
    def __init__(self, path: Path, schema: Any, manifest: Mapping[str, Any]) -> None:
        metadata = {"costcert": json.dumps(manifest)}
        self._file = pq.ParquetWriter(path, schema.with_metadata(metadata), compression="zstd")

    def write(self, table: Any) -> None:
        self._file.write_table(table.replace_schema_metadata(self._file.schema.metadata))

    def close(self) -> None:
        self._file.close()


class _Csv(_Writer):
    def __init__(self, path: Path, schema: Any, manifest: Mapping[str, Any]) -> None:
        self._file = pc.CSVWriter(pa.OSFile(str(path), "wb"), schema)

    def write(self, table: Any) -> None:
        self._file.write_table(table)

    def close(self) -> None:
        self._file.close()


class _Json(_Writer):
    """One object: the manifest, the certificates (one object per row) and the accuracies."""

    def __init__(self, path: Path, schema: Any, manifest: Mapping[str, Any]) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._file.write(f'{{"manifest": {json.dumps(manifest, ensure_ascii=False)},\n"certificates": [')
        self._separator = "\n"

    def write(self, table: Any) -> None:
        for row in table.to_pylist():
            self._file.write(self._separator + json.dumps(row, ensure_ascii=False))
            self._separator = ",\n"

    def finish(self, accuracy: pd.DataFrame) -> None:
        rows = json.dumps(accuracy.to_dict(orient="records"), ensure_ascii=False)
        self._file.write(f'\n],\n"accuracy": {rows}}}\n')

    def close(self) -> None:
        self._file.close()


EXPORTS: dict[str, Callable[[Path, Any, Mapping[str, Any]], _Writer]] = {
    ".parquet": _Parquet,
    ".csv": _Csv,
    ".json": _Json,
}
