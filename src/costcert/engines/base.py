"""What engines have in common: the job, its resources, and the settings that workers take over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from costcert.errors import CostcertError

# A run ends with an error once this many workers have died while making the same shard.
MAX_ATTEMPTS = 5

# Makes the shard with this number.
MakeShard = Callable[[int], None]


class Job(Protocol):
    """Makes shards; it is pickled and sent to workers, also on other machines."""

    def open(self) -> MakeShard:
        """Load the model and open the data, once per process."""

    def is_done(self, shard: int) -> bool:
        """Whether the shard exists already; fast, and without opening the job."""


@dataclass(frozen=True)
class JobSpec:
    """A job that is defined by its request: only the request is pickled, not what a process has loaded."""

    request: Any

    def __getstate__(self) -> dict[str, Any]:
        return {"request": self.request}


@dataclass(frozen=True)
class Resources:
    """What a run may use.

    Args:
        workers: number of concurrent processes; by default as many as the engine has room for.
        cpus, gpus: per worker.
        options: further options of the engine, such as `partition=gpu` for SLURM.
        logs: folder for the engine's own logs.
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
        """Make these shards; `on_done` is called with the number of each as it is done."""


def parse_options(texts: Iterable[str]) -> dict[str, str]:
    """Engine options, each spelled like `partition=gpu`."""
    options = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not (key.isidentifier() and equals and value):
            raise CostcertError(f"cannot read the engine option {text!r}: write it like partition=gpu")
        options[key] = value
    return options


def check_gpus(engine: str, gpus: float) -> None:
    """Refuse a number of GPUs that the engine cannot allocate."""
    if not (float(gpus).is_integer() or (engine == "ray" and 0 < gpus < 1)):
        allocates, instead = {
            "slurm": ("SLURM allocates entire GPUs", "request 1, or share a GPU with --engine ray"),
            "ray": ("Ray allocates entire GPUs or a share of one", "request 0.5 or 2, for example"),
        }[engine]
        raise CostcertError(f"{allocates}, got {gpus:g} per worker: {instead}")


@dataclass(frozen=True)
class RemoteJob:
    """A job with the settings of this process that a worker takes over.

    Args:
        cpus: the cores of a worker. Not every cluster confines a process to those it was given.
    """

    job: Job
    working_directory: str
    cpus: int

    @classmethod
    def from_here(cls, job: Job, resources: Resources) -> RemoteJob:
        return cls(job, os.getcwd(), resources.cpus)

    def open(self) -> MakeShard:
        os.environ.setdefault("OMP_NUM_THREADS", str(self.cpus))
        if os.path.isdir(self.working_directory):
            os.chdir(self.working_directory)
        return self.job.open()

    def is_done(self, shard: int) -> bool:
        return self.job.is_done(shard)


@contextmanager
def require(package: str, extra: str) -> Iterator[None]:
    """Turn the failing import of a package into one sentence."""
    try:
        yield
    except ImportError:
        raise CostcertError(f"this engine needs {package}: pip install 'costcert[{extra}]'") from None
