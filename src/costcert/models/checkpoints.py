"""Checkpoints: reading weights without executing code from the file, fitting them to a network, digests.

timm's `load_state_dict` and `load_checkpoint` would read the same files, but strip fewer prefixes, report a
misfit as a list of all keys, and do not check that torch's unpickler is safe.
"""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from costcert.errors import CostcertError
from costcert.store.locations import Location, fetched, locate

Weights = dict[str, Tensor]

# In older versions a file could execute code even with `weights_only=True`.
SAFE_TORCH = "2.10"

# Keys under which training scripts store the weights among other values.
_WEIGHTS_KEYS = ("state_dict_ema", "model_ema", "state_dict", "model")


def read_weights(path: str | Location) -> Weights:
    """The weights in a .safetensors file, or in a torch file without pickled Python objects."""
    path = locate(path)
    if not path.is_file():
        raise CostcertError(f"the checkpoint {path} is not there")
    try:
        with fetched(path) as file:
            content = load_file(file) if path.suffix == ".safetensors" else read_torch_file(file, path)
    except UnpicklingError:
        raise CostcertError(
            f"{path} holds Python objects beside weights, and loading them could execute any code: save only "
            "the weights, preferably as .safetensors"
        ) from None
    except (SafetensorError, RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CostcertError(f"the checkpoint {path} cannot be read: {reason}") from None
    for key in _WEIGHTS_KEYS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping):
        raise CostcertError(f"{path} holds a {type(content).__name__}, expected a dict of weights by name")
    weights = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not weights:
        raise CostcertError(f"{path} holds no weights: save the network's state_dict()")
    return weights


def read_torch_file(file: Path, path: Location) -> Any:
    """The content of a local torch file, which may hold only tensors and plain values.

    Args:
        path: its location in error messages.
    """
    if torch.__version__ < SAFE_TORCH:
        raise CostcertError(
            f"torch {torch.__version__} may execute code from a file like {path}, which torch {SAFE_TORCH} "
            "does not: upgrade torch, or save the weights as .safetensors"
        )
    with warnings.catch_warnings():
        # torch warns about files that it did not write; those that cannot be read raise anyway.
        warnings.simplefilter("ignore")
        return torch.load(file, map_location="cpu", weights_only=True)


def adapt_weights(network: nn.Module, weights: Weights) -> Weights:
    """Rename and reshape weights to those of this network, as far as possible.

    Removes the prefix that wrappers put before every name (`module.`, `model.`, ...), and converts
    checkpoints of the original authors by timm's `checkpoint_filter_fn`.
    """
    own = network.state_dict()
    first = next(iter(own), "")
    prefixes = sorted((name.removesuffix(first) for name in weights if name.endswith(first)), key=len)
    if prefixes and prefixes[0]:
        start = len(prefixes[0])
        weights = {name[start:]: v for name, v in weights.items() if name.startswith(prefixes[0])}
    convert = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    fits = own.keys() == weights.keys() and all(own[n].shape == v.shape for n, v in weights.items())
    if not fits and convert is not None:
        # For weights that timm cannot convert, `load_weights` raises an error that names the difference.
        with suppress(Exception):
            return dict(convert(weights, network))
    return weights


def head_name(network: nn.Module) -> str | None:
    """The name of the last layer, for networks with timm's `get_classifier`."""
    get_head = getattr(network, "get_classifier", None)
    head = get_head() if callable(get_head) else None
    head = head[0] if isinstance(head, tuple) else head
    return next((name for name, module in network.named_modules() if module is head), None)


def class_count(network: nn.Module, weights: Weights) -> int | None:
    """The number of classes that adapted weights were trained for, if their last layer is known."""
    weight = weights.get(f"{head_name(network)}.weight")
    return None if weight is None else len(weight)


def load_weights(network: nn.Module, weights: Weights, source: str, *, except_head: bool = False) -> None:
    """Load adapted weights into the network: all of them, or all but the last layer for a new task."""
    head = head_name(network)
    own = network.state_dict()
    if except_head:
        own = {name: v for name, v in own.items() if not name.startswith(f"{head}.")}
        weights = {name: v for name, v in weights.items() if name in own}
    else:
        ours, theirs = own.get(f"{head}.weight"), class_count(network, weights)
        if ours is not None and theirs is not None and len(ours) != theirs:
            raise CostcertError(
                f"{source} was trained for {theirs} classes, but {len(ours)} are requested: pass a "
                "checkpoint trained on this data, or leave out the number of classes"
            )
    # Only training reads these counters, and old files lack them.
    missing = [name for name in own if name not in weights and not name.endswith("num_batches_tracked")]
    unknown = [name for name in weights if name not in own]
    other_shape = [name for name in own if name in weights and own[name].shape != weights[name].shape]
    for names, problem in ((missing, "it lacks"), (unknown, "the model does not have")):
        if names:
            raise CostcertError(
                f"{source} does not fit the model: {problem} {names[0]!r}"
                + (f" and {len(names) - 1} more" if len(names) > 1 else "")
                + "; is it a checkpoint of another architecture?"
            )
    if other_shape:
        name = other_shape[0]
        raise CostcertError(
            f"{source} does not fit the model: {name!r} has shape {list(weights[name].shape)}, the model "
            f"expects {list(own[name].shape)}; is it for another image size or number of channels?"
        )
    network.load_state_dict(weights, strict=False)


def start_from(network: nn.Module, path: str | Location) -> None:
    """Load initial weights for training; a last layer for another number of classes keeps its own."""
    weights = adapt_weights(network, read_weights(path))
    own = network.state_dict().get(f"{head_name(network)}.weight")
    same = own is None or class_count(network, weights) == len(own)
    load_weights(network, weights, f"the checkpoint {path}", except_head=not same)


def digest(network: nn.Module) -> str:
    """sha256 of all weights with their names, types and shapes, independent of the file format."""
    total = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        _add(total, name, value)
    return f"sha256:{total.hexdigest()}"


def _add(total: Any, name: str, value: Any) -> None:
    if isinstance(value, list | tuple):
        # Quantised layers store weight and bias as one entry.
        total.update(f"{name} {len(value)} parts\n".encode())
        for index, part in enumerate(value):
            _add(total, f"{name}.{index}", part)
    elif not isinstance(value, Tensor):
        if not isinstance(value, str | int | float | torch.dtype | torch.qscheme | None):
            raise CostcertError(
                f"the weights hold a {type(value).__name__} under {name!r}, so the model has no digest: keep "
                "only tensors and numbers in its state_dict()"
            )
        total.update(f"{name} {value!r}\n".encode())
    else:
        plain = value.detach().cpu()
        if plain.is_quantized:
            for part, parameter in _quantisation(plain).items():
                _add(total, f"{name}.{part}", parameter)
            plain = plain.int_repr()
        plain = plain.contiguous()
        total.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        total.update(plain.reshape(-1).view(torch.uint8).numpy())


def _quantisation(weight: Tensor) -> dict[str, Any]:
    """The parameters that map the integers of a quantised tensor to its values."""
    if weight.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return {"scale": weight.q_scale(), "zero": weight.q_zero_point()}
    return {
        "scales": weight.q_per_channel_scales(),
        "zeros": weight.q_per_channel_zero_points(),
        "axis": weight.q_per_channel_axis(),
    }
