"""As a SLURM job array through submitit; where there is no SLURM, as processes on this machine.

A job that dies (killed, out of time, node lost) is replaced by a new one for its missing shards. submitit
requeues preempted jobs only.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from costcert.engines.base import (
    MAX_ATTEMPTS,
    Job,
    RemoteJob,
    Resources,
    check_gpus,
    require,
)
from costcert.errors import CostcertError

_POLL_SECONDS = 0.5
# How long the result of a job that has ended may take to appear on a slow file system.
_RESULT_SECONDS = 2.0


def run(job: Job, shards: Sequence[int], resources: Resources, on_done: Callable[[int], None]) -> None:
    workers = min(resources.workers or len(shards), len(shards))
    if workers:
        executor = _executor(resources)
        # Round-robin, so that all jobs have about the same number of shards.
        parts = [list(shards[first::workers]) for first in range(workers)]
        _JobArray(executor, RemoteJob.from_here(job, resources), parts, on_done).run()


def _executor(resources: Resources) -> Any:
    check_gpus("slurm", resources.gpus)
    with require("submitit", extra="slurm"):
        import submitit
    options: dict[str, Any] = {"timeout_min": 24 * 60, **_with_integers(resources.options)}
    cluster = options.pop("cluster", None)
    executor = submitit.AutoExecutor(folder=(resources.logs or Path("costcert-jobs")) / "%j", cluster=cluster)
    slurm_options = {
        key if key in ("timeout_min", "mem_gb") else f"slurm_{key}": value for key, value in options.items()
    }
    executor.update_parameters(
        name="costcert",
        cpus_per_task=resources.cpus,
        gpus_per_node=int(resources.gpus),
        tasks_per_node=1,
        nodes=1,
        **slurm_options,
    )
    return executor


def _make_part(job: RemoteJob, shards: list[int]) -> CostcertError | None:
    """Runs in a job of the array. Returns its error, because submitit turns exceptions into text."""
    try:
        make = job.open()
        for shard in shards:
            # A requeued job starts again from its first shard.
            if not job.is_done(shard):
                make(shard)
    except CostcertError as error:
        return error
    return None


class _JobArray:
    """The running jobs, each with its part of the shards, which it makes in order."""

    def __init__(
        self, executor: Any, job: RemoteJob, parts: Sequence[list[int]], on_done: Callable[[int], None]
    ) -> None:
        self._executor, self._job, self._on_done = executor, job, on_done
        self._running = dict(enumerate(executor.map_array(_make_part, [job] * len(parts), parts)))
        # The shards of each part that are not known to be done.
        self._missing = list(parts)
        self._attempts: Counter[int] = Counter()
        self._ended_at: dict[str, float] = {}

    def run(self) -> None:
        try:
            while self._running:
                for part, job in list(self._running.items()):
                    self._poll(part, job)
                time.sleep(_POLL_SECONDS)
        except BaseException:
            for job in self._running.values():
                job.cancel(check=False)
            raise

    def _poll(self, part: int, job: Any) -> None:
        # Before looking for shards: once a job has ended, it makes no more.
        ended = job.done()
        missing = self._missing[part]
        while missing and self._job.is_done(missing[0]):
            self._on_done(missing.pop(0))
        if not ended:
            return
        if not job.paths.result_pickle.exists():
            ended_at = self._ended_at.setdefault(job.job_id, time.monotonic())
            if time.monotonic() - ended_at >= _RESULT_SECONDS:
                self._replace(part, f"job {job.job_id} ended as {job.state}, its log is {job.paths.stderr}")
            return
        if (error := job.exception()) is not None:
            reason = _last_exception(str(error))
            if "UncompletedJobError" not in reason:
                raise CostcertError(f"job {job.job_id} failed ({reason}): its log is {job.paths.stderr}")
            # submitit's error for a job that is out of time.
            self._replace(part, reason)
            return
        if (error := job.result()) is not None:
            raise error
        del self._running[part]
        for shard in missing:
            self._on_done(shard)

    def _replace(self, part: int, reason: str) -> None:
        """Submit a new job for the missing shards of one that died."""
        missing = self._missing[part]
        if not missing:
            del self._running[part]
            return
        shard = missing[0]
        self._attempts[shard] += 1
        if self._attempts[shard] >= MAX_ATTEMPTS:
            raise CostcertError(
                f"SLURM lost the job of shard {shard} {MAX_ATTEMPTS} times, at last because {reason}: check "
                "the memory and the time limit of the jobs"
            )
        self._running[part] = self._executor.submit(_make_part, self._job, missing)


def _last_exception(traceback: str) -> str:
    """The last line of a traceback that names an exception."""
    lines = [line.strip() for line in traceback.splitlines() if line.strip()]
    exceptions = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt): ", line)]
    return (exceptions or lines or ["no reason given"])[-1]


def _with_integers(options: Mapping[str, str]) -> dict[str, Any]:
    return {key: int(value) if value.isdigit() else value for key, value in options.items()}
