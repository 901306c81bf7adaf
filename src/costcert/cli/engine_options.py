"""Where shards are made: options of the engine, and the call that has all missing shards made."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

from cyclopts import Parameter

from costcert.cli.options import AT_LEAST_0, AT_LEAST_1, ENGINE
from costcert.engines import Job, Resources, find_engine
from costcert.engines.base import check_gpus, parse_options
from costcert.engines.on_local import rank_and_world_size
from costcert.errors import CostcertError
from costcert.progress import bar, note
from costcert.store.locations import Location

# Seconds between two checks whether other ranks are done.
_POLL_SECONDS = 0.2


@Parameter(name="*", group=ENGINE)
@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Which engine makes the shards, and with what; None where the engine decides."""

    engine: Annotated[str, Parameter(help="Where shards are made: local, ray or slurm.")] = "local"
    workers: Annotated[int | None, Parameter(help="Number of worker processes.", validator=AT_LEAST_1)] = None
    cpus: Annotated[int | None, Parameter(help="CPU cores per worker.", validator=AT_LEAST_1)] = None
    gpus: Annotated[float | None, Parameter(help="GPUs per worker.", validator=AT_LEAST_0)] = None
    options: Annotated[
        tuple[str, ...],
        Parameter(name="--engine-option", help="Setting of the engine, as in partition=gpu; repeatable."),
    ] = ()

    def __post_init__(self) -> None:
        """Refuse what the engine would ignore at once, before a model is loaded."""
        values = {
            "--workers": self.workers,
            "--cpus": self.cpus,
            "--gpus": self.gpus,
            "--engine-option": self.options or None,
        }
        given = [name for name, value in values.items() if value is not None]
        if self.engine == "local" and given:
            are, them = ("are", "them") if len(given) > 1 else ("is", "it")
            raise CostcertError(
                f"{' and '.join(given)} {are} for --engine ray or slurm: name one of these, or leave {them} "
                "out, because the local engine is this one process"
            )
        if self.engine in ("ray", "slurm") and self.gpus is not None:
            check_gpus(self.engine, self.gpus)

    @property
    def is_spread(self) -> bool:
        """Whether other processes make shards, too."""
        return self.engine != "local" or rank_and_world_size()[1] > 1


class Folder(Protocol):
    """A folder whose shards are being made."""

    folder: Location
    num_images: int

    def missing(self) -> list[int]: ...

    def shard_length(self, number: int) -> int: ...

    def seal(self, made: Sequence[int]) -> object: ...


AnyFolder = TypeVar("AnyFolder", bound=Folder)


def kept_shards(folder: Folder) -> str | None:
    """What an earlier run left of a folder, in words; None if this run begins it."""
    missing = folder.missing()
    # All shards but the last have the size of the first.
    shards = -(-folder.num_images // folder.shard_length(0))
    if len(missing) == shards:
        # Also of a folder without images, where nothing is there to be kept.
        return None
    if not missing:
        what = "the only shard was" if shards == 1 else f"all {shards:,} shards were"
        return f"{what} there already, of {folder.num_images:,} images"
    images = folder.num_images - sum(map(folder.shard_length, missing))
    return (
        f"{shards - len(missing):,} of {shards:,} shards were there already: {images:,} of "
        f"{folder.num_images:,} images"
    )


def spread(options: EngineOptions, job: Job, doing: str, *, begin: Callable[[], AnyFolder]) -> AnyFolder:
    """Have the engine make all missing shards; of several ranks, rank 0 seals the folder."""
    engine = find_engine(options.engine)
    engine_options = parse_options(options.options)
    source = begin()
    missing = source.missing()
    done = source.num_images - sum(source.shard_length(number) for number in missing)
    rank, _ = rank_and_world_size()
    kept = kept_shards(source)
    if kept is not None and rank == 0:
        note(kept)
    with bar(doing) as on_progress:
        on_progress(done, source.num_images)

        def on_shard(number: int) -> None:
            nonlocal done
            done += source.shard_length(number)
            on_progress(done, source.num_images)

        # Engines write their logs to files of this machine, never to a URL.
        logs = source.folder.with_name("costcert-jobs") if isinstance(source.folder, Path) else None
        resources = Resources(options.workers, options.cpus or 1, options.gpus or 0, engine_options, logs)
        engine(job, missing, resources, on_shard)
        if rank == 0:
            wait_until(lambda: not source.missing())
    if rank == 0:
        source.seal(missing)
    return source


def wait_until(done: Callable[[], bool]) -> None:
    """Wait for other ranks; torchrun ends all of them if one fails."""
    while not done():
        time.sleep(_POLL_SECONDS)
