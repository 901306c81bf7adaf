"""`costcert check`: verify digests, and derive certificates again from their ballots."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from costcert.cli.options import AT_LEAST_0, AT_LEAST_1, BALLOTS, DATA, MODEL, RUN, PathOrUrl
from costcert.errors import CostcertError, OtherModelError, StoreError
from costcert.models.together import spelled_together
from costcert.progress import bar

if TYPE_CHECKING:
    from rich.console import Console

    from costcert.store.locations import Location
    from costcert.verification.stored import Row, Stored

# Differences that are printed one by one.
_SHOWN = 20

# Images whose certificates are derived again, unless the options say otherwise.
_SAMPLE = 50

# Options for what a file of votes may not record.
_OF_VOTES = {"ablation": "ablation", "num_classes": "classes", "image_size": "image_size"}
# The units of a soft ballot, where a file does not record its cap.
_UNITS = 65536

EXAMPLES = (
    "costcert check certs --votes votes --all",
    "costcert check certs --votes votes --model model --data folder:photos \\\n  --replay 20",
)


@Parameter(name="*", group=RUN)
@dataclass(frozen=True)
class CheckOptions:
    certificates: Annotated[
        PathOrUrl, Parameter(help="A folder of certificates, or a .parquet, .csv or .json file of certify.")
    ]
    _: KW_ONLY
    votes: Annotated[
        PathOrUrl | None,
        Parameter(help="The votes they came from, a folder or a file, to derive the certificates again."),
    ] = None
    sample: Annotated[
        int | None,
        Parameter(
            help="Number of images to derive them for.",
            validator=AT_LEAST_1,
            show_default=str(_SAMPLE),
        ),
    ] = None
    every_image: Annotated[bool, Parameter(name="--all", help="Derive them for every image.")] = False
    replay: Annotated[
        int | None,
        Parameter(
            help="Number of images to evaluate again with --model and --data, and compare their votes.",
            validator=AT_LEAST_1,
        ),
    ] = None
    seed: Annotated[int, Parameter(help="Random seed of the samples.", validator=AT_LEAST_0)] = 0
    data: Annotated[str | None, Parameter(group=DATA, help="The images, for --replay.")] = None
    split: Annotated[
        str | None,
        Parameter(group=DATA, help="Part of the dataset.", show_default="as recorded with the votes"),
    ] = None
    models: Annotated[
        list[str] | None,
        Parameter(
            name=("--model", "-m"),
            group=MODEL,
            help="The model, to compare its weights with the recorded digest.",
        ),
    ] = None
    checkpoint: Annotated[
        PathOrUrl | None, Parameter(group=MODEL, help="Weights of a timm: or strip: model.")
    ] = None
    ablation: Annotated[
        str | None,
        Parameter(group=BALLOTS, help="What each mutant kept, for votes in a file that does not record it."),
    ] = None
    classes: Annotated[
        int | None, Parameter(group=BALLOTS, help="Number of classes, likewise.", validator=AT_LEAST_1)
    ] = None
    image_size: Annotated[str | None, Parameter(group=BALLOTS, help="The model's input size, likewise.")] = (
        None
    )

    @property
    def model(self) -> str | None:
        """The spelling of the model."""
        return spelled_together(self.models) if self.models else None

    def __post_init__(self) -> None:
        if self.every_image and self.sample is not None:
            raise CostcertError("--all and --sample both choose images: pass one of them")


def run(options: CheckOptions) -> int:
    """Verify digests, and derive certificates again independently.

    The exit code is 1 where anything differs.
    """
    return 0 if check(options) else 1


def check(options: CheckOptions) -> bool:
    """Whether everything is in order; problems are printed."""
    from costcert.console import make_console
    from costcert.verification.stored import StoredFile, StoredFolder, is_export

    if options.replay is not None and None in (options.votes, options.model, options.data):
        raise CostcertError("--replay evaluates the model again: pass --votes, --model and --data, too")
    console = make_console(soft_wrap=True)
    with _damage_in_one_sentence(options.certificates):
        ballots = None if options.votes is None else _Ballots(options.votes, options)
        certificates: Stored = (
            StoredFile(options.certificates)
            if is_export(options.certificates)
            else StoredFolder(options.certificates)
        )
        problems = certificates.problems(console)
        if ballots is not None:
            problems += ballots.problems(console, certificates.manifest)
    if not problems:
        # Certificates are derived only from bytes that are as they were written.
        if ballots is None:
            console.print("Certificates: not derived again; pass --votes with the votes they came from")
        else:
            with _damage_in_one_sentence(options.certificates):
                problems += _derived(console, options, certificates, ballots)
        with _damage_in_one_sentence(options.certificates):
            problems += certificates.content_problems()
        if options.model is not None:
            from costcert.verification.replay import Replay, ReplaySample

            voted = certificates.manifest["votes"] if ballots is None else ballots.manifest
            if "made" not in voted:
                raise CostcertError(f"{options.votes} does not record which model voted: leave --model out")
            try:
                with _damage_in_one_sentence(options.votes or options.certificates):
                    replay = Replay(
                        voted,
                        options.model,
                        checkpoint=options.checkpoint,
                        where=str(options.votes or options.certificates),
                    )
                    console.print(f"Weights: {options.model} has those that voted")
                    if ballots is not None and options.replay is not None:
                        sample = ReplaySample(str(options.data), options.split, options.replay, options.seed)
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


def _spelled(names: Sequence[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


@contextmanager
def _damage_in_one_sentence(folder: Location) -> Iterator[None]:
    """Turn the exceptions of a manifest or table without the expected content into one sentence."""
    import pyarrow as pa

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
    """The votes that certificates came from, in any form, without trust in the certificates."""

    def __init__(self, path: Location, options: CheckOptions) -> None:
        from costcert.store.vote_files import read_contents
        from costcert.verification.stored import read_digests
        from costcert.votes.validation import MOST_CLASSES

        self.path = path
        self.is_folder = path.is_dir()
        given = [name for name in _OF_VOTES.values() if getattr(options, name) is not None]
        if self.is_folder:
            if given:
                raise CostcertError(f"{path} records how its votes were made: leave {_spelled(given)} out")
            self._digests = read_digests(path, "votes", 1, 2)
            self.manifest = self._digests.manifest
        else:
            self._columns, description, _ = read_contents(path)
            self.manifest = self._described(description, options)
        if not 0 < self.manifest["num_classes"] <= MOST_CLASSES:
            raise StoreError(
                f"the number of classes must be from 1 to {MOST_CLASSES}, got {self.manifest['num_classes']}"
            )

    @property
    def count(self) -> int:
        """Images that voted."""
        return int(self.manifest["images"])

    def _described(self, recorded: Mapping[str, Any], options: CheckOptions) -> Mapping[str, Any]:
        """The manifest of votes in a file: what it records, and options for what it does not."""
        from costcert.geometry.ablations import parse_ablation
        from costcert.geometry.sizes import as_image_size

        given = {key: getattr(options, name) for key, name in _OF_VOTES.items()}
        missing = [key for key, value in given.items() if value is None and key not in recorded]
        if missing:
            raise CostcertError(
                f"{self.path} does not record how its votes were made, and certificates cannot vouch for "
                f"themselves: pass {_spelled([_OF_VOTES[key] for key in missing])}"
            )
        passed = {key: value for key, value in given.items() if value is not None}
        for content in (passed, recorded := dict(recorded)):
            if "ablation" in content:
                content["ablation"] = str(parse_ablation(content["ablation"]))
            if isinstance(size := content.get("image_size"), str | int | list):
                content["image_size"] = list(as_image_size(tuple(size) if isinstance(size, list) else size))
        for key, value in passed.items():
            if recorded.get(key, value) != value:
                option = _spelled([_OF_VOTES[key]])
                raise CostcertError(
                    f"{self.path} records {key} {recorded[key]}, but {option} is {value}: leave {option} out"
                )
        content, soft = {**passed, **recorded}, None
        if "units" in self._columns:
            soft = {
                "temperature": float(content["temperature"]) if "temperature" in content else None,
                "best": int(self._columns["units"].shape[2]),
                "cap": int(content.get("cap", _UNITS)),
            }
        cast = {"ablation": content["ablation"], "hide": content.get("hide"), "soft": soft}
        return {
            "images": len(self._columns["truth"]),
            "classifier": {**cast, "defender": None, "mask": None, "ties": "against"},
            "image_size": content["image_size"],
            "num_classes": content["num_classes"],
            "class_names": content.get("class_names"),
            **({"made": content["made"]} if "made" in content else {}),
        }

    def problems(self, console: Console, certificates: Mapping[str, Any]) -> list[str]:
        """What is wrong with these votes, or with their being those of the certificates."""
        from costcert.verification.digests import file_digest
        from costcert.verification.stored import digest_problems

        noted, found = certificates["votes_digest"], []
        if self.is_folder:
            found = digest_problems(console, self.path, self._digests)
            there, known = self._digests.digest, certificates["votes"]
        else:
            there = file_digest(self.path)
            known = {key: certificates["votes"][key] for key in self.manifest}
        if noted is None:
            found.append("these certificates do not record the digest of their votes: certify them again")
        elif noted != there:
            found.append(
                f"{self.path} are not the votes that these certificates record: their digests differ"
            )
        found += [
            f"{self.path} are not the votes of these certificates: their {key} differ"
            for key in sorted({*known, *self.manifest})
            if known.get(key) != self.manifest.get(key)
        ]
        if not found:
            console.print(f"Digests: {self.path} holds the votes that these certificates record")
            twice = [name for name, times in Counter(self.ids()).items() if times > 1]
            found += [f"{self.path} holds the image {name!r} more than once" for name in twice]
        return found

    def ids(self) -> list[str]:
        """Ids of all images, in their order."""
        from costcert.store.parquet import read_table, shard_path
        from costcert.verification.digests import num_shards

        if not self.is_folder:
            return [str(each) for each in self._columns.get("image_id", range(self.count))]
        return [
            name
            for shard in range(num_shards(self.manifest))
            for name in read_table(shard_path(self.path, shard), ["image_id"]).column(0).to_pylist()
        ]

    def images(self, numbers: Sequence[int]) -> Iterator[Row]:
        """Some rows, in their order; a shard is read once."""
        from costcert.store.parquet import read_table, shard_path

        if not self.is_folder:
            yield from map(self._row, numbers)
            return
        for shard, places in _by_shard(numbers, int(self.manifest["shard_size"])):
            table = read_table(shard_path(self.path, shard))
            yield from (table.slice(place, 1).to_pylist()[0] for place in places)

    def _row(self, image: int) -> Row:
        """One image of a file, as a row of a folder."""
        import numpy as np

        columns = self._columns
        row: dict[str, Any] = {
            "image_id": str(columns["image_id"][image]) if "image_id" in columns else str(image),
            "truth": int(columns["truth"][image]),
        }
        renamed = {"labels": "soft_labels", "units": "soft_units"}
        for name in ("labels", "units", "ballots", "margins", "cuts", "known"):
            if name in columns:
                kind = np.float32 if name in ("margins", "cuts") else np.int64
                row[renamed.get(name, name)] = columns[name][image].astype(kind).ravel().tolist()
        for name in ("original_height", "original_width"):
            if name in columns:
                row[name] = int(columns[name][image])
        if "ballots" not in row:
            best = columns["units"][image].argmax(axis=1)
            row["ballots"] = [
                int(labels[at]) for labels, at in zip(columns["labels"][image], best, strict=True)
            ]
        return {**row, "unread": bool(columns["unread"][image])} if "unread" in columns else row


def _derived(console: Console, options: CheckOptions, certificates: Stored, ballots: _Ballots) -> list[str]:
    """Certificates that differ from those derived again from the ballots."""
    from costcert.verification.checker import Question

    manifest = certificates.manifest
    if manifest.get("uncertain"):
        raise StoreError("which mutants were uncertain is not recorded, so nothing can be derived again")
    question = Question(manifest, ballots.manifest)
    keys = question.keys
    size = int(manifest["votes"]["shard_size"])
    images = ballots.count
    chosen: Sequence[int] = range(images)
    sample = images if options.every_image else options.sample or _SAMPLE
    if sample < images:
        chosen = sorted(random.Random(options.seed).sample(chosen, sample))  # noqa: S311
    classifier = manifest["classifier"]
    console.print(
        f"Question: {', '.join(manifest['defenders'])} against {', '.join(manifest['patches'])}; "
        f"{classifier['ablation']}, {'soft' if classifier['soft'] else 'hard'} ballots, "
        f"ties {classifier['ties']}"
        + ("" if manifest["epsilon"] is None else f", epsilon {manifest['epsilon']:.3g}")
        + (f", tau {manifest['tau']}" if manifest["tau"] else "")
    )
    console.print(
        f"Deriving {len(keys) * len(chosen):,} certificates again, of {len(chosen):,} of {images:,} images"
        + ("" if len(chosen) == images else "; --sample and --all choose how many")
    )
    rows = ballots.images(chosen)
    problems: list[str] = []
    with bar("checking") as on_progress:
        done = 0
        for shard, numbers in _by_shard(chosen, size):
            length = min(size, images - shard * size)
            first = shard * size * len(keys)
            table = certificates.rows(shard, first, length * len(keys))
            if len(table) != length * len(keys):
                return [f"shard {shard} holds {len(table)} certificates, not {length * len(keys)}"]
            for number in numbers:
                row = next(rows)
                on_progress(done, len(chosen))
                done += 1
                for at, (defender, patch) in enumerate(keys):
                    place = at * length + number
                    found = _difference(table[place], row, defender, patch, question.answer)
                    problems += [f"{certificates.row_name(first + place)}{each}" for each in found]
    which = "all" if len(chosen) == images else f"a sample by seed {options.seed}"
    console.print(
        f"Certificates: {len(keys) * len(chosen):,} derived again, of {len(chosen):,} images of {images:,} "
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
