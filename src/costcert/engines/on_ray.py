"""On a Ray cluster: actors that open the job once and make one shard at a time.

Ray restarts an actor whose process or node dies, on another node if necessary, and runs its shard again.
RAY_ADDRESS names the cluster; without it, one is started on this machine.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from costcert.engines.base import MAX_ATTEMPTS, Job, MakeShard, RemoteJob, Resources, numpy_threads, require
from costcert.errors import CostcertError


def run(job: Job, shards: Sequence[int], resources: Resources, on_done: Callable[[int], None]) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with require("ray", extra="ray"):
        import ray
    connected_before = ray.is_initialized()
    if not connected_before:
        _connect(ray)
    try:
        _make_shards(ray, RemoteJob.from_here(job), list(shards), resources, on_done)
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
    """The actor. It opens the job with its first shard, so that errors of opening are errors of a task."""

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
        max_restarts=-1,
        max_task_retries=MAX_ATTEMPTS - 1,
        # Ray would set numpy's threads to the cores of a worker, and sums would be rounded differently.
        runtime_env={"env_vars": numpy_threads()},
    )(_Worker)
    waiting = shards[::-1]
    # The worker and the shard of each result that Ray computes.
    running: dict[Any, tuple[Any, int]] = {}

    def assign(worker: Any) -> None:
        shard = waiting.pop()
        running[worker.make.remote(shard)] = (worker, shard)

    try:
        for _ in range(min(resources.workers or _capacity(ray, resources), len(shards))):
            assign(actor.remote(job))
        while running:
            (result,), _ = ray.wait(list(running), num_returns=1)
            worker, shard = running.pop(result)
            _check(ray, result, shard)
            on_done(shard)
            if waiting:
                assign(worker)
            else:
                # Its cores may be needed by an actor that waits to be restarted.
                ray.kill(worker)
    finally:
        for worker, _ in running.values():
            ray.kill(worker)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")


def _capacity(ray: Any, resources: Resources) -> int:
    """How many workers fit on the cluster, at least one."""
    total = ray.cluster_resources()
    fits = total.get("CPU", 1) / resources.cpus
    if resources.gpus:
        fits = min(fits, total.get("GPU", 0) / resources.gpus)
    return max(1, int(fits))


def _check(ray: Any, result: Any, shard: int) -> None:
    """Raise the error of a shard, if it has one, as if it had been raised in this process."""
    try:
        ray.get(result)
    except ray.exceptions.RayTaskError as error:
        raise (
            error.cause if isinstance(error.cause, CostcertError) else error.as_instanceof_cause()
        ) from None
    except ray.exceptions.RayError as error:
        raise CostcertError(
            f"Ray lost the worker of shard {shard} {MAX_ATTEMPTS} times, at last because "
            f"{_first_line(error)}: check the memory of the workers"
        ) from None
