"""The model, the images and the ballots of `vote` and `attack`: their options, and how they are loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from costcert.cli.options import AT_LEAST_0, AT_LEAST_1, BALLOTS, DATA, MODEL, PathOrUrl
from costcert.cli.spellings import parse_channels, parse_soft
from costcert.engines.on_local import rank_and_world_size
from costcert.errors import CostcertError
from costcert.models.together import members_of, spelled_together
from costcert.progress import note

if TYPE_CHECKING:
    from costcert.datasets.base import Dataset
    from costcert.geometry.ablations import Ablation
    from costcert.models.classifier import Classifier
    from costcert.votes.defence import Defence, Soft


@Parameter(name="*", group=DATA)
@dataclass(frozen=True, kw_only=True)
class ImageOptions:
    """Which images."""

    data: Annotated[
        str,
        Parameter(
            help="Images: folder:PATH, imagenet:PATH, torchvision:NAME@FOLDER, npz:FILE, idx:FOLDER, hf:NAME "
            "or sample."
        ),
    ]
    split: Annotated[str | None, Parameter(help="Part of the dataset.", show_default="test")] = None
    limit: Annotated[int | None, Parameter(help="Random subset size.", validator=AT_LEAST_1)] = None
    seed: Annotated[int, Parameter(help="Random seed.", validator=AT_LEAST_0)] = 0
    ids: Annotated[PathOrUrl | None, Parameter(help="File of image ids to use, one per line.")] = None
    download: Annotated[bool, Parameter(help="Download the dataset if it is missing.")] = False


@Parameter(name="*", group=MODEL)
@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """Which network, and how it runs."""

    models: Annotated[
        list[str],
        Parameter(
            name=("--model", "-m"),
            help="A folder made by train, or shipped:NAME, timm:NAME, strip:SIZE, onnx:FILE, or "
            "python:MODULE:FUNCTION (runs that code, found as by python -m). Several make an ensemble.",
        ),
    ]
    checkpoint: Annotated[
        PathOrUrl | None, Parameter(help="Weights: .safetensors, or a weights-only torch file.")
    ] = None
    pretrained: Annotated[bool, Parameter(help="timm's pretrained weights (downloaded if missing).")] = False
    classes: Annotated[int | None, Parameter(help="Number of classes.", validator=AT_LEAST_1)] = None
    image_size: Annotated[
        str | None, Parameter(help="Input size: the side, or height x width, as in 32x48.")
    ] = None
    channels: Annotated[
        int | None,
        Parameter(
            help="Channels of the input: 1 (grey) or 3, for models that do not record them.",
            show_default="3",
        ),
    ] = None
    mean: Annotated[
        str | None,
        Parameter(
            help="Mean per channel, for models that do not record it.",
            allow_leading_hyphen=True,
        ),
    ] = None
    std: Annotated[
        str | None, Parameter(help="Standard deviation per channel, for models that do not record it.")
    ] = None
    device: Annotated[str, Parameter(help="auto, cpu, cuda or mps.")] = "auto"
    batch_size: Annotated[int | None, Parameter(help="Mutants per batch.", validator=AT_LEAST_1)] = None
    precision: Annotated[
        str | None,
        Parameter(
            help="float32, half (where it is safe), or int8: 8-bit integers on a CPU, for a folder made by "
            "train.",
            show_default="float32",
        ),
    ] = None
    calibration: Annotated[
        str | None,
        Parameter(help="Training images, spelled as --data, to make the int8 network from if there is none."),
    ] = None
    autocast: Annotated[bool, Parameter(show=False, help="The same as --precision half.")] = False

    @property
    def model(self) -> str:
        """The spelling of the model."""
        return spelled_together(self.models)


@Parameter(name="*", group=BALLOTS)
@dataclass(frozen=True, kw_only=True)
class BallotOptions:
    """Which mutants vote, and how."""

    ablation: Annotated[
        str | None,
        Parameter(
            help="What each mutant keeps, as in columns:19; by default as the model was tuned or trained."
        ),
    ] = None
    hide: Annotated[
        str | None, Parameter(help="How pixels are hidden: zero, black, mean, drop-tokens or crop.")
    ] = None
    soft: Annotated[
        str | None,
        Parameter(help="Soft ballots: temperature and number of labels per ballot, as in 0.35,4."),
    ] = None
    tuned: Annotated[
        PathOrUrl | None,
        Parameter(help="Mutants, soft ballots and defender chosen by tune: its .json file."),
    ] = None


def load_inputs(
    images: ImageOptions, network: NetworkOptions, ballots: BallotOptions
) -> tuple[Classifier, Dataset, Defence]:
    """The model, the images, and how mutants vote; with a defender if that is tuned."""
    from costcert.votes.defence import Defence

    # What is quick to refuse comes before the model, which takes seconds to load.
    ablation, soft, tuned = _requested_or_tuned(ballots, network.model)
    dataset = load_images(images)
    model = _load_model(network, ballots.hide, dataset, ablation)
    kept = ablation or model.ablation
    if kept is None:
        raise CostcertError(
            f"{network.model} does not record what mutants keep: pass --ablation, as in columns:19"
        )
    _refuse_regions(model, kept)
    _warn_of_another_ablation(network.model, model.ablation, kept)
    if tuned is None:
        return model, dataset, Defence(kept, soft=soft)
    return model, dataset, tuned


def _refuse_regions(model: Classifier, kept: Ablation) -> None:
    """Raise if these mutants do not exist, or the model cannot see them."""
    from costcert.models.torch_classifier import TorchClassifier

    regions = kept.regions(model.image_size)
    if isinstance(model, TorchClassifier):
        model.mutants.view.groups(regions)


def _warn_of_another_ablation(model: str, trained: Ablation | None, kept: Ablation) -> None:
    """Any ablation is sound, but a network is weak on shapes that it was not trained on."""
    if trained is None or _kinds(kept) <= _kinds(trained) or rank_and_world_size()[0] > 0:
        return
    note(
        f"{model} was trained on {trained}, not on {kept}: certificates hold all the same, but it may "
        "classify these mutants badly, and few images may be certified"
    )


def _kinds(ablation: Ablation) -> set[str]:
    """The shapes that an ablation keeps, wherever they are: `columns:4` of `columns:4/stride=2`."""
    return {family.partition("/")[0] for family in str(ablation).split("+")}


def load_images(options: ImageOptions) -> Dataset:
    from costcert.datasets.parse import parse_dataset
    from costcert.datasets.subsets import limited, read_ids, with_ids

    if options.limit is not None and options.ids is not None:
        raise CostcertError("--limit and --ids both choose images: pass one of them")
    dataset = parse_dataset(options.data, options.split or "test", download=options.download)
    if options.split is not None and dataset.split != options.split:
        has = "no splits" if dataset.split is None else f"the split {dataset.split!r} only"
        raise CostcertError(f"{dataset.name} has {has}, but --split is {options.split!r}")
    if options.limit is not None:
        return limited(dataset, options.limit, options.seed)
    return dataset if options.ids is None else with_ids(dataset, read_ids(options.ids))


def _requested_or_tuned(
    options: BallotOptions, model: str
) -> tuple[Ablation | None, Soft | None, Defence | None]:
    """What mutants keep and how soft ballots are made, where options define it; or all that `tune` chose."""
    from costcert.geometry.ablations import parse_ablation
    from costcert.models.shipped import model_folder
    from costcert.votes.tuning import TUNED, read_tuned

    soft = None if options.soft is None else parse_soft(options.soft)
    ablation = None if options.ablation is None else parse_ablation(options.ablation)
    networks = members_of(model)
    # What was tuned for one network is not for an ensemble.
    beside = model_folder(model) / TUNED if len(networks) == 1 else None
    if options.tuned is not None:
        if options.ablation is not None or options.soft is not None:
            raise CostcertError(
                "--tuned defines which mutants vote and how softly: leave --ablation and --soft out"
            )
        beside = options.tuned
    elif options.ablation is not None or options.soft is not None or beside is None or not beside.is_file():
        return ablation, soft, None
    tuned = read_tuned(beside)
    return tuned.ablation, tuned.soft, tuned


def _load_model(
    network: NetworkOptions, hide: str | None, dataset: Dataset, ablation: Ablation | None
) -> Classifier:
    from costcert.datasets.parse import parse_dataset
    from costcert.models.loading import FLOAT32, load_model

    # Labels without class names only give a lower bound on the number of classes.
    known = None if dataset.class_names is None else dataset.num_classes
    return load_model(
        network.model,
        checkpoint=network.checkpoint,
        pretrained=network.pretrained,
        num_classes=network.classes or known,
        class_names=dataset.class_names,
        image_size=network.image_size,
        channels=3 if network.channels is None else network.channels,
        mean=None if network.mean is None else parse_channels("--mean", network.mean),
        std=None if network.std is None else parse_channels("--std", network.std),
        hide=hide,
        ablation=ablation,
        device=network.device,
        batch_size=network.batch_size,
        precision=network.precision or FLOAT32,
        calibration=None if network.calibration is None else parse_dataset(network.calibration, "train"),
        autocast=network.autocast,
    )
