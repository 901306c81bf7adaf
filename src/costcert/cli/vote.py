"""`costcert vote`: evaluate a model on every mutant of every image, and store the votes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from costcert.cli.engine_options import EngineOptions, kept_shards, spread
from costcert.cli.inputs import BallotOptions, ImageOptions, NetworkOptions, load_inputs
from costcert.cli.options import AT_LEAST_1, BALLOTS, DATA, OUTPUT, PathOrUrl
from costcert.cli.spellings import parse_ks, parse_list
from costcert.engines.base import JobSpec
from costcert.engines.on_local import rank_and_world_size
from costcert.errors import CostcertError
from costcert.progress import OnProgress, bar, note

if TYPE_CHECKING:
    from costcert.models.classifier import Classifier
    from costcert.store.votes import VotesFolder
    from costcert.votes.adaptive import StoppingRule
    from costcert.votes.collector import VoteCollector

EXAMPLES = (
    "costcert vote --model shipped:fashion --data sample --out votes",
    "costcert vote --model timm:vit_base_patch16_224 --pretrained \\\n"
    "  --data imagenet:ILSVRC --ablation columns:19 --limit 1000 --out votes",
)


@Parameter(name="*", group=BALLOTS)
@dataclass(frozen=True, kw_only=True)
class VoteOptions:
    images: ImageOptions
    network: NetworkOptions
    ballots: BallotOptions = field(default_factory=BallotOptions)
    adaptive: Annotated[
        bool, Parameter(help="Evaluate mutants of an image only until --patch and --k are decided.")
    ] = False
    patches: Annotated[
        str | None, Parameter(name=("--patch", "-p"), help="Patches that --adaptive voting has to decide.")
    ] = None
    ks: Annotated[str, Parameter(name=("--k", "-k"), help="Values of k that --adaptive voting decides.")] = (
        "1,5"
    )
    probe: Annotated[
        bool,
        Parameter(help="Measure how far logits vary on this machine, for certify --epsilon probe."),
    ] = False
    skip_corrupt: Annotated[
        bool, Parameter(group=DATA, help="Count images that cannot be read as wrong, and list them.")
    ] = False
    out: Annotated[
        PathOrUrl,
        Parameter(alias="-o", group=OUTPUT, help="Folder for the votes; a started one is continued."),
    ]
    shard_size: Annotated[
        int | None, Parameter(group=OUTPUT, help="Images per shard.", validator=AT_LEAST_1)
    ] = None
    engine: EngineOptions = field(default_factory=EngineOptions)


def run(options: VoteOptions) -> None:
    """Evaluate a model on all mutants of all images; store the votes.

    A second run into the same folder makes only what is missing.
    """
    from costcert.store.folder_names import refuse_file_name
    from costcert.votes.voting import vote

    refuse_file_name(options.out, "votes of a run are")
    if options.engine.is_spread:
        return _run_spread(options)
    model, dataset, requested = load_inputs(options.images, options.network, options.ballots)
    kept = _kept_so_far(options)
    with bar("voting") as on_progress:
        folder = vote(
            model,
            dataset,
            requested.ablation,
            soft=requested.soft,
            out=options.out,
            shard_size=options.shard_size,
            skip_corrupt=options.skip_corrupt,
            until=_stopping_rule(options, model),
            probe=options.probe,
            progress=_announcing(kept, on_progress),
        )
    return _print_summary(folder)


def _kept_so_far(options: VoteOptions) -> str | None:
    """What a folder holds from an earlier run, if there is one."""
    from costcert.store.files import MANIFEST
    from costcert.store.votes import VotesFolder

    return kept_shards(VotesFolder(options.out)) if (options.out / MANIFEST).is_file() else None


def _announcing(kept: str | None, on_progress: OnProgress) -> OnProgress:
    """Say what is kept at the first progress: before it, the folder may still be refused as another run's."""
    left = iter([] if kept is None else [kept])

    def announce(done: int, images: int) -> None:
        for sentence in left:
            note(sentence)
        on_progress(done, images)

    return announce


def _run_spread(options: VoteOptions) -> None:
    """The same, with shards made by an engine's workers or by several ranks."""
    from costcert.votes.voting import begin

    job = VoteJob(replace(options, out=options.out.resolve()))
    folder = spread(
        options.engine,
        job,
        "voting",
        begin=lambda: begin(options.out, job.collector, options.shard_size, options.probe),
    )
    if rank_and_world_size()[0] == 0:
        _print_summary(folder)


@dataclass(frozen=True)
class VoteJob(JobSpec):
    """Makes shards of votes in any process."""

    request: VoteOptions

    @cached_property
    def collector(self) -> VoteCollector:
        from costcert.votes.collector import VoteCollector

        options = self.request
        model, dataset, requested = load_inputs(options.images, options.network, options.ballots)
        return VoteCollector(
            model,
            dataset,
            requested.ablation,
            soft=requested.soft,
            skip_corrupt=options.skip_corrupt,
            until=_stopping_rule(options, model),
        )

    def open(self) -> Callable[[int], None]:
        from costcert.store.votes import VotesFolder
        from costcert.votes.voting import fill

        source = VotesFolder(self.request.out)
        return lambda number: fill(source, self.collector, [number])

    def is_done(self, number: int) -> bool:
        from costcert.store.parquet import shard_path

        return shard_path(self.request.out, number).exists()


def _stopping_rule(options: VoteOptions, model: Classifier) -> StoppingRule | None:
    from costcert.votes.adaptive import StoppingRule

    if not options.adaptive:
        if options.patches is not None:
            raise CostcertError(
                "--patch is what --adaptive voting has to decide: pass both, or pass it to certify"
            )
        return None
    if options.patches is None:
        raise CostcertError("--adaptive voting stops once patches are decided: pass them with --patch")
    return StoppingRule.parse(parse_list(options.patches), parse_ks(options.ks), model.image_size)


def _print_summary(folder: VotesFolder) -> None:
    from costcert.console import make_console
    from costcert.geometry.ablations import Masks
    from costcert.geometry.masks import shown_sides

    console = make_console(soft_wrap=True)
    made = folder.manifest["made"]
    console.print(
        f"Votes: {folder.folder}: {folder.num_images:,} images of {made['data']['name']}, "
        f"{folder.num_mutants} mutants each ({folder.ablation})"
    )
    if made.get("until") is not None:
        console.print(
            f"Evaluated {folder.evaluated():.1f} of {folder.num_mutants} mutants per image, enough to decide "
            f"the top {', '.join(map(str, made['until']['k']))} against {', '.join(made['until']['patches'])}"
        )
    if made["probe"] is not None:
        from costcert.votes.probe import Probe

        console.print(f"Probe: {Probe(**made['probe']).in_words(folder.classifier.soft)}")
    unread = folder.unread()
    if unread:
        console.print(f"{len(unread):,} images could not be read, and count as wrong:")
        for name in unread:
            console.print(f"  {name}", markup=False)
    using_probe = "" if made["probe"] is None else " --epsilon probe"
    # Masks are made for one patch, and refuse a larger one.
    ablation = folder.ablation
    patch = shown_sides(ablation.sides) if isinstance(ablation, Masks) else "2%"
    console.print(f"Next: costcert certify {folder.folder} --patch {patch}{using_probe}", markup=False)
