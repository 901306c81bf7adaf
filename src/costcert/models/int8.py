"""A trained network in 8-bit integers for CPUs: `int8.onnx` in the model's folder, and a record, `int8.json`.

Convolutions and products of matrices are computed in integers: weights with one scale per output channel,
activations with fixed scales, from mutants of calibration images. As no scale depends on the batch, logits of
a mutant do not depend on the others. All else, and the logits, stay in float32.

Weights have 7 bits: without VNNI, a CPU adds pairs of products in 16 bits, which 8 bits would overflow.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.jit import TracerWarning  # type: ignore[attr-defined]

from costcert.errors import CostcertError, StoreError
from costcert.geometry.ablations import parse_ablation
from costcert.models.classifier import Pixels
from costcert.models.onnx import OnnxNetwork
from costcert.models.saved import Saved
from costcert.models.tokens import DropTokens
from costcert.store.files import atomic_write, read_json, write_json
from costcert.store.locations import Location

if TYPE_CHECKING:
    from costcert.datasets.base import Dataset

NETWORK, RECORD = "int8.onnx", "int8.json"
FORMAT, VERSION = "costcert int8 network", 1

# Calibration uses this many images and mutants at most.
_IMAGES, _MUTANTS, _BATCH = 128, 2048, 64
# How far the exported network may be from torch's, relative to its largest logit, before it is quantised.
_EXPORT_TOLERANCE = 1e-3


def int8_network(folder: Location, saved: Saved, calibration: Dataset | None = None) -> OnnxNetwork:
    """The int8 network in the folder of a trained model, made from calibration images if it is not there.

    Args:
        saved: the trained model of this folder.
        calibration: images like those of training; evenly spaced ones are used, 128 at most.
    """
    if isinstance(saved.mutants.view, DropTokens):
        raise CostcertError(
            f"{saved.card.architecture} drops tokens, but an int8 network takes inputs of one shape: leave "
            "precision out, or hide pixels as zero (--hide zero)"
        )
    if (folder / RECORD).is_file():
        record = _read(folder, saved)
        if calibration is not None and record.get("calibration") != _described(calibration):
            raise StoreError(
                f"{folder / NETWORK} was calibrated on other images than {calibration.name}: leave "
                f"calibration out to use it, or remove {RECORD} to make another"
            )
    elif calibration is None:
        raise CostcertError(
            f"{folder} holds no {NETWORK}: pass images to make it from as calibration (--calibration DATA), "
            "as in folder:photos"
        )
    else:
        _make(folder, saved, calibration)
        record = _read(folder, saved)
    network = OnnxNetwork(folder / NETWORK, channels_last=False)
    if network.digest() != record["network"]:
        raise StoreError(
            f"{folder / NETWORK} is not the file that {RECORD} was written for: it is damaged or of another "
            f"model; remove {RECORD} and calibrate again"
        )
    return network


def _read(folder: Location, saved: Saved) -> Mapping[str, Any]:
    path = folder / RECORD
    record = read_json(path)
    if not isinstance(record, dict) or (record.get("format"), record.get("version")) != (FORMAT, VERSION):
        raise StoreError(
            f"{path} does not describe an int8 network of this version of costcert: remove it and calibrate "
            "again"
        )
    if record.get("weights") != saved.digest:
        raise StoreError(
            f"{folder / NETWORK} was made from other weights than those in {folder}: remove {RECORD} and "
            "calibrate again"
        )
    return record


def _make(folder: Location, saved: Saved, calibration: Dataset) -> None:
    """Write the network and then its record: where the record is, the network is complete."""
    inputs = _calibration_inputs(saved, calibration)
    with TemporaryDirectory(prefix="costcert-") as name:
        temporary = Path(name)
        exported = _exported(saved.mutants.network, inputs, temporary, saved.card.architecture)
        quantised = temporary / NETWORK
        _quantise(exported, inputs, quantised)
        _refuse_batch_dependence(quantised, inputs, saved.card.architecture)
        with atomic_write(folder / NETWORK) as path:
            path.write_bytes(quantised.read_bytes())
        digest = hashlib.sha256(quantised.read_bytes()).hexdigest()
    write_json(
        folder / RECORD,
        {
            "format": FORMAT,
            "version": VERSION,
            "weights": saved.digest,
            "network": f"sha256:{digest}",
            "calibration": _described(calibration),
        },
    )


def _chosen(calibration: Dataset) -> list[int]:
    """Images evenly spaced, which takes all classes of data that are sorted by class."""
    count = min(len(calibration), _IMAGES)
    return [place * len(calibration) // count for place in range(count)]


def _described(calibration: Dataset) -> dict[str, Any]:
    chosen = _chosen(calibration)
    total = hashlib.sha256()
    for index in chosen:
        total.update(f"{calibration.ids[index]}\t{calibration.fingerprint(index)}\n".encode())
    return {
        "name": calibration.name,
        "split": calibration.split,
        "images": len(chosen),
        "digest": total.hexdigest(),
    }


def _calibration_inputs(saved: Saved, calibration: Dataset) -> Tensor:
    """Inputs of the network for random mutants of the chosen images, always the same."""
    card, view = saved.card, saved.mutants.view
    regions = parse_ablation(card.ablation).regions(card.preprocessing.image_size)
    if len(view.groups(regions)) > 1:
        raise CostcertError(
            f"{card.architecture} takes crops of several shapes, but an int8 network takes inputs of one "
            "shape: leave precision out"
        )
    pixels = _pixels(saved, calibration)
    mutants = len(pixels) * len(regions)
    picked = np.random.default_rng(0).permutation(mutants)[:_MUTANTS].tolist()
    with torch.inference_mode():
        owners = torch.tensor([pick // len(regions) for pick in picked])
        kept = [regions[pick % len(regions)] for pick in picked]
        inputs: Tensor = view.inputs(pixels, owners, kept)
    return inputs.contiguous()


def _pixels(saved: Saved, calibration: Dataset) -> Tensor:
    settings = saved.card.preprocessing
    if calibration.normalised:
        raise CostcertError(f"{calibration.name} holds normalised inputs: calibrate on pictures")
    prepared: list[Pixels] = [settings.prepare(calibration.image(index)) for index in _chosen(calibration)]
    return settings.normalise(torch.from_numpy(np.stack(prepared)))


def _exported(network: nn.Module, inputs: Tensor, folder: Path, name: str) -> Path:
    """The network as an ONNX file in float32, for any number of mutants."""
    plain, path = folder / "plain.onnx", folder / "float32.onnx"
    shape_inference = _quantisation("shape_inference")
    network.eval()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            # Of the exporter that needs no further package, and of sizes that are fixed on purpose.
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.simplefilter("ignore", TracerWarning)
            torch.onnx.export(
                network,
                (inputs[:8].clone(),),
                str(plain),
                input_names=["inputs"],
                output_names=["logits"],
                dynamic_axes={"inputs": {0: "mutants"}, "logits": {0: "mutants"}},
                dynamo=False,
            )
        shape_inference.quant_pre_process(plain, path, skip_symbolic_shape=True)
    except Exception as error:
        # torch and ONNX Runtime raise exceptions of many types.
        raise CostcertError(
            f"{name} cannot be exported for int8: {str(error).splitlines()[0]}; leave precision out"
        ) from error
    _refuse_another_network(network, OnnxNetwork(path, channels_last=False), inputs, name)
    return path


def _refuse_another_network(network: nn.Module, exported: nn.Module, inputs: Tensor, name: str) -> None:
    """Raise if the exported network is not the trained one, in batches of other sizes than the traced one."""
    with torch.inference_mode():
        for batch in (inputs[:1], inputs[:13]):
            expected = network(batch.clone())
            found = exported(batch)
            if (found - expected).abs().max() > _EXPORT_TOLERANCE * expected.abs().max():
                raise CostcertError(
                    f"{name} computes other logits once it is exported for int8: leave precision out"
                )


def _refuse_batch_dependence(quantised: Path, inputs: Tensor, name: str) -> None:
    """Raise unless logits are the same bytes in batches of other sizes."""
    network = OnnxNetwork(quantised, channels_last=False)
    together = network(inputs)
    for size in (1, 7, _BATCH):
        if not torch.equal(torch.cat([network(batch) for batch in torch.split(inputs, size)]), together):
            raise CostcertError(
                f"{name} in int8 computes other logits in batches of {size} than in larger ones, because "
                "ONNX Runtime rounds sums of floats in it differently: leave precision out"
            )


def _quantise(exported: Path, inputs: Tensor, out: Path) -> None:
    quantisation = _quantisation("quantize")
    kinds = _quantisation("quant_utils").QuantType
    reader = _quantisation("calibrate").CalibrationDataReader

    class Batches(reader):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            self._batches: Iterator[Tensor] = iter(torch.split(inputs, _BATCH))

        def get_next(self) -> dict[str, Any] | None:
            batch = next(self._batches, None)
            return None if batch is None else {"inputs": batch.numpy()}

    quantisation.quantize_static(
        exported,
        out,
        Batches(),
        per_channel=True,
        reduce_range=True,
        activation_type=kinds.QUInt8,
        weight_type=kinds.QInt8,
        op_types_to_quantize=["Conv", "Gemm", "MatMul"],
        # Logits in 8 bits would tie.
        extra_options={"OpTypesToExcludeOutputQuantization": ["Gemm", "MatMul"]},
    )


def _quantisation(part: str) -> Any:
    try:
        import_module("onnx")
        return import_module(f"onnxruntime.quantization.{part}")
    except ModuleNotFoundError:
        raise CostcertError(
            "precision int8 needs the packages onnx and onnxruntime: pip install 'costcert[onnx]'"
        ) from None
