"""Votes on disk: Parquet shards and a manifest, read one shard at a time.

A shard is written to a temporary file and renamed, or uploaded in one request, so a shard that exists is
complete; a second run writes only the missing ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from costcert.errors import CostcertError, StoreError
from costcert.geometry.ablations import Ablation
from costcert.geometry.sizes import ImageSize, as_image_size, positive_int, shown
from costcert.store.digests import Shards, seal
from costcert.store.files import MANIFEST, clear, join_manifest, read_sealed, sweep
from costcert.store.locations import Location, locate
from costcert.store.parquet import (
    has_column,
    list_column,
    lists,
    missing_shards,
    plain_column,
    positive,
    refuse_other,
    shard_path,
    shard_ranges,
    write_table,
)
from costcert.votes.defence import Defence
from costcert.votes.originals import SameSize, sizes_of_originals
from costcert.votes.table import Votes

VERSION = 2
# The format of 0.1.0, which can still be read.
FIRST_VERSION = 1

# Columns with the height and width of each picture before it was resized.
ORIGINALS = ("original_height", "original_width")

# Ballots per shard: some tens of megabytes in memory.
_BALLOTS_PER_SHARD = 1 << 21


class VotesSource(Protocol):
    """Votes that are read a shard at a time."""

    path: Location
    num_images: int
    num_shards: int
    num_classes: int
    num_mutants: int
    ablation: Ablation
    image_size: ImageSize
    manifest: Mapping[str, Any]
    classifier: Defence

    @property
    def provenance(self) -> Mapping[str, Any]: ...

    def shard(self, number: int) -> Votes: ...

    def shard_length(self, number: int) -> int: ...

    def digest(self) -> str: ...

    def unread(self) -> list[str]: ...

    def sizes_of_originals(self) -> Mapping[ImageSize, SameSize]: ...


def default_shard_size(num_mutants: int) -> int:
    """Images per shard."""
    return max(1, min(8192, _BALLOTS_PER_SHARD // num_mutants))


def votes_manifest(votes: Votes, *, images: int, shard_size: int) -> dict[str, Any]:
    """The manifest of a folder of such votes."""
    return {
        "format": "costcert votes",
        "version": VERSION,
        "images": images,
        "shard_size": shard_size,
        "classifier": votes.classifier.to_json(),
        "image_size": list(votes.image_size),
        "num_classes": votes.num_classes,
        "class_names": None if votes.class_names is None else list(votes.class_names),
        "made": dict(votes.provenance),
    }


def classifier_of(manifest: Mapping[str, Any], where: str) -> Defence:
    """The classifier that cast the votes with this manifest."""
    if manifest.get("version") != FIRST_VERSION:
        return Defence.from_json(manifest.get("classifier"), where)
    provenance, soft = manifest.get("made") or {}, manifest.get("soft")
    if soft is not None:
        temperature = (provenance.get("soft") or {}).get("temperature")
        soft = {"temperature": temperature, "best": soft["labels"], "cap": soft["cap"]}
    hide = (provenance.get("model") or {}).get("hide")
    old = {"ablation": manifest.get("ablation"), "hide": hide, "soft": soft}
    return Defence.from_json({**old, "defender": None, "mask": None, "ties": "against"}, where)


def write_votes_folder(
    votes: Votes, folder: Location, *, shard_size: int | None = None, overwrite: bool = False
) -> None:
    """Write votes to a folder or a URL; a folder that holds a part of the same votes is completed.

    Args:
        overwrite: remove other votes in the folder; by default they are refused.
    """
    size = default_shard_size(votes.num_mutants)
    if shard_size is not None:
        size = positive_int(shard_size, "the shard size")
    if overwrite:
        clear(folder, "votes")
    join_manifest(folder, votes_manifest(votes, images=len(votes), shard_size=size), "votes", VERSION)
    sweep(folder)
    ranges = shard_ranges(len(votes), size)
    missing = missing_shards(folder, len(ranges))
    for number, images in enumerate(ranges):
        table = votes_table(votes.take(slice(images.start, images.stop)))
        if number in missing:
            write_table(table, shard_path(folder, number))
        else:
            refuse_other(table, shard_path(folder, number))
    seal(folder, len(ranges), missing)


def write_votes_shard(votes: Votes, folder: Location, number: int) -> None:
    write_table(votes_table(votes), shard_path(folder, number))


def votes_table(votes: Votes) -> Any:
    """Table 1: image_id, truth, ballots, and the optional columns that these votes have."""
    label_type = np.uint16 if votes.num_classes <= 1 << 16 else np.uint32
    columns: dict[str, Any] = {
        "image_id": pa.array(votes.image_ids.tolist(), pa.string()),
        "truth": pa.array(votes.truth.astype(label_type)),
        "ballots": lists(votes.ballots.astype(label_type)),
    }
    if votes.unread is not None:
        columns["unread"] = pa.array(votes.unread)
    if votes.originals is not None:
        for name, side in zip(ORIGINALS, votes.originals.T, strict=True):
            columns[name] = pa.array(side.astype(np.uint32))
    if votes.known is not None:
        columns["known"] = lists(votes.known.astype(np.uint8))
    for name, distances in (("margins", votes.margins), ("cuts", votes.cuts)):
        if distances is not None:
            columns[name] = lists(distances)
    if votes.labels is not None and votes.units is not None:
        columns["soft_labels"] = lists(votes.labels.astype(label_type).reshape(len(votes), -1))
        columns["soft_units"] = lists(votes.units.astype(np.uint32).reshape(len(votes), -1))
    return pa.table(columns)


def _originals(table: Any, path: Location) -> Any:
    """[rows, 2], the sizes of the originals; None in votes that do not record them."""
    if not set(ORIGINALS) & set(table.column_names):
        return None
    return np.stack([plain_column(table, name, path) for name in ORIGINALS], axis=1)


class VotesFolder:
    """A folder of votes, read a shard at a time; a sealed shard is verified when read."""

    def __init__(self, folder: str | Location) -> None:
        self.folder = self.path = locate(folder)
        sealed = read_sealed(self.folder, "votes", FIRST_VERSION, VERSION)
        manifest = sealed.content
        self.manifest: Mapping[str, Any] = manifest
        where = str(self.folder / MANIFEST)
        self.num_images = positive(manifest, "images", where)
        self._shard_size = positive(manifest, "shard_size", where)
        self._ranges = shard_ranges(self.num_images, self._shard_size)
        self.num_shards = len(self._ranges)
        self._shards = Shards(self.folder, sealed, self.num_shards)
        self.num_classes = positive(manifest, "num_classes", where)
        if not isinstance(manifest.get("made"), dict):
            raise StoreError(f"{where} is damaged: it does not record how the votes were made")
        try:
            self.classifier: Defence = classifier_of(manifest, where)
            self.ablation: Ablation = self.classifier.ablation
            self.image_size: ImageSize = as_image_size(tuple(manifest.get("image_size", ())))
            self.num_mutants = self.ablation.count(self.image_size)
        except (CostcertError, TypeError, AttributeError, KeyError) as error:
            raise StoreError(f"{where} is damaged: {error}") from None

    def __repr__(self) -> str:
        return (
            f"VotesFolder({self.folder}: {self.num_images:,} images, {self.num_classes} classes, "
            f"{self.ablation} on {shown(self.image_size)})"
        )

    @property
    def provenance(self) -> Mapping[str, Any]:
        """How the votes were made: model, data, probe, versions of libraries."""
        provenance: Mapping[str, Any] = self.manifest["made"]
        return provenance

    def shard_length(self, number: int) -> int:
        """The number of images in a shard, known without reading it."""
        return len(self._ranges[number])

    def images(self, number: int) -> range:
        """The images of a shard."""
        return self._ranges[number]

    def missing(self) -> list[int]:
        """Numbers of the shards that are not written yet."""
        return missing_shards(self.folder, self.num_shards)

    def digest(self) -> str:
        """The digest that covers all bytes of these votes, which must be complete."""
        self._refuse_missing()
        return self._shards.digest()

    def seal(self, made: Collection[int]) -> None:
        """Write the digests of complete votes; `made` are the shards that this run wrote."""
        self._shards.seal(made)

    def _refuse_missing(self) -> None:
        if missing := self.missing():
            raise StoreError(
                f"{len(missing)} of {self.num_shards} shards are missing in {self.folder}: "
                "finish the run that makes these votes first"
            )

    def evaluated(self) -> float:
        """The mean number of mutants evaluated per image."""
        counts = [
            votes.ballots.size if votes.known is None else int(votes.known.sum())
            for votes in map(self.shard, range(self.num_shards))
        ]
        return sum(counts) / self.num_images

    def unread(self) -> list[str]:
        """Ids of the images that could not be read."""
        marked = (n for n in range(self.num_shards) if has_column(shard_path(self.folder, n), "unread"))
        return [
            str(name)
            for votes in map(self.shard, marked)
            if votes.unread is not None
            for name in votes.image_ids[votes.unread]
        ]

    def sizes_of_originals(self) -> Mapping[ImageSize, SameSize]:
        """The sizes of all originals that are recorded, without reading ballots."""
        found: dict[ImageSize, SameSize] = {}
        for number in range(self.num_shards):
            path = shard_path(self.folder, number)
            if not path.exists():
                self._refuse_missing()
            table = self._shards.read(number, ["image_id", "unread", *ORIGINALS])
            originals = _originals(table, path)
            if originals is None:
                continue
            unread = plain_column(table, "unread", path) if "unread" in table.column_names else None
            names = plain_column(table, "image_id", path)
            for size, same in sizes_of_originals(names, originals, unread).items():
                before = found.get(size, SameSize(0, same.first))
                found[size] = before._replace(images=before.images + same.images)
        return found

    def shard(self, number: int) -> Votes:
        path = shard_path(self.folder, number)
        if not path.exists():
            self._refuse_missing()
        table = self._shards.read(number)
        rows = len(self._ranges[number])
        if table.num_rows != rows:
            raise StoreError(f"{path} holds {table.num_rows} images, expected {rows}: make it again")

        def per_mutant(name: str) -> Any:
            return list_column(table, name, path) if name in table.column_names else None

        # Version 1 called this mask `asked`.
        known = per_mutant("asked" if self.manifest["version"] == FIRST_VERSION else "known")
        soft = self.classifier.soft
        soft_columns = [list_column(table, name, path) for name in ("soft_labels", "soft_units") if soft]
        try:
            labels, units = (
                (column.reshape(rows, self.num_mutants, -1) for column in soft_columns)
                if soft_columns
                else (None, None)
            )
            return Votes(
                list_column(table, "ballots", path),
                plain_column(table, "truth", path),
                num_classes=self.num_classes,
                ablation=self.ablation,
                hide=self.classifier.hide,
                image_size=self.image_size,
                image_ids=plain_column(table, "image_id", path),
                class_names=self.manifest.get("class_names"),
                margins=per_mutant("margins"),
                cuts=per_mutant("cuts"),
                unread=plain_column(table, "unread", path) if "unread" in table.column_names else None,
                known=None if known is None else known == 1,
                originals=_originals(table, path),
                recipe=soft,
                labels=labels,
                units=units,
                provenance=self.provenance,
            )
        except (CostcertError, ValueError, TypeError) as error:
            raise StoreError(f"{path} does not fit its manifest: {error}") from None
