"""Compile a numeric loop once, keep it on disk, and say so when the first call has to wait for it.

Kernels release the interpreter's lock, so that plain threads run them side by side: unlike numba's own
thread pool this survives a fork, stops on Ctrl-C and lets progress be shown.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, TypeVar, cast

import numba
from numba.core import event

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# Seconds of compiling before a word about it.
PATIENCE = 1.0


def compiled(function: Kernel) -> Kernel:
    """`function` as machine code; without a writable cache it is compiled anew by each process."""
    try:
        return cast(Kernel, numba.njit(nogil=True, cache=True)(function))
    except RuntimeError:
        return cast(Kernel, numba.njit(nogil=True)(function))


def inlined(function: Kernel) -> Kernel:
    """`function` written into its callers: handing arrays over costs more than a short loop over them."""
    return cast(Kernel, numba.njit(inline="always")(function))


def ready(kernel: Callable[..., Any], no_work: Callable[[], object]) -> None:
    """Have `kernel` compiled by a call that asks it for no work.

    Says so on the error stream where compiling takes more than a second.
    """
    if getattr(kernel, "signatures", None):
        return
    notice = _Notice()
    try:
        with event.install_listener("numba:compile", notice):
            no_work()
    finally:
        notice.cancel()


class _Notice(event.Listener):
    """Speaks up when compiling takes long; reading from disk what was compiled before does not count."""

    def __init__(self) -> None:
        self._timer = threading.Timer(PATIENCE, _say)
        self._timer.daemon = True
        self._started = False

    def on_start(self, event: Any) -> None:
        if not self._started:
            self._started = True
            self._timer.start()

    def on_end(self, event: Any) -> None:
        """One kernel compiles another: only `ready` knows when all is done."""

    def cancel(self) -> None:
        self._timer.cancel()


@cache
def _say() -> None:
    print("costcert: compiling its kernels; later runs find them ready", file=sys.stderr, flush=True)


def cores() -> int:
    """Cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def side_by_side(work: Callable[[int, int], None], count: int, *, at_least: int = 16) -> None:
    """Call `work(start, stop)` on slices of `range(count)`, one thread a core.

    There are more slices than threads, because images differ in how long they take.
    """
    threads = min(cores(), max(1, count // at_least))
    if threads == 1:
        work(0, count)
        return
    step = max(at_least, -(-count // (threads * 8)))
    with ThreadPoolExecutor(threads) as pool:
        slices = [(start, min(start + step, count)) for start in range(0, count, step)]
        for _ in pool.map(lambda ends: work(*ends), slices):
            pass
