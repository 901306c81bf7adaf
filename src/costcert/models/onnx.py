"""ONNX files as networks, through ONNX Runtime."""

from __future__ import annotations

import hashlib
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from costcert.errors import CostcertError
from costcert.geometry.sizes import ImageSize
from costcert.models.onnx_external import external_files
from costcert.store.locations import Location, Url, fetched, locate

_DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}


class OnnxNetwork(nn.Module):
    """Logits [M, L] of pictures [M, C, H, W] by the first input and output of an ONNX file.

    Whether it wants channels first or last, how many pictures at once, and which numbers, the file says.
    """

    def __init__(self, path: str | Location, device: str = "cpu") -> None:
        super().__init__()
        self.path = locate(path)
        if not self.path.is_file():
            raise CostcertError(f"the ONNX file {self.path} is not there")
        with fetched(self.path) as file:
            beside = external_files(file, self.path)
            _bring(beside, file, self.path)
            self._digest = _digest(file, beside)
            self._session = _session(file, self.path, device)
        first, answer = self._session.get_inputs()[0], self._session.get_outputs()[0]
        self._input: str = first.name
        if first.type not in _DTYPES or len(first.shape) != 4:
            raise CostcertError(
                f"{self.path} takes {first.type} of shape {first.shape}, expected pictures of four "
                f"dimensions as one of {', '.join(_DTYPES)}"
            )
        self._dtype = _DTYPES[first.type]
        self.precision = "float16" if "tensor(float16)" in (first.type, answer.type) else "float32"
        # Names stand for sizes that may vary.
        batch, *sides = (side if isinstance(side, int) and side > 0 else None for side in first.shape)
        self._batch = batch
        self._channels_last = sides[2] in (1, 3) and sides[0] not in (1, 3)
        channels, height, width = (sides[2], *sides[:2]) if self._channels_last else sides
        self.channels = channels
        self.image_size: ImageSize | None = None if height is None or width is None else (height, width)

    @property
    def takes_raw_pixels(self) -> bool:
        return self._dtype is np.uint8

    def forward(self, pixels: Tensor) -> Tensor:
        pictures = pixels.permute(0, 2, 3, 1) if self._channels_last else pixels
        array = np.ascontiguousarray(pictures.cpu().numpy(), dtype=self._dtype)
        if self._batch is None:
            answers = self._run(array)
        else:
            answers = np.concatenate(
                [
                    self._run_full(array[begin : begin + self._batch], self._batch)
                    for begin in range(0, len(array), self._batch)
                ]
            )
        return torch.from_numpy(answers.astype(np.float32)).flatten(1).to(pixels.device)

    def _run_full(self, array: Any, batch: int) -> Any:
        """Blank pictures fill a batch that the file wants full."""
        blank = np.zeros((batch - len(array), *array.shape[1:]), array.dtype)
        return self._run(np.concatenate([array, blank]))[: len(array)]

    def _run(self, array: Any) -> Any:
        try:
            return self._session.run(None, {self._input: array})[0]
        except Exception as error:
            # ONNX Runtime has exceptions of its own for each failure, and no base class for them.
            raise CostcertError(
                f"{self.path} fails on {list(array.shape)}: {str(error).splitlines()[0]}"
            ) from error

    def digest(self) -> str:
        """sha256 of the file; where it keeps weights in others, these go into it with their digests."""
        return self._digest


def _bring(beside: list[str], file: Path, path: Location) -> None:
    """See that all weights of the model lie beside its file on this machine."""
    for location in beside:
        source, copy = path.parent / location, file.parent / location
        if not source.is_file():
            raise CostcertError(
                f"{path} keeps weights in {source}, which is not there: put it beside the model"
            )
        if isinstance(source, Url):
            copy.parent.mkdir(parents=True, exist_ok=True)
            source.fetch(copy)


def _digest(file: Path, beside: list[str]) -> str:
    seen = _sha256(file)
    for location in beside:
        seen.update(f"\n{location} {_sha256(file.parent / location).hexdigest()}".encode())
    return f"sha256:{seen.hexdigest()}"


def _sha256(file: Path) -> Any:
    seen = hashlib.sha256()
    with file.open("rb") as opened:
        for part in iter(partial(opened.read, 1 << 20), b""):
            seen.update(part)
    return seen


def _session(file: Path, path: Location, device: str) -> Any:
    try:
        runtime = import_module("onnxruntime")
    except ModuleNotFoundError:
        raise CostcertError("onnx: needs onnxruntime: pip install onnxruntime") from None
    provider = f"{'CUDA' if device.startswith('cuda') else 'CPU'}ExecutionProvider"
    if provider not in runtime.get_available_providers():
        raise CostcertError(f"this onnxruntime has no {provider}: install onnxruntime-gpu, or use the cpu")
    options = runtime.SessionOptions()
    options.use_deterministic_compute = True
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(file, options, providers=[provider])
    except Exception as error:
        raise CostcertError(f"{path} cannot be read as ONNX: {str(error).splitlines()[0]}") from error
