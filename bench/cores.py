"""How votes scale with cores, measured in one run: batches side by side against threads inside operations.

    python bench/cores.py             (about a minute on two quiet cores)

Each way evaluates the same mutants in the same batches on one core and on all of them; then on all of them
while another process keeps one core busy. The logits of batches side by side are compared to the last bit.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import costcert as cc
from costcert.compiled import cores
from costcert.models.shipped import model_folder
from costcert.models.torch_classifier import TorchClassifier
from costcert.votes.tuning import TUNED, read_tuned
from stopwatch import medians

MUTANTS = 16_384


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how votes scale with cores, in one run.")
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    console = Console(width=80, highlight=False)
    console.print(f"torch {torch.__version__}, {cores()} cores, float32. Medians of {rounds} rounds.")
    table = Table(width=80)
    table.add_column("network")
    table.add_column("way")
    for title in ("1 core/s", f"{cores()} cores/s", "scaling", "busy/s", "to 1 core"):
        table.add_column(title, justify="right")
    for name in ("shipped:gtsrb", "shipped:fashion"):
        for row in measured(name, rounds):
            table.add_row(name, *row)
    table.caption = "mutants a second; busy: another process uses one core; targets: scaling 1.8, busy 1/1.5"
    console.print(table)


def measured(name: str, rounds: int) -> Iterator[tuple[str, ...]]:
    model = cc.load_model(name)
    tuned = model_folder(name) / TUNED
    ablation = read_tuned(tuned)[0] if tuned.is_file() else model.ablation
    regions = ablation.regions(model.image_size)
    count = MUTANTS // len(regions)
    images = np.random.default_rng(0).integers(
        0, 256, (count, *model.image_size, model.channels), dtype=np.uint8
    )
    ways: dict[str, Callable[[int], Callable[[], np.ndarray]]] = {
        "threads inside": lambda used: lambda: inside(model, images, regions, used),
        "side by side": lambda used: lambda: beside(model, images, regions, used),
    }
    assert np.array_equal(beside(model, images, regions, 1), beside(model, images, regions, cores()))
    quiet = medians([way(used) for way in ways.values() for used in (1, cores())], rounds)
    with busy_neighbour():
        busy = medians([way(cores()) for way in ways.values()], rounds)
    for at, way in enumerate(ways):
        one, all_cores, beside_busy = quiet[2 * at], quiet[2 * at + 1], busy[at]
        speeds = [count * len(regions) / each.passed for each in (one, all_cores, beside_busy)]
        yield (
            way,
            f"{speeds[0]:,.0f}",
            f"{speeds[1]:,.0f}",
            f"{speeds[1] / speeds[0]:.2f}",
            f"{speeds[2]:,.0f}",
            f"{speeds[2] / speeds[0]:.2f}",
        )


def beside(model: TorchClassifier, images: np.ndarray, regions: list, used: int) -> np.ndarray:
    os.environ["OMP_NUM_THREADS"] = str(used)
    return model.logits(images, regions)


def inside(model: TorchClassifier, images: np.ndarray, regions: list, used: int) -> np.ndarray:
    """The same batches one after the other, with threads inside each operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(used)
    pixels = model.as_input(images)
    pairs = [(image, region) for image in range(len(images)) for region in range(len(regions))]
    size = model.default_batch_size(regions[0])
    outputs = [
        model.forward(model.mutants, pixels, regions, pairs[at : at + size])
        for at in range(0, len(pairs), size)
    ]
    torch.set_num_threads(before)
    return torch.cat(outputs).numpy()


@contextmanager
def busy_neighbour() -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _spin() -> None:
    while True:
        pass


if __name__ == "__main__":
    main()
