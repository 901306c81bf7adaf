"""How far a long command is, on the error stream: a bar for people, a line now and then for log files."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

# Told the images that are done, and all images.
Tell = Callable[[int, int], None]

# Seconds between two lines of a log.
_QUIET = 60.0


@contextmanager
def bar(doing: str) -> Iterator[Tell]:
    """Shows what it is told."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _log(console, doing)
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        _Rate(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        speed_estimate_period=300,
    ) as progress:
        task = progress.add_task(doing, total=None)

        def on_progress(done: int, images: int) -> None:
            progress.update(task, completed=done, total=images)

        yield on_progress


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(_per_second(speed) if speed else "", style="progress.data.speed")


def _log(console: Console, doing: str) -> Tell:
    began: tuple[float, int] | None = None
    said = time.monotonic()

    def on_progress(done: int, images: int) -> None:
        nonlocal began, said
        now = time.monotonic()
        # What was done before this run says nothing about its speed.
        began = began or (now, done)
        if now - said < _QUIET or done == began[1]:
            return
        said = now
        speed = (done - began[1]) / (now - began[0])
        left = timedelta(seconds=round((images - done) / speed))
        console.print(f"{doing}: {done:,} of {images:,} images, {_per_second(speed)}, {left} left")

    return on_progress


def _per_second(speed: float) -> str:
    return f"{speed:,.{0 if speed >= 10 else 1 if speed >= 1 else 3}f} images/s"
