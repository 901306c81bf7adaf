"""Imports timm also where torchvision was built for another torch.

A torchvision built for CUDA beside a torch for the CPU dies on import, because two operators that it
describes are not there. Nothing here uses them, so naming them is enough.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Any

from costcert.errors import CostcertError

_MISSING = "operator torchvision::nms does not exist"
# The operators live as long as this list does.
_named: list[Any] = []


def import_timm() -> ModuleType:
    """timm, with torchvision mended first if it needs that."""
    import_torchvision()
    return _import("timm")


def import_torchvision() -> ModuleType:
    """torchvision, mended if it was built for another torch."""
    try:
        return _import("torchvision")
    except RuntimeError as error:
        if _MISSING not in str(error):
            raise
    _name_operators()
    return _import("torchvision")


def _import(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise CostcertError(
            f"this needs {error.name}, which is not installed: pip install 'costcert[models]'"
        ) from None


def _name_operators() -> None:
    import torch

    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _named.append(library)
