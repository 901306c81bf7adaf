"""How many strips a second training takes, measured in one run: small networks on images of the sample.

    python bench/train.py    (about two minutes on two quiet cores)

The trainer on one thread of torch and on two, and a plain loop on one thread: a DataLoader that reads image
by image, and the same network, augmentation, loss and optimizer. The plain loop prepares images in every
epoch, or once before the first, as the trainer does in its first one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.utils.data import DataLoader

import costcert as cc
from costcert.datasets.base import Dataset
from costcert.datasets.parse import parse_dataset
from costcert.datasets.subsets import limited
from costcert.models.architectures import Built, build
from costcert.models.preprocessing import Preprocessing
from costcert.training.augmentation import augment, draw_mutants
from costcert.training.losses import TrainingLoss
from costcert.training.optimization import averaged, make_optimizer
from costcert.training.recipes import Recipe
from costcert.training.trainer import Trainer
from stopwatch import Timing

ABLATION = cc.Columns(4)
RECIPE = Recipe(batch_size=64)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how fast networks train on strips, in one run.")
    parser.add_argument("--rounds", type=int, default=4, help="epochs, of which the first is not timed")
    parser.add_argument("--data", default="sample", help="dataset to train on")
    parser.add_argument("--limit", type=int, default=500, help="number of images")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error(f"--rounds must be at least 2, got {options.rounds}")
    data = limited(parse_dataset(options.data), options.limit)
    recipe = replace(RECIPE, epochs=options.rounds)
    table = Table(width=80)
    table.add_column("network", no_wrap=True)
    for title in ("each epoch", "plain loop", "1 thread", "to plain", "2 threads", "2 to 1"):
        table.add_column(title, justify="right")
    for name in ("strip:small", "strip:base", "strip:tall"):
        strips = recipe.mutants * (len(data) // recipe.batch_size * recipe.batch_size)
        unprepared, plain = (on_threads(1, plain_loop, name, data, recipe, once) for once in (False, True))
        one, two = (on_threads(count, trainer, name, data, recipe) for count in (1, 2))
        table.add_row(
            name,
            *(f"{strips / time.passed:,.0f}" for time in (unprepared, plain, one)),
            f"{plain.busy / one.busy:.2f}x",
            f"{strips / two.passed:,.0f}",
            f"{one.passed / two.passed:.2f}x",
        )
    table.caption = (
        f"strips a second; {len(data)} images of {options.data}, {ABLATION}; each epoch: a plain loop that "
        "prepares images in every epoch"
    )
    console = Console(width=80, highlight=False)
    console.print(f"torch {torch.__version__}, float32. Fastest of {options.rounds - 1} epochs.")
    console.print(table)
    return 0


def on_threads(count: int, train: Callable[..., list[Timing]], *args: object) -> Timing:
    """The fastest epoch but the first, which prepares images."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        marks = train(*args)
    finally:
        torch.set_num_threads(before)
    epochs = [Timing(end.passed - start.passed, end.busy - start.busy) for start, end in pairwise(marks)]
    return Timing(min(each.passed for each in epochs), min(each.busy for each in epochs))


def trainer(name: str, data: Dataset, recipe: Recipe) -> list[Timing]:
    """When each epoch of the trainer ended."""
    built, marks = _built(name, data), []
    with tempfile.TemporaryDirectory() as folder:
        run = Trainer(
            built.mutants,
            built.preprocessing,
            ABLATION,
            recipe,
            Path(folder),
            identity={"model": name},
            device="cpu",
        )
        run.fit(data, None, after_epoch=lambda epoch: marks.append(_now()))
    return marks


def plain_loop(name: str, data: Dataset, recipe: Recipe, once: bool) -> list[Timing]:
    """When each epoch of a plain loop ended; images are prepared once, or in every epoch."""
    built, marks = _built(name, data), []
    mutants, preprocessing = built.mutants, built.preprocessing
    regions = ABLATION.regions(preprocessing.image_size)
    images: Any = _Images(data, preprocessing)
    if once:
        images = [images[index] for index in range(len(data))]
    loader = DataLoader(images, batch_size=recipe.batch_size, shuffle=True, drop_last=True)
    optimizer = make_optimizer(mutants.network, recipe)
    average = averaged(mutants, recipe.average, torch.device("cpu"))
    rng = np.random.default_rng(0)
    loss_of = TrainingLoss(recipe, ABLATION, preprocessing.image_size)
    mutants.train()
    for _ in range(recipe.epochs):
        for pixels, image_labels in loader:
            augmented = augment(preprocessing.normalise(pixels), recipe, rng)
            drawn = draw_mutants(len(pixels), len(regions), recipe, rng)
            owners = torch.arange(len(pixels)).repeat(len(drawn))
            logits = mutants(augmented, [regions[mutant] for mutant in drawn.ravel()], owners)
            loss = loss_of(logits, image_labels, drawn, rng)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(mutants.parameters(), recipe.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            average.update_parameters(mutants)
        marks.append(_now())
    return marks


class _Images:
    """Images that are prepared whenever they are read."""

    def __init__(self, data: Dataset, preprocessing: Preprocessing) -> None:
        self._data, self._preprocessing = data, preprocessing

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        pixels = self._preprocessing.prepare(self._data.image(index))
        return torch.from_numpy(pixels), self._data.label(index)


def _built(name: str, data: Dataset) -> Built:
    torch.manual_seed(0)
    first = data.image(0)
    return build(
        name,
        num_classes=data.num_classes,
        ablation=ABLATION,
        image_size=(first.height, first.width),
        channels=1 if first.mode == "L" else 3,
    )


def _now() -> Timing:
    return Timing(perf_counter(), process_time())


if __name__ == "__main__":
    sys.exit(main())
