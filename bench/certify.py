"""Measures what the README claims about speed in one run: the library against plain numpy code.

    python bench/certify.py            (about two minutes)
    python bench/certify.py --quick    (about twenty seconds)

Before timing, both must agree, else it exits with code 1. A missed target is printed, and is not an error.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterable, Iterator

import numba
import numpy as np
from rich.console import Console
from rich.table import Table

import ratios
import scaling
from costcert.compiled import cores
from ratios import DisagreementError, Ratio, Samples
from scaling import Measure

QUICK = Samples(rounds=3, library=1000, library_pairs=400, plain=6, plain_pairs=1)
FULL = Samples(rounds=5, library=4000, library_pairs=800, plain=30, plain_pairs=4)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the library against plain numpy code, in one run.")
    parser.add_argument("--quick", action="store_true", help="smaller samples, about twenty seconds")
    quick = parser.parse_args().quick
    samples = QUICK if quick else FULL
    console = Console(width=80, highlight=False)
    console.print(
        f"Python {platform.python_version()}, numpy {np.__version__}, numba {numba.__version__}, "
        f"{cores()} cores for the library, one for the plain code. Medians of {samples.rounds} rounds; "
        "compiled before timing. Synthetic ballots of bench/ballots.py, columns:19 on 224x224, "
        "1,000 classes."
    )
    try:
        found = [*ratios.measure(samples), ratios.measure_soft(samples)]
        console.print(_ratios(found, samples))
        console.print(_measures(_others(samples, quick)))
    except DisagreementError as error:
        console.print(f"[bold red]wrong:[/] {error}")
        return 1
    console.print("Library and plain code agreed on every image of the plain samples before being timed.")
    return 0


def _others(samples: Samples, quick: bool) -> Iterator[Measure]:
    yield from scaling.entire_dataset(5_000 if quick else 50_000)
    yield scaling.soft_to_hard(samples.library, samples.rounds)
    yield scaling.windows_to_counting(samples.library, samples.rounds)
    yield scaling.pairs_of_windows(20 if quick else 100, 1 if quick else 3)
    yield from scaling.two_patches(64 if quick else 256, 1 if quick else 2, 1 if quick else 3)
    yield from scaling.three_patches(1 if quick else 3)
    yield from scaling.few_votes_each(samples.library_pairs, samples.rounds)
    yield from scaling.blocks(2 if quick else 8, 0 if quick else 1, 1 if quick else 3)
    yield from scaling.linearity(500 if quick else 2000, samples.rounds)
    yield from scaling.mutants(200 if quick else 1000, samples.rounds)
    yield from scaling.folders((10_000, 40_000) if quick else (20_000, 80_000))


def _ratios(found: Iterable[Ratio], samples: Samples) -> Table:
    table = Table(
        title="Per image and size: 16, 32, … 112 px in one call unless one is named",
        caption=f"images: library {samples.library:,} and plain {samples.plain}; for patchguard, masks and "
        f"soft {samples.library_pairs:,} and {samples.plain_pairs}",
        width=80,
    )
    table.add_column("what", no_wrap=True)
    for title in ("plain", "library", "faster", "per core", "target"):
        table.add_column(title, justify="right")
    table.add_column("met")
    for ratio in found:
        met = None if ratio.target is None else ratio.times_faster >= ratio.target
        table.add_row(
            ratio.name,
            f"{1e3 * ratio.plain.passed:.2f} ms",
            f"{1e6 * ratio.library.passed:.1f} µs",
            f"{ratio.times_faster:,.0f} x",
            f"{ratio.times_faster_per_core:,.0f} x",
            "" if ratio.target is None else f"{ratio.target:,} x",
            _word(met),
        )
    return table


def _measures(found: Iterable[Measure]) -> Table:
    table = Table(
        title="CostCert: growth",
        caption="µs: CPU time per image and size",
        width=80,
    )
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_column("target", justify="right")
    table.add_column("met")
    for measure in found:
        table.add_row(measure.name, measure.value, measure.target, _word(measure.met))
    return table


def _word(met: bool | None) -> str:
    return "" if met is None else "[green]yes[/]" if met else "[red]no[/]"


if __name__ == "__main__":
    sys.exit(main())
