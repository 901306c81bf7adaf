"""Compile numeric loops with numba, cache them on disk, and print a note if the first call has to wait.

Kernels release the GIL, so that plain threads run them in parallel. Unlike numba's own thread pool this
survives a fork, stops on Ctrl-C and lets progress be shown.
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

# Seconds of compiling before the note is printed.
NOTE_AFTER = 1.0


def compiled(function: Kernel) -> Kernel:
    """`function` compiled to machine code; without a writable cache every process compiles it again.

    It must not allocate arrays: it is compiled without numba's counts of references to them, which would
    take half the time of short loops.
    """
    return _compiled(function, _nrt=False)


def allocating(function: Kernel) -> Kernel:
    """`compiled` for a function that allocates arrays."""
    return _compiled(function)


def _compiled(function: Kernel, **options: Any) -> Kernel:
    # Nothing outside of Python calls kernels, and compiling an entry for that takes time.
    options |= {"nogil": True, "no_cfunc_wrapper": True}
    try:
        return cast(Kernel, numba.njit(cache=True, **options)(function))
    except RuntimeError:
        return cast(Kernel, numba.njit(**options)(function))


def inlined(function: Kernel) -> Kernel:
    """`function` inlined into its callers: passing arrays costs more than a short loop over them."""
    return cast(Kernel, numba.njit(inline="always")(function))


def ready(kernel: Callable[..., Any], no_work: Callable[[], object]) -> None:
    """Compile `kernel` by calling `no_work`, which calls it on empty input.

    Prints a note to stderr if compiling takes more than `NOTE_AFTER` seconds.
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
    """Prints a note when compiling takes long; loading a kernel from the cache does not count."""

    def __init__(self) -> None:
        self._timer = threading.Timer(NOTE_AFTER, _print_note)
        self._timer.daemon = True
        self._started = False

    def on_start(self, event: Any) -> None:
        if not self._started:
            self._started = True
            self._timer.start()

    def on_end(self, event: Any) -> None:
        """Ignored: compiling one kernel compiles others, and only `ready` knows when all are done."""

    def cancel(self) -> None:
        self._timer.cancel()


@cache
def _print_note() -> None:
    """Once per process."""
    print("costcert: compiling its kernels; later runs load them from a cache", file=sys.stderr, flush=True)


def cores() -> int:
    """The number of cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def side_by_side(work: Callable[[int, int], None], count: int, *, at_least: int = 16) -> None:
    """Call `work(start, stop)` on slices of `range(count)`, with one thread per core.

    There are more slices than threads, because some images take longer than others.

    Args:
        at_least: images per slice that are worth a thread.
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
