"""Back-pressure: a few jobs run at a time, a short queue waits, and further requests are refused.

anyio's CapacityLimiter does not fit: it frees the place of a cancelled job while its thread still runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from starlette.exceptions import HTTPException

Result = TypeVar("Result")


class BusyError(HTTPException):
    """The queue is full."""

    def __init__(self) -> None:
        super().__init__(429, "the service is busy: try again in a second", {"Retry-After": "1"})


class LateError(HTTPException):
    """The time limit of a request is over."""

    def __init__(self) -> None:
        super().__init__(503, "this took too long: request less, or try again later", {"Retry-After": "5"})


class WorkQueue:
    """Runs jobs in `workers` threads while at most `waiting` more jobs queue.

    A job past its time limit continues, because a thread cannot be stopped, and keeps its place until it
    ends: so slow requests never pile up.
    """

    def __init__(self, workers: int, waiting: int, seconds: float) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="costcert")
        self._capacity = workers + waiting
        self.seconds = seconds
        # Jobs that run or wait.
        self.pending = 0

    async def run(self, job: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
        if self.pending >= self._capacity:
            raise BusyError
        self.pending += 1
        loop = asyncio.get_running_loop()
        future: Future[Result] = self._pool.submit(job, *args, **kwargs)
        future.add_done_callback(lambda _: loop.call_soon_threadsafe(self._done))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self.seconds)
        except TimeoutError:
            raise LateError from None

    def _done(self) -> None:
        self.pending -= 1
