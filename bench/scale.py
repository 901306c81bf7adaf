"""What each engine costs beside the work itself, and what a data set costs, by a rate measured in this run.

    python bench/scale.py                        (about eight minutes on two quiet cores)
    python bench/scale.py --seconds 1 --shards 4 (a quick look; start-up weighs more)

A shard here is a fixed number of matrix products, the same for every engine, on one thread. Engines are
compared with as many plain processes of this machine, so that what two busy cores take from each other is not
blamed on them. No speed makes it fail: a target that is missed is printed as missed.
"""

from __future__ import annotations

import os

# Before numpy looks at it; workers inherit it.
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

OVERHEAD = 0.10
SIDE = 256


@dataclass(frozen=True)
class Products:
    """A shard: so many products of matrices, and a file that says when it was begun and what came out."""

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

    def there(self, shard: int) -> bool:
        return Path(self.folder, str(shard)).exists()


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what engines cost beside the work.")
    parser.add_argument("--shards", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=11, help="what one shard takes, about")
    parser.add_argument("--rate", type=float, help="mutants a second of one GPU, for the cost of a data set")
    parser.add_argument("--rank-of", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank_of is not None:
        folder, products = options.rank_of
        run("local", 1, Products(folder, int(products)), options.shards)
        return 0
    console = Console(width=80, highlight=False)
    products = calibrated(options.seconds)
    table = Table(title=f"{options.shards} shards of about {options.seconds:g} s", width=80)
    for title in ("engine", "workers", "start-up", "work", "overhead", "with start-up", "target", "met by"):
        table.add_column(title, justify="left" if title == "engine" else "right")
    for workers in (1, 2):
        plain = 0.0
        for engine in ("local", "ray", "slurm"):
            try:
                startup, work = timed(engine, workers, options.shards, products)
            except CostcertError as error:
                console.print(f"{engine}: {error}")
                continue
            row = [engine, str(workers), f"{startup:.1f} s", f"{work:.1f} s"]
            if engine == "local":
                plain = work
                table.add_row(*row)
            else:
                overheads = {"work": work / plain - 1, "both": (startup + work) / plain - 1}
                met = [name for name, overhead in overheads.items() if overhead < OVERHEAD]
                shown = [f"{overhead:+.0%}" for overhead in overheads.values()]
                table.add_row(*row, *shown, f"< {OVERHEAD:.0%}", met[-1] if met else "none")
    table.caption = (
        "start-up: until the first shard begins; work: from there until all is done and put away; "
        "overheads are over the work of as many plain processes"
    )
    console.print(table)
    costs(console, options.rate)
    return 0


def calibrated(seconds: float) -> int:
    """Products that take about so long, on one thread."""
    with tempfile.TemporaryDirectory() as folder:
        make = Products(folder, 200).open()
        make(0)
        began = time.perf_counter()
        make(0)
        return max(1, round(200 * seconds / (time.perf_counter() - began)))


def timed(engine: str, workers: int, shards: int, products: int) -> tuple[float, float]:
    """Seconds until the first shard is begun, and from there to the end."""
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
    """Passes of data sets, and hours at the measured rate."""
    table = Table(title="Passes, columns:19 at 224 px, and hours at the rate given", width=80)
    table.add_column("data")
    for title in ("images", "passes", "1 GPU", "8 GPUs", "64 GPUs"):
        table.add_column(title, justify="right")
    for name, images in (("ImageNet, validation", 50_000), ("ImageNet, training", 1_281_167)):
        passes = 224 * images
        hours = (
            ["–"] * 3 if rate is None else [f"{passes / rate / gpus / 3600:,.1f} h" for gpus in (1, 8, 64)]
        )
        table.add_row(name, f"{images:,}", f"{passes / 1e6:,.1f} M", *hours)
    table.caption = (
        "pass --rate, as bench/vote.py or `costcert vote` prints it on your machine" if rate is None else None
    )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
