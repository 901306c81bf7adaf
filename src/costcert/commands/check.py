"""`costcert check`: is every byte as it was written, do the ballots say what the certificates say?"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console

from costcert.chain import Chain, file_digest, follow, num_shards
from costcert.check import Question
from costcert.commands.progress import bar
from costcert.errors import CostcertError, StoreError
from costcert.locations import Location
from costcert.store.parquet import read_npz, read_table, shard_path
from costcert.votes import MOST_CLASSES

# Differences that are shown one by one.
_SHOWN = 20

# What two manifests of the same votes agree on, however they were cut into shards.
_OF_VOTES = ("images", "ablation", "image_size", "num_classes", "made")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Request:
    """What was asked on the command line; no sample means every image."""

    certificates: Location
    votes: Location | None = None
    sample: int | None = None
    seed: int = 0
    model: str | None = None
    checkpoint: Location | None = None
    data: str | None = None
    split: str | None = None
    replay: int | None = None


def run(request: Request) -> bool:
    """Whether all is well; what is not is printed."""
    if request.replay is not None and None in (request.votes, request.model, request.data):
        raise CostcertError("--replay asks the model again: pass --votes, --model and --data, too")
    console = Console(highlight=False, soft_wrap=True)
    with _damage_in_one_sentence(request.certificates):
        certificates = _followed(request.certificates, "certificates")
        problems = _noted(console, request.certificates, certificates)
        ballots = None
        if request.votes is not None:
            ballots = _Ballots(request.votes)
            problems += ballots.problems(console, certificates.manifest)
    if not problems:
        # What is not what was written is not worth deriving again.
        if ballots is None:
            console.print("Certificates: not derived again; pass --votes with the votes they came from")
        else:
            with _damage_in_one_sentence(request.certificates):
                problems += _derived(console, request, certificates.manifest, ballots)
        if request.model is not None:
            from costcert.commands.replay import asked_again, same_weights

            model, found = same_weights(console, request, certificates.manifest)
            problems += found
            if ballots is not None and request.replay is not None and not found:
                problems += asked_again(console, request, model, certificates.manifest, ballots.images)
    for problem in problems[:_SHOWN]:
        console.print(f"Wrong: {problem}", markup=False)
    if len(problems) > _SHOWN:
        console.print(f"... and {len(problems) - _SHOWN:,} more")
    return not problems


@contextmanager
def _damage_in_one_sentence(folder: Location) -> Iterator[None]:
    """Plain code meets plain exceptions where a manifest or a table does not hold what it should."""
    try:
        yield
    except CostcertError:
        raise
    except OSError as error:
        where, why = error.filename or folder, (error.strerror or str(error)).lower()
        raise StoreError(f"cannot read {where}: {why}") from None
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise StoreError(f"{folder} is damaged, or not of this version: {error!r}") from None
    except (ValueError, ArithmeticError, RecursionError, MemoryError, pa.ArrowException) as error:
        raise StoreError(f"{folder} cannot be checked: {error}".replace("\n", " ")) from None


def _followed(folder: Location, kind: str) -> Chain:
    if not (folder / "manifest.json").is_file():
        raise StoreError(f"{folder} holds no manifest.json: expected a folder of {kind}")
    chain = follow(folder)
    if chain.manifest.get("format") != f"costcert {kind}" and not chain.problems:
        raise StoreError(f"{folder} is no folder of {kind}: its format is {chain.manifest.get('format')!r}")
    return chain


def _noted(console: Console, folder: Location, chain: Chain) -> list[str]:
    if not chain.sealed:
        console.print(f"Digests: {folder} has none; it was made by an older version, or is not finished")
    elif not chain.problems:
        console.print(f"Digests: {folder} is as it was written, {num_shards(chain.manifest):,} shards")
    return [f"{folder}: {problem}" for problem in chain.problems]


class _Ballots:
    """The votes that certificates came from: a folder, or an .npz."""

    def __init__(self, path: Location) -> None:
        self.path = path
        self._chain = _followed(path, "votes") if path.is_dir() else None
        self._arrays = None if self._chain is not None else read_npz(path)

    def problems(self, console: Console, certificates: Mapping[str, Any]) -> list[str]:
        """What is wrong with these votes, or with their being the ones."""
        found, noted = [], certificates.get("votes_digest")
        if self._chain is not None:
            found = _noted(console, self.path, self._chain)
            # Without a digest nobody knows how the votes were cut into shards.
            keys = self._chain.manifest.keys() if noted else _OF_VOTES
            other = [key for key in keys if self._chain.manifest[key] != certificates["votes"][key]]
            found += [
                f"{self.path} are not the votes of these certificates: their {key} differ" for key in other
            ]
        there = file_digest(self.path) if self._chain is None else self._chain.digest
        if noted is None:
            console.print("Digests: these certificates do not note that of their votes")
        elif noted != there:
            found.append(f"{self.path} are not the votes these certificates note: their digests differ")
        elif not found:
            console.print(f"Digests: {self.path} are the votes these certificates note")
        return found

    def images(self, numbers: Sequence[int]) -> Iterator[Row]:
        """Some rows, in their order; a shard is read once."""
        if self._chain is None:
            yield from (self._archived(self._arrays or {}, number) for number in numbers)
            return
        for shard, places in _by_shard(numbers, int(self._chain.manifest["shard_size"])):
            table = read_table(shard_path(self.path, shard))
            yield from (table.slice(place, 1).to_pylist()[0] for place in places)

    @staticmethod
    def _archived(arrays: Mapping[str, Any], image: int) -> Row:
        row: dict[str, Any] = {
            "image_id": str(arrays["image_ids"][image]) if "image_ids" in arrays else str(image)
        }
        names = {"labels": "soft_labels", "units": "soft_units", "ballots": "ballots", "margins": "margins"}
        for name, column in names.items():
            if name in arrays:
                values = arrays[name][image].astype(np.float32 if name == "margins" else np.int64)
                row[column] = values.ravel().tolist()
        if "ballots" not in row:
            best = arrays["units"][image].argmax(axis=1)
            row["ballots"] = [
                int(labels[at]) for labels, at in zip(arrays["labels"][image], best, strict=True)
            ]
        return {**row, "truth": int(arrays["truth"][image])}


def _derived(console: Console, request: Request, manifest: Mapping[str, Any], ballots: _Ballots) -> list[str]:
    """Certificates that are not what the ballots say."""
    if not 0 < manifest["votes"]["num_classes"] <= MOST_CLASSES:
        raise StoreError(f"{manifest['votes']['num_classes']} classes are none, or too many")
    if manifest.get("uncertain"):
        raise StoreError("which mutants were uncertain is not written down, so nothing can be derived again")
    question = Question(manifest)
    cases = [(defender, patch) for defender in manifest["defenders"] for patch in manifest["patches"]]
    images, size = int(manifest["votes"]["images"]), int(manifest["votes"]["shard_size"])
    chosen: Sequence[int] = range(images)
    if request.sample is not None and request.sample < images:
        chosen = sorted(random.Random(request.seed).sample(chosen, request.sample))  # noqa: S311
    rows = ballots.images(chosen)
    problems: list[str] = []
    with bar("checking") as tell:
        done = 0
        for shard, numbers in _by_shard(chosen, size):
            length = min(size, images - shard * size)
            table = read_table(shard_path(request.certificates, shard))
            if table.num_rows != length * len(cases):
                return [f"shard {shard} holds {table.num_rows} certificates, not {length * len(cases)}"]
            for number in numbers:
                row = next(rows)
                tell(done, len(chosen))
                done += 1
                for at, (defender, patch) in enumerate(cases):
                    stored = table.slice(at * length + number, 1).to_pylist()[0]
                    problems += _difference(stored, row, defender, patch, question.answer)
    which = "all" if len(chosen) == images else f"a sample by seed {request.seed}"
    console.print(
        f"Certificates: {len(cases) * len(chosen):,} derived again, of {len(chosen):,} images of {images:,} "
        f"({which}): {'all alike' if not problems else f'{len(problems):,} differ'}"
    )
    return problems


def _by_shard(images: Sequence[int], size: int) -> Iterator[tuple[int, list[int]]]:
    shards: dict[int, list[int]] = {}
    for image in images:
        shards.setdefault(image // size, []).append(image % size)
    yield from shards.items()


def _difference(
    stored: Row, row: Row, defender: str, patch: str, answer: Callable[[Row, str, str], tuple[int, int]]
) -> list[str]:
    named = (stored["image_id"], stored["defender"], stored["patch"])
    if named != (row["image_id"], defender, patch):
        return [f"expected a certificate of {row['image_id']}, {defender}, {patch}; stored is {named}"]
    rank, min_k = answer(row, defender, patch)
    if (stored["rank"], stored["min_k"]) == (rank, min_k):
        return []
    return [
        f"image {row['image_id']}, {defender}, {patch}: stored rank {stored['rank']}, min-k "
        f"{stored['min_k']}; derived rank {rank}, min-k {min_k}"
    ]
