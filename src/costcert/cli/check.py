"""`costcert check`: is every byte as it was written, do the ballots say what the certificates say?"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console

from costcert.cli.progress import bar
from costcert.errors import CostcertError, OtherModelError, StoreError
from costcert.store.locations import Location
from costcert.store.parquet import read_npz, read_table, shard_path
from costcert.verification.checker import Question, classifier_of
from costcert.verification.digests import file_digest, num_shards
from costcert.verification.stored import (
    Row,
    Stored,
    StoredFile,
    StoredFolder,
    digest_problems,
    is_export,
    read_digests,
)
from costcert.votes.validation import MOST_CLASSES

# Differences that are shown one by one.
_SHOWN = 20

# What an .npz does not say about its votes.
_WORLD = ("ablation", "classes", "image_size")
# The units of a soft ballot, where an .npz does not say its cap.
_UNITS = 65536


@dataclass(frozen=True)
class Asked:
    """What `certify` was told that is written down nowhere, or only where a forger could have written it.

    An .npz does not say how its votes were made; a .csv does not say anything but rows.
    """

    ablation: str | None = None
    classes: int | None = None
    image_size: str | None = None
    ties: str | None = None
    hard: bool = False
    epsilon: str | None = None
    tau: int | None = None
    tuned: Location | None = None


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
    asked: Asked = Asked()


def run(request: Request) -> bool:
    """Whether all is well; what is not is printed."""
    if request.replay is not None and None in (request.votes, request.model, request.data):
        raise CostcertError("--replay asks the model again: pass --votes, --model and --data, too")
    console = Console(highlight=False, soft_wrap=True)
    with _damage_in_one_sentence(request.certificates):
        ballots = None if request.votes is None else _Ballots(request.votes, request.asked)
        certificates = _stored(request, ballots)
        problems = certificates.problems(console)
        if ballots is not None:
            problems += ballots.problems(console, certificates.manifest)
    if not problems:
        # What is not what was written is not worth deriving again.
        if ballots is None:
            console.print("Certificates: not derived again; pass --votes with the votes they came from")
        else:
            with _damage_in_one_sentence(request.certificates):
                problems += _derived(console, request, certificates, ballots)
                problems += certificates.accuracy_problems()
        if request.model is not None:
            from costcert.verification.replay import Replay, ReplaySample

            voted = certificates.manifest["votes"] if ballots is None else ballots.manifest
            try:
                with _damage_in_one_sentence(request.votes or request.certificates):
                    replay = Replay(
                        voted,
                        str(request.model),
                        checkpoint=request.checkpoint,
                        where=str(request.votes or request.certificates),
                    )
                    console.print(f"Weights: {request.model} has those that voted")
                    if ballots is not None and request.replay is not None:
                        sample = ReplaySample(str(request.data), request.split, request.replay, request.seed)
                        with bar("voting again") as on_progress:
                            problems += replay.problems(
                                console, sample, ballots.ids(), ballots.images, on_progress
                            )
            except OtherModelError as error:
                problems.append(str(error))
    for problem in problems[:_SHOWN]:
        console.print(f"Wrong: {problem}", markup=False)
    if len(problems) > _SHOWN:
        console.print(f"... and {len(problems) - _SHOWN:,} more")
    return not problems


def _stored(request: Request, ballots: _Ballots | None) -> Stored:
    path, archive = request.certificates, ballots is not None and not ballots.is_folder
    given = [field.name for field in fields(Asked) if getattr(request.asked, field.name) != field.default]
    needless = [name for name in given if path.suffix != ".csv" and not (archive and name in _WORLD)]
    if needless:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in needless)
        raise CostcertError(f"{path} says itself how it was certified: leave {options} out")
    if not is_export(path):
        return StoredFolder(path)
    if ballots is None:
        raise CostcertError(f"{path} has no digests, only rows: pass --votes with the votes it came from")
    return StoredFile(path, ballots.count, lambda *cases: _as_certified(request.asked, ballots.path, *cases))


def _as_certified(
    asked: Asked, votes: Location, defenders: list[str], patches: list[str]
) -> Mapping[str, Any]:
    """The manifest of certificates that were asked for like this."""
    from costcert.cli import certify

    return certify.manifest_of(
        certify.Request(
            votes=votes,
            patches=",".join(patches),
            defenders=",".join(defenders),
            out=None,
            ablation=asked.ablation,
            classes=asked.classes,
            image_size=asked.image_size,
            ks="1",
            ties=asked.ties or "against",
            hard=asked.hard,
            epsilon=asked.epsilon,
            tau=asked.tau or 0,
            tuned=asked.tuned,
        )
    )


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


class _Ballots:
    """The votes that certificates came from: a folder, or an .npz. They say for themselves what they are."""

    def __init__(self, path: Location, asked: Asked) -> None:
        self.path = path
        self.is_folder = path.is_dir()
        if self.is_folder:
            self._digests = read_digests(path, "votes", 1, 2)
            self.manifest = self._digests.manifest
        else:
            self._arrays = read_npz(path)
            self.manifest = self._described(asked)
        if not 0 < self.manifest["num_classes"] <= MOST_CLASSES:
            raise StoreError(f"{self.manifest['num_classes']} classes are none, or too many")

    @property
    def count(self) -> int:
        """Images that voted."""
        return int(self.manifest["images"])

    def _described(self, asked: Asked) -> Mapping[str, Any]:
        """What is known of an .npz: its arrays, and what it does not say from whoever wants it checked."""
        missing = [name for name in _WORLD if getattr(asked, name) is None]
        if missing:
            options = ", ".join(f"--{name.replace('_', '-')}" for name in missing)
            raise CostcertError(
                f"{self.path} does not say how its votes were made, and certificates are not to be believed "
                f"what they say of it: pass {options}"
            )
        sides = [int(side) for side in str(asked.image_size).split("x")]
        soft, arrays = None, self._arrays
        if "units" in arrays:
            soft = {
                "temperature": float(arrays["temperature"]) if "temperature" in arrays else None,
                "best": int(arrays["units"].shape[2]),
                "cap": int(arrays["cap"]) if "cap" in arrays else _UNITS,
            }
        return {
            "images": len(arrays["truth"]),
            "classifier": {"ablation": asked.ablation, "hide": None, "soft": soft},
            "image_size": sides if len(sides) == 2 else 2 * sides,
            "num_classes": asked.classes,
        }

    def problems(self, console: Console, certificates: Mapping[str, Any]) -> list[str]:
        """What is wrong with these votes, or with their being the ones."""
        noted, found = certificates["votes_digest"], []
        if self.is_folder:
            found = digest_problems(console, self.path, self._digests)
            there, known = self._digests.digest, certificates["votes"]
        else:
            there = file_digest(self.path)
            known = {key: certificates["votes"][key] for key in self.manifest}
            known["classifier"] = classifier_of(known)
        if noted is None:
            found.append("these certificates do not note the digest of their votes: certify them again")
        elif noted != there:
            found.append(f"{self.path} are not the votes these certificates note: their digests differ")
        found += [
            f"{self.path} are not the votes of these certificates: their {key} differ"
            for key in sorted({*known, *self.manifest})
            if known.get(key) != self.manifest.get(key)
        ]
        if not found:
            console.print(f"Digests: {self.path} are the votes these certificates note")
            twice = [name for name, times in Counter(self.ids()).items() if times > 1]
            found += [f"{self.path} holds the image {name!r} more than once" for name in twice]
        return found

    def ids(self) -> list[str]:
        """All images, in their order."""
        if not self.is_folder:
            return [str(each) for each in self._arrays.get("image_ids", range(self.count))]
        return [
            name
            for shard in range(num_shards(self.manifest))
            for name in read_table(shard_path(self.path, shard), ["image_id"]).column(0).to_pylist()
        ]

    def images(self, numbers: Sequence[int]) -> Iterator[Row]:
        """Some rows, in their order; a shard is read once."""
        if not self.is_folder:
            yield from (self._archived(self._arrays, number) for number in numbers)
            return
        for shard, places in _by_shard(numbers, int(self.manifest["shard_size"])):
            table = read_table(shard_path(self.path, shard))
            yield from (table.slice(place, 1).to_pylist()[0] for place in places)

    @staticmethod
    def _archived(arrays: Mapping[str, Any], image: int) -> Row:
        row: dict[str, Any] = {
            "image_id": str(arrays["image_ids"][image]) if "image_ids" in arrays else str(image)
        }
        columns = {"labels": "soft_labels", "units": "soft_units"}
        for name in ("labels", "units", "ballots", "margins", "cuts", "known"):
            if name in arrays:
                kind = np.float32 if name in ("margins", "cuts") else np.int64
                row[columns.get(name, name)] = arrays[name][image].astype(kind).ravel().tolist()
        if "ballots" not in row:
            best = arrays["units"][image].argmax(axis=1)
            row["ballots"] = [
                int(labels[at]) for labels, at in zip(arrays["labels"][image], best, strict=True)
            ]
        return {**row, "truth": int(arrays["truth"][image])}


def _derived(console: Console, request: Request, certificates: Stored, ballots: _Ballots) -> list[str]:
    """Certificates that are not what the ballots say."""
    manifest = certificates.manifest
    if manifest.get("uncertain"):
        raise StoreError("which mutants were uncertain is not written down, so nothing can be derived again")
    question = Question(manifest, ballots.manifest)
    cases = question.keys
    size = int(manifest["votes"]["shard_size"])
    images = ballots.count
    chosen: Sequence[int] = range(images)
    if request.sample is not None and request.sample < images:
        chosen = sorted(random.Random(request.seed).sample(chosen, request.sample))  # noqa: S311
    rows = ballots.images(chosen)
    problems: list[str] = []
    with bar("checking") as on_progress:
        done = 0
        for shard, numbers in _by_shard(chosen, size):
            length = min(size, images - shard * size)
            first = shard * size * len(cases)
            table = certificates.rows(shard, first, length * len(cases))
            if len(table) != length * len(cases):
                return [f"shard {shard} holds {len(table)} certificates, not {length * len(cases)}"]
            for number in numbers:
                row = next(rows)
                on_progress(done, len(chosen))
                done += 1
                for at, (defender, patch) in enumerate(cases):
                    place = at * length + number
                    found = _difference(table[place], row, defender, patch, question.answer)
                    problems += [f"{certificates.row_name(first + place)}{each}" for each in found]
    asked = manifest["classifier"]
    console.print(
        f"Question: {', '.join(manifest['defenders'])} against {', '.join(manifest['patches'])}; "
        f"{asked['ablation']}, {'soft' if asked['soft'] else 'hard'} ballots, ties {asked['ties']}, epsilon "
        f"{manifest['epsilon']}, tau {manifest['tau']}"
    )
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
