"""A classifier from its spelling, from a file or a folder, or from anything in Python that gives logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn

from costcert.errors import CostcertError
from costcert.geometry.ablations import Ablation, parse_ablation
from costcert.geometry.sizes import ImageSize, as_image_size
from costcert.models.architectures import build, timm_preprocessing, view_of
from costcert.models.callables import CallableNetwork, Function, function_name
from costcert.models.checkpoints import class_count, fitting, load_weights, read_weights
from costcert.models.mutants import Mutants
from costcert.models.onnx import OnnxNetwork
from costcert.models.preprocessing import Preprocessing, per_channel
from costcert.models.saved import CARD, load_saved
from costcert.models.shipped import model_folder
from costcert.models.torch_classifier import TorchClassifier
from costcert.store.locations import Location

ONNX = "onnx:"


class _Found(NamedTuple):
    """A model that is there, weights and all."""

    mutants: Mutants
    preprocessing: Preprocessing
    name: str
    digest: str | None = None
    ablation: Ablation | None = None
    class_names: Sequence[str] | None = None
    precision: str | None = None


class _Input(NamedTuple):
    """What the caller says about the input, for models that do not."""

    image_size: ImageSize | int | str | None
    channels: int
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None
    preprocessing: Preprocessing | None

    def resolved(self, name: str, *, raw: bool) -> Preprocessing:
        """`raw`: a model that takes pixels as they are may go without mean and std."""
        if self.preprocessing is not None:
            return self.preprocessing
        if self.image_size is None:
            raise CostcertError(f"{name} does not say the size of its input: pass image_size")
        if not raw and (self.mean is None or self.std is None):
            raise CostcertError(
                f"{name} does not say how it normalises pixels: pass mean and std (0 and 1 for pixels "
                "between 0 and 1)"
            )
        return Preprocessing(
            as_image_size(self.image_size),
            per_channel("mean", self.mean, self.channels),
            per_channel("std", self.std, self.channels),
            self.channels,
        )


def load_model(
    model: str | Location | nn.Module | Function,
    *,
    checkpoint: str | Location | None = None,
    num_classes: int | None = None,
    class_names: Sequence[str] | None = None,
    hide: str | None = None,
    ablation: Ablation | str | None = None,
    image_size: ImageSize | int | str | None = None,
    channels: int = 3,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    preprocessing: Preprocessing | None = None,
    pretrained: bool = False,
    device: str = "cpu",
    batch_size: int | None = None,
    autocast: bool = False,
) -> TorchClassifier:
    """A classifier of mutants.

    Args:
        model: `timm:NAME`, `strip:SIZE`, `onnx:FILE`, the folder that `costcert train` wrote, `shipped:NAME`
            of one that comes with the package, a torch module
            (normalised [M, C, H, W] to logits), or a function (pictures [M, H, W, C] to logits: whole
            numbers, or normalised if `mean` and `std` are given).
        checkpoint: weights for `timm:` and `strip:`, as safetensors or a torch file of weights alone. A
            model and a checkpoint may lie at a URL.
        num_classes: what the data has; a model of another number is refused.
        class_names: for people; a trained model has its own.
        hide: how hidden pixels are shown: `zero`, `black`, `mean`, `drop-tokens` or `crop`. By default as the
            model was trained, or `crop` for strip networks, `black` for raw pixels and `zero` otherwise.
        ablation: what the mutants keep; only crops need to know it here.
        image_size, channels, mean, std: of the input, where the model does not say.
        preprocessing: all of these in one, and how pictures are resized.
        pretrained: fetch timm's own weights; nothing is ever fetched otherwise.
        device, batch_size, autocast: as for `TorchClassifier`.
    """
    kept = parse_ablation(ablation) if isinstance(ablation, str) else ablation
    given = _Input(image_size, channels, mean, std, preprocessing)
    weights = {"checkpoint": checkpoint, "pretrained": pretrained}
    if isinstance(model, nn.Module):
        _refuse("a torch module", **weights)
        found = _module(model, hide, kept, given)
    elif callable(model):
        _refuse("a function", **weights)
        found = _function(model, hide, given)
    elif str(model).startswith(ONNX):
        _refuse("an ONNX file", **weights)
        found = _onnx(str(model), hide, given, device)
    elif (folder := trained_folder(model)) is not None:
        _refuse(
            "a trained model",
            **weights,
            image_size=image_size,
            mean=mean,
            std=std,
            preprocessing=preprocessing,
        )
        found = _folder(folder, hide)
    else:
        _refuse(f"{model} (use preprocessing)", mean=mean, std=std)
        found = _spelled(str(model), checkpoint, pretrained, num_classes, hide, kept, given)
    classifier = TorchClassifier(
        found.mutants,
        found.preprocessing,
        name=found.name,
        class_names=class_names if found.class_names is None else found.class_names,
        device=device,
        batch_size=batch_size,
        autocast=autocast,
        ablation=found.ablation,
        precision=found.precision,
        weights_digest=found.digest,
    )
    if num_classes is not None and classifier.num_classes != num_classes:
        raise CostcertError(
            f"{found.name} knows {classifier.num_classes} classes, but {num_classes} are asked for: the "
            "model and the data do not belong together"
        )
    return classifier


def _refuse(kind: str, **options: Any) -> None:
    for name, value in options.items():
        if value not in (None, False):
            raise CostcertError(f"{kind} takes no {name}: leave it out")


def trained_folder(model: str | Location) -> Location | None:
    """The folder of a trained model, given as such, by its card, or as one that comes with the package."""
    path = model_folder(model)
    if path.is_file() and path.name != CARD:
        raise CostcertError(
            f"{path} is a file: write onnx:{path} if it is an ONNX file, or timm:NAME and pass it as the "
            "checkpoint if it holds weights"
        )
    folder = path.parent if path.name == CARD else path
    return folder if folder.is_dir() and (folder == path or path.is_file()) else None


def _folder(folder: Location, hide: str | None) -> _Found:
    mutants, card, digest = load_saved(folder, hide=hide)
    ablation = parse_ablation(card.ablation)
    return _Found(mutants, card.preprocessing, card.architecture, digest, ablation, card.class_names)


def _spelled(
    spelling: str,
    checkpoint: str | Location | None,
    pretrained: bool,
    num_classes: int | None,
    hide: str | None,
    ablation: Ablation | None,
    given: _Input,
) -> _Found:
    """`timm:NAME` or `strip:SIZE`."""
    weights = None if checkpoint is None else read_weights(checkpoint)
    mutants, preprocessing = build(
        spelling,
        # timm would quietly give its own weights a new, untrained last layer.
        num_classes=None if pretrained else num_classes,
        hide=hide,
        ablation=ablation,
        image_size=given.image_size,
        channels=given.channels,
        preprocessing=given.preprocessing,
        pretrained=pretrained,
    )
    network: Any = mutants.network
    if weights is not None:
        weights = fitting(network, weights)
        trained_for = class_count(network, weights)
        if num_classes is None and trained_for is not None and trained_for != network.num_classes:
            network.reset_classifier(trained_for)
        load_weights(network, weights, f"the checkpoint {checkpoint}")
    elif not pretrained:
        raise CostcertError(
            f"{spelling} has no weights: pass a checkpoint (--checkpoint FILE), or the folder of a model "
            "that costcert train made"
        )
    if network.num_classes == 0:
        raise CostcertError(f"{spelling} has no last layer and names no classes: train it first")
    return _Found(mutants, preprocessing, spelling, ablation=ablation)


def _onnx(spelling: str, hide: str | None, given: _Input, device: str) -> _Found:
    network = OnnxNetwork(spelling.removeprefix(ONNX), device)
    if given.preprocessing is None:
        given = given._replace(
            image_size=given.image_size or network.image_size, channels=network.channels or given.channels
        )
    preprocessing = given.resolved(spelling, raw=network.takes_raw_pixels)
    found = _outside(network, hide, preprocessing, spelling, network.digest())
    return found._replace(precision=network.precision)


def _function(function: Function, hide: str | None, given: _Input) -> _Found:
    name = function_name(function)
    network = CallableNetwork(function)
    return _outside(network, hide, given.resolved(name, raw=True), name, "unknown: a Python function")


def _outside(
    network: nn.Module, hide: str | None, preprocessing: Preprocessing, name: str, digest: str
) -> _Found:
    """A network that is not torch's: it can only be shown whole pictures."""
    hide = hide or ("black" if preprocessing.mean is None else "zero")
    if hide == "crop":
        raise CostcertError(f"{name} takes whole pictures: hide pixels as zero, black or mean, not as crop")
    return _Found(
        Mutants(network, view_of(hide, network, preprocessing, None, name)), preprocessing, name, digest
    )


def _module(network: nn.Module, hide: str | None, ablation: Ablation | None, given: _Input) -> _Found:
    name = f"torch:{type(network).__name__}"
    config = getattr(network, "pretrained_cfg", None)
    if given.preprocessing is None and given.mean is None and isinstance(config, dict):
        preprocessing = timm_preprocessing(config, given.image_size, given.channels)
    else:
        preprocessing = given.resolved(name, raw=False)
    view = view_of(hide or "zero", network, preprocessing, ablation, name)
    return _Found(Mutants(network, view), preprocessing, name, ablation=ablation)
