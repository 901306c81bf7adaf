"""Votes in one file: `.npz`, `.parquet`, `.csv` or `.json`. No pickle is ever opened.

All forms hold the same columns, with one entry per image: `truth`, and `ballots` [images, mutants] or, for
soft ballots, `labels` and `units` [images, mutants, labels per ballot]. Optional columns are `image_id`,
`margins`, `cuts`, `known`, `unread`, and `original_height` with `original_width`. A file may also describe
its votes: by `ablation`, `num_classes` and `image_size`, and by `hide`, `cap`, `temperature`, `class_names`
and `made`.

| form | columns | description |
|---|---|---|
| `.npz` | arrays (`image_ids` for `image_id`) | further arrays; any others are ignored |
| `.parquet` | columns, those of ballots being lists | JSON in the file's metadata, under the key `costcert` |
| `.json` | an object per image, in the list `votes` | entries next to that list |
| `.csv` | `ballot_0`, `ballot_1`, …, also `margin_0`, `cut_0`, `known_0`, …; no soft ballots | none |
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from costcert.errors import CostcertError, StoreError, VotesError
from costcert.geometry.ablations import Ablation
from costcert.geometry.sizes import ImageSize, as_image_size
from costcert.store.digests import stream_digest
from costcert.store.files import atomic_write
from costcert.store.locations import Location, fetched, locate
from costcert.store.parquet import npz_arrays, shard_ranges
from costcert.store.tables import METADATA, array_column, read_rows
from costcert.store.votes import ORIGINALS, default_shard_size, votes_manifest
from costcert.votes.defence import UNITS, Defence
from costcert.votes.originals import SameSize, sizes_of_originals
from costcert.votes.table import Votes

# Suffixes of files that votes are read from, and of those they can be written to with their description.
READ = (".npz", ".parquet", ".csv", ".json")
WRITTEN = (".npz", ".parquet", ".json")

_OWN = ("image_id", "truth", "ballots", "labels", "units", "margins", "cuts", "known", "unread")
COLUMNS = (*_OWN, *ORIGINALS)
# Options of the command line for what a file may not record.
NEEDED = {"ablation": "--ablation", "num_classes": "--classes", "image_size": "--image-size"}
DESCRIPTION = (*NEEDED, "hide", "cap", "temperature", "class_names", "made")
_MASKS = ("known", "unread")

# Entries of `made` that are objects themselves.
_OBJECTS = ("data", "model", "probe")

# Columns of a .csv, one per image and one per mutant.
_PLAIN = ("image_id", "truth", "unread", *ORIGINALS)
_PER_MUTANT = {"ballot": "ballots", "margin": "margins", "cut": "cuts", "known": "known"}
_IN_CSV = tuple(f"{name}_0, {name}_1, ..." for name in _PER_MUTANT)
_NUMBERED = re.compile(rf"({'|'.join(_PER_MUTANT)})_(0|[1-9]\d{{0,8}})")


class Contents(NamedTuple):
    """What a file of votes holds, before it is validated.

    Args:
        columns: arrays with one entry per image, by the names in `COLUMNS`.
        description: plain values, by the names in `DESCRIPTION`.
        digest: the SHA-256 of the file.
    """

    columns: dict[str, npt.NDArray[Any]]
    description: dict[str, Any]
    digest: str


def read_contents(path: Location) -> Contents:
    """The columns and the description of votes in one file."""
    if path.suffix not in READ:
        raise StoreError(
            f"{path} is not there: expected a folder of votes"
            if not path.exists()
            else f"{path} is not a folder of votes, and votes in one file end in {', '.join(READ)}"
        )
    if not path.is_file():
        raise StoreError(f"{path} is not there: expected a folder of votes or a {path.suffix} file")
    try:
        # What is hashed is what is read, also if another file gets this name in between.
        with fetched(path) as copy, copy.open("rb") as file:
            digest = stream_digest(file)
            file.seek(0)
            columns, description = _npz(file, path) if path.suffix == ".npz" else _table(file, path)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    return Contents(columns, {key: value for key, value in description.items() if value is not None}, digest)


def _npz(file: IO[bytes], path: Location) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    arrays = npz_arrays(file, path, (*COLUMNS[1:], "image_ids", *DESCRIPTION))
    columns = {name: arrays[name] for name in COLUMNS if name in arrays}
    if "image_ids" in arrays:
        columns["image_id"] = arrays["image_ids"]
    description: dict[str, Any] = {}
    for name in DESCRIPTION:
        if name in arrays:
            single = arrays[name].size == 1 and name != "class_names"
            description[name] = arrays[name].item() if single else arrays[name].tolist()
    if "made" in description:
        try:
            description["made"] = json.loads(description["made"])
        except (TypeError, ValueError, RecursionError):
            raise StoreError(f"{path}: its array 'made' is not JSON: leave it out") from None
    return columns, description


def _table(file: IO[bytes], path: Location) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    table = read_rows(file, path)
    names = table.rows.column_names
    is_csv = path.suffix == ".csv"
    columns = _numbered(table.rows, path) if is_csv else {}
    plain = _PLAIN if is_csv else COLUMNS
    known = [name for name in names if name in plain]
    # A misspelled `known` would otherwise make every ballot a trusted one.
    strange = [name for name in names if name not in plain and not (is_csv and _NUMBERED.fullmatch(name))]
    if strange:
        raise StoreError(
            f"{path} has a column {strange[0]!r}, which votes{' in a .csv' if is_csv else ''} do not have: "
            f"leave it out, or name it as one of {', '.join((*plain, *_IN_CSV) if is_csv else plain)}"
        )
    columns |= {name: array_column(table.rows, name, path) for name in known}
    for name in _MASKS:
        if name in columns and columns[name].dtype.kind in "iu" and np.isin(columns[name], (0, 1)).all():
            columns[name] = columns[name] == 1
    return columns, {name: table.more[name] for name in DESCRIPTION if name in table.more}


def _numbered(rows: Any, path: Location) -> dict[str, npt.NDArray[Any]]:
    """Columns such as `ballot_0`, `ballot_1`, … joined to one array each."""
    found: dict[str, dict[int, str]] = {}
    for name in rows.column_names:
        if match := _NUMBERED.fullmatch(name):
            found.setdefault(match[1], {})[int(match[2])] = name
    joined = {}
    for kind, by_mutant in found.items():
        missing = next((number for number in range(len(by_mutant)) if number not in by_mutant), None)
        if missing is not None:
            raise StoreError(f"{path} has no column '{kind}_{missing}', but one with a higher number")
        parts = [array_column(rows, by_mutant[number], path) for number in range(len(by_mutant))]
        joined[_PER_MUTANT[kind]] = np.stack(parts, axis=1)
    return joined


class VotesFile:
    """Votes of one file, in memory; see the table above for its forms.

    Args:
        ablation: what each mutant kept; needed where the file does not record it, and otherwise not used.
        num_classes: needed where the file does not record it; another one than it records is refused.
        image_size: likewise.
    """

    def __init__(
        self,
        path: str | Location,
        *,
        ablation: str | Ablation | None = None,
        num_classes: int | None = None,
        image_size: ImageSize | int | str | None = None,
    ) -> None:
        self.path = locate(path)
        columns, description, self._digest = read_contents(self.path)
        self.is_described = "ablation" in description
        given = {"num_classes": num_classes, "image_size": image_size}
        described = _agreed(self.path, {"ablation": ablation, **given}, description)
        self._votes = votes = _votes(self.path, columns, described)
        size = default_shard_size(votes.num_mutants)
        self._ranges = shard_ranges(len(votes), size)
        self.num_images, self.num_shards = len(votes), len(self._ranges)
        self.num_classes, self.num_mutants = votes.num_classes, votes.num_mutants
        self.ablation: Ablation = votes.ablation
        self.image_size: ImageSize = votes.image_size
        self.classifier: Defence = votes.classifier
        self.provenance: Mapping[str, Any] = votes.provenance
        self.manifest: Mapping[str, Any] = votes_manifest(votes, images=len(votes), shard_size=size)

    def shard_length(self, number: int) -> int:
        """The number of images in a shard."""
        return len(self._ranges[number])

    def digest(self) -> str:
        """The SHA-256 of the file."""
        return self._digest

    def unread(self) -> list[str]:
        """Ids of the images that could not be read."""
        votes = self._votes
        return [] if votes.unread is None else [str(name) for name in votes.image_ids[votes.unread]]

    def sizes_of_originals(self) -> Mapping[ImageSize, SameSize]:
        """The sizes of all originals that are recorded."""
        votes = self._votes
        if votes.originals is None:
            return {}
        return sizes_of_originals(votes.image_ids, votes.originals, votes.unread)

    def shard(self, number: int) -> Votes:
        images = self._ranges[number]
        return self._votes.take(slice(images.start, images.stop))


def _agreed(path: Location, given: Mapping[str, Any], described: Mapping[str, Any]) -> dict[str, Any]:
    """The description of a file, completed by what was passed; raises if the two differ."""
    missing = [key for key in NEEDED if key not in described and given[key] is None]
    if missing:
        options = ", ".join(NEEDED[key] for key in missing)
        raise CostcertError(
            f"{path} does not record how its votes were made: pass {options}, as in --ablation columns:19 "
            "--classes 1000 --image-size 224 (in Python ablation, num_classes and image_size)"
        )
    both = {**{key: value for key, value in given.items() if value is not None}, **described}
    try:
        if not isinstance(both["ablation"], str | Ablation):
            raise StoreError(f"its ablation is {both['ablation']!r}, expected text such as columns:19")
        size = both["image_size"]
        both["image_size"] = as_image_size(tuple(size) if isinstance(size, list) else size)
    except CostcertError as error:
        raise type(error)(f"{path}: {error}") from None
    for key, value in (("num_classes", given["num_classes"]), ("image_size", given["image_size"])):
        if value is not None and both[key] != (as_image_size(value) if key == "image_size" else value):
            raise CostcertError(
                f"{path} records {key} {both[key]}, but {NEEDED[key]} is {value}: leave that option out"
            )
    return both


def _votes(path: Location, columns: Mapping[str, npt.NDArray[Any]], described: Mapping[str, Any]) -> Votes:
    """Columns and description as votes; everything is validated."""
    soft = "labels" in columns and "units" in columns
    for name in ("truth",) if soft else ("ballots", "truth"):
        if name not in columns:
            raise StoreError(
                f"{path} holds no array {name!r}, only {', '.join(sorted(columns)) or 'nothing'}: "
                "votes are arrays `ballots` [images, mutants] and `truth` [images]"
            )
    options: dict[str, Any] = {
        **{key: described[key] for key in NEEDED},
        **{key: described.get(key) for key in ("hide", "class_names")},
        **{name: columns.get(name) for name in ("margins", "cuts", "known", "unread")},
        "image_ids": columns.get("image_id"),
        "originals": _originals(columns, path),
        "provenance": described.get("made", {"source": path.name}),
    }
    try:
        if not isinstance(described.get("hide"), str | None):
            raise TypeError(f"its hide is {described['hide']!r}, expected text")
        made = described.get("made", {})
        if not isinstance(made, dict) or not all(isinstance(made.get(key) or {}, dict) for key in _OBJECTS):
            raise TypeError(f"its made is {made!r}, expected an object, and in it objects for {_OBJECTS}")
        if not soft:
            return Votes(columns["ballots"], columns["truth"], **options)
        temperature = described.get("temperature")
        return Votes.soft(
            columns["labels"],
            columns["units"],
            columns["truth"],
            ballots=columns.get("ballots"),
            cap=int(described.get("cap", UNITS)),
            temperature=None if temperature is None else float(temperature),
            **options,
        )
    except VotesError as error:
        raise VotesError(f"{path}: {error}") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise StoreError(f"{path} cannot be read as votes: {error}") from None


def _originals(columns: Mapping[str, npt.NDArray[Any]], path: Location) -> Any:
    found = [columns[name] for name in ORIGINALS if name in columns]
    if len(found) == 1:
        raise StoreError(f"{path} holds only one of the columns {' and '.join(ORIGINALS)}")
    return np.stack(found, axis=1) if found else None


def write_votes_file(votes: Votes, path: Location) -> None:
    """Write votes with their description to one file; an existing file is replaced."""
    columns: dict[str, Any] = {"image_id": votes.image_ids, "truth": votes.truth, "ballots": votes.ballots}
    for name in _OWN[3:]:
        if getattr(votes, name) is not None:
            columns[name] = getattr(votes, name)
    if votes.originals is not None:
        columns.update(zip(ORIGINALS, votes.originals.T, strict=True))
    described: dict[str, Any] = {
        "ablation": str(votes.ablation),
        "num_classes": votes.num_classes,
        "image_size": list(votes.image_size),
        "hide": votes.hide,
        "cap": None if votes.recipe is None else votes.recipe.cap,
        "temperature": None if votes.recipe is None else votes.recipe.temperature,
        "class_names": None if votes.class_names is None else list(votes.class_names),
        "made": dict(votes.provenance),
    }
    described = {key: value for key, value in described.items() if value is not None}
    with atomic_write(path) as temporary:
        if path.suffix == ".npz":
            described["made"] = json.dumps(described["made"], ensure_ascii=False)
            columns["image_ids"] = columns.pop("image_id")
            with temporary.open("wb") as file:
                np.savez_compressed(file, **columns, **described)
        elif path.suffix == ".parquet":
            rows = pa.table({name: pa.array(values.tolist()) for name, values in columns.items()})
            metadata = {METADATA: json.dumps(described)}
            pq.write_table(rows.replace_schema_metadata(metadata), temporary, compression="zstd")
        else:
            lists = [values.tolist() for values in columns.values()]
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]
            temporary.write_text(json.dumps({**described, "votes": rows}, ensure_ascii=False), "utf-8")
