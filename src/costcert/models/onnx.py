"""ONNX files as networks, through ONNX Runtime."""

from __future__ import annotations

import hashlib
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
    """Logits [M, L] of images [M, C, H, W], by the first input and output of an ONNX file.

    The file sets the order of dimensions (channels first or last), the batch size and the type of the input.

    Args:
        channels_last: the order of dimensions, if it is known; otherwise that with 1 or 3 channels.
    """

    def __init__(
        self, path: str | Location, device: str = "cpu", *, channels_last: bool | None = None
    ) -> None:
        super().__init__()
        self.path = locate(path)
        if not self.path.is_file():
            raise CostcertError(f"the ONNX file {self.path} is not there")
        with fetched(self.path) as file:
            external = external_files(file, self.path)
            _fetch(external, file, self.path)
            self._digest = _digest(file, external)
            self._session = _session(file, self.path, device)
        first, output = self._session.get_inputs()[0], self._session.get_outputs()[0]
        self._input: str = first.name
        if first.type not in _DTYPES or len(first.shape) != 4:
            raise CostcertError(
                f"{self.path} takes {first.type} of shape {first.shape}, expected images with four "
                f"dimensions of a type in {', '.join(_DTYPES)}"
            )
        self._dtype = _DTYPES[first.type]
        self.precision = "float16" if "tensor(float16)" in (first.type, output.type) else "float32"
        # A dimension of any size has a name or None instead of a number.
        batch, *sides = (side if isinstance(side, int) and side > 0 else None for side in first.shape)
        self._batch = batch
        guessed = sides[2] in (1, 3) and sides[0] not in (1, 3)
        self._channels_last = guessed if channels_last is None else channels_last
        channels, height, width = (sides[2], *sides[:2]) if self._channels_last else sides
        self.channels = channels
        self.image_size: ImageSize | None = None if height is None or width is None else (height, width)

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxNetwork:
        """Itself: a session may be used by several threads at once, and nothing else changes."""
        return self

    @property
    def takes_raw_pixels(self) -> bool:
        return self._dtype is np.uint8

    def forward(self, pixels: Tensor) -> Tensor:
        images = pixels.permute(0, 2, 3, 1) if self._channels_last else pixels
        array = np.ascontiguousarray(images.cpu().numpy(), dtype=self._dtype)
        if self._batch is None:
            logits = self._run(array)
        else:
            logits = np.concatenate(
                [
                    self._run_padded(array[begin : begin + self._batch], self._batch)
                    for begin in range(0, len(array), self._batch)
                ]
            )
        return torch.from_numpy(logits.astype(np.float32)).flatten(1).to(pixels.device)

    def _run_padded(self, array: Any, batch: int) -> Any:
        """Run a file of fixed batch size on fewer images, padded with blank ones."""
        blank = np.zeros((batch - len(array), *array.shape[1:]), array.dtype)
        return self._run(np.concatenate([array, blank]))[: len(array)]

    def _run(self, array: Any) -> Any:
        try:
            return self._session.run(None, {self._input: array})[0]
        except Exception as error:
            # The exceptions of ONNX Runtime have no common base class.
            raise CostcertError(
                f"{self.path} fails on {list(array.shape)}: {str(error).splitlines()[0]}"
            ) from error

    def digest(self) -> str:
        """sha256 of the file, and of the names and digests of its external weights if it has any."""
        return self._digest


def _fetch(external: list[str], file: Path, path: Location) -> None:
    """Download external weights beside the local copy of the model, if it is at a URL."""
    for location in external:
        source, copy = path.parent / location, file.parent / location
        if not source.is_file():
            raise CostcertError(
                f"{path} keeps weights in {source}, which is not there: put it beside the model"
            )
        if isinstance(source, Url):
            copy.parent.mkdir(parents=True, exist_ok=True)
            source.fetch(copy)


def _digest(file: Path, external: list[str]) -> str:
    total = _sha256(file)
    for location in external:
        total.update(f"\n{location} {_sha256(file.parent / location).hexdigest()}".encode())
    return f"sha256:{total.hexdigest()}"


def _sha256(file: Path) -> Any:
    # hashlib.file_digest needs Python 3.11.
    total = hashlib.sha256()
    with file.open("rb") as opened:
        while part := opened.read(1 << 20):
            total.update(part)
    return total


def _session(file: Path, path: Location, device: str) -> Any:
    try:
        runtime = import_module("onnxruntime")
    except ModuleNotFoundError:
        raise CostcertError("ONNX files need the package onnxruntime: pip install 'costcert[onnx]'") from None
    provider = f"{'CUDA' if device.startswith('cuda') else 'CPU'}ExecutionProvider"
    if provider not in runtime.get_available_providers():
        raise CostcertError(
            f"this onnxruntime has no {provider}: install onnxruntime-gpu, or use --device cpu"
        )
    options = runtime.SessionOptions()
    options.use_deterministic_compute = True
    options.log_severity_level = 3
    # Batches run side by side instead (side_by_side.py).
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        return runtime.InferenceSession(file, options, providers=[provider])
    except Exception as error:
        raise CostcertError(f"{path} cannot be read as ONNX: {str(error).splitlines()[0]}") from error
