"""Names that a folder must not get, because they end as the name of a file does."""

from __future__ import annotations

from collections.abc import Sequence

from costcert.errors import CostcertError
from costcert.store.locations import Location

# Other names with a dot are names of folders: run.v2.
_FILES = (
    *(".csv", ".json", ".parquet", ".npz", ".npy", ".xlsx", ".xls", ".ods", ".tsv", ".txt", ".md", ".html"),
    *(".tex", ".pdf", ".xml", ".yaml", ".yml", ".pkl", ".h5", ".hdf5", ".feather", ".arrow", ".orc"),
    *(".jsonl", ".ndjson", ".db", ".sqlite", ".zip", ".gz", ".zst", ".tar", ".pt", ".pth", ".onnx"),
    ".safetensors",
)


def refuse_file_name(path: Location, what: str, files: Sequence[str] = ()) -> None:
    """Raise if `path` would become a folder although it is named as a file.

    Args:
        what: is written there.
        files: endings of the files that `what` can also be written to.
    """
    if path.suffix.lower() not in _FILES or path.is_dir():
        return
    listed = " or ".join(filter(None, (", ".join(files[:-1]), *files[-1:])))
    a_file = f"a file that ends in {listed}, or to " if files else ""
    raise CostcertError(f"{path} ends in {path.suffix}: {what} written to {a_file}a folder")
