"""On a Ray cluster: actors that open the job once and make one shard at a time.

When the process or the node of an actor dies, a new actor makes its shard. RAY_ADDRESS names the cluster;
without it, one is started on this machine.
"""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from costcert.engines.base import MAX_ATTEMPTS, Job, MakeShard, RemoteJob, Resources, require
from costcert.errors import CostcertError


def run(job: Job, shards: Sequence[int], resources: Resources, on_done: Callable[[int], None]) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with require("ray", extra="ray"):
        import ray
    connected_before = ray.is_initialized()
    if not connected_before:
        _connect(ray)
    try:
        _make_shards(ray, RemoteJob.from_here(job, resources), list(shards), resources, on_done)
    finally:
        if not connected_before:
            ray.shutdown()


def _connect(ray: Any) -> None:
    # Not "auto": a killed driver leaves the address of a dead cluster behind, which "auto" would use.
    address = os.environ.get("RAY_ADDRESS", "local")
    try:
        ray.init(
            address=address,
            # The dashboard takes seconds to start.
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise CostcertError(
            f"cannot connect to a Ray cluster at {address!r} ({_first_line(error)}): set RAY_ADDRESS to "
            "a running cluster, or unset it"
        ) from None


class _Worker:
    """The actor. It opens the job in its first task, because Ray reports errors of a constructor as text."""

    def __init__(self, job: RemoteJob) -> None:
        self._job = job

    def make(self, shard: int) -> None:
        self._make(shard)

    @cached_property
    def _make(self) -> MakeShard:
        return self._job.open()


def _make_shards(
    ray: Any, job: RemoteJob, shards: list[int], resources: Resources, on_done: Callable[[int], None]
) -> None:
    actor = ray.remote(
        num_cpus=resources.cpus,
        num_gpus=resources.gpus,
        # Not Ray's own: `max_restarts` counts over the life of an actor, not per shard, and connections to a
        # lost node use up `max_task_retries` within seconds.
        max_restarts=0,
        max_task_retries=0,
    )(_Worker)
    # The worker and the shard of each result that is not there yet.
    running: dict[Any, tuple[Any, int]] = {}

    def start(worker: Any, shard: int) -> None:
        running[worker.make.remote(shard)] = (worker, shard)

    waiting = deque(shards)
    losses: Counter[int] = Counter()
    try:
        for _ in range(min(resources.workers or _capacity(ray, resources), len(shards))):
            start(actor.remote(job), waiting.popleft())
        while running:
            (result,), _ = ray.wait(list(running), num_returns=1)
            worker, shard = running.pop(result)
            lost_because = _finish(ray, result)
            if lost_because is not None:
                ray.kill(worker)
                losses[shard] += 1
                if losses[shard] >= MAX_ATTEMPTS:
                    raise CostcertError(
                        f"Ray lost the worker of shard {shard} {MAX_ATTEMPTS} times, at last because "
                        f"{lost_because}: check the memory of the workers"
                    )
                start(actor.remote(job), shard)
                continue
            on_done(shard)
            if waiting:
                start(worker, waiting.popleft())
            else:
                # Its cores may be needed by the new worker of a lost shard.
                ray.kill(worker)
    finally:
        for worker, _ in running.values():
            ray.kill(worker)


def _capacity(ray: Any, resources: Resources) -> int:
    """How many workers fit on the cluster, at least one."""
    total = ray.cluster_resources()
    fits = total.get("CPU", 1) / resources.cpus
    if resources.gpus:
        fits = min(fits, total.get("GPU", 0) / resources.gpus)
    return max(1, int(fits))


def _finish(ray: Any, result: Any) -> str | None:
    """Why the worker was lost, if it was; an error of the job is raised as if it had run in this process."""
    try:
        ray.get(result)
    except ray.exceptions.RayTaskError as error:
        raise (
            error.cause if isinstance(error.cause, CostcertError) else error.as_instanceof_cause()
        ) from None
    except ray.exceptions.RayError as error:
        return _first_line(error)
    return None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")
