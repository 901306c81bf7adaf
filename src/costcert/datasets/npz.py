"""`npz:FILE`: arrays `images` and `labels`, and optionally `ids` and `class_names`."""

from __future__ import annotations

from costcert.datasets.arrays import ArrayDataset
from costcert.datasets.base import Dataset
from costcert.errors import CostcertError
from costcert.store.locations import locate
from costcert.store.parquet import read_npz


def npz(path: str, split: str) -> Dataset:
    """All images of the file, which has no splits."""
    del split
    file = locate(path)
    if not file.is_file():
        raise CostcertError(f"{path} is not there: expected an .npz file with arrays `images` and `labels`")
    arrays = read_npz(file)
    for name in ("images", "labels"):
        if name not in arrays:
            raise CostcertError(
                f"{path} holds no array {name!r}, only {', '.join(sorted(arrays)) or 'nothing'}: expected "
                "`images` [images, height, width, channels] and `labels` [images]"
            )
    return ArrayDataset(
        f"npz:{file.name}",
        arrays["images"],
        arrays["labels"],
        ids=arrays.get("ids"),
        class_names=arrays["class_names"].tolist() if "class_names" in arrays else None,
    )
