"""Votes on disk: Parquet shards beside a manifest, read back one shard at a time.

A shard is written under a temporary name and renamed, or uploaded at once, so it is there whole or not at
all; a second run writes only what is missing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from costcert.errors import CostcertError, StoreError, VotesError
from costcert.geometry.ablations import Ablation, parse_ablation
from costcert.geometry.sizes import ImageSize, as_image_size
from costcert.locations import Location, locate
from costcert.store.digests import file_digest, folder_digest, seal
from costcert.store.files import MANIFEST, join_manifest, read_manifest, sweep
from costcert.store.parquet import (
    has_column,
    list_column,
    lists,
    missing_shards,
    plain_column,
    positive,
    read_npz,
    read_table,
    shard_path,
    shard_ranges,
    write_table,
)
from costcert.votes import UNITS, Votes

VERSION = 1

# Ballots in one shard: some tens of megabytes in memory.
_BALLOTS_PER_SHARD = 1 << 21


class VotesSource(Protocol):
    """Votes that are read a shard at a time."""

    num_images: int
    num_shards: int
    manifest: Mapping[str, Any]

    def shard(self, number: int) -> Votes: ...

    def shard_length(self, number: int) -> int: ...

    def digest(self) -> str: ...


def default_shard_size(num_mutants: int) -> int:
    """Images per shard."""
    return max(1, min(8192, _BALLOTS_PER_SHARD // num_mutants))


def votes_manifest(votes: Votes, *, images: int, shard_size: int) -> dict[str, Any]:
    """What a folder of votes like these says of itself."""
    return {
        "format": "costcert votes",
        "version": VERSION,
        "images": images,
        "shard_size": shard_size,
        "ablation": str(votes.ablation),
        "image_size": list(votes.image_size),
        "num_classes": votes.num_classes,
        "class_names": None if votes.class_names is None else list(votes.class_names),
        "soft": None if votes.labels is None else {"labels": votes.labels.shape[2], "cap": votes.cap},
        "margins": votes.margins is not None,
        "made": dict(votes.about),
    }


def write_votes(votes: Votes, folder: str | Location, *, shard_size: int | None = None) -> None:
    """Write votes to a folder or a URL; one that already holds part of the same is completed."""
    folder = locate(folder)
    size = shard_size or default_shard_size(votes.num_mutants)
    join_manifest(folder, votes_manifest(votes, images=len(votes), shard_size=size), "votes", VERSION)
    sweep(folder)
    ranges = shard_ranges(len(votes), size)
    missing = missing_shards(folder, len(ranges))
    for number in missing:
        images = ranges[number]
        write_votes_shard(votes.take(slice(images.start, images.stop)), folder, number)
    seal(folder, len(ranges), missing)


def write_votes_shard(votes: Votes, folder: Location, number: int) -> None:
    label_type = np.uint16 if votes.num_classes <= 1 << 16 else np.uint32
    columns: dict[str, Any] = {
        "image_id": pa.array(votes.image_ids.tolist(), pa.string()),
        "truth": pa.array(votes.truth.astype(label_type)),
        "ballots": lists(votes.ballots.astype(label_type)),
    }
    if votes.unread is not None:
        columns["unread"] = pa.array(votes.unread)
    if votes.asked is not None:
        columns["asked"] = lists(votes.asked.astype(np.uint8))
    if votes.margins is not None:
        columns["margins"] = lists(votes.margins)
    if votes.labels is not None and votes.units is not None:
        columns["soft_labels"] = lists(votes.labels.astype(label_type).reshape(len(votes), -1))
        columns["soft_units"] = lists(votes.units.astype(np.uint32).reshape(len(votes), -1))
    write_table(pa.table(columns), shard_path(folder, number))


def read_votes(folder: str | Location) -> Votes:
    """All votes of a folder or a URL at once; `VotesFolder` reads them a shard at a time."""
    source = VotesFolder(folder)
    shards = [source.shard(number) for number in range(source.num_shards)]
    return shards[0] if len(shards) == 1 else _joined(shards)


class VotesFolder:
    """A folder of votes, read a shard at a time."""

    def __init__(self, folder: str | Location) -> None:
        self.folder = locate(folder)
        manifest = read_manifest(self.folder, "votes", VERSION)
        self.manifest: Mapping[str, Any] = manifest
        where = str(self.folder / MANIFEST)
        self.num_images = positive(manifest, "images", where)
        self._shard_size = positive(manifest, "shard_size", where)
        self._ranges = shard_ranges(self.num_images, self._shard_size)
        self.num_shards = len(self._ranges)
        self.num_classes = positive(manifest, "num_classes", where)
        self._soft = manifest.get("soft")
        try:
            self.ablation: Ablation = parse_ablation(manifest.get("ablation", ""))
            self.image_size: ImageSize = as_image_size(tuple(manifest.get("image_size", ())))
            self.num_mutants = self.ablation.count(self.image_size)
            if self._soft is not None:
                self._soft = {key: positive(self._soft, key, where) for key in ("labels", "cap")}
        except (CostcertError, TypeError, AttributeError) as error:
            raise StoreError(f"{where} is damaged: {error}") from None
        if not isinstance(manifest.get("made"), dict):
            raise StoreError(f"{where} is damaged: it does not say how the votes were made")

    def shard_length(self, number: int) -> int:
        """Images in a shard, told without reading it."""
        return len(self._ranges[number])

    def images(self, number: int) -> range:
        """Which images a shard is of."""
        return self._ranges[number]

    def missing(self) -> list[int]:
        """Shards that are not there yet."""
        return missing_shards(self.folder, self.num_shards)

    def digest(self) -> str:
        """What stands for all bytes of these votes, complete ones only."""
        self._refuse_missing()
        return folder_digest(self.folder, self.num_shards)

    def seal(self, made: Collection[int]) -> None:
        """Note the digests of complete votes, of which this run made these shards."""
        seal(self.folder, self.num_shards, made)

    def _refuse_missing(self) -> None:
        if missing := self.missing():
            raise StoreError(
                f"{len(missing)} of {self.num_shards} shards are missing in {self.folder}: "
                "finish the run that makes these votes first"
            )

    def asked(self) -> float:
        """Mutants asked, an image."""
        counts = [
            self.num_mutants * len(votes) if votes.asked is None else int(votes.asked.sum())
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

    def shard(self, number: int) -> Votes:
        path = shard_path(self.folder, number)
        if not path.exists():
            self._refuse_missing()
        table = read_table(path)
        rows = len(self._ranges[number])
        if table.num_rows != rows:
            raise StoreError(f"{path} holds {table.num_rows} images, expected {rows}: make it again")
        about: dict[str, Any] = {
            "num_classes": self.num_classes,
            "ablation": self.ablation,
            "image_size": self.image_size,
            "image_ids": plain_column(table, "image_id", path),
            "class_names": self.manifest.get("class_names"),
            "margins": list_column(table, "margins", path) if self.manifest.get("margins") else None,
            "unread": plain_column(table, "unread", path) if "unread" in table.column_names else None,
            "asked": list_column(table, "asked", path) == 1 if "asked" in table.column_names else None,
            "about": self.manifest["made"],
        }
        truth, ballots = plain_column(table, "truth", path), list_column(table, "ballots", path)
        try:
            if self._soft is None:
                return Votes(ballots, truth, **about)
            shape = (rows, self.num_mutants, self._soft["labels"])
            labels, units = (list_column(table, name, path) for name in ("soft_labels", "soft_units"))
            return Votes.soft(
                labels.reshape(shape),
                units.reshape(shape),
                truth,
                cap=self._soft["cap"],
                ballots=ballots,
                **about,
            )
        except (CostcertError, ValueError, TypeError) as error:
            raise StoreError(f"{path} does not fit its manifest: {error}") from None


class VotesArchive:
    """A plain `.npz` with `ballots` and `truth` (or `labels`, `units` and `truth`), in memory.

    Also read where they are there: `margins`, `image_ids`, and `cap` of soft ballots.
    """

    def __init__(
        self,
        path: str | Location,
        *,
        ablation: str | Ablation,
        num_classes: int,
        image_size: ImageSize | int | str,
    ) -> None:
        path = self._path = locate(path)
        arrays = read_npz(path)
        soft = "labels" in arrays and "units" in arrays
        needed = ["truth"] if soft else ["ballots", "truth"]
        for name in needed:
            if name not in arrays:
                raise StoreError(
                    f"{path} holds no array {name!r}, only {', '.join(sorted(arrays)) or 'nothing'}: "
                    "votes are arrays `ballots` [images, mutants] and `truth` [images]"
                )
        about: dict[str, Any] = {
            "num_classes": num_classes,
            "ablation": ablation,
            "image_size": image_size,
            "image_ids": arrays.get("image_ids"),
            "margins": arrays.get("margins"),
            "about": {"source": path.name},
        }
        try:
            if soft:
                self._votes = Votes.soft(
                    arrays["labels"],
                    arrays["units"],
                    arrays["truth"],
                    ballots=arrays.get("ballots"),
                    cap=int(arrays.get("cap", UNITS)),
                    **about,
                )
            else:
                self._votes = Votes(arrays["ballots"], arrays["truth"], **about)
        except VotesError as error:
            raise VotesError(f"{path}: {error}") from None
        except (TypeError, ValueError) as error:
            raise StoreError(f"{path} cannot be read as votes: {error}") from None
        size = default_shard_size(self._votes.num_mutants)
        self._ranges = shard_ranges(len(self._votes), size)
        self.num_images = len(self._votes)
        self.num_shards = len(self._ranges)
        self.manifest: Mapping[str, Any] = votes_manifest(
            self._votes, images=self.num_images, shard_size=size
        )

    def shard_length(self, number: int) -> int:
        return len(self._ranges[number])

    def digest(self) -> str:
        """What stands for all bytes of the file."""
        return file_digest(self._path)

    def shard(self, number: int) -> Votes:
        images = self._ranges[number]
        return self._votes.take(slice(images.start, images.stop))


def _joined(shards: list[Votes]) -> Votes:
    first = shards[0]
    about: dict[str, Any] = {
        "num_classes": first.num_classes,
        "ablation": first.ablation,
        "image_size": first.image_size,
        "image_ids": np.concatenate([votes.image_ids for votes in shards]),
        "class_names": first.class_names,
        "about": first.about,
        "margins": None,
        "unread": np.concatenate(
            [np.zeros(len(v), np.bool_) if v.unread is None else v.unread for v in shards]
        ),
    }
    if any(votes.asked is not None for votes in shards):
        about["asked"] = np.concatenate(
            [np.ones(v.ballots.shape, np.bool_) if v.asked is None else v.asked for v in shards]
        )
    if first.margins is not None:
        about["margins"] = np.concatenate([votes.margins for votes in shards if votes.margins is not None])
    ballots = np.concatenate([votes.ballots for votes in shards])
    truth = np.concatenate([votes.truth for votes in shards])
    if not first.is_soft:
        return Votes(ballots, truth, **about)
    labels = np.concatenate([votes.labels for votes in shards if votes.labels is not None])
    units = np.concatenate([votes.units for votes in shards if votes.units is not None])
    return Votes.soft(labels, units, truth, cap=first.cap, ballots=ballots, **about)
