"""How many images a second are attacked, on one core and on all, measured in one run.

    python bench/attack.py    (about two minutes on two quiet cores)

The shipped network of clothes and images of the sample. First it checks that the number of cores changes no
byte of the patched images.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from costcert.attacks.campaign import attack
from costcert.attacks.effort import Effort
from costcert.attacks.results import AttackResults
from costcert.compiled import cores
from costcert.datasets.parse import parse_dataset
from costcert.datasets.subsets import limited
from costcert.models import side_by_side
from networks import shipped
from stopwatch import timing


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how fast images are attacked, in one run.")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    data = limited(parse_dataset("sample"), options.images)
    voter = shipped("shipped:fashion")

    def attacked(used: int) -> AttackResults:
        side_by_side.cores = lambda: used
        with tempfile.TemporaryDirectory() as folder:
            return attack(voter.model, data, "4", 1, Path(folder) / "attack", effort=Effort(steps=20))

    # With all cores first: the threads are started once.
    every, one = attacked(cores()), attacked(1)
    if not np.array_equal(every.patched, one.patched):
        raise SystemExit("wrong: the number of cores changes the patched images")
    rates = {
        used: max(
            options.images / timing(lambda used=used: attacked(used)).passed for _ in range(options.rounds)
        )
        for used in (1, cores())
    }
    table = Table(width=80)
    for title in ("shipped:fashion, 4 px, top 1", "1 core/s", f"{cores()} cores/s", "scaling"):
        table.add_column(title, justify="left" if "," in title else "right")
    table.add_row(
        "images attacked", *(f"{rate:.2f}" for rate in rates.values()), f"{rates[cores()] / rates[1]:.2f}"
    )
    Console(width=80, highlight=False).print(table)


if __name__ == "__main__":
    main()
