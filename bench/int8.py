"""What 8-bit integers gain on a CPU: speed and certified accuracy beside float32.

    python bench/int8.py --test npz:gtsrb-test.npz --train npz:gtsrb-fit.npz
    python bench/int8.py --model FOLDER --test sample --train torchvision:FashionMNIST@data

The shipped GTSRB network, or one of your own; and a ViT-S/16 with random weights, whose labels mean nothing.
Rates are mutants per second of CPU time on one core.
"""

from __future__ import annotations

import argparse
import tempfile
from time import process_time

import numpy as np
from rich.console import Console
from rich.table import Table

import costcert as cc
from costcert.datasets.arrays import ArrayDataset
from costcert.datasets.parse import parse_dataset
from costcert.datasets.subsets import limited
from costcert.geometry.ablations import Ablation
from costcert.models.saved import ModelCard, save_model
from costcert.models.side_by_side import one_thread
from costcert.models.torch_classifier import TorchClassifier
from costcert.votes.defence import Soft
from networks import Voter, noise, random_vit, shipped

SHIPPED = "shipped:gtsrb"
VIT = "vit_small_patch16_224"
VIT_IMAGES = 4


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare int8 with float32 on one core.")
    parser.add_argument("--model", default=SHIPPED, help="network to compare (default: %(default)s)")
    parser.add_argument("--train", help="images to calibrate with; a network that is not shipped needs them")
    parser.add_argument("--test", required=True, help="test images")
    parser.add_argument("--limit", type=int, default=1000, help="number of test images")
    parser.add_argument("--batch", type=int, default=256, help="mutants per call")
    parser.add_argument("--patch", default="5", help="patch to certify against")
    parser.add_argument("--vit", action="store_true", help="only the ViT")
    options = parser.parse_args()
    console = Console(width=80, highlight=False)
    if not options.vit:
        console.print(trained(options))
    if options.vit or options.model == SHIPPED:
        console.print(random_weights())


def trained(options: argparse.Namespace) -> Table:
    voter = voter_of(options.model)
    test = limited(parse_dataset(options.test), options.limit)
    models = {"float32": voter.model}
    if options.model == SHIPPED:
        models["int8"] = cc.load_model(SHIPPED, precision="int8")
    with tempfile.TemporaryDirectory() as name:
        if options.train is not None:
            save_model(name, voter.model.mutants.network, _card_of(voter.model))
            train = parse_dataset(options.train, "train")
            models["int8, calibrated now"] = cc.load_model(name, precision="int8", calibration=train)
        table = _table(voter.model.name, ("clean", "top 1", "top 5"))
        reference = slowest = None
        for title, model in models.items():
            votes = cc.vote(model, test, voter.ablation, soft=voter.soft)
            reference = votes if reference is None else reference
            rate = mutants_a_second(model, voter.ablation, options.batch)
            slowest = slowest or rate
            found = cc.certify(votes, [options.patch], ["costcert"]).accuracy(k=[1, 5])
            shares = (
                (votes.ballots == reference.ballots).mean(),
                found["clean"].iloc[0],
                *found["certified"],
            )
            table.add_row(
                title, f"{rate:,.0f}", f"{rate / slowest:.1f}x", *(f"{share:.1%}" for share in shares)
            )
    table.caption = f"{len(test):,} test images, {voter.ablation}, {voter.soft}, patch {options.patch}"
    return table


def random_weights() -> Table:
    built = random_vit(VIT, 10)
    card = ModelCard(f"timm:{VIT}", 10, built.preprocessing, "columns:19/stride=16", "zero")
    with tempfile.TemporaryDirectory() as name:
        save_model(name, built.mutants.network, card)
        float32 = cc.load_model(name)
        images = ArrayDataset("noise", noise(float32, VIT_IMAGES), np.zeros(VIT_IMAGES, int))
        int8 = cc.load_model(name, precision="int8", calibration=images)
        dropping = cc.load_model(name, hide="drop-tokens")
    table = _table(f"{VIT}, random weights", ())
    reference = slowest = None
    for title, model in {
        "float32, zero": float32,
        "int8, zero": int8,
        "float32, drop-tokens": dropping,
    }.items():
        votes = cc.vote(model, images, float32.ablation)
        reference = votes if reference is None else reference
        rate = mutants_a_second(model, float32.ablation, 16)
        slowest = slowest or rate
        same = (votes.ballots == reference.ballots).mean()
        table.add_row(title, f"{rate:,.1f}", f"{rate / slowest:.1f}x", f"{same:.1%}")
    table.caption = f"{VIT_IMAGES} images of noise, {float32.ablation}"
    return table


def voter_of(name: str) -> Voter:
    """A network as it was tuned, or with soft ballots of all labels if it is not shipped."""
    if name.startswith("shipped:"):
        return shipped(name)
    model = cc.load_model(name)
    return Voter(model, model.ablation, Soft(1.0, model.num_classes))


def _table(title: str, more: tuple[str, ...]) -> Table:
    table = Table(width=80)
    table.add_column(title, no_wrap=True)
    for heading in ("per s", "faster", "same", *more):
        table.add_column(heading, justify="right")
    return table


def _card_of(model: TorchClassifier) -> ModelCard:
    return ModelCard(
        model.name,
        model.num_classes,
        model.preprocessing,
        str(model.ablation),
        model.mutants.view.hide,
        model.class_names,
    )


def mutants_a_second(model: TorchClassifier, ablation: Ablation, batch: int) -> float:
    """Of CPU time on one core, the best of six."""
    pixels, regions = model.as_input(noise(model, batch)), ablation.regions(model.image_size)
    pairs = [(at, at % len(regions)) for at in range(batch)]
    times = []
    with one_thread():
        for _ in range(6):
            start = process_time()
            model.forward(model.mutants, pixels, regions, pairs)
            times.append(process_time() - start)
    return batch / min(times)


if __name__ == "__main__":
    main()
