"""The files beside an ONNX file that hold its weights.

A tensor with external data names a `location` relative to the folder of the model. ONNX Runtime does not
report which files it reads, so the locations are read from the model here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from costcert.errors import CostcertError
from costcert.store.locations import Location


def external_files(file: Path, path: Location) -> list[str]:
    """Locations of all files beside an ONNX file that hold weights, sorted.

    Args:
        file: the ONNX file on this machine.
        path: its location in error messages.
    """
    try:
        onnx = import_module("onnx")
    except ModuleNotFoundError:
        raise CostcertError("ONNX files need the package onnx: pip install 'costcert[onnx]'") from None
    content = file.read_bytes()
    if file.suffix == ".ort" or content[4:8] == b"ORTM":
        raise CostcertError(
            f"{path} is in ONNX Runtime's own format, which is not supported: save it as .onnx"
        )
    try:
        found = {_text(value) for value in _locations(onnx.ModelProto.FromString(content), onnx.TensorProto)}
    except Exception as error:
        # Protocol buffers raise an exception of their own, and UnicodeDecodeError for a broken string.
        raise CostcertError(f"{path} cannot be read as ONNX: {error}") from None
    for location in found:
        _refuse_outside(location, path)
    return sorted(found)


def _locations(message: Any, tensor: type) -> Iterator[str | bytes]:
    """The locations of all tensors in a message, wherever in it they are."""
    if isinstance(message, tensor):
        entries: Any = message
        yield from (entry.value for entry in entries.external_data if entry.key == "location")
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in value if isinstance(value, Sequence) else [value]:
                yield from _locations(part, tensor)


def _text(value: str | bytes) -> str:
    """Some versions of protobuf return strings that are not UTF-8 as bytes."""
    return value if isinstance(value, str) else value.decode()


def _refuse_outside(location: str, path: Location) -> None:
    """Raise unless the location is a file in the model's folder, on every operating system.

    An asterisk marks weights in memory for ONNX Runtime.
    """
    forms = (PurePosixPath(location), PureWindowsPath(location))
    inside = all(form.parts and not form.anchor and ".." not in form.parts for form in forms)
    if not inside or set(location) & set("*\0"):
        raise CostcertError(
            f"{path} keeps weights at {location!r}, outside its own folder, where none are read: save the "
            "weights beside the model"
        )
