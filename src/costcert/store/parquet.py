"""Parquet shards and numpy archives, validated while they are read. No pickle is ever opened."""

from __future__ import annotations

import hashlib
import struct
import zipfile
import zlib
from collections.abc import Collection, Mapping
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from costcert.errors import StoreError
from costcert.store.files import atomic_write
from costcert.store.locations import Location, fetched

# A small archive can unpack to any size; no table of votes has this many bytes.
MOST_BYTES = 1 << 33

# numpy and zipfile also raise a RuntimeError, for an unknown compression or a password.
_NPZ_ERRORS = (
    ValueError,
    OSError,
    EOFError,
    KeyError,
    RuntimeError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
)


def shard_path(folder: Location, number: int) -> Location:
    """The path of a shard. Manifests do not name shards, so none can point outside its folder."""
    return folder / f"shard-{number:05d}.parquet"


def missing_shards(folder: Location, count: int) -> list[int]:
    """Numbers of the shards that are not written yet, from one listing of the folder."""
    present = {path.name for path in folder.iterdir()}
    return [number for number in range(count) if shard_path(folder, number).name not in present]


def shard_ranges(images: int, size: int) -> list[range]:
    """The images of each shard."""
    return [range(start, min(start + size, images)) for start in range(0, images, size)]


def lists(values: npt.NDArray[Any]) -> Any:
    """An Arrow column of fixed-size lists, one per row of a two-dimensional array."""
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def write_table(table: Any, path: Location) -> None:
    with atomic_write(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_table(path: Location, columns: list[str] | None = None, *, digest: str | None = None) -> Any:
    """The table in a file; with a digest, a file with another SHA-256 is refused."""
    try:
        # Read once, so that what is hashed is what is parsed; a shard fits into memory.
        content = path.read_bytes()
        if digest is not None and hashlib.sha256(content).hexdigest() != digest:
            raise StoreError(f"{path} is not the file that was sealed: it was changed since; make it again")
        with pq.ParquetFile(pa.BufferReader(content)) as file:
            return file.read(columns)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _not_parquet(path) from error


def refuse_other(table: Any, path: Location) -> None:
    """Raise if a finished shard differs in any cell from the table that would have been written."""
    if not read_table(path).equals(table):
        raise StoreError(
            f"{path} differs from what is to be written: choose another folder, or pass overwrite=True"
        )


def has_column(path: Location, name: str) -> bool:
    """Whether the table has this column; only the file's footer is read."""
    try:
        with path.open("rb") as file:
            return name in pq.read_schema(file).names
    except (pa.ArrowException, OSError, ValueError) as error:
        raise _not_parquet(path) from error


def _not_parquet(path: Location) -> StoreError:
    return StoreError(f"{path} cannot be read as Parquet: it is damaged, cut short or of another format")


def _column(table: Any, name: str, path: Location) -> Any:
    if name not in table.column_names:
        raise StoreError(f"{path} has no column {name!r}, so it is not a shard of this folder")
    column = table.column(name).combine_chunks()
    if column.null_count:
        raise StoreError(f"{path} has missing values in its column {name!r}: make it again")
    return column


def plain_column(table: Any, name: str, path: Location) -> npt.NDArray[Any]:
    return np.asarray(_column(table, name, path).to_numpy(zero_copy_only=False))


def list_column(table: Any, name: str, path: Location) -> npt.NDArray[Any]:
    column = _column(table, name, path)
    if not pa.types.is_fixed_size_list(column.type):
        raise StoreError(f"{path}: its column {name!r} does not hold one list of equal length per image")
    values = column.flatten()
    if values.null_count:
        raise StoreError(f"{path} has missing values in its column {name!r}: make it again")
    return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(table.num_rows, -1)


def read_npz(path: Location) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an .npz file."""
    if not path.is_file():
        raise StoreError(f"{path} is not there: expected an .npz file")
    with fetched(path) as copy, copy.open("rb") as file:
        return npz_arrays(file, path)


def npz_arrays(
    file: IO[bytes], path: Location, names: Collection[str] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an open .npz file, or the few with these names; errors name `path`."""
    try:
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise StoreError(f"{path} is not an .npz archive: save it with numpy.savez")
        wanted = [name for name in archive.files if names is None or name in names]
        if names is not None and archive.zip is not None:
            sizes = {entry.filename.removesuffix(".npy"): entry.file_size for entry in archive.zip.infolist()}
            if sum(sizes[name] for name in wanted) > MOST_BYTES:
                raise ValueError("too large")
        return {name: archive[name] for name in wanted}
    except _NPZ_ERRORS as error:
        raise StoreError(
            f"{path} cannot be read as .npz: it is damaged, cut short, of another format or holds Python "
            "objects"
        ) from error


def positive(content: Mapping[str, Any], key: str, where: str) -> int:
    """A positive integer of a manifest."""
    value = content.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 40:
        raise StoreError(f"{where} is damaged: {key} should be a positive integer, got {value!r}")
    return value
