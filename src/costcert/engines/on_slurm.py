"""As an array of SLURM jobs, through submitit; where there is no SLURM, as processes of this machine.

A job that dies (killed, preempted, out of time, its node lost) is replaced by another one for those of its
shards that are missing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import environ
from pathlib import Path
from typing import Any

from costcert.engines.base import Job, Losses, Portable, Resources, check_gpus, explained, threads_of_numpy
from costcert.errors import CostcertError

# Seconds between two looks at the jobs, and until the result of one that has ended is seen on a slow disk.
_PATIENCE = 0.5
_GRACE = 2.0


def run(job: Job, shards: Sequence[int], resources: Resources, on_done: Callable[[int], None]) -> None:
    workers = min(resources.workers or len(shards), len(shards))
    if workers:
        executor = _executor(resources)
        # Every so-manyth shard each, so that all have as much to do.
        shares = [list(shards[at::workers]) for at in range(workers)]
        with _environment(threads_of_numpy()):
            WorkerPool(executor, Portable.packed(job), shares, on_done).work()


def _executor(resources: Resources) -> Any:
    check_gpus("slurm", resources.gpus)
    with explained("submitit", "slurm"):
        import submitit
    options: dict[str, Any] = {"timeout_min": 24 * 60, **_numbers(resources.options)}
    cluster = options.pop("cluster", None)
    executor = submitit.AutoExecutor(folder=(resources.logs or Path("costcert-jobs")) / "%j", cluster=cluster)
    for_slurm = {
        key if key in ("timeout_min", "mem_gb") else f"slurm_{key}": value for key, value in options.items()
    }
    executor.update_parameters(
        name="costcert",
        cpus_per_task=resources.cpus,
        gpus_per_node=int(resources.gpus),
        tasks_per_node=1,
        nodes=1,
        **for_slurm,
    )
    return executor


def _make(job: Portable, shards: list[int]) -> CostcertError | None:
    """What one job of the array does. Its error is returned: submitit makes plain text of what is raised."""
    try:
        make = job.open()
        for shard in shards:
            # SLURM starts a job that was preempted again, from its first shard.
            if not job.there(shard):
                make(shard)
    except CostcertError as error:
        return error
    return None


class WorkerPool:
    """Jobs at work, each with its share of the shards, which it makes in order."""

    def __init__(
        self, executor: Any, job: Portable, shares: Sequence[list[int]], on_done: Callable[[int], None]
    ) -> None:
        self._executor, self._job, self._on_done = executor, job, on_done
        self._losses = Losses("SLURM", len(shares))
        jobs = executor.map_array(_make, [job] * len(shares), shares)
        self._working = dict(enumerate(jobs))
        self._shares = list(shares)
        self._ended: dict[str, float] = {}

    def work(self) -> None:
        try:
            while self._working:
                for number, job in list(self._working.items()):
                    self._look(number, job)
                time.sleep(_PATIENCE)
        except BaseException:
            for job in self._working.values():
                job.cancel(check=False)
            raise

    def _look(self, number: int, job: Any) -> None:
        # Asked first: of a job that has ended no shard is overlooked.
        ended = job.done()
        share = self._shares[number]
        while share and self._job.there(share[0]):
            self._on_done(share.pop(0))
        if not ended:
            return
        if not job.paths.result_pickle.exists():
            since = self._ended.setdefault(job.job_id, time.monotonic())
            if time.monotonic() - since >= _GRACE:
                self._lose(number, f"job {job.job_id} ended as {job.state}, its log is {job.paths.stderr}")
            return
        if (error := job.exception()) is not None:
            why = _why(str(error))
            if "UncompletedJobError" not in why:
                raise CostcertError(f"job {job.job_id} failed ({why}): its log is {job.paths.stderr}")
            # How submitit says that the time was up.
            self._lose(number, why)
            return
        if (refused := job.result()) is not None:
            raise refused
        del self._working[number]
        for shard in share:
            self._on_done(shard)

    def _lose(self, number: int, why: str) -> None:
        """A job died: another one makes what it did not."""
        if not self._shares[number]:
            del self._working[number]
            return
        self._losses.add(self._shares[number][0], why)
        self._working[number] = self._executor.submit(_make, self._job, self._shares[number])


@contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """What jobs that are submitted now find around them."""
    before = {name: environ.get(name) for name in wanted}
    environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            environ.pop(name, None)
            if value is not None:
                environ[name] = value


def _why(report: str) -> str:
    """The exception at the end of a traceback, without what surrounds it."""
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt): ", line)]
    return (raised or lines or ["no reason given"])[-1]


def _numbers(options: Any) -> dict[str, Any]:
    return {key: int(value) if value.isdigit() else value for key, value in options.items()}
