"""Evaluates batches side by side on the cores of a CPU, each of them on one thread.

Threads inside one small operation wait for each other most of the time, above all when another process is
busy, and the rounding of a sum depends on how many of them share it. Batches beside each other do not wait,
and each is computed as on one core: logits are the same bytes on 1, 2 or 64 cores.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from itertools import chain
from queue import SimpleQueue
from threading import Barrier, Lock, local
from typing import Any, ClassVar, Generic, TypeVar

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
    """Evaluates batches from now on; iterating once yields the result of each, in order.

    Args:
        evaluate: called with the module, or a copy of it for the calling thread, and a batch.
    """

    def __init__(
        self, evaluate: Callable[[Module, Batch], Result], module: Module, batches: Sequence[Batch]
    ) -> None:
        self._lanes = _Lanes.of(module, len(batches))
        self._results = deque(_submit(self._lanes.run, evaluate, batch) for batch in batches)

    def __iter__(self) -> Iterator[Result]:
        try:
            while self._results:
                yield self._results.popleft().result()
        finally:
            self.cancel()

    def cancel(self) -> None:
        """Leave out the batches that have not begun."""
        while self._results:
            if self._results.pop().cancel():
                self._lanes.finish_batch()


class _Lanes(Generic[Module]):
    """A module and copies of it, each for one thread at a time: as many as batches can run at once.

    A module may keep what it computes in its attributes, where another thread would overwrite it. Copies
    share its weights. All evaluations of a module that overlap share its lanes; copies are made anew after
    them, so that they are of the module as it is. A module that cannot be copied has one lane.
    """

    # Of the modules with unfinished batches, by their id.
    _running: ClassVar[dict[int, _Lanes[Any]]] = {}
    _lock: ClassVar[Lock] = Lock()

    def __init__(self, module: Module) -> None:
        self._module, self._count, self._unfinished = module, 1, 0
        self._idle: SimpleQueue[Module] = SimpleQueue()
        self._idle.put(module)

    @classmethod
    def of(cls, module: Module, batches: int) -> _Lanes[Module]:
        """The module's lanes, for this many batches more."""
        with cls._lock:
            lanes_of = cls._running.setdefault(id(module), cls(module)) if batches else cls(module)
            lanes_of._unfinished += batches
            lanes_of._grow(min(lanes(), lanes_of._unfinished))
        return lanes_of

    def _grow(self, count: int) -> None:
        if count <= self._count:
            return
        taken = [self._idle.get()]
        while taken[-1] is not self._module:
            # Not copied while a thread uses it: the copy would be of half a computation.
            taken.append(self._idle.get())
        for lane in (*taken, *_copies(self._module, count - self._count)):
            self._idle.put(lane)
        self._count = count

    def run(self, evaluate: Callable[[Module, Batch], Result], batch: Batch) -> Result:
        lane = self._idle.get()
        try:
            return evaluate(lane, batch)
        finally:
            self._idle.put(lane)
            # Before the result is there: with the last one, the owner may change the module.
            self.finish_batch()

    def finish_batch(self) -> None:
        with self._lock:
            self._unfinished -= 1
            if not self._unfinished:
                del self._running[id(self._module)]


def _copies(module: Module, count: int) -> list[Module]:
    """Copies of the module with the same weights; none if it cannot be copied."""
    weights = {id(tensor): tensor for tensor in chain(module.parameters(), module.buffers())}
    try:
        return [deepcopy(module, dict(weights)) for _ in range(count)]
    except Exception:
        # A class may refuse to be copied in any way.
        return []


_this_thread = local()
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
    _this_thread.is_worker = True
    # At its first use in a thread torch sets the number of threads of the process, which would undo ours.
    torch.get_num_threads()
    torch.set_num_threads(1)


def _submit(run: Callable[..., Result], *arguments: Any) -> Future[Result]:
    if not getattr(_this_thread, "is_worker", False):
        with _starting:
            # A forked process has none of its parent's threads.
            return _started(os.getpid()).submit(run, *arguments)
    # A network that evaluates another one: were it to wait for threads, all of them could be waiting.
    done: Future[Result] = Future()
    try:
        done.set_result(run(*arguments))
    except Exception as error:
        done.set_exception(error)
    return done


def _forget_threads() -> None:
    """In a forked process: the threads that hold locks and lanes are those of its parent."""
    global _starting
    _starting, _Lanes._lock = Lock(), Lock()
    _Lanes._running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)
