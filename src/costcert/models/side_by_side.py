"""Evaluates batches side by side on the cores of a CPU, each of them on one thread.

Threads inside one small operation wait for each other most of the time, above all when another process is
busy, and the rounding of a sum depends on how many of them share it. Batches beside each other do not wait,
and each is computed as on one core: logits are the same bytes on 1, 2 or 64 cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from itertools import chain
from queue import SimpleQueue
from threading import Barrier, Lock
from typing import Generic, TypeVar

import torch
from torch import nn

from costcert.compiled import cores

Module = TypeVar("Module", bound=nn.Module)
Batch = TypeVar("Batch")
Result = TypeVar("Result")


def lanes() -> int:
    """How many batches run at once: one per core, or fewer if OMP_NUM_THREADS says so."""
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores(), int(limit)) if limit.isdecimal() and int(limit) else cores()


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread for the operations of the calling thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class SideBySide(Generic[Result]):
    """Evaluates batches from now on; iterating yields the result of each, in order.

    Each lane has a copy of the module's objects, which share its weights: a module may keep what it computes
    in its attributes, where another lane would overwrite it. A module that cannot be copied has one lane.

    Args:
        evaluate: called with the module and a batch.
    """

    def __init__(
        self, evaluate: Callable[[Module, Batch], Result], module: Module, batches: Sequence[Batch]
    ) -> None:
        idle: SimpleQueue[Module] = SimpleQueue()
        for copy in _copies(module, min(lanes(), len(batches))):
            idle.put(copy)

        def in_a_lane(batch: Batch) -> Result:
            lane = idle.get()
            try:
                return evaluate(lane, batch)
            finally:
                idle.put(lane)

        self._results = [_workers().submit(in_a_lane, batch) for batch in batches]

    def __iter__(self) -> Iterator[Result]:
        try:
            for result in self._results:
                yield result.result()
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Leave out the batches that have not begun."""
        for result in self._results:
            result.cancel()


def _copies(module: Module, count: int) -> list[Module]:
    """The module and `count - 1` copies of it with the same weights, or the module alone."""
    if count < 2:
        return [module]
    weights = {id(tensor): tensor for tensor in chain(module.parameters(), module.buffers())}
    try:
        return [module, *(deepcopy(module, dict(weights)) for _ in range(count - 1))]
    except Exception:
        # A class may refuse to be copied in any way.
        return [module]


_starting = Lock()


@cache
def _started(process: int) -> ThreadPoolExecutor:
    """Threads that use no further threads, shared by all models of a process."""
    before, count = torch.get_num_threads(), lanes()
    pool = ThreadPoolExecutor(count, "costcert", initializer=_use_one_thread)
    all_running = Barrier(count)
    list(pool.map(lambda _: all_running.wait(), range(count)))
    # What one thread sets is also what torch takes for threads that other code starts later.
    torch.set_num_threads(before)
    return pool


def _use_one_thread() -> None:
    # At its first use in a thread torch sets the number of threads of the process, which would undo ours.
    torch.get_num_threads()
    torch.set_num_threads(1)


def _workers() -> ThreadPoolExecutor:
    with _starting:
        # A forked process has none of its parent's threads.
        return _started(os.getpid())
