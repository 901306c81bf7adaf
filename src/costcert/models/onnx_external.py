"""Which files beside an ONNX file hold its weights.

The file itself says so: a tensor kept elsewhere names a `location` relative to the folder of the model. ONNX
Runtime tells nobody which files it read, and the package `onnx` is not needed for anything else here, so this
walks through the protocol buffers of the file (onnx.proto) as far as tensors can lie.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

from costcert.errors import CostcertError
from costcert.store.locations import Location

# For each kind of message its fields that hold messages in which tensors can lie, by number.
_INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_KEY, _VALUE = 1, 2
_VARINT, _EIGHT_BYTES, _LENGTH, _FOUR_BYTES = 0, 1, 2, 5


class _DamagedError(Exception):
    """These bytes are no protocol buffers."""


def external_files(file: Path, path: Location) -> list[str]:
    """Locations of all files beside it that hold weights, in order of their names.

    Args:
        file: the ONNX file on this machine.
        path: what the user calls it.
    """
    content = file.read_bytes()
    if file.suffix == ".ort" or content[4:8] == b"ORTM":
        raise CostcertError(
            f"{path} is in ONNX Runtime's own format, which is not read here: save it as .onnx"
        )
    try:
        found = set(_locations(memoryview(content)))
    except _DamagedError as error:
        raise CostcertError(f"{path} cannot be read as ONNX: {error}") from None
    for location in found:
        _refuse_outside(location, path)
    return sorted(found)


def _refuse_outside(location: str, path: Location) -> None:
    """It must be a file of the folder on every system; to ONNX Runtime an asterisk is not even a file."""
    ways = (PurePosixPath(location), PureWindowsPath(location))
    inside = all(way.parts and not way.anchor and ".." not in way.parts for way in ways)
    if not inside or set(location) & set("*\0"):
        raise CostcertError(
            f"{path} keeps weights at {location!r}, outside its own folder, where none are read: save it "
            "with its weights beside it"
        )


def _locations(content: memoryview) -> Iterator[str]:
    waiting = [("model", content)]
    while waiting:
        kind, message = waiting.pop()
        if kind == "entry":
            words = {number: bytes(value) for number, value in _fields(message)}
            if words.get(_KEY) == b"location":
                yield _text(words.get(_VALUE, b""))
            continue
        inside = _INSIDE[kind]
        waiting += [(inside[number], value) for number, value in _fields(message) if number in inside]


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise _DamagedError("a location is not in UTF-8") from None


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Numbers and contents of the fields that have a length, which messages and strings do."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind == _EIGHT_BYTES:
            at += 8
        elif kind == _FOUR_BYTES:
            at += 4
        elif kind == _LENGTH:
            length, begin = _varint(message, at)
            at = begin + length
            if at <= len(message):
                yield number, message[begin:at]
        else:
            raise _DamagedError(f"it holds a field of kind {kind}")
        if number == 0 or at > len(message):
            raise _DamagedError("a field does not end")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A whole number of seven bits a byte, the lowest first, and where it ends."""
    value = 0
    for place in range(10):
        if at + place >= len(message):
            break
        byte = message[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise _DamagedError("a number does not end")
