"""Measures the overhead of each engine, and estimates the cost of voting on ImageNet.

    python bench/scale.py                        (about eight minutes on two idle cores)
    python bench/scale.py --seconds 1 --shards 4 (a short run, in which start-up weighs more)

A shard here is a fixed number of matrix products on one thread, the same for every engine. Engines are
compared with the same number of plain processes on this machine, so that contention between cores does not
count as overhead. A missed target is printed, and is not an error.
"""

from __future__ import annotations

import os

# Before numpy is imported, which reads it; workers inherit it.
os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from costcert.engines import Resources, find_engine
from costcert.errors import CostcertError
from costcert.geometry.ablations import Columns

OVERHEAD = 0.10
SIDE = 256
TOKENS = 14 * 14


@dataclass(frozen=True)
class Products:
    """A job whose shards multiply matrices and write a file with their start time and result."""

    folder: str
    products: int

    def open(self):
        left = np.random.default_rng(0).normal(size=(SIDE, SIDE))

        def make(shard: int) -> None:
            began, value = time.time(), left
            for _ in range(self.products):
                value = left @ value
                value /= np.abs(value).max()
            made = json.dumps({"began": began, "value": f"{value.sum():.6f}"})
            Path(self.folder, f"{shard}.part").write_text(made)
            Path(self.folder, f"{shard}.part").rename(Path(self.folder, str(shard)))

        return make

    def is_done(self, shard: int) -> bool:
        return Path(self.folder, str(shard)).exists()


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the overhead of engines.")
    parser.add_argument("--shards", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=11, help="approximate time per shard")
    parser.add_argument("--rate", type=float, help="mutants per second of one GPU, for the cost of ImageNet")
    parser.add_argument("--rank-of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of is not None:
        folder, products = options.rank_of
        run("local", 1, Products(folder, int(products)), options.shards)
        return 0
    console = Console(width=80, highlight=False)
    products = calibrated(options.seconds)
    table = Table(title=f"{options.shards} shards of about {options.seconds:g} s", width=80)
    for title in ("engine", "workers", "start-up", "work", "per min", "overhead", "with start-up", "met"):
        table.add_column(title, justify="left" if title == "engine" else "right")
    for workers in (1, 2):
        plain = 0.0
        for engine in ("local", "ray", "slurm"):
            try:
                startup, work = timed(engine, workers, options.shards, products)
            except CostcertError as error:
                console.print(f"{engine}: {error}")
                continue
            speed = f"{60 * options.shards / work:.1f}"
            row = [engine, str(workers), f"{startup:.1f} s", f"{work:.1f} s", speed]
            if engine == "local":
                plain = work
                table.add_row(*row)
            else:
                overhead, with_startup = work / plain - 1, (startup + work) / plain - 1
                met = "yes" if overhead < OVERHEAD else "no"
                table.add_row(*row, f"{overhead:+.1%}", f"{with_startup:+.1%}", met)
    table.caption = (
        "start-up: until the first shard starts; work: from there until all are done and cleaned up; "
        "per min: shards; "
        "overheads are relative to the same number of plain processes; "
        f"met: the first is below {OVERHEAD:.0%}"
    )
    console.print(table)
    costs(console, options.rate)
    return 0


def calibrated(seconds: float) -> int:
    """The number of products that take about this long on one thread."""
    with tempfile.TemporaryDirectory() as folder:
        make = Products(folder, 200).open()
        make(0)
        began = time.perf_counter()
        make(0)
        return max(1, round(200 * seconds / (time.perf_counter() - began)))


def timed(engine: str, workers: int, shards: int, products: int) -> tuple[float, float]:
    """Seconds until the first shard starts, and from there to the end."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        if engine == "local":
            ranks(workers, shards, folder, products)
        else:
            run(engine, workers, Products(folder, products), shards)
        ended = time.time()
        made = [json.loads(Path(folder, str(shard)).read_text()) for shard in range(shards)]
        assert len({each["value"] for each in made}) == 1
        first = min(each["began"] for each in made)
        return first - began, ended - first


def run(engine: str, workers: int, job: Products, shards: int) -> None:
    options = {"cluster": "local"} if engine == "slurm" else {}
    resources = Resources(workers=workers, options=options, logs=Path(job.folder, "jobs"))
    find_engine(engine)(job, range(shards), resources, lambda shard: None)


def ranks(count: int, shards: int, folder: str, products: int) -> None:
    """Plain processes that share the shards, as under torchrun."""
    words = [sys.executable, __file__, "--shards", str(shards), "--rank-of", folder, str(products)]
    started = [
        subprocess.Popen(words, env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(count)})
        for rank in range(count)
    ]
    if any(process.wait() for process in started):
        raise SystemExit("a process failed: see above")


def costs(console: Console, rate: float | None) -> None:
    """Forward passes for ImageNet, their FLOPs, and hours at the given rate."""
    table = Table(title="ViT-B/16 at 224 px, columns:19, hidden tokens dropped", width=80)
    table.add_column("data")
    for title in ("images", "passes", "PFLOP", "1 GPU", "8 GPUs", "64 GPUs"):
        table.add_column(title, justify="right")
    dropped = float(np.mean([operations(tokens) for tokens in visible_tokens()]))
    for name, images in (("ImageNet, validation", 50_000), ("ImageNet, training", 1_281_167)):
        passes = 224 * images
        hours = (
            ["–"] * 3 if rate is None else [f"{passes / rate / gpus / 3600:,.1f} h" for gpus in (1, 8, 64)]
        )
        table.add_row(
            name, f"{images:,}", f"{passes / 1e6:,.1f} M", f"{passes * dropped / 1e15:,.0f}", *hours
        )
    given = (
        "pass --rate, as bench/vote.py prints it"
        if rate is None
        else f"hours at {rate:,.1f} passes/s per GPU"
    )
    table.caption = (
        f"a pass takes {dropped / 1e9:.1f} GFLOP, {operations(TOKENS) / 1e9:.1f} in the dense model; {given}"
    )
    console.print(table)


def visible_tokens() -> list[int]:
    """For each mutant of columns:19, the number of 16 x 16 tokens with a kept pixel."""
    columns = (np.flatnonzero(region.columns.pixels(224)) for region in Columns(19).regions((224, 224)))
    return [14 * len(np.unique(each // 16)) for each in columns]


def operations(tokens: int, *, width: int = 768, blocks: int = 12, classes: int = 1000) -> int:
    """FLOPs of one forward pass of a ViT-B/16 with this many image tokens."""
    with_class = tokens + 1
    block = 12 * with_class * width**2 + 2 * with_class**2 * width
    return 2 * (tokens * 16 * 16 * 3 * width + blocks * block + width * classes)


if __name__ == "__main__":
    sys.exit(main())
