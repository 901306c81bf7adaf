"""Timing by the median of a few rounds, because single timings on a shared machine are noisy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple


class Timing(NamedTuple):
    """Wall-clock seconds, and CPU seconds of all cores; other processes slow down only the first."""

    passed: float
    busy: float

    def __truediv__(self, count: float) -> Timing:
        return Timing(self.passed / count, self.busy / count)


def timing(work: Callable[[], object]) -> Timing:
    start, busy = perf_counter(), process_time()
    work()
    return Timing(perf_counter() - start, process_time() - busy)


def medians(works: Sequence[Callable[[], object]], rounds: int) -> list[Timing]:
    """The median timing of each function. Every round runs all of them, so that load affects all equally."""
    times = [[timing(work) for work in works] for _ in range(rounds)]
    return [
        Timing(median(time.passed for time in column), median(time.busy for time in column))
        for column in zip(*times, strict=True)
    ]
