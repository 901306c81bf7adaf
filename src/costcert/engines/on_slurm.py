"""As an array of SLURM jobs, through submitit; where there is no SLURM, as processes of this machine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from costcert.engines.base import Job, Portable, Resources, explained
from costcert.errors import CostcertError

# Seconds between two looks at the jobs.
_PATIENCE = 0.5


def run(job: Job, shards: Sequence[int], resources: Resources, tell: Callable[[int], None]) -> None:
    with explained("submitit", "slurm"):
        import submitit
    workers = min(resources.workers or len(shards), len(shards))
    if not workers:
        return
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
    portable = Portable.packed(job)
    # Every so-manyth shard each, so that all have as much to do.
    shares = [list(shards[at::workers]) for at in range(workers)]
    _await(executor.map_array(_make, [portable] * workers, shares), shares, tell)


def _make(job: Portable, shards: list[int]) -> None:
    """What one job of the array does."""
    make = job.open()
    for shard in shards:
        make(shard)


def _await(jobs: Sequence[Any], shards: Sequence[list[int]], tell: Callable[[int], None]) -> None:
    waiting = dict(enumerate(jobs))
    failed: list[str] = []
    try:
        while waiting:
            for number, each in list(waiting.items()):
                if not each.done():
                    continue
                waiting.pop(number)
                if (error := each.exception()) is not None:
                    failed.append(f"{each.job_id}: {_why(str(error))}")
                    continue
                for shard in shards[number]:
                    tell(shard)
            time.sleep(_PATIENCE)
    except KeyboardInterrupt:
        for each in waiting.values():
            each.cancel()
        raise
    if failed:
        raise CostcertError(
            f"{len(failed)} of {len(jobs)} jobs failed ({failed[0]}): finished shards are kept; "
            "run the same command again for the others"
        )


def _why(report: str) -> str:
    """The exception at the end of a traceback, without what surrounds it."""
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt): ", line)]
    return (raised or lines or ["no reason given"])[-1]


def _numbers(options: Any) -> dict[str, Any]:
    return {key: int(value) if value.isdigit() else value for key, value in options.items()}
