"""`costcert train`: train a network on random mutants."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from costcert.cli.options import (
    AT_LEAST_0,
    AT_LEAST_1,
    AUGMENTATION,
    DATA,
    MODEL,
    OPTIMISATION,
    OUTPUT,
    RUN,
    PathOrUrl,
)
from costcert.cli.spellings import parse_ks, parse_list
from costcert.errors import CostcertError
from costcert.progress import bar, note
from costcert.training.recipes import PRESETS, Recipe, find_recipe

if TYPE_CHECKING:
    from rich.console import Console

    from costcert.datasets.base import Dataset
    from costcert.models.preprocessing import Preprocessing

EXAMPLES = (
    "costcert train --model strip:small --data torchvision:CIFAR10@data \\\n"
    "  --download --ablation columns:4 --out model",
    "costcert train --model timm:vit_base_patch16_224 --pretrained \\\n"
    "  --hide drop-tokens --data imagenet:ILSVRC --ablation columns:19 \\\n"
    "  --preset paper-imagenet --out model",
)

# Names of the split for validation, in the order in which they are tried.
_VALIDATION_SPLITS = ("val", "validation", "valid")

# Names of options in 0.1.0, which are still accepted.
OLD_SPELLINGS = {
    "--rate": "--lr",
    "--body": "--backbone-lr-scale",
    "--light": "--brightness-contrast",
    "--lead": "--margin",
    "--vote": "--vote-loss-weight",
}


def _setting(
    name: str, group: Group, text: str, validator: Callable[..., Any] | None = None, **parameter: Any
) -> Parameter:
    """An option that replaces a setting of the preset; its help shows the values of the presets."""
    own = getattr(PRESETS["default"], name)
    others: dict[Any, list[str]] = {}
    for preset, recipe in PRESETS.items():
        if getattr(recipe, name) != own:
            others.setdefault(getattr(recipe, name), []).append(preset)
    values = [_shown(own), *(f"{', '.join(names)}: {_shown(value)}" for value, names in others.items())]
    return Parameter(group=group, help=text, validator=validator, show_default="; ".join(values), **parameter)


def _shown(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else f"{value:g}"


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """Settings of the recipe, by its names; None where the preset decides."""

    epochs: Annotated[int | None, _setting("epochs", OPTIMISATION, "Number of epochs.", AT_LEAST_1)] = None
    batch_size: Annotated[
        int | None, _setting("batch_size", OPTIMISATION, "Images per batch.", AT_LEAST_1)
    ] = None
    mutants: Annotated[
        int | None, _setting("mutants", OPTIMISATION, "Random mutants per image and step.", AT_LEAST_1)
    ] = None
    lr: Annotated[float | None, _setting("lr", OPTIMISATION, "Peak learning rate.")] = None
    backbone_lr_scale: Annotated[
        float | None,
        _setting(
            "backbone_lr_scale",
            OPTIMISATION,
            "Learning-rate multiplier of the backbone: all layers but the last.",
        ),
    ] = None
    warmup: Annotated[float | None, _setting("warmup", OPTIMISATION, "Warm-up epochs.")] = None
    weight_decay: Annotated[float | None, _setting("weight_decay", OPTIMISATION, "Weight decay.")] = None
    smoothing: Annotated[float | None, _setting("smoothing", OPTIMISATION, "Label smoothing.")] = None
    vote_loss_weight: Annotated[
        float | None,
        _setting("vote_loss_weight", OPTIMISATION, "Weight of the loss on the mean ballot of an image."),
    ] = None
    margin: Annotated[
        float | None,
        _setting(
            "margin",
            OPTIMISATION,
            "Lead of the true label, as a share of the ballots, that this loss aims for.",
        ),
    ] = None
    certificate_loss_weight: Annotated[
        float | None,
        _setting(
            "certificate_loss_weight",
            OPTIMISATION,
            "Weight of the loss on what CostCert counts, for --patch and --k.",
        ),
    ] = None
    teacher_weight: Annotated[
        float | None,
        _setting("teacher_weight", OPTIMISATION, "Weight of the labels of --teacher, for each mutant."),
    ] = None
    teacher_temperature: Annotated[
        float | None,
        _setting("teacher_temperature", OPTIMISATION, "Temperature of the labels of --teacher."),
    ] = None
    seed: Annotated[int | None, _setting("seed", OPTIMISATION, "Random seed.", AT_LEAST_0)] = None
    shift: Annotated[
        int | None, _setting("shift", AUGMENTATION, "Maximum random shift in pixels.", AT_LEAST_0)
    ] = None
    brightness_contrast: Annotated[
        float | None,
        _setting("brightness_contrast", AUGMENTATION, "Strength of brightness and contrast jitter."),
    ] = None
    colour: Annotated[
        float | None, _setting("colour", AUGMENTATION, "Strength of colour jitter, per channel.")
    ] = None
    warp: Annotated[
        float | None, _setting("warp", AUGMENTATION, "Strength of random rotation, shear and scaling.")
    ] = None
    flip: Annotated[
        bool | None,
        _setting(
            "flip",
            AUGMENTATION,
            "Random horizontal flips; not for classes that are mirror images of each other.",
            negative="--no-flip",
        ),
    ] = None

    def given(self) -> dict[str, Any]:
        """The settings that replace those of the preset."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@Parameter(name="*", group=RUN)
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    ablation: Annotated[str, Parameter(help="What each mutant keeps, as in columns:19.")]
    preset: Annotated[
        str,
        Parameter(
            help="Recipe: default, paper-imagenet or paper-small; options of optimisation and augmentation "
            "change it."
        ),
    ] = "default"
    data: Annotated[
        str,
        Parameter(
            group=DATA,
            help="Training images: folder:PATH, imagenet:PATH, torchvision:NAME@FOLDER, npz:FILE, "
            "idx:FOLDER or hf:NAME.",
        ),
    ]
    split: Annotated[str, Parameter(group=DATA, help="Part of the dataset.")] = "train"
    validation: Annotated[
        str | None, Parameter(group=DATA, help="Validation images, in place of a held-out share.")
    ] = None
    validation_split: Annotated[
        str | None,
        Parameter(
            group=DATA,
            help="Part of the validation data.",
            show_default="val or validation if there is one, else test",
        ),
    ] = None
    holdout: Annotated[float, Parameter(group=DATA, help="Share held out for validation.")] = 0.1
    limit: Annotated[int | None, Parameter(group=DATA, help="Random subset size.", validator=AT_LEAST_1)] = (
        None
    )
    download: Annotated[bool, Parameter(group=DATA, help="Download the dataset if it is missing.")] = False
    skip_corrupt: Annotated[
        bool,
        Parameter(
            group=DATA,
            help="Leave images that cannot be read out of training, count them as wrong in validation, and "
            "list them.",
        ),
    ] = False
    mirror: Annotated[
        str | None,
        Parameter(
            group=DATA,
            help="Add mirror images of these classes, by number: 11 stays 11, and 19:20 become each other, "
            "as in 11,12,19:20.",
        ),
    ] = None
    workers: Annotated[
        int, Parameter(group=DATA, help="Processes that load images.", validator=AT_LEAST_0)
    ] = 0
    model: Annotated[
        str,
        Parameter(
            alias="-m",
            group=MODEL,
            help="timm:NAME, strip:small, strip:base or strip:tall for narrow strips, or image:small or "
            "image:base for masks.",
        ),
    ]
    checkpoint: Annotated[
        PathOrUrl | None,
        Parameter(group=MODEL, help="Initial weights: .safetensors, or a weights-only torch file."),
    ] = None
    pretrained: Annotated[
        bool, Parameter(group=MODEL, help="Start from timm's pretrained weights (downloaded if missing).")
    ] = False
    hide: Annotated[
        str | None,
        Parameter(group=MODEL, help="How pixels are hidden: zero, black, mean, drop-tokens or crop."),
    ] = None
    image_size: Annotated[
        str | None, Parameter(group=MODEL, help="Input size: the side, or height x width, as in 32x48.")
    ] = None
    fit: Annotated[
        str | None,
        Parameter(
            group=MODEL,
            help="How images fit the input: squash (aspect ratio not kept), center (centre crop) or border "
            "(padding).",
        ),
    ] = None
    interpolation: Annotated[
        str | None, Parameter(group=MODEL, help="Resizing method, as in bilinear or bicubic.")
    ] = None
    device: Annotated[str, Parameter(group=MODEL, help="auto, cpu, cuda or mps.")] = "auto"
    precision: Annotated[str, Parameter(group=MODEL, help="Mixed precision: no, fp16 or bf16.")] = "no"
    teacher: Annotated[
        PathOrUrl | None,
        Parameter(
            group=MODEL,
            help="Folder of a trained network of whole images; mutants learn its soft labels as well.",
        ),
    ] = None
    recipe: RecipeOptions = field(default_factory=RecipeOptions)
    patches: Annotated[
        str | None,
        Parameter(
            name=("--patch", "-p"),
            group=OPTIMISATION,
            help="Patches for --certificate-loss-weight, as in 2,5.",
        ),
    ] = None
    ks: Annotated[
        str | None,
        Parameter(
            name=("--k", "-k"),
            group=OPTIMISATION,
            help="Values of k for --certificate-loss-weight.",
            show_default="1,5",
        ),
    ] = None
    out: Annotated[
        PathOrUrl,
        Parameter(alias="-o", group=OUTPUT, help="Folder for the model; a started one is continued."),
    ]


def run(options: TrainOptions) -> None:
    """Train a network on random mutants of images.

    A second run into the same folder continues from the last checkpoint.
    """
    from costcert.datasets.base import ImageError

    try:
        _train(options)
    except ImageError as error:
        raise ImageError(
            f"{error}: repair or remove it, or pass --skip-corrupt, which leaves it out, and another --out"
        ) from error


def _train(options: TrainOptions) -> None:
    from costcert.console import make_console
    from costcert.datasets.mirrored import WithMirrorImages, parse_mirrored
    from costcert.datasets.parse import parse_dataset
    from costcert.datasets.readable import readable
    from costcert.datasets.subsets import limited
    from costcert.geometry.ablations import parse_ablation
    from costcert.store.folder_names import refuse_file_name

    console = make_console(soft_wrap=True)
    refuse_file_name(options.out, "a trained model is")
    if options.model.partition(":")[0] in ("onnx", "python", "shipped"):
        raise CostcertError(f"{options.model} cannot be trained: write timm:NAME, strip:SIZE or image:SIZE")
    data = parse_dataset(options.data, options.split, download=options.download)
    recipe = _recipe(options, data)
    if options.limit is not None:
        data = limited(data, options.limit, recipe.seed)
    train, validation = _split(options, data, recipe.seed)
    unread: dict[str, list[str]] = {"training": [], "validation": []}
    if options.skip_corrupt:
        train, unread["training"] = readable(train)
        _print_unread(console, "Left out of training", unread["training"])
        if validation is not None:
            validation, unread["validation"] = readable(validation)
            _print_unread(console, "Counted as wrong in validation", unread["validation"])
    if options.mirror is not None:
        train = WithMirrorImages(train, parse_mirrored(options.mirror))

    # Data and recipe are refused before torch is imported, which takes seconds.
    import torch

    from costcert.models.architectures import build
    from costcert.models.checkpoints import digest, start_from
    from costcert.models.saved import CARD, ModelCard, save_model
    from costcert.models.torch_classifier import resolve_device
    from costcert.training.teacher import Teacher
    from costcert.training.trainer import Epoch, Trainer

    resolve_device(options.device)
    ablation = parse_ablation(options.ablation)
    first = train.image(0)
    # Networks of our own take the size of the images; timm's have their own.
    own_size = (first.height, first.width) if options.model.startswith(("strip:", "image:")) else None
    # The initial weights are part of the recipe.
    torch.manual_seed(recipe.seed)
    mutants, preprocessing = build(
        options.model,
        num_classes=data.num_classes,
        hide=options.hide,
        ablation=ablation,
        image_size=options.image_size or own_size,
        channels=1 if first.mode in ("L", "1", "I;16") else 3,
        pretrained=options.pretrained,
    )
    preprocessing = _with_requested_resizing(options, preprocessing)
    if options.checkpoint is not None:
        start_from(mutants.network, options.checkpoint)
    teacher = None if options.teacher is None else Teacher(options.teacher, preprocessing, data.num_classes)
    identity = {
        "model": options.model,
        "ablation": str(ablation),
        "hide": mutants.view.hide,
        "preprocessing": preprocessing.to_json(),
        "start": digest(mutants.network),
        "data": train.metadata(),
        "validation": None if validation is None else validation.metadata(),
        "teacher": None if teacher is None else teacher.digest,
        "recipe": recipe.to_json(),
    }
    trainer = Trainer(
        mutants,
        preprocessing,
        ablation,
        recipe,
        options.out,
        identity=identity,
        teacher=teacher,
        precision=options.precision,
        device=options.device,
        workers=options.workers,
    )
    if (options.out / CARD).exists():
        console.print(f"Model: {options.out} is trained already")
        return
    size = sum(parameter.numel() for parameter in mutants.network.parameters())
    console.print(
        f"Training {options.model} ({size / 1e6:.2f} M parameters) on {len(train):,} images of {train.name}, "
        f"{ablation} shown by {mutants.view.hide}"
    )
    if validation is not None:
        console.print(f"Validating on {len(validation):,} images of {_part(validation)}")
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
            unread=len(unread["validation"]),
            on_resume=lambda done: note(
                f"{done} of {recipe.epochs} epochs were there already: continuing from their checkpoint"
            ),
            after_epoch=after_epoch,
            after_images=lambda done: on_progress(done, len(train) * recipe.epochs),
        )
    training = {
        "command": "costcert " + " ".join(sys.argv[1:]),
        "data": identity["data"],
        "recipe": recipe.to_json(),
        "validation": history[-1].validation if history else None,
        "validation_data": identity["validation"],
        **({"unread": unread} if options.skip_corrupt else {}),
    }
    card = ModelCard(
        options.model,
        data.num_classes,
        preprocessing,
        str(ablation),
        mutants.view.hide,
        data.class_names,
        training,
    )
    trainer.finish(lambda: save_model(options.out, network, card))
    console.print(f"Model: {options.out}")
    console.print(f"Next: costcert vote --model {options.out} --data {options.data} --split test --out votes")


def _with_requested_resizing(options: TrainOptions, preprocessing: Preprocessing) -> Preprocessing:
    """The network's own preprocessing, with the requested way of resizing."""
    changes: dict[str, Any] = {}
    if options.fit is not None:
        changes |= {"crop_mode": options.fit, "crop_pct": 1.0}
    if options.interpolation is not None:
        changes["interpolation"] = options.interpolation
    return replace(preprocessing, **changes)


def _recipe(options: TrainOptions, data: Dataset) -> Recipe:
    settings = options.recipe.given()
    if options.mirror is not None:
        if settings.get("flip"):
            raise CostcertError("--flip mirrors every class already: leave out --mirror")
        settings["flip"] = False
    if (options.patches or options.ks) and not settings.get("certificate_loss_weight"):
        raise CostcertError("--patch and --k are for --certificate-loss-weight: pass that, too")
    if options.teacher is None and {"teacher_weight", "teacher_temperature"} & settings.keys():
        raise CostcertError("--teacher-weight and --teacher-temperature are for --teacher: pass that, too")
    if options.patches is not None:
        settings["certified_patches"] = tuple(parse_list(options.patches))
    if options.ks is not None:
        settings["certified_ks"] = tuple(parse_ks(options.ks))
    if "GTSRB" in data.name.upper():
        # Some traffic signs are mirror images of each other.
        settings.setdefault("flip", False)
    return find_recipe(options.preset, **settings)


def _split(options: TrainOptions, data: Dataset, seed: int) -> tuple[Dataset, Dataset | None]:
    """Training and validation images: a dataset of its own, a held-out share, or none."""
    from costcert.datasets.subsets import Subset, limited

    if options.validation_split is not None and options.validation is None:
        raise CostcertError(
            f"--validation-split {options.validation_split} is a part of --validation: pass that, too"
        )
    if options.validation is not None:
        validation = _validation(options.validation, options.validation_split, download=options.download)
        if validation.num_classes > data.num_classes:
            raise CostcertError(
                f"{validation.name} has {validation.num_classes} classes, the training data "
                f"{data.num_classes}: validate on the same classes"
            )
        return data, validation
    if not 0 <= options.holdout < 1:
        raise CostcertError(f"the share held out must be at least 0 and below 1, got {options.holdout}")
    count = round(options.holdout * len(data))
    if count == 0:
        return data, None
    held = limited(data, count, seed)
    ids = set(held.ids)
    rest = [index for index, name in enumerate(data.ids) if name not in ids]
    if not rest:
        raise CostcertError("no image is left to train on: hold out a smaller share")
    return Subset(data, rest, f"without {count} held out, seed {seed}"), held


def _validation(text: str, split: str | None, *, download: bool) -> Dataset:
    """The requested split of these data; by default that for validation, and the test split without one."""
    from costcert.datasets.parse import parse_dataset

    if split is not None:
        found = parse_dataset(text, split, download=download)
        if found.split != split:
            has = "no splits" if found.split is None else f"the split {found.split!r} only"
            raise CostcertError(f"{found.name} has {has}, but --validation-split is {split!r}")
        return found
    for name in _VALIDATION_SPLITS:
        # Each kind of data has its own names of splits, and refuses others.
        with suppress(CostcertError):
            return parse_dataset(text, name, download=download)
    return parse_dataset(text, "test", download=download)


def _part(data: Dataset) -> str:
    return data.name if data.split is None else f"{data.name}, split {data.split!r}"


def _print_unread(console: Console, effect: str, names: list[str]) -> None:
    if names:
        console.print(f"{effect}, because they cannot be read: {len(names):,} of the images")
        for name in names:
            console.print(f"  {name}", markup=False)
