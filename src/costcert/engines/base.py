"""What an engine is given, and what it has to do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from costcert.errors import CostcertError

# Makes the shard of this number.
Make = Callable[[int], None]


class Job(Protocol):
    """What to do, told so that another process on another machine can do it."""

    def open(self) -> Make:
        """Get ready, once per process: load the model, open the data."""

    def there(self, shard: int) -> bool:
        """Whether the shard is made already; quick, and no reason to open anything."""


@dataclass(frozen=True)
class JobSpec:
    """The part of a job that travels: what was asked. What a process loads for it stays in that process."""

    request: Any

    def __getstate__(self) -> dict[str, Any]:
        return {"request": self.request}


@dataclass(frozen=True)
class Resources:
    """What a job may use.

    Args:
        workers: processes at once; by default as many as the engine finds room for.
        cpus, gpus: of each.
        options: what else the engine understands, such as `partition=gpu` for SLURM.
        logs: a folder for what the engine writes of its own.
    """

    workers: int | None = None
    cpus: int = 1
    gpus: float = 0
    options: Mapping[str, str] = field(default_factory=dict)
    logs: Path | None = None


class Engine(Protocol):
    def __call__(
        self, job: Job, shards: Sequence[int], resources: Resources, on_done: Callable[[int], None]
    ) -> None:
        """Make these shards; `on_done` is called with each that is done."""


def parse_options(texts: Iterable[str]) -> dict[str, str]:
    """`partition=gpu`, one by one."""
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key.isidentifier() and equals and value):
            raise CostcertError(f"cannot read the engine option {text!r}: write it like partition=gpu")
        options[key] = value
    return options


def check_gpus(engine: str, gpus: float) -> None:
    """Refuse a part of a GPU where the engine would take it for another number."""
    if not (float(gpus).is_integer() or (engine == "ray" and 0 < gpus < 1)):
        gives, instead = {
            "slurm": ("SLURM gives whole GPUs", "ask for 1, or share one with --engine ray"),
            "ray": ("Ray gives whole GPUs or a part of one", "ask for 0.5 or 2, say"),
        }[engine]
        raise CostcertError(f"{gives}, and not {gpus:g} of them: {instead}")


@dataclass(frozen=True)
class Portable:
    """A job with what it takes from its surroundings: the folder it was given in, and its threads."""

    job: Job
    folder: str
    threads: int | None

    @classmethod
    def packed(cls, job: Job) -> Portable:
        return cls(job, os.getcwd(), _threads())

    def open(self) -> Make:
        if os.path.isdir(self.folder):
            os.chdir(self.folder)
        if self.threads is not None:
            # Sums of floating-point numbers depend on how they are cut: as many threads, the same bytes.
            import_module("torch").set_num_threads(self.threads)
        return self.job.open()

    def there(self, shard: int) -> bool:
        return self.job.there(shard)


def _threads() -> int | None:
    """How many threads torch uses here, where it is in use at all."""
    torch: Any = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())


def threads_of_numpy() -> dict[str, str]:
    """The same for numpy: it only looks at these, and only when it is first imported."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = os.environ.get("OMP_NUM_THREADS", str(cores))
    own = {name: os.environ.get(name, threads) for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    return {"OMP_NUM_THREADS": threads, **own}


class Losses:
    """Workers that died; when that is no accident any more, it is said."""

    # A shard that kills its worker so often is the shard's fault; so many losses for each worker are the
    # cluster's.
    most_tries = 5
    most_lost = 20

    def __init__(self, engine: str, workers: int) -> None:
        self._engine, self._most = engine, self.most_lost * workers
        self._lost = 0
        self._tries: dict[int, int] = {}

    def add(self, shard: int | None, why: str) -> None:
        """A worker died, and with it the shard it was at, if any."""
        self._lost += 1
        what = "workers"
        if shard is not None:
            self._tries[shard] = self._tries.get(shard, 0) + 1
            what = f"shard {shard} and the workers that made it"
        if self._lost > self._most or (shard is not None and self._tries[shard] >= self.most_tries):
            raise CostcertError(f"{self._engine} lost {what} again and again: {why}")


@contextmanager
def explained(package: str, extra: str) -> Any:
    """A missing package is said in one sentence."""
    try:
        yield
    except ImportError:
        raise CostcertError(f"this engine needs {package}: pip install 'costcert[{extra}]'") from None
