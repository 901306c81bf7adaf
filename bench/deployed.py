"""What one prediction costs: all mutants of one image, or only until the others cannot change the result.

    python bench/deployed.py                          (about two minutes on two quiet cores)
    python bench/deployed.py --gtsrb npz:signs.npz    (with test images of GTSRB for shipped:gtsrb)

Every adaptive prediction is compared with the full one. The ViT-S has random weights, and a label that all
of its mutants vote for: the fewest evaluations that a prediction of one label can take.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

import costcert as cc
from costcert.compiled import cores
from costcert.datasets.parse import parse_dataset
from costcert.datasets.subsets import limited
from costcert.votes.adaptive import TopK
from networks import Voter, hiding, noise, random_vit, shipped
from stopwatch import timing

VIT = "vit_small_patch16_224"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure what one prediction costs.")
    parser.add_argument("--gtsrb", help="test images of GTSRB, as --data takes them")
    parser.add_argument("--images", type=int, default=50, help="number of images")
    options = parser.parse_args()
    console = Console(width=80, highlight=False)
    console.print(
        f"torch {torch.__version__}, {cores()} cores, float32, one image at a time. Medians of "
        f"{options.images} images."
    )
    table = Table(width=80)
    table.add_column("network", no_wrap=True)
    for title in ("mutants", "k", "full ms", "adaptive ms", "evaluated", "faster"):
        table.add_column(title, justify="right")
    for name, voter, pictures in _networks(options.gtsrb, options.images):
        for row in measured(voter, pictures):
            table.add_row(name, *row)
    console.print(table)


def _networks(gtsrb: str | None, count: int) -> list[tuple[str, Voter, list[Image.Image]]]:
    built = random_vit(VIT, 1000)
    with torch.no_grad():
        built.mutants.network.head.bias[0] += 100
    vit = Voter(hiding(built, "drop-tokens", VIT), cc.Columns(19, stride=4))
    listed = [
        ("fashion", shipped("shipped:fashion"), _pictures("sample", count)),
        ("ViT-S/16", vit, [Image.fromarray(image) for image in noise(vit.model, max(1, count // 10))]),
    ]
    if gtsrb is not None:
        listed.insert(0, ("gtsrb", shipped("shipped:gtsrb"), _pictures(gtsrb, count)))
    return listed


def _pictures(data: str, count: int) -> list[Image.Image]:
    dataset = limited(parse_dataset(data), count)
    return [dataset.image(index) for index in range(len(dataset))]


def measured(voter: Voter, pictures: list[Image.Image]) -> list[tuple[str, ...]]:
    return [
        row
        for soft in dict.fromkeys((None, voter.soft))
        for row in _measured(cc.Deployed(voter.model, voter.ablation, soft=soft), pictures)
    ]


def _measured(deployed: cc.Deployed, pictures: list[Image.Image]) -> Iterator[tuple[str, ...]]:
    # The first call also tests whether the network depends on its batch.
    deployed.predict(pictures[0], k=1)
    mutants = deployed.ablation.count(deployed.model.image_size)
    for k in (1, 2, 5):
        full, adaptive = (
            _milliseconds(lambda picture, how=how, k=k: deployed.predict(picture, k, adaptive=how), pictures)
            for how in (False, True)
        )
        for picture in pictures:
            if (deployed.predict(picture, k) != deployed.predict(picture, k, adaptive=True)).any():
                raise SystemExit(f"wrong: an adaptive prediction of {deployed!r} differs")
        evaluated = np.mean([_evaluated(deployed, picture, k) for picture in pictures]) / mutants
        yield (
            f"{mutants}{' soft' if deployed.classifier.soft else ''}",
            str(k),
            f"{full:.1f}",
            f"{adaptive:.1f}",
            f"{evaluated:.0%}",
            f"{full / adaptive:.2f}x",
        )


def _milliseconds(predict: Callable[[Image.Image], object], pictures: list[Image.Image]) -> float:
    return 1000 * median(timing(lambda picture=picture: predict(picture)).passed for picture in pictures)


def _evaluated(deployed: cc.Deployed, picture: Image.Image, k: int) -> int:
    votes = deployed._votes([picture], None, TopK(k))
    return votes.num_mutants if votes.known is None else int(votes.known.sum())


if __name__ == "__main__":
    main()
