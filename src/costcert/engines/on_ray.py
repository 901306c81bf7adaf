"""On a Ray cluster: actors that load the model once and make shards until none is missing.

An actor or a node that dies takes with it the shard it was at and nothing else; that shard is given to
another. The address of the cluster is read from RAY_ADDRESS; without it a cluster of this machine's cores is
started.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from costcert.engines.base import Job, Losses, Portable, Resources, explained, threads_of_numpy
from costcert.errors import CostcertError


def run(job: Job, shards: Sequence[int], resources: Resources, on_done: Callable[[int], None]) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with explained("ray", "ray"):
        import ray
    ours = not ray.is_initialized()
    if ours:
        address = os.environ.get("RAY_ADDRESS", "local")
        try:
            ray.init(
                address=address,
                # A cluster for one command needs no page about itself, which takes seconds to start.
                include_dashboard=False if address == "local" else None,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise CostcertError(
                f"no Ray cluster answers at {address!r}: {str(error).splitlines()[0]}"
            ) from None
    try:
        WorkerPool(ray, Portable.packed(job), list(shards), resources, on_done).work()
    finally:
        if ours:
            ray.shutdown()


class _Worker:
    """Lives in an actor."""

    def open(self, job: Portable) -> None:
        self._make = job.open()

    def make(self, shard: int) -> None:
        self._make(shard)


class WorkerPool:
    """Actors at work: one shard each at a time, the next as soon as one is done.

    A worker gets a shard only once it is ready: one that was hired for a node that is gone may never be.
    """

    def __init__(
        self, ray: Any, job: Portable, shards: list[int], resources: Resources, on_done: Callable[[int], None]
    ) -> None:
        self._ray, self._on_done = ray, on_done
        self._job = ray.put(job)
        self._waiting = shards[::-1]
        room = ray.cluster_resources()
        cpus, gpus = room.get("CPU", 1) / resources.cpus, room.get("GPU", 0) / (resources.gpus or 1)
        fits = int(min(cpus, gpus) if resources.gpus else cpus)
        self._most = min(resources.workers or max(1, fits), len(shards))
        self._losses = Losses("Ray", self._most)
        # Without this Ray has numpy use as many threads as a worker has cores, and other bytes come out.
        kwargs = {"runtime_env": {"env_vars": threads_of_numpy()}}
        self._actor = ray.remote(num_cpus=resources.cpus, num_gpus=resources.gpus, **kwargs)(_Worker)
        self._starting: dict[Any, Any] = {}
        self._idle: list[Any] = []
        self._busy: dict[Any, tuple[Any, int]] = {}

    def work(self) -> None:
        while self._waiting or self._busy:
            while self._waiting and self._idle:
                self._assign(self._idle.pop(), self._waiting.pop())
            while (
                len(self._starting) < len(self._waiting)
                and len(self._busy) + len(self._starting) < self._most
            ):
                worker = self._actor.remote()
                self._starting[worker.open.remote(self._job)] = worker
            (news, *_), _ = self._ray.wait([*self._busy, *self._starting])
            self._on_result(news)

    def _assign(self, worker: Any, shard: int) -> None:
        self._busy[worker.make.remote(shard)] = (worker, shard)

    def _on_result(self, news: Any) -> None:
        worker, shard = self._busy.pop(news, (None, None))
        worker = worker or self._starting.pop(news)
        try:
            self._ray.get(news)
        except self._ray.exceptions.RayTaskError as error:
            # The work itself failed, wherever it is tried: as if it had failed here.
            raise (
                error.cause if isinstance(error.cause, CostcertError) else error.as_instanceof_cause()
            ) from None
        except self._ray.exceptions.RayError as error:
            if shard is not None:
                self._waiting.append(shard)
            self._losses.add(shard, str(error).splitlines()[0])
            return
        self._idle.append(worker)
        if shard is not None:
            self._on_done(shard)
