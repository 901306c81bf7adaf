"""A job that writes one file per shard; not in a test module, so that workers import little."""

import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from costcert.engines import Resources, find_engine
from costcert.errors import VotesError
from costcert.store.files import atomic_write

SHARDS = 12
COMPLETE = {f"{shard}.txt": str(shard * shard) for shard in range(SHARDS)}

# Seconds that a test waits for another process at most: only a hanging one takes this long.
LONGEST_WAIT = 1200


@dataclass(frozen=True)
class WritingJob:
    """Writes one file per shard, and a note for each process that opens the job.

    Args:
        bad: a shard that raises an error.
        deadly: a shard that kills the process that makes it.
        gate: shards from this one on wait for a file named `gate`.
        opened_first: every shard waits until this many processes have opened the job.
    """

    folder: Path
    bad: int | None = None
    deadly: int | None = None
    gate: int = SHARDS
    opened_first: int = 1

    def open(self):
        note = {"process": os.getpid(), "parent": os.getppid()}
        with atomic_write(self.folder / f"{time.time_ns()}.opened") as temporary:
            temporary.write_text(json.dumps(note))
        return self.make

    def is_done(self, shard):
        return (self.folder / f"{shard}.txt").exists()

    def make(self, shard):
        wait_for(lambda: len(notes(self.folder)) >= self.opened_first)
        wait_for(lambda: shard < self.gate or (self.folder / "gate").exists())
        if shard == self.bad:
            raise VotesError(f"shard {shard} cannot be made")
        if shard == self.deadly:
            os.kill(os.getpid(), signal.SIGKILL)
        with atomic_write(self.folder / f"{shard}.txt") as temporary:
            temporary.write_text(str(shard * shard))


def wait_for(condition):
    deadline = time.monotonic() + LONGEST_WAIT
    while not condition():
        # A worker that outlives its test must end.
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def notes(folder):
    """What each process that opened the job noted, in order of time."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.opened"))]


def written(folder):
    return {path.name: path.read_text() for path in folder.glob("*.txt")}


def modified(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.txt")}


def run(name, job, shards=range(SHARDS), on_done=lambda shard: None, workers=2):
    """Run an engine on this machine."""
    options = {"cluster": "local"} if name == "slurm" else {}
    resources = Resources(workers=workers, options=options, logs=job.folder / "jobs")
    find_engine(name)(job, shards, resources, on_done)
