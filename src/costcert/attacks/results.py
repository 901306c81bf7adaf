"""Results of an attack per image: Parquet shards and a manifest, and a summary of all images."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from costcert.errors import StoreError
from costcert.store.locations import Location
from costcert.store.parquet import list_column, lists, plain_column, read_table, shard_path, write_table

VERSION = 3
SUMMARY, UNIVERSAL = "summary.json", "universal.npz"

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class AttackResults:
    """One row per image. Positions are those of the true label, counted from 1.

    Args:
        rank: the position on the clean image.
        min_k: the worst position that the certificate allows.
        random: the worst position under patches of random pixels.
        universal: the same under the universal patch; the rank if there is none.
        attacked: the worst position under any patch that was tried, that of `patched`.
        places: [N, 2 n], top and left of each patch in `patched`; -1 where an image was not attacked.
        touched: the number of mutants that this patch touches.
        won: the share of their ballots (soft ballots: of their units) that went to the k best placed rivals.
        patched: [N, H * W * C], the attacked images; originals if the patch is on the original.
    """

    image_id: npt.NDArray[np.str_]
    truth: Counts
    rank: Counts
    min_k: Counts
    random: Counts
    universal: Counts
    attacked: Counts
    places: Counts
    touched: Counts
    won: npt.NDArray[np.float64]
    patched: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.rank)

    @classmethod
    def joined(cls, parts: list[AttackResults]) -> AttackResults:
        names = [field.name for field in fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    def write(self, folder: Location, number: int) -> None:
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        table = {name: lists(v) if v.ndim == 2 else pa.array(v.tolist()) for name, v in columns.items()}
        write_table(pa.table(table), shard_path(folder, number))

    @classmethod
    def read(cls, folder: Location, number: int, rows: int, *, pixels: bool = True) -> AttackResults:
        """Read a shard; `pixels=False` skips the patched images, which are most of its bytes."""
        path = shard_path(folder, number)
        names = [field.name for field in fields(cls) if pixels or field.name != "patched"]
        table = read_table(path, names)
        if table.num_rows != rows:
            raise StoreError(f"{path} holds {table.num_rows} images, expected {rows}: make it again")
        columns = {
            name: (list_column if name in ("places", "patched") else plain_column)(table, name, path)
            for name in names
        }
        return cls(**{"patched": np.zeros((rows, 0), np.uint8), **columns})

    def summary(self, k: int) -> dict[str, Any]:
        """Clean, attacked and certified accuracy, and how close the attack comes to the bound."""
        count = len(self)
        right, certified, held = self.rank <= k, self.min_k <= k, self.attacked <= k
        # Images that are predicted right but not certified: only there can an attack succeed.
        open_ones = right & ~certified
        liftable, lifted = (np.minimum(each[open_ones] - 1, k).sum() for each in (self.min_k, self.attacked))
        return {
            "images": count,
            "k": k,
            "clean": float(right.mean()),
            "under_random_patches": float((self.random <= k).mean()),
            "under_universal_patch": float((self.universal <= k).mean()),
            "under_attack": float(held.mean()),
            "certified": float(certified.mean()),
            "gap": float((held & ~certified).mean()),
            "right": int(right.sum()),
            "certified_images": int(certified.sum()),
            "certified_and_broken": int((certified & ~held).sum()),
            "open_images": int(open_ones.sum()),
            "broken": int((right & ~held).sum()),
            "rivals_lifted": int(lifted),
            "rivals_liftable": int(liftable),
            "ballots_won": float(self.won[open_ones].mean()) if open_ones.any() else None,
        }
