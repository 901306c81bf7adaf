"""`costcert check`: verify digests, and derive certificates again from their ballots."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from costcert.cli.options import AT_LEAST_0, AT_LEAST_1, CSV, DATA, MODEL, RUN, PathOrUrl
from costcert.cli.progress import bar
from costcert.errors import CostcertError, OtherModelError, StoreError

if TYPE_CHECKING:
    from rich.console import Console

    from costcert.store.locations import Location
    from costcert.verification.stored import Row, Stored

# Differences that are printed one by one.
_SHOWN = 20

# Images whose certificates are derived again, unless the options say otherwise.
_SAMPLE = 50

# Options for what an .npz does not record about its votes.
_OF_ARCHIVES = ("ablation", "classes", "image_size")
# The units of a soft ballot, where an .npz does not record its cap.
_UNITS = 65536

EXAMPLES = (
    "costcert check certs --votes votes --all",
    "costcert check certs --votes votes --model model --data folder:photos \\\n  --replay 20",
)


@Parameter(name="*", group=CSV)
@dataclass(frozen=True, kw_only=True)
class CsvOptions:
    """Options of `certify` that are recorded nowhere, or only where a forger could have written them.

    An .npz does not record how its votes were made; a .csv records nothing but rows.
    """

    ablation: Annotated[str | None, Parameter(help="What each mutant kept (also for an .npz).")] = None
    classes: Annotated[int | None, Parameter(help="Number of classes (also for an .npz).")] = None
    image_size: Annotated[str | None, Parameter(help="The model's input size (also for an .npz).")] = None
    ties: Annotated[str | None, Parameter(help="against or lowest.", show_default="against")] = None
    hard: Annotated[bool, Parameter(help="Hard ballots of soft votes.")] = False
    epsilon: Annotated[str | None, Parameter(help="A number, or probe.")] = None
    tau: Annotated[int | None, Parameter(help="Units per label of a soft ballot.", show_default="0")] = None
    tuned: Annotated[PathOrUrl | None, Parameter(help="The .json file of tune.")] = None


@Parameter(name="*", group=RUN)
@dataclass(frozen=True)
class CheckOptions:
    certificates: Annotated[
        PathOrUrl, Parameter(help="A folder of certificates, or a .parquet, .csv or .json file of certify.")
    ]
    _: KW_ONLY
    votes: Annotated[
        PathOrUrl | None, Parameter(help="The votes they came from, to derive the certificates again.")
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
    model: Annotated[
        str | None,
        Parameter(
            alias="-m", group=MODEL, help="The model, to compare its weights with the recorded digest."
        ),
    ] = None
    checkpoint: Annotated[
        PathOrUrl | None, Parameter(group=MODEL, help="Weights of a timm: or strip: model.")
    ] = None
    csv: CsvOptions = CsvOptions()

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
    from rich.console import Console

    if options.replay is not None and None in (options.votes, options.model, options.data):
        raise CostcertError("--replay evaluates the model again: pass --votes, --model and --data, too")
    console = Console(highlight=False, soft_wrap=True)
    with _damage_in_one_sentence(options.certificates):
        ballots = None if options.votes is None else _Ballots(options.votes, options.csv)
        certificates = _stored(options, ballots)
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
                problems += certificates.accuracy_problems()
        if options.model is not None:
            from costcert.verification.replay import Replay, ReplaySample

            voted = certificates.manifest["votes"] if ballots is None else ballots.manifest
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


def _stored(options: CheckOptions, ballots: _Ballots | None) -> Stored:
    from costcert.verification.stored import StoredFile, StoredFolder, is_export

    path, archive = options.certificates, ballots is not None and not ballots.is_folder
    given = [field.name for field in fields(CsvOptions) if getattr(options.csv, field.name) != field.default]
    needless = [name for name in given if path.suffix != ".csv" and not (archive and name in _OF_ARCHIVES)]
    if needless:
        raise CostcertError(f"{path} records how it was certified: leave {_spelled(needless)} out")
    if not is_export(path):
        return StoredFolder(path)
    if ballots is None:
        raise CostcertError(f"{path} has no digests, only rows: pass --votes with the votes it came from")
    return StoredFile(path, ballots.count, lambda *keys: _manifest(options.csv, ballots.path, *keys))


def _spelled(names: Sequence[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _manifest(
    csv: CsvOptions, votes: Location, defenders: list[str], patches: list[str]
) -> Mapping[str, Any]:
    """The manifest of certificates that certify makes with these options."""
    from costcert.cli.certify import CertifyOptions, manifest_of

    return manifest_of(
        CertifyOptions(
            votes,
            patches=",".join(patches),
            defenders=",".join(defenders),
            ablation=csv.ablation,
            classes=csv.classes,
            image_size=csv.image_size,
            ties=csv.ties or "against",
            hard=csv.hard,
            epsilon=csv.epsilon,
            tau=csv.tau or 0,
            tuned=csv.tuned,
        )
    )


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
    """The votes that certificates came from: a folder or an .npz, without trust in the certificates."""

    def __init__(self, path: Location, csv: CsvOptions) -> None:
        from costcert.store.parquet import read_npz
        from costcert.verification.stored import read_digests
        from costcert.votes.validation import MOST_CLASSES

        self.path = path
        self.is_folder = path.is_dir()
        if self.is_folder:
            self._digests = read_digests(path, "votes", 1, 2)
            self.manifest = self._digests.manifest
        else:
            self._arrays = read_npz(path)
            self.manifest = self._described(csv)
        if not 0 < self.manifest["num_classes"] <= MOST_CLASSES:
            raise StoreError(
                f"the number of classes must be from 1 to {MOST_CLASSES}, got {self.manifest['num_classes']}"
            )

    @property
    def count(self) -> int:
        """Images that voted."""
        return int(self.manifest["images"])

    def _described(self, csv: CsvOptions) -> Mapping[str, Any]:
        """The manifest of an .npz: from its arrays, and from options for what it does not record."""
        missing = [name for name in _OF_ARCHIVES if getattr(csv, name) is None]
        if missing:
            raise CostcertError(
                f"{self.path} does not record how its votes were made, and certificates cannot vouch for "
                f"themselves: pass {_spelled(missing)}"
            )
        sides = [int(side) for side in str(csv.image_size).split("x")]
        soft, arrays = None, self._arrays
        if "units" in arrays:
            soft = {
                "temperature": float(arrays["temperature"]) if "temperature" in arrays else None,
                "best": int(arrays["units"].shape[2]),
                "cap": int(arrays["cap"]) if "cap" in arrays else _UNITS,
            }
        return {
            "images": len(arrays["truth"]),
            "classifier": {"ablation": csv.ablation, "hide": None, "soft": soft},
            "image_size": sides if len(sides) == 2 else 2 * sides,
            "num_classes": csv.classes,
        }

    def problems(self, console: Console, certificates: Mapping[str, Any]) -> list[str]:
        """What is wrong with these votes, or with their being those of the certificates."""
        from costcert.verification.checker import classifier_of
        from costcert.verification.digests import file_digest
        from costcert.verification.stored import digest_problems

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
        """Ids of all images, in their order."""
        from costcert.store.parquet import read_table, shard_path
        from costcert.verification.digests import num_shards

        if not self.is_folder:
            return [str(each) for each in self._arrays.get("image_ids", range(self.count))]
        return [
            name
            for shard in range(num_shards(self.manifest))
            for name in read_table(shard_path(self.path, shard), ["image_id"]).column(0).to_pylist()
        ]

    def images(self, numbers: Sequence[int]) -> Iterator[Row]:
        """Some rows, in their order; a shard is read once."""
        from costcert.store.parquet import read_table, shard_path

        if not self.is_folder:
            yield from (self._archived(self._arrays, number) for number in numbers)
            return
        for shard, places in _by_shard(numbers, int(self.manifest["shard_size"])):
            table = read_table(shard_path(self.path, shard))
            yield from (table.slice(place, 1).to_pylist()[0] for place in places)

    @staticmethod
    def _archived(arrays: Mapping[str, Any], image: int) -> Row:
        import numpy as np

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
    classifier = manifest["classifier"]
    console.print(
        f"Question: {', '.join(manifest['defenders'])} against {', '.join(manifest['patches'])}; "
        f"{classifier['ablation']}, {'soft' if classifier['soft'] else 'hard'} ballots, "
        f"ties {classifier['ties']}, epsilon "
        f"{manifest['epsilon']}, tau {manifest['tau']}"
    )
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
