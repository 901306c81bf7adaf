"""A Python function from images to logits as a torch module."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from costcert.errors import CostcertError

Function = Callable[[npt.NDArray[Any]], npt.ArrayLike]


class CallableNetwork(nn.Module):
    """Calls a function with mutants as a new array [M, H, W, C]; it returns logits [M, L].

    The logits of a mutant must not depend on the other mutants in the array. One call is made at a time, with
    one thread for numpy's products, whose rounding depends on their number; a function with an attribute
    `side_by_side = True` is called by several threads at once, and sees to both itself.
    """

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self._turn = Lock()

    def __deepcopy__(self, memo: dict[int, Any]) -> CallableNetwork:
        """Itself: copies would take turns no more."""
        return self

    def forward(self, pixels: Tensor) -> Tensor:
        images = pixels.permute(0, 2, 3, 1).contiguous().cpu().numpy()
        if getattr(self.function, "side_by_side", False):
            logits = self.function(images)
        else:
            with self._turn, threadpool_limits(1, "blas"):
                logits = self.function(images)
        try:
            return torch.tensor(np.asarray(logits, dtype=np.float32), device=pixels.device)
        except (TypeError, ValueError):
            raise CostcertError(
                f"the function returned a {type(logits).__name__}, expected an array of logits "
                "[mutants, classes]"
            ) from None


def function_name(function: Any) -> str:
    """The name of a function in the manifest, `python:module.name`."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"python:{getattr(function, '__module__', type(function).__module__)}.{name}"
