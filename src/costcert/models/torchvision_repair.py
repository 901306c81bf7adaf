"""Imports of timm and torchvision that work with a torchvision built for another torch.

A torchvision built for CUDA fails to import with a CPU build of torch, because two of its operators are not
registered. This package uses neither of them, so declaring their schemas is enough.

After `import_torchvision()` a plain `import torchvision` works in the same process, also in other packages;
only `torchvision.ops.nms` and reading images with `torchvision.io` do not.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Any

from costcert.errors import CostcertError

_MISSING = "operator torchvision::nms does not exist"
# Declarations last as long as their library object, so it is kept here.
_libraries: list[Any] = []


def import_timm() -> ModuleType:
    """timm; torchvision, which it imports, is repaired first if necessary."""
    import_torchvision()
    return _import("timm")


def import_torchvision() -> ModuleType:
    """torchvision, repaired if it was built for another torch."""
    try:
        return _import("torchvision")
    except RuntimeError as error:
        if _MISSING not in str(error):
            raise CostcertError(
                f"torchvision {version('torchvision')} cannot be imported beside torch {version('torch')} "
                f"({str(error).splitlines()[0].rstrip('.')}): install a pair of the same release"
            ) from error
    _declare_operators()
    return _import("torchvision")


def _import(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise CostcertError(
            f"this needs {error.name}, which is not installed: pip install 'costcert[models]'"
        ) from None


def _declare_operators() -> None:
    import torch

    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _libraries.append(library)
