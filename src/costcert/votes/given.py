"""What people have as a model: a costcert model, its spelling, a torch module or a Python function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from costcert.datasets.arrays import ArrayDataset
from costcert.datasets.base import Dataset
from costcert.datasets.normalised import NormalisedDataset
from costcert.errors import CostcertError
from costcert.geometry.ablations import Ablation
from costcert.models.classifier import Classifier
from costcert.votes.validation import shortened

if TYPE_CHECKING:
    from torch import nn


@contextmanager
def classifier_of(
    model: Any,
    data: Dataset,
    ablation: Ablation,
    *,
    hide: str | None = None,
    device: str | None = None,
    batch_size: int | None = None,
) -> Iterator[Classifier]:
    """The classifier that `model` is or describes, whose input is that of `data` if it does not say it.

    A torch module is in evaluation mode meanwhile, and afterwards in the mode it came in.

    Args:
        hide, device, batch_size: as for `load_model`; a torch module stays where it is by default.
    """
    options: dict[str, Any] = {"hide": hide, "device": device, "batch_size": batch_size}
    if isinstance(model, Classifier):
        for name, value in options.items():
            if value is not None:
                raise CostcertError(f"{model!r} is loaded already: pass {name} to load_model")
        yield model
        return
    if not isinstance(model, str) and (isinstance(model, type) or not callable(model)):
        raise CostcertError(
            "a model must be one that load_model returns, its spelling, a torch module or a function, got "
            f"{shortened(model)}"
        )
    # torch takes seconds to import, and a model that is loaded already may not need it.
    from torch import nn

    from costcert.models.loading import load_model

    given = {name: value for name, value in options.items() if value is not None}
    if isinstance(model, str):
        yield load_model(model, **given)
        return
    module = model if isinstance(model, nn.Module) else None
    described = _input_of(model, module, data, hide)
    if module is None:
        yield load_model(model, **described, **given)
        return
    with _modes_kept(module):
        at = {"device": str(_device(module)), **given}
        yield load_model(module, ablation=ablation, **described, **at)


def _input_of(model: Any, module: nn.Module | None, data: Dataset, hide: str | None) -> dict[str, Any]:
    """The description of the model's input that the data give."""
    if isinstance(data, NormalisedDataset):
        if hide in ("black", "mean"):
            raise CostcertError(
                f"the colour {hide!r} after normalisation is not known: hide pixels as zero, or describe the "
                "normalisation with load_model(network, image_size=…, mean=…, std=…)"
            )
        return {"image_size": data.image_size, "channels": data.channels, "mean": 0.0, "std": 1.0}
    if module is None and isinstance(data, ArrayDataset):
        shape = data.images.shape
        return {"image_size": shape[1:3], "channels": shape[3] if len(shape) == 4 else 1}
    if isinstance(getattr(model, "pretrained_cfg", None), dict):
        return {}
    raise CostcertError(
        f"{type(model).__name__} does not say how pictures become its input: pass a DataLoader of normalised "
        "images, or describe the input with load_model(network, image_size=…, mean=…, std=…)"
    )


def _device(module: nn.Module) -> Any:
    """Where the module's first weight is; the CPU for a module without weights."""
    weight = next(chain(module.parameters(), module.buffers()), None)
    return "cpu" if weight is None else weight.device


@contextmanager
def _modes_kept(module: nn.Module) -> Iterator[None]:
    modes = [(each, each.training) for each in module.modules()]
    try:
        yield
    finally:
        for each, training in modes:
            each.training = training
