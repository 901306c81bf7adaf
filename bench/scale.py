"""What each engine costs beside the work itself, and what a data set costs, by a rate measured in this run.

    python bench/scale.py                        (about eight minutes on two quiet cores)
    python bench/scale.py --seconds 2 --shards 4 (a quick look; start-up weighs more)

A shard here is a fixed number of matrix products, the same for every engine, on one thread. No speed makes it
fail: a target that is missed is printed as missed.
"""

from __future__ import annotations

import argparse
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
    """A shard: so many products of matrices, and a file that says it was made."""

    folder: str
    products: int

    def open(self):
        rng = np.random.default_rng(0)
        left = rng.normal(size=(SIDE, SIDE))

        def make(shard: int) -> None:
            value = left
            for _ in range(self.products):
                value = left @ value
                value /= np.abs(value).max()
            Path(self.folder, str(shard)).write_text(f"{value.sum():.6f}")

        return make


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what engines cost beside the work.")
    parser.add_argument("--shards", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=11, help="what one shard takes, about")
    parser.add_argument("--rate", type=float, help="mutants a second of one GPU, for the cost of a data set")
    options = parser.parse_args()
    console = Console(width=80, highlight=False)
    products = calibrated(options.seconds)
    table = Table(title=f"{options.shards} shards of about {options.seconds:g} s", width=80)
    for title in ("engine", "workers", "seconds", "speed-up", "overhead", "target", "met"):
        table.add_column(title, justify="left" if title == "engine" else "right")
    alone = None
    for engine, workers in (("local", 1), ("ray", 1), ("ray", 2), ("slurm", 1), ("slurm", 2)):
        try:
            taken = timed(engine, workers, options.shards, products)
        except CostcertError as error:
            console.print(f"{engine}: {error}")
            continue
        alone = alone or taken
        overhead = taken * workers / alone - 1
        target = "" if engine == "local" else f"< {OVERHEAD:.0%}"
        met = "" if engine == "local" else "yes" if overhead < OVERHEAD else "no"
        table.add_row(
            engine, str(workers), f"{taken:.1f}", f"{alone / taken:.2f} x", f"{overhead:+.0%}", target, met
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


def timed(engine: str, workers: int, shards: int, products: int) -> float:
    with tempfile.TemporaryDirectory() as folder:
        options = {"cluster": "local"} if engine == "slurm" else {}
        resources = Resources(workers=workers, options=options, logs=Path(folder, "jobs"))
        run = find_engine(engine)
        began = time.perf_counter()
        run(Products(folder, products), range(shards), resources, lambda shard: None)
        taken = time.perf_counter() - began
        made = [Path(folder, str(shard)).read_text() for shard in range(shards)]
        assert len(set(made)) == 1
        return taken


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
