"""Parquet shards and numpy archives, checked while they are read. No pickle is ever opened."""

from __future__ import annotations

import hashlib
import struct
import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from costcert.errors import StoreError
from costcert.store.files import atomic_write
from costcert.store.locations import Location, fetched

# An unknown compression or a password is a RuntimeError.
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error)


def shard_path(folder: Location, number: int) -> Location:
    """Shards are numbered, never named by a manifest, so no manifest can point outside its folder."""
    return folder / f"shard-{number:05d}.parquet"


def missing_shards(folder: Location, count: int) -> list[int]:
    """Numbers of the shards that are not there yet, by one look at the folder."""
    there = {path.name for path in folder.iterdir()}
    return [number for number in range(count) if shard_path(folder, number).name not in there]


def shard_ranges(images: int, size: int) -> list[range]:
    return [range(start, min(start + size, images)) for start in range(0, images, size)]


def lists(values: npt.NDArray[Any]) -> Any:
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def write_table(table: Any, path: Location) -> None:
    with atomic_write(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_table(path: Location, columns: list[str] | None = None, *, digest: str | None = None) -> Any:
    """The table in a file; with a digest only if its bytes have that SHA-256."""
    try:
        # A shard fits into memory. What is hashed and what is read are the same bytes.
        content = path.read_bytes()
        if digest is not None and hashlib.sha256(content).hexdigest() != digest:
            raise StoreError(f"{path} is not the file that was sealed: it was changed since; make it again")
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            return file.read(columns)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StoreError(f"{path} is no readable Parquet file: damaged, cut short or foreign") from error


def refuse_other(table: Any, path: Location) -> None:
    """Nothing is dropped in silence: what stands there already must be the same, to the last cell."""
    if not read_table(path).equals(table):
        raise StoreError(
            f"{path} holds something else than what is to be written: choose another folder, or pass "
            "overwrite=True"
        )


def has_column(path: Location, name: str) -> bool:
    """Whether the table has such a column; only its footer is read."""
    try:
        with path.open("rb") as file:
            return name in pq.read_schema(file).names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise StoreError(f"{path} is no readable Parquet file: damaged, cut short or foreign") from error


def _column(table: Any, name: str, path: Location) -> Any:
    if name not in table.column_names:
        raise StoreError(f"{path} has no column {name!r}, so it is no shard of this folder")
    column = table.column(name).combine_chunks()
    if column.null_count:
        raise StoreError(f"{path} has empty places in its column {name!r}: make it again")
    return column


def plain_column(table: Any, name: str, path: Location) -> npt.NDArray[Any]:
    return np.asarray(_column(table, name, path).to_numpy(zero_copy_only=False))


def list_column(table: Any, name: str, path: Location) -> npt.NDArray[Any]:
    column = _column(table, name, path)
    if not pa.types.is_fixed_size_list(column.type):
        raise StoreError(f"{path}: its column {name!r} does not hold one list of equal length per image")
    values = column.flatten()
    if values.null_count:
        raise StoreError(f"{path} has empty places in its column {name!r}: make it again")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(table.num_rows, -1)


def read_npz(path: Location) -> dict[str, npt.NDArray[Any]]:
    if not path.is_file():
        raise StoreError(f"{path} is not there: expected a folder of votes or an .npz file")
    try:
        with fetched(path) as copy, copy.open("rb") as file:
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise StoreError(f"{path} is no .npz archive: save it with numpy.savez")
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, KeyError, RuntimeError, MemoryError, *_ZIP_ERRORS) as error:
        raise StoreError(
            f"{path} cannot be read as .npz: damaged, cut short, foreign, or holding Python objects"
        ) from error


def positive(content: Mapping[str, Any], key: str, where: str) -> int:
    value = content.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 40:
        raise StoreError(f"{where} is damaged: {key} should be a positive whole number, got {value!r}")
    return value
