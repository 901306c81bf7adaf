"""Any function from pictures to logits as a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from costcert.errors import CostcertError

Function = Callable[[npt.NDArray[Any]], npt.ArrayLike]


class CallableNetwork(nn.Module):
    """Hands mutants to a function as an array [M, H, W, C] of its own, and takes [M, L] logits back.

    What the function says about a mutant must not depend on the others in the array.
    """

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, pixels: Tensor) -> Tensor:
        pictures = pixels.permute(0, 2, 3, 1).contiguous().cpu().numpy()
        answer = self.function(pictures)
        try:
            return torch.tensor(np.asarray(answer, dtype=np.float32), device=pixels.device)
        except (TypeError, ValueError):
            raise CostcertError(
                f"the function gave a {type(answer).__name__} that is no array of logits [mutants, classes]"
            ) from None


def function_name(function: Any) -> str:
    """`python:module.name`, for the manifest."""
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"python:{getattr(function, '__module__', type(function).__module__)}.{name}"
