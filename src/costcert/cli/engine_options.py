"""The same command on many machines: who makes the shards, and when all are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from costcert.cli.progress import bar
from costcert.engines import Job, Resources, find_engine
from costcert.engines.base import check_gpus, parse_options
from costcert.engines.on_local import rank_and_world_size
from costcert.errors import CostcertError
from costcert.store.locations import Location

# Seconds between two looks whether the others are done.
_PATIENCE = 0.2


@dataclass(frozen=True)
class EngineOptions:
    """Who does the work, as asked on the command line; None where nothing was asked."""

    engine: str = "local"
    workers: int | None = None
    cpus: int | None = None
    gpus: float | None = None
    options: Sequence[str] = ()

    def __post_init__(self) -> None:
        """What no engine would do is refused at once, before a model is loaded."""
        asked = {
            "--workers": self.workers,
            "--cpus": self.cpus,
            "--gpus": self.gpus,
            "--engine-option": self.options or None,
        }
        given = [name for name, value in asked.items() if value is not None]
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
        return self.engine != "local" or rank_and_world_size()[1] > 1


class Folder(Protocol):
    """A folder of shards in the making."""

    folder: Location
    num_images: int

    def missing(self) -> list[int]: ...

    def shard_length(self, number: int) -> int: ...

    def seal(self, made: Sequence[int]) -> object: ...


AnyFolder = TypeVar("AnyFolder", bound=Folder)


def spread(options: EngineOptions, job: Job, doing: str, *, begin: Callable[[], AnyFolder]) -> AnyFolder:
    """Have the missing shards made; of several processes side by side the first one ends the work."""
    engine = find_engine(options.engine)
    engine_options = parse_options(options.options)
    source = begin()
    missing = source.missing()
    done = source.num_images - sum(source.shard_length(number) for number in missing)
    rank, _ = rank_and_world_size()
    with bar(doing) as on_progress:
        on_progress(done, source.num_images)

        def one_more(number: int) -> None:
            nonlocal done
            done += source.shard_length(number)
            on_progress(done, source.num_images)

        # Engines write logs to files of this machine.
        logs = source.folder.with_name("costcert-jobs") if isinstance(source.folder, Path) else None
        resources = Resources(options.workers, options.cpus or 1, options.gpus or 0, engine_options, logs)
        engine(job, missing, resources, one_more)
        if rank == 0:
            wait_until(lambda: not source.missing())
    if rank == 0:
        source.seal(missing)
    return source


def wait_until(done: Callable[[], bool]) -> None:
    """Wait for what other ranks do; torchrun ends us all if one of them fails."""
    while not done():
        time.sleep(_PATIENCE)
