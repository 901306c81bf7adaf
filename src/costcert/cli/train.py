"""`costcert train`: teach a network to vote on mutants."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from costcert.cli.progress import bar
from costcert.datasets.base import Dataset
from costcert.datasets.parse import parse_dataset
from costcert.datasets.subsets import Subset, limited
from costcert.errors import CostcertError
from costcert.geometry.ablations import parse_ablation
from costcert.models.preprocessing import Preprocessing
from costcert.store.locations import Location
from costcert.training.recipes import Recipe, find_recipe


@dataclass(frozen=True)
class Request:
    """What was asked on the command line, as it was spelled."""

    model: str
    data: str
    ablation: str
    out: Location
    split: str = "train"
    validation: str | None = None
    holdout: float = 0.1
    preset: str = "default"
    settings: dict[str, Any] = field(default_factory=dict)
    hide: str | None = None
    image_size: str | None = None
    fit: str | None = None
    interpolation: str | None = None
    checkpoint: Location | None = None
    pretrained: bool = False
    device: str = "cpu"
    precision: str = "no"
    workers: int = 0
    limit: int | None = None
    download: bool = False


def run(request: Request) -> None:
    console = Console(highlight=False, soft_wrap=True)
    data = parse_dataset(request.data, request.split, download=request.download)
    recipe = _recipe(request, data)
    if request.limit is not None:
        data = limited(data, request.limit, recipe.seed)
    train, validation = _split(request, data, recipe.seed)

    from costcert.models.architectures import build
    from costcert.models.checkpoints import digest, start_from
    from costcert.models.saved import CARD, ModelCard, save_model
    from costcert.training.trainer import Epoch, Trainer

    ablation = parse_ablation(request.ablation)
    first = data.image(0)
    torch_seed(recipe.seed)
    mutants, preprocessing = build(
        request.model,
        num_classes=data.num_classes,
        hide=request.hide,
        ablation=ablation,
        image_size=request.image_size or ((first.height, first.width) if _own(request.model) else None),
        channels=1 if first.mode in ("L", "1", "I;16") else 3,
        pretrained=request.pretrained,
    )
    preprocessing = _as_asked(request, preprocessing)
    if request.checkpoint is not None:
        start_from(mutants.network, request.checkpoint)
    identity = {
        "model": request.model,
        "ablation": str(ablation),
        "hide": mutants.view.hide,
        "preprocessing": preprocessing.to_json(),
        "start": digest(mutants.network),
        "data": train.metadata(),
        "validation": None if validation is None else validation.metadata(),
        "recipe": recipe.to_json(),
    }
    trainer = Trainer(
        mutants,
        preprocessing,
        ablation.regions(preprocessing.image_size),
        recipe,
        request.out,
        identity=identity,
        precision=request.precision,
        device=request.device,
        workers=request.workers,
    )
    if (request.out / CARD).exists():
        console.print(f"Model: {request.out} is trained already")
        return
    size = sum(parameter.numel() for parameter in mutants.network.parameters())
    console.print(
        f"Training {request.model} ({size / 1e6:.2f} M parameters) on {len(train):,} images of {train.name}, "
        f"{ablation} shown by {mutants.view.hide}"
    )
    history: list[Epoch] = []

    def after_epoch(epoch: Epoch) -> None:
        history.append(epoch)
        checked = "" if epoch.validation is None else f", validation {100 * epoch.validation:.1f} %"
        console.print(
            f"epoch {epoch.number} of {epoch.of}: loss {epoch.loss:.3f}, mutants right "
            f"{100 * epoch.accuracy:.1f} %{checked}"
        )

    with bar("training") as on_progress:
        network = trainer.fit(
            train,
            validation,
            after_epoch=after_epoch,
            after_images=lambda done: on_progress(done, len(train) * recipe.epochs),
        )
    training = {
        "command": "costcert " + " ".join(sys.argv[1:]),
        "data": identity["data"],
        "recipe": recipe.to_json(),
        "validation": history[-1].validation if history else None,
    }
    card = ModelCard(
        request.model,
        data.num_classes,
        preprocessing,
        str(ablation),
        mutants.view.hide,
        data.class_names,
        training,
    )
    trainer.finish(lambda: save_model(request.out, network, card))
    console.print(f"Model: {request.out}")
    console.print(f"Next: costcert vote --model {request.out} --data {request.data} --split test --out votes")


def _as_asked(request: Request, preprocessing: Preprocessing) -> Preprocessing:
    """With the ways of resizing that were asked for in place of the network's own."""
    asked: dict[str, Any] = {}
    if request.fit is not None:
        asked |= {"crop_mode": request.fit, "crop_pct": 1.0}
    if request.interpolation is not None:
        asked["interpolation"] = request.interpolation
    return replace(preprocessing, **asked)


def torch_seed(seed: int) -> None:
    """The first weights are part of the recipe."""
    import torch

    torch.manual_seed(seed)


def _own(model: str) -> bool:
    """Our strip networks take whatever size the data have; timm's know their own."""
    return model.startswith("strip:")


def _recipe(request: Request, data: Dataset) -> Recipe:
    settings = dict(request.settings)
    if "GTSRB" in data.name.upper() and settings.get("flip") is None:
        # Left and right are different signs.
        settings["flip"] = False
    return find_recipe(request.preset, **settings)


def _split(request: Request, data: Dataset, seed: int) -> tuple[Dataset, Dataset | None]:
    """Training and validation images: a data set of its own, a part held out, or none."""
    if request.validation is not None:
        validation = parse_dataset(request.validation, "test", download=request.download)
        if validation.num_classes > data.num_classes:
            raise CostcertError(
                f"{validation.name} has {validation.num_classes} classes, the training data "
                f"{data.num_classes}: validate on the same classes"
            )
        return data, validation
    if not 0 <= request.holdout < 1:
        raise CostcertError(f"the part held out is at least 0 and below 1, got {request.holdout}")
    count = round(request.holdout * len(data))
    if count == 0:
        return data, None
    held = limited(data, count, seed)
    ids = set(held.ids)
    rest = [index for index, name in enumerate(data.ids) if name not in ids]
    if not rest:
        raise CostcertError("no image is left to train on: hold out fewer")
    return Subset(data, rest, f"without {count} held out, seed {seed}"), held
