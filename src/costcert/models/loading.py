"""`load_model`: a classifier from its spelling, a file, a folder, a torch module or a Python function."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from costcert.errors import CostcertError, SpellingError, nearest
from costcert.geometry.ablations import Ablation, parse_ablation
from costcert.geometry.sizes import ImageSize, as_image_size
from costcert.models.architectures import build, timm_preprocessing, view_of
from costcert.models.callables import CallableNetwork, Function, function_name
from costcert.models.checkpoints import adapt_weights, class_count, digest, load_weights, read_weights
from costcert.models.ensembles import ensemble, joint_digest
from costcert.models.int8 import int8_network
from costcert.models.mutants import Mutants
from costcert.models.onnx import OnnxNetwork
from costcert.models.preprocessing import Preprocessing, per_channel
from costcert.models.python_names import PYTHON, failure, find_named
from costcert.models.saved import CARD, load_saved
from costcert.models.shipped import model_folder
from costcert.models.together import members_of, spelled_together
from costcert.models.torch_classifier import TorchClassifier
from costcert.store.locations import Location

if TYPE_CHECKING:
    from costcert.datasets.base import Dataset

Model = str | Location | nn.Module | Function
ONNX = "onnx:"
# What a network computes in; half is the type that torch chooses for the device.
FLOAT32, HALF, INT8 = PRECISIONS = ("float32", "half", "int8")


class _Loaded(NamedTuple):
    """A model with its weights, and what is known about it."""

    mutants: Mutants
    preprocessing: Preprocessing
    name: str
    digest: str | None = None
    ablation: Ablation | None = None
    class_names: Sequence[str] | None = None
    precision: str | None = None


class _InputOptions(NamedTuple):
    """The caller's description of the input, for models that do not store one."""

    image_size: ImageSize | int | str | None
    channels: int
    mean: float | Sequence[float] | None
    std: float | Sequence[float] | None
    preprocessing: Preprocessing | None

    def resolved(self, name: str, *, raw: bool) -> Preprocessing:
        """The preprocessing; `raw` models take uint8 pixels and need no mean and std."""
        if self.preprocessing is not None:
            return self.preprocessing
        if self.image_size is None:
            raise CostcertError(
                f"{name} does not store its input size: pass image_size (--image-size), as in 224 or 32x48"
            )
        if not raw and (self.mean is None or self.std is None):
            raise CostcertError(
                f"{name} does not store how pixels are normalised: pass mean and std (--mean and --std; 0 "
                "and 1 for pixels between 0 and 1)"
            )
        return Preprocessing(
            as_image_size(self.image_size),
            per_channel("mean", self.mean, self.channels),
            per_channel("std", self.std, self.channels),
            self.channels,
        )


class _Request(NamedTuple):
    """What the caller of `load_model` wants, for each network."""

    given: _InputOptions
    ablation: Ablation | None
    hide: str | None
    checkpoint: str | Location | None
    pretrained: bool
    num_classes: int | None
    device: str
    int8: bool
    calibration: Dataset | None


def load_model(
    model: Model | list[Model] | tuple[Model, ...],
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
    precision: str = FLOAT32,
    calibration: Dataset | None = None,
    autocast: bool = False,
) -> TorchClassifier:
    """A classifier of mutants.

    Args:
        model: `timm:NAME`, `strip:SIZE`, `onnx:FILE`, a folder that `costcert train` wrote, `shipped:NAME`
            for a model in the package, a torch module (normalised [M, C, H, W] to logits), a function
            (images [M, H, W, C] to logits; uint8, or normalised if `mean` and `std` are given), or
            `python:package.module:name` for a function or torch module by its name, whose code is run.
            A list of several, or `A + B`, is an ensemble: its ballots come from their mean probability.
        checkpoint: weights for `timm:` and `strip:`, a safetensors file or a torch file of weights alone.
            Model and checkpoint may be URLs.
        num_classes: of the data; a model with another number is refused.
        class_names: for display; a trained model has its own.
        hide: how pixels are hidden: `zero`, `black`, `mean`, `drop-tokens` or `crop`. By default as the
            model was trained, or `crop` for strip networks, `black` for raw pixels and `zero` otherwise.
        ablation: the one the model was trained on, if known; required for `crop`.
        image_size: of the input; this and the next three are for models that do not store them.
        channels: of the input.
        mean: per channel.
        std: the standard deviation per channel.
        preprocessing: replaces these four, and sets how images are resized.
        pretrained: load timm's weights; nothing is ever downloaded otherwise.
        device: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto` for the fastest one available.
        batch_size: mutants per batch.
        precision: `float32`, `half` (where torch considers it safe), or `int8`, 8-bit integers on a CPU, for
            the folder of a trained model, which holds the quantised network as `int8.onnx`.
        calibration: a dataset like that of training, to make `int8.onnx` from if it is not there.
        autocast: the same as `precision="half"`.
    """
    precision = _precision(precision, autocast)
    if precision == INT8:
        device = _only_cpu(device)
    elif calibration is not None:
        raise CostcertError(f"calibration images are for precision int8, not {precision}: leave them out")
    kept = parse_ablation(ablation) if isinstance(ablation, str) else ablation
    request = _Request(
        _InputOptions(image_size, channels, mean, std, preprocessing),
        kept,
        hide,
        checkpoint,
        pretrained,
        num_classes,
        device,
        precision == INT8,
        calibration,
    )
    networks = _networks(model)
    loaded = _together(networks, request) if len(networks) > 1 else _load(networks[0], request)
    if precision == INT8 and loaded.precision != INT8:
        raise CostcertError(
            f"precision int8 needs the folder of a trained model or shipped:NAME, got {loaded.name}: leave "
            "precision out, or train a model"
        )
    with _naming_errors_of(model):
        classifier = TorchClassifier(
            loaded.mutants,
            loaded.preprocessing,
            name=loaded.name,
            class_names=class_names if loaded.class_names is None else loaded.class_names,
            device=device,
            batch_size=batch_size,
            autocast=precision == HALF,
            ablation=loaded.ablation,
            precision=loaded.precision,
            weights_digest=loaded.digest,
        )
    if num_classes is not None and classifier.num_classes != num_classes:
        raise CostcertError(
            f"{loaded.name} has {classifier.num_classes} classes, but {num_classes} are requested: use a "
            "model that was trained on this data"
        )
    return classifier


def _networks(model: Model | list[Model] | tuple[Model, ...]) -> Sequence[Model]:
    """The networks of an ensemble, or the only one."""
    if isinstance(model, str):
        return members_of(model)
    if isinstance(model, list | tuple):
        if not model:
            raise CostcertError("an ensemble needs at least one network, got none")
        return model
    return [model]


def _load(model: Model, request: _Request) -> _Loaded:
    """One network."""
    given = request.given
    weights = {"checkpoint": request.checkpoint, "pretrained": request.pretrained}
    if isinstance(model, nn.Module):
        _refuse("a torch module", **weights)
        return _module(model, request.hide, request.ablation, given, f"torch:{type(model).__name__}")
    if callable(model):
        _refuse("a function", **weights)
        return _function(model, request.hide, given, function_name(model))
    if str(model).startswith(PYTHON):
        _refuse("a Python function", **weights)
        return _named(str(model), request.hide, request.ablation, given)
    if str(model).startswith(ONNX):
        _refuse("an ONNX file", **weights)
        return _onnx(str(model), request.hide, given, request.device)
    folder = trained_folder(model)
    if folder is not None:
        described = given._asdict()
        # Three channels are the default of those who do not say.
        del described["channels"]
        _refuse("a trained model", **weights, **described)
        return _folder(folder, request.hide, request.int8, request.calibration)
    _refuse(f"{model} (use preprocessing)", mean=given.mean, std=given.std)
    return _spelled(
        str(model),
        request.checkpoint,
        request.pretrained,
        request.num_classes,
        request.hide,
        request.ablation,
        given,
    )


def _together(models: Sequence[Model], request: _Request) -> _Loaded:
    """Several networks as one."""
    _refuse("an ensemble", checkpoint=request.checkpoint)
    # What the folder of a trained model stores itself is for the others, if there are others.
    folders = [
        not isinstance(each, nn.Module) and not callable(each) and trained_folder(each) is not None
        for each in models
    ]
    by_folder = request if all(folders) else request._replace(given=_InputOptions(None, 3, None, None, None))
    loaded = [
        _load(each, by_folder if in_folder else request)
        for each, in_folder in zip(models, folders, strict=True)
    ]
    name, mutants = spelled_together([each.name for each in loaded]), [each.mutants for each in loaded]
    all_names = {tuple(each.class_names) for each in loaded if each.class_names is not None}
    for what, differs in (
        ("names of classes", len(all_names) > 1),
        ("precision", len({each.precision for each in loaded}) > 1),
    ):
        if differs:
            raise CostcertError(f"the networks of {name} differ in {what}, so they cannot cast one ballot")
    ablations = {each.ablation for each in loaded}
    return _Loaded(
        ensemble(mutants, [each.preprocessing for each in loaded], name),
        loaded[0].preprocessing,
        name,
        joint_digest([each.digest for each in loaded], mutants),
        ablations.pop() if len(ablations) == 1 else None,
        all_names.pop() if all_names else None,
        loaded[0].precision,
    )


def _refuse(kind: str, **options: Any) -> None:
    for name, value in options.items():
        if value is not None and value is not False:
            raise CostcertError(f"{kind} takes no {name}: leave it out")


@contextmanager
def _naming_errors_of(model: object) -> Iterator[None]:
    """One sentence about an error in code that is given by name; a caller's own object raises as it is."""
    try:
        yield
    except CostcertError:
        raise
    except Exception as error:
        if not str(model).startswith(PYTHON):
            raise
        raise failure(str(model), "fails on random images", error) from error


def trained_folder(model: str | Location) -> Location | None:
    """The folder of a trained model, from its path, that of its card, or `shipped:NAME`; None if not one."""
    path = model_folder(model)
    if path.is_file() and path.name != CARD:
        raise CostcertError(
            f"{path} is a file: write onnx:{path} if it is an ONNX file, or timm:NAME and pass it as the "
            "checkpoint if it holds weights"
        )
    folder = path.parent if path.name == CARD else path
    return folder if folder.is_dir() and (folder == path or path.is_file()) else None


def _precision(precision: str, autocast: bool) -> str:
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise SpellingError(
            f"unknown precision {precision!r}{nearest(str(precision), PRECISIONS)}: use one of "
            f"{', '.join(PRECISIONS)}"
        )
    if autocast and precision == INT8:
        raise CostcertError("autocast is precision half, but precision is int8: leave one of them out")
    return HALF if autocast else precision


def _only_cpu(device: str) -> str:
    if device not in ("auto", "cpu"):
        raise CostcertError(f"precision int8 is for CPUs, got the device {device!r}: use cpu")
    return "cpu"


def _folder(folder: Location, hide: str | None, int8: bool, calibration: Dataset | None) -> _Loaded:
    saved = load_saved(folder, hide=hide)
    mutants, card, known = saved
    loaded = _Loaded(
        mutants,
        card.preprocessing,
        card.architecture,
        known,
        parse_ablation(card.ablation),
        card.class_names,
    )
    if not int8:
        return loaded
    network = int8_network(folder, saved, calibration)
    return loaded._replace(mutants=Mutants(network, mutants.view), digest=network.digest(), precision=INT8)


def _spelled(
    spelling: str,
    checkpoint: str | Location | None,
    pretrained: bool,
    num_classes: int | None,
    hide: str | None,
    ablation: Ablation | None,
    given: _InputOptions,
) -> _Loaded:
    """`timm:NAME` or `strip:SIZE`."""
    weights = None if checkpoint is None else read_weights(checkpoint)
    mutants, preprocessing = build(
        spelling,
        # With another number of classes timm replaces the pretrained last layer by an untrained one.
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
        weights = adapt_weights(network, weights)
        trained_for = class_count(network, weights)
        if num_classes is None and trained_for is not None and trained_for != network.num_classes:
            network.reset_classifier(trained_for)
        load_weights(network, weights, f"the checkpoint {checkpoint}")
    elif not pretrained:
        raise CostcertError(
            f"{spelling} has no weights: pass a checkpoint (--checkpoint FILE), or the folder of a trained "
            "model"
        )
    if network.num_classes == 0:
        raise CostcertError(f"{spelling} has no classification layer: train it first")
    return _Loaded(mutants, preprocessing, spelling, ablation=ablation)


def _onnx(spelling: str, hide: str | None, given: _InputOptions, device: str) -> _Loaded:
    network = OnnxNetwork(spelling.removeprefix(ONNX), device)
    if given.preprocessing is None:
        given = given._replace(
            image_size=given.image_size or network.image_size, channels=network.channels or given.channels
        )
    preprocessing = given.resolved(spelling, raw=network.takes_raw_pixels)
    loaded = _not_torch(network, hide, preprocessing, spelling, network.digest())
    return loaded._replace(precision=network.precision)


def _named(spelling: str, hide: str | None, ablation: Ablation | None, given: _InputOptions) -> _Loaded:
    """`python:package.module:name`; another source file, or other weights of a module, are another model."""
    value, source = find_named(spelling)
    if not isinstance(value, nn.Module):
        return _function(value, hide, given, spelling, source)
    loaded = _module(value, hide, ablation, given, spelling)
    both = hashlib.sha256(f"{source}\n{digest(value)}".encode()).hexdigest()
    return loaded._replace(digest=f"sha256:{both}")


def _function(
    function: Function,
    hide: str | None,
    given: _InputOptions,
    name: str,
    source: str = "unknown: a Python function",
) -> _Loaded:
    network = CallableNetwork(function)
    return _not_torch(network, hide, given.resolved(name, raw=True), name, source)


def _not_torch(
    network: nn.Module, hide: str | None, preprocessing: Preprocessing, name: str, identity: str
) -> _Loaded:
    """A network that is not a torch module, which takes images of full size only."""
    hide = hide or ("black" if preprocessing.mean is None else "zero")
    if hide == "crop":
        raise CostcertError(f"{name} cannot take crops: hide pixels as zero, black or mean")
    return _Loaded(
        Mutants(network, view_of(hide, network, preprocessing, None, name)), preprocessing, name, identity
    )


def _module(
    network: nn.Module, hide: str | None, ablation: Ablation | None, given: _InputOptions, name: str
) -> _Loaded:
    config = getattr(network, "pretrained_cfg", None)
    if given.preprocessing is None and given.mean is None and isinstance(config, dict):
        preprocessing = timm_preprocessing(config, given.image_size, given.channels)
    else:
        preprocessing = given.resolved(name, raw=False)
    view = view_of(hide or "zero", network, preprocessing, ablation, name)
    return _Loaded(Mutants(network, view), preprocessing, name, ablation=ablation)
