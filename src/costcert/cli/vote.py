"""`costcert vote`: ask a model about every mutant of every image, and keep what they say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from rich.console import Console

from costcert.cli.certify import parse_ks, parse_list
from costcert.cli.engine_options import EngineOptions, spread
from costcert.cli.progress import bar
from costcert.datasets.base import Dataset
from costcert.datasets.parse import parse_dataset
from costcert.datasets.subsets import limited, read_ids, with_ids
from costcert.engines.base import JobSpec
from costcert.engines.on_local import rank_and_world_size
from costcert.errors import CostcertError, SpellingError
from costcert.geometry.ablations import Ablation, parse_ablation
from costcert.models.classifier import Classifier, Soft
from costcert.models.shipped import model_folder
from costcert.store.locations import Location
from costcert.store.parquet import shard_path
from costcert.store.votes import VotesFolder
from costcert.votes.adaptive import StoppingRule
from costcert.votes.collector import VoteCollector
from costcert.votes.tuning import TUNED, read_tuned
from costcert.votes.voting import begin, fill, vote


@dataclass(frozen=True)
class Request:
    """What was asked on the command line, as it was spelled."""

    model: str
    data: str
    out: Location
    checkpoint: Location | None = None
    pretrained: bool = False
    classes: int | None = None
    image_size: str | None = None
    mean: str | None = None
    std: str | None = None
    hide: str | None = None
    device: str = "auto"
    batch_size: int | None = None
    autocast: bool = False
    split: str | None = None
    download: bool = False
    limit: int | None = None
    seed: int = 0
    ids: Location | None = None
    ablation: str | None = None
    soft: str | None = None
    shard_size: int | None = None
    skip_corrupt: bool = False
    probe: bool = False
    tuned: Location | None = None
    engine: EngineOptions = field(default_factory=EngineOptions)
    adaptive: bool = False
    patches: str | None = None
    ks: str = "1,5"


def run(request: Request) -> None:
    if request.engine.is_spread:
        return _run_spread(request)
    model, dataset, ablation, soft = loaded(request)
    with bar("voting") as on_progress:
        folder = vote(
            model,
            dataset,
            ablation,
            soft=soft,
            out=request.out,
            shard_size=request.shard_size,
            skip_corrupt=request.skip_corrupt,
            until=_stopping_rule(request, model),
            probe=request.probe,
            progress=on_progress,
        )
    return _summary(folder)


def _run_spread(request: Request) -> None:
    """The same with its shards made by many."""
    job = VoteJob(replace(request, out=request.out.resolve()))
    folder = spread(
        request.engine,
        job,
        "voting",
        begin=lambda: begin(request.out, job.collector, request.shard_size, request.probe),
    )
    if rank_and_world_size()[0] == 0:
        _summary(folder)


@dataclass(frozen=True)
class VoteJob(JobSpec):
    """Makes shards of votes, anywhere."""

    request: Request

    @cached_property
    def collector(self) -> VoteCollector:
        return _collector(self.request)

    def open(self) -> Callable[[int], None]:
        source = VotesFolder(self.request.out)
        return lambda number: fill(source, self.collector, [number])

    def is_done(self, number: int) -> bool:
        return shard_path(self.request.out, number).exists()


def _collector(request: Request) -> VoteCollector:
    model, dataset, ablation, soft = loaded(request)
    return VoteCollector(
        model,
        dataset,
        ablation,
        soft=soft,
        skip_corrupt=request.skip_corrupt,
        until=_stopping_rule(request, model),
    )


def loaded(request: Request) -> tuple[Classifier, Dataset, Ablation, Soft | None]:
    """The model, the images, what mutants keep and how softly they vote: as asked for, tuned or trained."""
    # What is quick to refuse comes before the model, which takes seconds to load.
    soft = None if request.soft is None else parse_soft(request.soft)
    ablation = None if request.ablation is None else parse_ablation(request.ablation)
    beside = model_folder(request.model) / TUNED
    if request.tuned is not None:
        ablation, soft = _tuned(request)
    elif request.ablation is None and request.soft is None and beside.is_file():
        ablation, soft = _tuned(replace(request, tuned=beside))
    dataset = dataset_of(request)
    model = _model(request, dataset, ablation)
    kept = ablation or model.ablation
    if kept is None:
        raise CostcertError(
            f"{request.model} does not say what mutants keep: pass --ablation, as in columns:19"
        )
    return model, dataset, kept, soft


def _tuned(request: Request) -> tuple[Ablation, Soft | None]:
    if request.soft is not None or request.ablation is not None:
        raise CostcertError("--tuned says which mutants vote and how softly: leave --ablation and --soft out")
    assert request.tuned is not None
    return read_tuned(request.tuned)


def _stopping_rule(request: Request, model: Classifier) -> StoppingRule | None:
    if not request.adaptive:
        if request.patches is not None:
            raise CostcertError("--patch says what --adaptive has to decide: pass both, or certify later")
        return None
    if request.patches is None:
        raise CostcertError("--adaptive asks until something is decided: say what by --patch and --k")
    return StoppingRule.parse(parse_list(request.patches), parse_ks(request.ks), model.image_size)


def parse_soft(text: str) -> Soft:
    """`0.35,4`: the temperature, and how many labels a ballot names."""
    try:
        temperature, best = text.split(",")
        return Soft(float(temperature), int(best))
    except ValueError:
        raise SpellingError(
            f"cannot read soft ballots {text!r}: write temperature and labels, as in 0.35,4"
        ) from None


def dataset_of(request: Request) -> Dataset:
    if request.limit is not None and request.ids is not None:
        raise CostcertError("--limit and --ids both choose images: pass one of them")
    dataset = parse_dataset(request.data, request.split or "test", download=request.download)
    if request.split is not None and dataset.split != request.split:
        has = "no splits" if dataset.split is None else f"the split {dataset.split!r} only"
        raise CostcertError(f"{dataset.name} has {has}, but --split asks for {request.split!r}")
    if request.limit is not None:
        return limited(dataset, request.limit, request.seed)
    return dataset if request.ids is None else with_ids(dataset, read_ids(request.ids))


def _model(request: Request, dataset: Dataset, ablation: Ablation | None) -> Classifier:
    from costcert.models.loading import load_model

    # Without names of the classes the data only tell how many there are at least.
    known = None if dataset.class_names is None else dataset.num_classes
    return load_model(
        request.model,
        checkpoint=request.checkpoint,
        pretrained=request.pretrained,
        num_classes=request.classes or known,
        class_names=dataset.class_names,
        image_size=request.image_size,
        mean=_numbers("--mean", request.mean),
        std=_numbers("--std", request.std),
        hide=request.hide,
        ablation=ablation,
        device=request.device,
        batch_size=request.batch_size,
        autocast=request.autocast,
    )


def _numbers(option: str, text: str | None) -> list[float] | None:
    try:
        return None if text is None else [float(number) for number in text.split(",")]
    except ValueError:
        raise SpellingError(
            f"cannot read {option} {text!r}: write a number for each channel, as in 0.5,0.5,0.5"
        ) from None


def _summary(folder: VotesFolder) -> None:
    console = Console(highlight=False, soft_wrap=True)
    made = folder.manifest["made"]
    console.print(
        f"Votes: {folder.folder}: {folder.num_images:,} images of {made['data']['name']}, "
        f"{folder.num_mutants} mutants each ({folder.ablation})"
    )
    if made.get("until") is not None:
        console.print(
            f"Evaluated {folder.evaluated():.1f} of {folder.num_mutants} mutants an image, enough to tell "
            f"the top {', '.join(map(str, made['until']['k']))} against {', '.join(made['until']['patches'])}"
        )
    if made["probe"] is not None:
        flips, tried = made["probe"]["flips"], made["probe"]["mutants"]
        console.print(
            f"Probe: margins up to {made['probe']['epsilon']:.3g} may not last ({flips} of {tried} mutants "
            "changed their vote): certify with --epsilon probe"
        )
    unread = folder.unread()
    if unread:
        console.print(f"{len(unread):,} images could not be read, and count as wrong:")
        for name in unread:
            console.print(f"  {name}", markup=False)
    console.print(f"Next: costcert certify {folder.folder} --patch 2%")
