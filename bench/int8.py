"""What 8-bit integers would gain on a CPU: speed and certified accuracy beside float32.

    python bench/int8.py --train npz:gtsrb-train.npz --test npz:gtsrb-test.npz

The shipped GTSRB network, exported to ONNX and quantised by ONNX Runtime: weights with one scale per output
channel and 7 bits (8 would overflow on CPUs without VNNI), activations with static scales, from mutants of
training images. Rates are mutants per second of CPU time on one core, with the crops.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import costcert as cc
from costcert.datasets.base import Dataset
from costcert.datasets.parse import parse_dataset
from costcert.datasets.subsets import limited
from costcert.models.mutants import Mutants
from costcert.models.side_by_side import one_thread
from costcert.models.torch_classifier import TorchClassifier
from networks import Voter, shipped

BATCH = 256
CALIBRATION_IMAGES = 64


class Session(nn.Module):
    """An ONNX file as a network."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def __deepcopy__(self, memo: dict[int, Any]) -> Session:
        return self

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.from_numpy(self._session.run(None, {"inputs": inputs.numpy()})[0])


class Calibration(CalibrationDataReader):
    def __init__(self, inputs: Tensor) -> None:
        self._batches = iter(inputs.split(BATCH))

    def get_next(self) -> dict[str, np.ndarray] | None:
        batch = next(self._batches, None)
        return None if batch is None else {"inputs": batch.numpy()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare int8 with float32 on one core.")
    parser.add_argument("--train", required=True, help="training images of GTSRB, for calibration")
    parser.add_argument("--test", required=True, help="test images of GTSRB")
    parser.add_argument("--limit", type=int, default=1000, help="number of test images")
    parser.add_argument("--patch", default="5", help="patch to certify against")
    options = parser.parse_args()
    voter = shipped("shipped:gtsrb")
    test = limited(parse_dataset(options.test), options.limit)
    table = Table(width=80)
    table.add_column("shipped:gtsrb", no_wrap=True)
    for title in ("per s", "faster", "same", "clean", "top 1", "top 5"):
        table.add_column(title, justify="right")
    with tempfile.TemporaryDirectory() as folder:
        calibration = mutants_of(voter, limited(parse_dataset(options.train), CALIBRATION_IMAGES))
        files = exported(voter.model.mutants.network, calibration, Path(folder))
        models = {"float32, torch": voter.model} | {
            name: TorchClassifier(
                Mutants(Session(path), voter.model.mutants.view), voter.model.preprocessing, name=name
            )
            for name, path in files.items()
        }
        reference = slowest = None
        for name, model in models.items():
            votes = cc.vote(model, test, voter.ablation, soft=voter.soft)
            reference = votes if reference is None else reference
            rate = mutants_a_second(model, voter, calibration)
            slowest = slowest or rate
            found = cc.certify(votes, [options.patch], ["costcert"]).accuracy(k=[1, 5])
            shares = (found["clean"].iloc[0], *found["certified"])
            same = (votes.ballots == reference.ballots).mean()
            table.add_row(
                name, f"{rate:,.0f}", f"{rate / slowest:.1f}x", f"{same:.1%}", *(f"{x:.1%}" for x in shares)
            )
    table.caption = f"{len(test):,} test images, {voter.ablation}, {voter.soft}, patch {options.patch}"
    Console(width=80, highlight=False).print(table)


def mutants_of(voter: Voter, images: Dataset) -> Tensor:
    """The network's inputs for all mutants of these images, in a fixed random order."""
    model, regions = voter.model, voter.ablation.regions(voter.model.image_size)
    pixels = model.as_input(np.stack([images.prepared(at, model) for at in range(len(images))]))
    owners = torch.arange(len(pixels)).repeat_interleave(len(regions))
    inputs = model.mutants.view.inputs(pixels, owners, list(regions) * len(pixels))
    return inputs[torch.randperm(len(inputs), generator=torch.Generator().manual_seed(0))].contiguous()


def exported(network: nn.Module, calibration: Tensor, folder: Path) -> dict[str, Path]:
    """The network as ONNX files, in float32 and in int8."""
    plain, float32, int8 = (folder / f"{name}.onnx" for name in ("plain", "float32", "int8"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network.eval(),
            (calibration[:8],),
            str(plain),
            input_names=["inputs"],
            dynamic_axes={"inputs": {0: "mutants"}},
            dynamo=False,
        )
    quant_pre_process(plain, float32, skip_symbolic_shape=True)
    quantize_static(
        float32,
        int8,
        Calibration(calibration),
        per_channel=True,
        reduce_range=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return {"float32, ONNX Runtime": float32, "int8, ONNX Runtime": int8}


def mutants_a_second(model: TorchClassifier, voter: Voter, calibration: Tensor) -> float:
    """Of CPU time on one core, the best of five."""
    images = np.zeros((BATCH, *model.image_size, model.channels), np.uint8)
    pixels, regions = model.as_input(images), voter.ablation.regions(model.image_size)
    pairs = [(at, at % len(regions)) for at in range(BATCH)]
    times = []
    with one_thread():
        for _ in range(6):
            start = process_time()
            model.forward(model.mutants, pixels, regions, pairs)
            times.append(process_time() - start)
    return BATCH / min(times)


if __name__ == "__main__":
    main()
