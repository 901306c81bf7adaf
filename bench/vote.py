"""How fast mutants vote, measured in one run.

    python bench/vote.py                             (about four minutes on two quiet cores)
    python bench/vote.py --model DIR --data sample   (stride 4 against 1 on another trained model)
    python bench/vote.py --memory                    (instead: what a batch costs)

1. The shipped networks: batches side by side against threads inside operations, on one core and on all, and
   beside a process that keeps one core busy. First it checks that the number of cores changes no byte.
2. A ViT-B/16 at 224 px with random weights, columns:19: one mutant at a time with all 196 tokens (as the
   authors' script does), the same in batches, and in batches with hidden tokens dropped. First it checks that
   the logits with no token dropped are those of the dense model.
3. Stride 4 against 1.

A missed target is printed, and is not an error.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import costcert as cc
from costcert.compiled import cores
from costcert.datasets.parse import parse_dataset
from costcert.datasets.subsets import limited
from costcert.geometry.ablations import Region, Segment
from costcert.models import side_by_side
from costcert.models.loading import load_model
from costcert.models.side_by_side import SideBySide
from costcert.models.torch_classifier import TorchClassifier
from costcert.votes.voting import vote
from neighbour import busy_neighbour
from networks import SHIPPED, hiding, noise, random_vit, shipped
from stopwatch import Timing, medians, timing

NAME, SIDE, CLASSES = "vit_base_patch16_224", 224, 1000
# Every other mutant: 98 with 28 tokens and 14 with 42, the same proportion as in all 224.
MUTANTS = cc.Columns(19, stride=2).regions((SIDE, SIDE))
# Mutants of a shipped network per timing.
MANY = 8192
DEMO = Path(cc.__file__).parent / "sample" / "model"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure how fast mutants vote, in one run.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--model", type=Path, default=DEMO, help="folder of a trained model, to compare strides"
    )
    parser.add_argument("--data", default="sample", help="dataset of this model")
    parser.add_argument("--patch", default="2%", help="patch to certify against")
    parser.add_argument("--limit", type=int, default=300, help="number of images")
    parser.add_argument("--memory", action="store_true", help="measure the memory of a batch instead")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    console = Console(width=80, highlight=False)
    if options.peak:
        print(peak(options.peak[0], int(options.peak[1])))
        return 0
    if options.memory:
        console.print(memory())
        return 0
    console.print(f"torch {torch.__version__}, {cores()} cores, float32. Medians of {options.rounds} rounds.")
    console.print(scaling(options.rounds))
    built = random_vit(NAME, CLASSES)
    dense, dropped = (hiding(built, hide, NAME) for hide in ("zero", "drop-tokens"))
    single = hiding(built, "zero", NAME, batch_size=1)
    images = noise(dense, 1)
    difference = largest_difference(dense, dropped, images)
    if difference > 1e-4:
        console.print(f"[bold red]wrong:[/] with every token kept the logits differ by {difference:.2g}")
        return 1
    console.print(
        f"{NAME} with random weights, columns:19. With every token kept, logits differ from the dense "
        f"model's by at most {difference:.1g}."
    )
    console.print(speeds(single, dense, dropped, images, options.rounds))
    strides(console, options.model, options.data, options.patch, options.limit)
    return 0


def scaling(rounds: int) -> Table:
    """The shipped networks on one core and on all of them."""
    table = Table(width=80)
    table.add_column("shipped")
    table.add_column("way", no_wrap=True)
    for title in ("1 core/s", f"{cores()} cores/s", "scaling", "busy/s", "time of 1"):
        table.add_column(title, justify="right")
    for name in SHIPPED:
        for row in _scaling(name, rounds):
            table.add_row(name.removeprefix("shipped:"), *row)
    table.caption = (
        "mutants a second; busy: another process uses one core; time of 1: the time then, as a multiple of "
        "that on one quiet core; targets for batches side by side: scaling 1.8 on two quiet cores, at most "
        "1.5 times the time"
    )
    return table


def _scaling(name: str, rounds: int) -> Iterator[tuple[str, ...]]:
    model, ablation, _ = shipped(name)
    regions = ablation.regions(model.image_size)
    images = noise(model, MANY // len(regions))
    ways: dict[str, Callable[[int], Callable[[], np.ndarray]]] = {
        "threads inside": lambda used: lambda: inside(model, images, regions, used),
        "side by side": lambda used: lambda: beside(model, images, regions, used),
    }
    if not np.array_equal(beside(model, images, regions, 1), beside(model, images, regions, cores())):
        raise SystemExit(f"wrong: logits of {name} depend on the number of cores")
    quiet = medians([way(used) for way in ways.values() for used in (1, cores())], rounds)
    with busy_neighbour():
        busy = medians([way(cores()) for way in ways.values()], rounds)
    for at, way in enumerate(ways):
        one, all_cores, beside_busy = quiet[2 * at], quiet[2 * at + 1], busy[at]
        rates = [len(images) * len(regions) / each.passed for each in (one, all_cores, beside_busy)]
        yield (
            way,
            f"{rates[0]:,.0f}",
            f"{rates[1]:,.0f}",
            f"{rates[1] / rates[0]:.2f}",
            f"{rates[2]:,.0f}",
            f"{rates[0] / rates[2]:.2f}",
        )


def beside(model: TorchClassifier, images: np.ndarray, regions: list[Region], used: int) -> np.ndarray:
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(used)
    try:
        return model.logits(images, regions)
    finally:
        del os.environ["OMP_NUM_THREADS"]
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def inside(model: TorchClassifier, images: np.ndarray, regions: list[Region], used: int) -> np.ndarray:
    """The same batches one after the other, with threads inside each operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(used)
    pixels = model.as_input(images)
    outputs = []
    for group in model.mutants.view.groups(regions):
        pairs = [(image, region) for image in range(len(images)) for region in group]
        size = model.default_batch_size(regions[group[0]], len(pairs))
        outputs += [
            model.forward(model.mutants, pixels, regions, pairs[at : at + size])
            for at in range(0, len(pairs), size)
        ]
    torch.set_num_threads(before)
    return torch.cat(outputs).numpy()


def largest_difference(dense: TorchClassifier, dropped: TorchClassifier, images: np.ndarray) -> float:
    everything = [Region(Segment(0, SIDE), Segment(0, SIDE))]
    return float(np.abs(dense.logits(images, everything) - dropped.logits(images, everything)).max())


def speeds(
    single: TorchClassifier, dense: TorchClassifier, dropped: TorchClassifier, images: np.ndarray, rounds: int
) -> Table:
    products, operations = plain_products(dropped.mutants.network, lambda: dropped.logits(images, MUTANTS))
    counts = (4, 16, len(MUTANTS), len(MUTANTS))
    *ways, product = medians(
        [
            lambda: single.logits(images, MUTANTS[: counts[0]]),
            lambda: dense.logits(images, MUTANTS[: counts[1]]),
            lambda: inside(dropped, images, MUTANTS, cores()),
            lambda: dropped.logits(images, MUTANTS),
            products,
        ],
        rounds,
    )
    per_mutant = [time / count for time, count in zip(ways, counts, strict=True)]
    table = Table(width=80)
    table.add_column("what", no_wrap=True)
    for title in ("mutants/s", "(d) gains", "per core", "target", "met"):
        table.add_column(title, justify="right")
    names = ("(a) dense, one by one", "(b) dense, in batches", "(c) dropped, threads inside")
    for name, slow, target in zip(names, per_mutant, (8, 5, 1), strict=False):
        table.add_row(name, *_faster(slow, per_mutant[3], target))
    table.add_row("(d) dropped, side by side", f"{1 / per_mutant[3].passed:.1f}", "", "", "", "")
    fast = ways[3]
    share = product.passed / fast.passed
    table.add_row(
        "(d) against plain products",
        "",
        f"{share:.0%}",
        f"{product.busy / fast.busy:.0%}",
        "85%",
        "yes" if share >= 0.85 else "no",
    )
    table.caption = (
        f"(d) multiplies at {operations / fast.passed / 1e9:.0f} GFLOP/s, matrices of the same shapes by "
        f"themselves, side by side, at {operations / product.passed / 1e9:.0f} GFLOP/s"
    )
    return table


def _faster(slow: Timing, fast: Timing, target: int) -> tuple[str, ...]:
    ratio = slow.passed / fast.passed
    return (
        f"{1 / slow.passed:.1f}",
        f"{ratio:.1f}x",
        f"{slow.busy / fast.busy:.1f}x",
        f"{target}x",
        "yes" if ratio >= target else "no",
    )


def plain_products(network: nn.Module, run: Callable[[], object]) -> tuple[Callable[[], object], float]:
    """A function that computes only the matrix products of all linear layers in a run, and their FLOPs."""
    shapes: list[tuple[int, int, int]] = []

    def record(layer: nn.Linear, inputs: tuple[torch.Tensor], _: torch.Tensor) -> None:
        rows = inputs[0].numel() // layer.in_features
        shapes.append((rows, layer.in_features, layer.out_features))

    hooks = [m.register_forward_hook(record) for m in network.modules() if isinstance(m, nn.Linear)]
    run()
    for hook in hooks:
        hook.remove()
    left = {(rows, inner): torch.randn(rows, inner) for rows, inner, _ in shapes}
    right = {(inner, columns): torch.randn(columns, inner).T for _, inner, columns in shapes}

    def product(_: nn.Module, shape: tuple[int, int, int]) -> None:
        rows, inner, columns = shape
        torch.mm(left[rows, inner], right[inner, columns])

    def products() -> object:
        return list(SideBySide(product, nn.Identity(), shapes))

    return products, sum(2.0 * rows * inner * columns for rows, inner, columns in shapes)


def memory() -> Table:
    """The memory of a batch: the difference between runs with one and with four batches at once."""
    table = Table(width=80)
    for title in ("network", "hidden pixels", "mutants per batch", "MB per batch"):
        table.add_column(title, justify="right" if "per" in title else "left")
    for name, (hide, mutants) in MEASURED.items():
        one, four = (
            int(
                subprocess.run(
                    [sys.executable, __file__, "--peak", name, str(count)],
                    env={key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"},
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
            )
            for count in (1, 4)
        )
        table.add_row(name, hide, str(mutants), f"{(four - one) / 3:.0f}")
    return table


# How pixels are hidden, and the default batch size.
MEASURED = {
    "shipped:gtsrb": ("crop", 512),
    "vit_base_patch16_224": ("drop-tokens", 64),
    "resnet50": ("zero", 8),
}


def peak(name: str, batches: int) -> int:
    """The largest memory of this process in MB, after this many batches at once."""
    side_by_side.cores = lambda: batches
    hide, mutants = MEASURED[name]
    if name in SHIPPED:
        model, ablation, _ = shipped(name)
    else:
        model, ablation = hiding(random_vit(name, CLASSES), hide, name), cc.Columns(16, stride=16)
    model.batch_size = mutants
    regions = ablation.regions(model.image_size)
    # Every network is evaluated once before, when it is loaded; this is beyond what that takes.
    model.logits(noise(model, -(-batches * mutants // len(regions))), regions)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def strides(console: Console, folder: Path, data: str, patch: str, limit: int) -> None:
    """Time and certified accuracy of stride 4 compared with stride 1."""
    if not folder.is_dir():
        console.print(f"Stride 4 against 1: skipped, {folder} does not exist.")
        return
    model = load_model(folder)
    dataset = limited(parse_dataset(data), limit)
    if not isinstance(model.ablation, cc.Columns | cc.Rows | cc.Blocks):
        console.print(f"Stride 4 against 1: skipped, {folder} was trained on {model.ablation}.")
        return
    table = Table(title=f"{len(dataset)} images of {data}, patch {patch}, CostCert, top 1 and 3", width=80)
    table.add_column("ablation", no_wrap=True)
    for title in ("mutants", "time", "clean@1", "clean@3", "cert.@1", "cert.@3"):
        table.add_column(title, justify="right")
    for stride in (1, 4):
        votes: list[cc.Votes] = []
        ablation = replace(model.ablation, stride=stride)
        taken = timing(lambda into=votes, ablation=ablation: into.append(vote(model, dataset, ablation)))
        found = cc.certify(votes[0], [patch], ["costcert"]).accuracy(k=[1, 3])
        table.add_row(
            str(ablation),
            str(votes[0].num_mutants),
            f"{taken.passed:.1f}",
            *(f"{share:.1%}" for share in (*found["clean"], *found["certified"])),
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
