"""How fast mutants vote, measured in one run: a ViT-B/16 at 224 px with random weights, columns:19.

    python bench/vote.py                             (about two minutes on two quiet cores)
    python bench/vote.py --model DIR --data sample   (stride 4 against 1 on another trained model)

Three ways to evaluate the same network: one mutant at a time with all 196 tokens (as the authors' script
does); the same in batches; and in batches with hidden tokens dropped. A missed target is printed, and is not
an error. First it checks that the logits with no token dropped are those of the dense model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import costcert as cc
from costcert.datasets.parse import parse_dataset
from costcert.datasets.subsets import limited
from costcert.geometry.ablations import Region, Segment
from costcert.models.architectures import Built, build, view_of
from costcert.models.loading import load_model
from costcert.models.mutants import Mutants
from costcert.models.torch_classifier import TorchClassifier
from costcert.votes.voting import vote
from stopwatch import Timing, medians, timing

NAME, SIDE, CLASSES = "vit_base_patch16_224", 224, 1000
# Every other mutant: 98 with 28 tokens and 14 with 42, the same proportion as in all 224.
MUTANTS = cc.Columns(19, stride=2).regions((SIDE, SIDE))
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
    options = parser.parse_args()
    console = Console(width=80, highlight=False)
    console.print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, float32. Medians of "
        f"{options.rounds} rounds. {NAME} with random weights, columns:19."
    )
    torch.manual_seed(0)
    built = build(f"timm:{NAME}", num_classes=CLASSES)
    dense, dropped = classifier(built, "zero"), classifier(built, "drop-tokens")
    images = np.random.default_rng(0).integers(0, 256, (1, SIDE, SIDE, 3), dtype=np.uint8)
    difference = largest_difference(dense, dropped, images)
    if difference > 1e-4:
        console.print(f"[bold red]wrong:[/] with every token kept the logits differ by {difference:.2g}")
        return 1
    console.print(f"With every token kept, logits differ from the dense model's by at most {difference:.1g}.")
    console.print(speeds(dense, dropped, images, options.rounds))
    strides(console, options.model, options.data, options.patch, options.limit)
    return 0


def classifier(built: Built, hide: str, batch_size: int | None = None) -> TorchClassifier:
    network, settings = built.mutants.network, built.preprocessing
    mutants = Mutants(network, view_of(hide, network, settings, None, NAME))
    return TorchClassifier(mutants, settings, name=NAME, num_classes=CLASSES, batch_size=batch_size)


def largest_difference(dense: TorchClassifier, dropped: TorchClassifier, images: np.ndarray) -> float:
    everything = [Region(Segment(0, SIDE), Segment(0, SIDE))]
    return float(np.abs(dense.logits(images, everything) - dropped.logits(images, everything)).max())


def speeds(dense: TorchClassifier, dropped: TorchClassifier, images: np.ndarray, rounds: int) -> Table:
    products, operations = plain_products(dropped.mutants.network, lambda: dropped.logits(images, MUTANTS))
    single = classifier(Built(dense.mutants, dense.preprocessing), "zero", batch_size=1)
    counts = (4, 16, len(MUTANTS))
    one, batched, fast, product = medians(
        [
            lambda: single.logits(images, MUTANTS[: counts[0]]),
            lambda: dense.logits(images, MUTANTS[: counts[1]]),
            lambda: dropped.logits(images, MUTANTS),
            products,
        ],
        rounds,
    )
    per_mutant = [time / count for time, count in zip((one, batched, fast), counts, strict=True)]
    table = Table(width=80)
    table.add_column("what", no_wrap=True)
    for title in ("mutants/s", "(c) gains", "per core", "target", "met"):
        table.add_column(title, justify="right")
    names = ("(a) dense, one by one", "(b) dense, in batches")
    for name, slow, target in zip(names, per_mutant, (8, 5), strict=False):
        table.add_row(name, *_faster(slow, per_mutant[2], target))
    table.add_row("(c) tokens dropped", f"{1 / per_mutant[2].passed:.1f}", "", "", "", "")
    share = product.passed / fast.passed
    table.add_row(
        "(c) against plain products",
        "",
        f"{share:.0%}",
        f"{product.busy / fast.busy:.0%}",
        "70%",
        "yes" if share >= 0.7 else "no",
    )
    table.caption = (
        f"(c) multiplies at {operations / fast.passed / 1e9:.0f} GFLOP/s, matrices of the same shapes by "
        f"themselves at {operations / product.passed / 1e9:.0f} GFLOP/s"
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


def plain_products(network: nn.Module, run: Callable[[], object]) -> tuple[Callable[[], None], float]:
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

    def products() -> None:
        for rows, inner, columns in shapes:
            torch.mm(left[rows, inner], right[inner, columns])

    return products, sum(2.0 * rows * inner * columns for rows, inner, columns in shapes)


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
