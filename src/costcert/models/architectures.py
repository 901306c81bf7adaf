"""Networks by their spelling, `timm:NAME`, `strip:SIZE` or `image:SIZE`, with their view of mutants."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from costcert.errors import CostcertError, SpellingError, nearest
from costcert.geometry.ablations import Ablation, parse_ablation
from costcert.geometry.sizes import ImageSize, as_image_size, shown
from costcert.models.crops import Crops
from costcert.models.hiding import Painted, known_hide
from costcert.models.mutants import Mutants
from costcert.models.preprocessing import Preprocessing
from costcert.models.strips import SIZES, PooledStripNet, StripNet
from costcert.models.tokens import DropTokens
from costcert.models.torchvision_repair import import_timm
from costcert.models.views import View
from costcert.models.whole_images import IMAGE_SIZES, WholeImageNet


class Built(NamedTuple):
    """A network with its view of mutants, and its preprocessing."""

    mutants: Mutants
    preprocessing: Preprocessing


def build(
    architecture: str,
    *,
    num_classes: int | None = None,
    hide: str | None = None,
    ablation: Ablation | str | None = None,
    image_size: ImageSize | int | str | None = None,
    channels: int = 3,
    preprocessing: Preprocessing | None = None,
    pretrained: bool = False,
) -> Built:
    """A network with random weights, or with timm's if `pretrained`.

    Args:
        num_classes: that of timm's configuration by default.
        hide: `zero` (the paper) by default, `crop` for strip networks.
        ablation: required for `crop` only.
        image_size: that of timm's configuration by default.
        preprocessing: replaces timm's, and sets image size and channels as well.
        pretrained: load timm's weights, downloading them if necessary.
    """
    kind, _, name = architecture.partition(":")
    if preprocessing is not None:
        image_size, channels = preprocessing.image_size, preprocessing.channels
    size = None if image_size is None else as_image_size(image_size)
    kept = parse_ablation(ablation) if isinstance(ablation, str) else ablation
    if kind in ("strip", "image"):
        if num_classes is None or size is None:
            missing = "the number of classes" if num_classes is None else "an image size"
            raise CostcertError(f"{architecture} needs {missing}")
        crops = kind == "strip"
        if hide is not None and (known_hide(hide) == "crop") != crops:
            takes, use = ("crops", "crop") if crops else ("whole images", "zero")
            raise CostcertError(f"{architecture} takes {takes}: use hide={use!r}, got {hide!r}")
        preprocessing = preprocessing or Preprocessing(size, channels=channels, mean=(0.5,), std=(0.5,))
        if crops:
            return Built(_strip(name, num_classes, _crops(architecture, kept, size), channels), preprocessing)
        network = WholeImageNet(channels, num_classes, name)
        view = view_of(hide or "zero", network, preprocessing, kept, architecture)
        return Built(Mutants(network, view), preprocessing)
    if kind == "timm" and name:
        return _timm(
            name, num_classes, known_hide(hide or "zero"), kept, size, channels, preprocessing, pretrained
        )
    raise SpellingError(
        f"unknown model {architecture!r}: write timm:NAME, {', '.join(f'strip:{s}' for s in SIZES)}, "
        f"{', '.join(f'image:{s}' for s in IMAGE_SIZES)}, "
        "onnx:FILE, python:MODULE:FUNCTION, or the folder of a trained model"
    )


def view_of(
    hide: str, network: nn.Module, preprocessing: Preprocessing, ablation: Ablation | None, name: str
) -> View:
    """The view for this way of hiding."""
    if hide == "drop-tokens":
        return DropTokens(network, preprocessing.image_size, name)
    if hide == "crop":
        return _crops(name, ablation, preprocessing.image_size)
    return Painted(known_hide(hide), preprocessing)


def _crops(name: str, ablation: Ablation | None, image_size: ImageSize) -> Crops:
    if ablation is None:
        raise CostcertError(f"{name} takes crops, so it needs an ablation: pass one, as in columns:4")
    return Crops(ablation, image_size)


def _strip(size: str, num_classes: int, crops: Crops, channels: int) -> Mutants:
    options: dict[str, Any] = {"size": size, "coordinates": crops.coordinates}
    if len(crops.shapes) > 1:
        return Mutants(PooledStripNet(channels, crops.shapes, num_classes, **options), crops)
    return Mutants(StripNet(channels, *crops.shapes[0], num_classes, **options), crops)


def _timm(
    name: str,
    num_classes: int | None,
    hide: str,
    ablation: Ablation | None,
    image_size: ImageSize | None,
    channels: int,
    preprocessing: Preprocessing | None,
    pretrained: bool,
) -> Built:
    timm = import_timm()
    if not timm.is_model(name):
        raise SpellingError(f"timm has no model {name!r}{nearest(name, timm.list_models())}")
    spelling = f"timm:{name}"
    config = timm.get_pretrained_cfg(name) or timm.models.PretrainedCfg()
    if preprocessing is None:
        preprocessing = timm_preprocessing(config.to_dict(), image_size, channels)
    options: dict[str, Any] = {"in_chans": channels}
    if num_classes is not None:
        options["num_classes"] = num_classes
    if config.fixed_input_size:
        if hide == "crop":
            raise CostcertError(
                f"{spelling} takes images of one size only, so it cannot take crops: hide pixels as "
                "drop-tokens if it is a ViT, or use a convolutional model"
            )
        options["img_size"] = preprocessing.image_size
    crops = _crops(spelling, ablation, preprocessing.image_size) if hide == "crop" else None
    if crops is not None:
        options["in_chans"] += crops.coordinates
    try:
        network = timm.create_model(name, pretrained=pretrained, **options)
    except Exception as error:
        # timm, the hub and the HTTP client raise exceptions of many types.
        what = "cannot load its pretrained weights" if pretrained else "timm cannot build it"
        raise CostcertError(f"{spelling}: {what}: {str(error).splitlines()[0]}") from error
    if crops is not None:
        _try_crops(network, crops, options["in_chans"], spelling)
    return Built(
        Mutants(network, crops or view_of(hide, network, preprocessing, ablation, spelling)), preprocessing
    )


def timm_preprocessing(
    config: dict[str, Any], image_size: ImageSize | int | str | None, channels: int
) -> Preprocessing:
    """The preprocessing in timm's configuration of a network."""
    values = import_timm().data.resolve_data_config(pretrained_cfg=config)
    interpolation = values["interpolation"]
    return Preprocessing(
        image_size=values["input_size"][1:] if image_size is None else as_image_size(image_size),
        mean=values["mean"],
        std=values["std"],
        channels=channels,
        crop_pct=values["crop_pct"],
        crop_mode=values["crop_mode"],
        interpolation="bilinear" if interpolation == "random" else interpolation,
    )


def _try_crops(network: nn.Module, crops: Crops, channels: int, name: str) -> None:
    """Raise if the network downsamples crops to nothing."""
    network.eval()
    try:
        with torch.inference_mode():
            for shape in crops.shapes:
                network(torch.zeros(1, channels, *shape))
    except (RuntimeError, ValueError, AssertionError) as error:
        raise CostcertError(
            f"{name} cannot take crops of {shown(shape)}: {str(error).splitlines()[0]}; "
            "use a strip network, as in strip:small"
        ) from None
