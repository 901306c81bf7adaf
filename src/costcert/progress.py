"""Progress of long work, on the error stream: a bar on a terminal, a line per minute in a log file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

# Called with the number of images that are done, and of all images.
OnProgress = Callable[[int, int], None]

# Seconds between two lines of a log.
_LOG_INTERVAL = 60.0


def note(sentence: str) -> None:
    """A sentence on the error stream, beside the progress and not among the results."""
    print(f"costcert: {sentence}", file=sys.stderr)


@contextmanager
def bar(doing: str, units: str = "images") -> Iterator[OnProgress]:
    """A progress bar, or lines of a log where the error stream is not a terminal."""
    from costcert.console import make_console

    console = make_console(stderr=True)
    if not console.is_terminal:
        yield _log(console, doing, units)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", style="progress.data.speed"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        speed_estimate_period=300,
    ) as progress:
        number = progress.add_task(doing, total=None, rate="")
        (task,) = progress.tasks

        def on_progress(done: int, images: int) -> None:
            rate = _per_second(task.speed, units) if task.speed else ""
            progress.update(number, completed=done, total=images, rate=rate)

        yield on_progress


def _log(console: Console, doing: str, units: str) -> OnProgress:
    began: tuple[float, int] | None = None
    printed = time.monotonic()

    def on_progress(done: int, images: int) -> None:
        nonlocal began, printed
        now = time.monotonic()
        # Images of earlier runs do not count into the speed of this one.
        began = began or (now, done)
        if now - printed < _LOG_INTERVAL or done == began[1]:
            return
        printed = now
        speed = (done - began[1]) / (now - began[0])
        left = timedelta(seconds=round((images - done) / speed))
        console.print(f"{doing}: {done:,} of {images:,} {units}, {_per_second(speed, units)}, {left} left")

    return on_progress


def _per_second(speed: float, units: str) -> str:
    return f"{speed:,.{0 if speed >= 10 else 1 if speed >= 1 else 3}f} {units}/s"
