"""A job that writes a file a shard; apart from the tests, so that workers start quickly."""

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from costcert.engines import Resources, find_engine
from costcert.engines.base import threads_of_numpy
from costcert.errors import VotesError
from costcert.store.files import atomic_write

SHARDS = 12


@dataclass(frozen=True)
class Writing:
    """Writes a file a shard, and notes who opened the job.

    Args:
        bad: a shard that cannot be made.
        deadly: one that kills whoever makes it.
        gate: from this shard on, workers wait for somebody to open the gate.
        crowd: before any shard, for so many workers to be ready.
    """

    folder: Path
    bad: int | None = None
    deadly: int | None = None
    gate: int = SHARDS
    crowd: int = 1

    def open(self):
        note = {"process": os.getpid(), "parent": os.getppid()}
        note |= {name: os.environ.get(name) for name in threads_of_numpy()}
        with atomic_write(self.folder / f"{time.time_ns()}.opened") as temporary:
            temporary.write_text(json.dumps(note))
        return self.make

    def there(self, shard):
        return (self.folder / f"{shard}.txt").exists()

    def make(self, shard):
        wait_for(lambda: len(opened(self.folder)) >= self.crowd)
        wait_for(lambda: shard < self.gate or (self.folder / "gate").exists())
        if shard == self.bad:
            raise VotesError(f"shard {shard} cannot be made")
        if shard == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        with atomic_write(self.folder / f"{shard}.txt") as temporary:
            temporary.write_text(str(shard * shard))


def wait_for(event):
    """Not for ever: nobody ends a process that outlived its test."""
    deadline = time.monotonic() + 300
    while not event() and time.monotonic() < deadline:
        time.sleep(0.01)


def opened(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.opened"))]


def written(folder):
    return {path.name: path.read_text() for path in folder.glob("*.txt")}


def when(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.txt")}


WHOLE = {f"{shard}.txt": str(shard * shard) for shard in range(SHARDS)}


def run(name, job, shards=range(SHARDS), tell=lambda shard: None, workers=2):
    """An engine, on this machine."""
    options = {"cluster": "local"} if name == "slurm" else {}
    find_engine(name)(
        job, shards, Resources(workers=workers, options=options, logs=job.folder / "jobs"), tell
    )
