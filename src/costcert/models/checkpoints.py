"""Weights from files, without ever running what a file says: safetensors, or torch files of weights alone."""

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

# Before, a file could run a program even where weights alone were asked for.
SAFE_TORCH = "2.10"

# Where training scripts put weights beside their other notes.
_DRAWERS = ("state_dict_ema", "model_ema", "state_dict", "model")


def read_weights(path: str | Location) -> Weights:
    """The weights in a .safetensors file, or in a torch file that holds nothing else that could run."""
    path = locate(path)
    if not path.is_file():
        raise CostcertError(f"the checkpoint {path} is not there")
    try:
        with fetched(path) as file:
            content = load_file(file) if path.suffix == ".safetensors" else read_torch_file(file, path)
    except UnpicklingError:
        raise CostcertError(
            f"{path} holds Python objects beside weights, and reading those could run any program: save the "
            "weights alone, best as .safetensors"
        ) from None
    except (SafetensorError, RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CostcertError(f"the checkpoint {path} cannot be read: {reason}") from None
    for drawer in _DRAWERS:
        if isinstance(content, Mapping) and isinstance(content.get(drawer), Mapping):
            content = content[drawer]
            break
    if not isinstance(content, Mapping):
        raise CostcertError(f"{path} holds a {type(content).__name__}, not weights by name")
    weights = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not weights:
        raise CostcertError(f"{path} holds no weights")
    return weights


def read_torch_file(file: Path, path: Location) -> Any:
    """What a torch file on this machine holds, tensors and plain values alone.

    Args:
        path: what the user calls it.
    """
    if torch.__version__ < SAFE_TORCH:
        raise CostcertError(
            f"torch {torch.__version__} can be made to run a program by a file like {path}, and "
            f"{SAFE_TORCH} cannot: upgrade torch, or save the weights as .safetensors"
        )
    with warnings.catch_warnings():
        # torch wonders about files that it did not write; whether they can be read is said here.
        warnings.simplefilter("ignore")
        return torch.load(file, map_location="cpu", weights_only=True)


def fitting(network: nn.Module, weights: Weights) -> Weights:
    """The weights under the names and in the shapes that this network has, as far as they can be found.

    Wrappers put a prefix before every name (`module.`, `model.`, ...), and timm knows how the names and
    shapes of the original authors become its own.
    """
    wanted = network.state_dict()
    first = next(iter(wanted), "")
    prefixes = sorted((name.removesuffix(first) for name in weights if name.endswith(first)), key=len)
    if prefixes and prefixes[0]:
        start = len(prefixes[0])
        weights = {name[start:]: v for name, v in weights.items() if name.startswith(prefixes[0])}
    convert = getattr(sys.modules[type(network).__module__], "checkpoint_filter_fn", None)
    as_is = wanted.keys() == weights.keys() and all(wanted[n].shape == v.shape for n, v in weights.items())
    if not as_is and convert is not None:
        # Weights that timm cannot convert do not fit, and `load_weights` says in which way.
        with suppress(Exception):
            return dict(convert(weights, network))
    return weights


def head_name(network: nn.Module) -> str | None:
    """The name of the layer that gives the logits, where the network tells."""
    get_head = getattr(network, "get_classifier", None)
    head = get_head() if callable(get_head) else None
    head = head[0] if isinstance(head, tuple) else head
    return next((name for name, module in network.named_modules() if module is head), None)


def class_count(network: nn.Module, weights: Weights) -> int | None:
    """How many classes fitting weights were trained for, where that can be seen."""
    weight = weights.get(f"{head_name(network)}.weight")
    return None if weight is None else len(weight)


def load_weights(network: nn.Module, weights: Weights, source: str, *, except_head: bool = False) -> None:
    """Put fitting weights into the network: all of them, or all but the last layer for a new task."""
    head = head_name(network)
    own = network.state_dict()
    if except_head:
        own = {name: v for name, v in own.items() if not name.startswith(f"{head}.")}
        weights = {name: v for name, v in weights.items() if name in own}
    else:
        ours, theirs = own.get(f"{head}.weight"), class_count(network, weights)
        if ours is not None and theirs is not None and len(ours) != theirs:
            raise CostcertError(
                f"{source} was trained for {theirs} classes, but {len(ours)} are asked for: pass the "
                "checkpoint of this data, or leave the number of classes out"
            )
    # Only training reads these counters, and old files lack them.
    missing = [name for name in own if name not in weights and not name.endswith("num_batches_tracked")]
    unknown = [name for name in weights if name not in own]
    misshapen = [name for name in own if name in weights and own[name].shape != weights[name].shape]
    for names, what in ((missing, "lacks"), (unknown, "has, unknown to the model,")):
        if names:
            raise CostcertError(
                f"{source} does not fit the model: it {what} {names[0]!r}"
                + (f" and {len(names) - 1} more" if len(names) > 1 else "")
                + "; is it a checkpoint of another architecture?"
            )
    if misshapen:
        name = misshapen[0]
        raise CostcertError(
            f"{source} does not fit the model: {name!r} has the shape {list(weights[name].shape)}, the model "
            f"needs {list(own[name].shape)}; is it for another image size or number of channels?"
        )
    network.load_state_dict(weights, strict=False)


def start_from(network: nn.Module, path: str | Location) -> None:
    """Begin training with the weights of this file; a last layer for other classes is left as it is."""
    weights = fitting(network, read_weights(path))
    own = network.state_dict().get(f"{head_name(network)}.weight")
    same = own is None or class_count(network, weights) == len(own)
    load_weights(network, weights, f"the checkpoint {path}", except_head=not same)


def digest(network: nn.Module) -> str:
    """sha256 of all weights with their names, types and shapes, whatever file they came from."""
    seen = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        _add(seen, name, value)
    return f"sha256:{seen.hexdigest()}"


def _add(seen: Any, name: str, value: Any) -> None:
    if isinstance(value, list | tuple):
        # Quantised layers keep weight and bias together.
        seen.update(f"{name} {len(value)} parts\n".encode())
        for place, part in enumerate(value):
            _add(seen, f"{name}.{place}", part)
    elif not isinstance(value, Tensor):
        if not isinstance(value, str | int | float | torch.dtype | torch.qscheme | None):
            raise CostcertError(
                f"the weights hold a {type(value).__name__} under {name!r}, so no digest can say which model "
                "it is: keep numbers and tensors alone in its state"
            )
        seen.update(f"{name} {value!r}\n".encode())
    else:
        plain = value.detach().cpu()
        if plain.is_quantized:
            for part, found in _quantisation(plain).items():
                _add(seen, f"{name}.{part}", found)
            plain = plain.int_repr()
        plain = plain.contiguous()
        seen.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        seen.update(plain.reshape(-1).view(torch.uint8).numpy())


def _quantisation(weight: Tensor) -> dict[str, Any]:
    """What the whole numbers of a quantised tensor stand for."""
    if weight.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return {"scale": weight.q_scale(), "zero": weight.q_zero_point()}
    return {
        "scales": weight.q_per_channel_scales(),
        "zeros": weight.q_per_channel_zero_points(),
        "axis": weight.q_per_channel_axis(),
    }
