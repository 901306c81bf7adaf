"""Back-pressure: a few pieces of work at a time, a short queue, and a plain no to the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")


class BusyError(Exception):
    """The queue is full: come back later."""


class LateError(Exception):
    """The work takes longer than anybody should wait."""


class Room:
    """A place for so many at a time; more are told that it is full."""

    def __init__(self, places: int) -> None:
        self._places = places
        self.inside = 0

    def __enter__(self) -> None:
        if self.inside >= self._places:
            raise BusyError
        self.inside += 1

    def __exit__(self, *_: object) -> None:
        self.inside -= 1


class WorkQueue:
    """Runs work in `workers` threads while at most `waiting` more pieces queue.

    Work that is late goes on, because a thread cannot be stopped, and keeps its place until it ends: so
    slow requests can never pile up.
    """

    def __init__(self, workers: int, waiting: int, seconds: float) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="costcert")
        self._places = workers + waiting
        self.seconds = seconds
        self.inside = 0

    async def run(self, work: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        if self.inside >= self._places:
            raise BusyError
        self.inside += 1
        loop = asyncio.get_running_loop()
        future: Future[Result] = self._pool.submit(work, *args, **kwargs)
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._leave))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self.seconds)
        except TimeoutError:
            raise LateError from None

    def _leave(self) -> None:
        self.inside -= 1
