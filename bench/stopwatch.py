"""Medians of a few rounds: on a shared machine a single timing says little, and the least says too much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple


class Timing(NamedTuple):
    """Seconds that went by, and seconds of all cores together: only the first grows when others are busy."""

    passed: float
    busy: float

    def __truediv__(self, count: float) -> Timing:
        return Timing(self.passed / count, self.busy / count)


def timing(work: Callable[[], object]) -> Timing:
    start, busy = perf_counter(), process_time()
    work()
    return Timing(perf_counter() - start, process_time() - busy)


def medians(works: Sequence[Callable[[], object]], rounds: int) -> list[Timing]:
    """Of each piece of work. Rounds go through all of them, so that a busy moment slows all alike."""
    times = [[timing(work) for work in works] for _ in range(rounds)]
    return [
        Timing(median(time.passed for time in column), median(time.busy for time in column))
        for column in zip(*times, strict=True)
    ]
