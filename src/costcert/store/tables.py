"""A table in one file, `.parquet`, `.csv` or `.json`, with what is recorded beside its rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from costcert.errors import StoreError
from costcert.store.locations import Location

# Names of the list of rows in a .json.
ROWS = ("votes", "certificates")
# The key of the metadata of a .parquet.
METADATA = "costcert"

# A small Parquet file can stand for any number of values; these are 4 GiB of 64-bit integers.
MOST_VALUES = 1 << 29

_CSV_TYPES = {
    "image_id": pa.string(),
    "defender": pa.string(),
    "patch": pa.string(),
    "rank": pa.int64(),
    "min_k": pa.int64(),
}
# A row must fit into a block: one of 50,000 ballots does.
_CSV_BLOCK = 1 << 24

_ERRORS = (
    pa.ArrowException,
    ValueError,
    TypeError,
    AttributeError,
    KeyError,
    OSError,
    OverflowError,
    RecursionError,
    MemoryError,
)


class Table(NamedTuple):
    """The rows of a file, and what it records beside them.

    Args:
        rows: an Arrow table.
        more: the metadata of a .parquet, the other entries of a .json; empty where there is nothing.
    """

    rows: Any
    more: dict[str, Any]


def read_rows(file: IO[bytes], path: Location) -> Table:
    """The table in an open file; errors name `path`, and its suffix tells the format."""
    try:
        table = _READERS[path.suffix](file)
        names = table.rows.column_names
        if len(set(names)) < len(names):
            raise StoreError(f"{path} has two columns of the same name")
        return table
    except _ERRORS as error:
        raise StoreError(
            f"{path} cannot be read as {path.suffix}: it is damaged, cut short, of another format, or too "
            "large"
        ) from error


def _parquet(file: IO[bytes]) -> Table:
    with pq.ParquetFile(file) as opened:
        groups = [opened.metadata.row_group(number) for number in range(opened.metadata.num_row_groups)]
        values = sum(group.column(each).num_values for group in groups for each in range(group.num_columns))
        if values > MOST_VALUES:
            raise ValueError(f"{values} values")
        metadata = (opened.metadata.metadata or {}).get(METADATA.encode())
        more = {} if metadata is None else json.loads(metadata)
        if not isinstance(more, dict):
            raise ValueError("its metadata is not an object")
        return Table(opened.read(), more)


def _csv(file: IO[bytes]) -> Table:
    rows = pyarrow.csv.read_csv(
        file,
        read_options=pyarrow.csv.ReadOptions(block_size=_CSV_BLOCK),
        parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
        convert_options=pyarrow.csv.ConvertOptions(column_types=_CSV_TYPES),
    )
    return Table(rows, {})


def _json(file: IO[bytes]) -> Table:
    content = json.loads(file.read().decode("utf-8"))
    return as_table(content)


def as_table(content: Any) -> Table:
    """The rows in the content of a .json: a list of objects, or one under `votes` or `certificates`."""
    content = {"votes": content} if isinstance(content, list) else content
    (name,) = (name for name in ROWS if name in content)
    rows = content[name]
    # Arrow takes the columns from the first row, and would not see others.
    if any(row.keys() != rows[0].keys() for row in rows):
        raise ValueError("its rows have different columns")
    return Table(pa.Table.from_pylist(rows), {key: content[key] for key in content if key != name})


_READERS: dict[str, Callable[[IO[bytes]], Table]] = {".parquet": _parquet, ".csv": _csv, ".json": _json}
# Suffixes of such files.
SUFFIXES = tuple(_READERS)


def array_column(rows: Any, name: str, path: Location) -> npt.NDArray[Any]:
    """A column as an array; lists of equal lengths, also nested ones, become further axes."""
    values, shape = rows.column(name).combine_chunks(), [rows.num_rows]
    try:
        while _is_list(values.type) and not values.null_count:
            lengths = pc.unique(pc.list_value_length(values)).to_pylist()
            if len(lengths) > 1:
                raise StoreError(f"{path}: lists in its column {name!r} have different lengths")
            shape.append(lengths[0] if lengths else 0)
            values = values.flatten()
        if values.null_count:
            raise StoreError(f"{path} has missing values in its column {name!r}: fill them in")
        return np.asarray(values.to_numpy(zero_copy_only=False)).reshape(shape)
    except _ERRORS as error:
        raise StoreError(f"{path}: its column {name!r} cannot be read as numbers or text") from error


def _is_list(kind: Any) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
