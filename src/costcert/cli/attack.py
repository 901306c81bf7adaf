"""`costcert attack`: patches of real pixels, beside what is certified against all patches."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from costcert.attacks.effort import Effort
from costcert.cli.engine_options import EngineOptions, spread, wait_until
from costcert.cli.inputs import BallotOptions, ImageOptions, NetworkOptions, load_images, load_inputs
from costcert.cli.options import AT_LEAST_0, AT_LEAST_1, EFFORT, OUTPUT, RUN, PathOrUrl
from costcert.engines.base import JobSpec
from costcert.engines.on_local import rank_and_world_size
from costcert.errors import CostcertError
from costcert.progress import note

if TYPE_CHECKING:
    from rich.console import Console

    from costcert.attacks.campaign import Campaign
    from costcert.datasets.base import Dataset
    from costcert.models.classifier import Classifier
    from costcert.votes.defence import Defence

# Exit code of a run that found a false certificate: neither a success nor a user's mistake.
FALSE_CERTIFICATE = 3

EXAMPLES = (
    "costcert attack --model shipped:fashion --data sample --limit 20 --patch 4 \\\n  --out attack",
    "costcert attack --run certs --model model --data folder:photos --patch 2% \\\n"
    "  -k 5 --universal fixed --out attack",
)


@Parameter(name="*", group=EFFORT)
@dataclass(frozen=True, kw_only=True)
class EffortOptions:
    """How hard the attack tries; see `Effort`."""

    places: Annotated[
        int, Parameter(help="Patch positions tried per image, the worst ones first.", validator=AT_LEAST_1)
    ] = Effort.places
    restarts: Annotated[
        int, Parameter(help="Full runs at the best of these positions.", validator=AT_LEAST_0)
    ] = Effort.restarts
    steps: Annotated[
        int | None,
        Parameter(
            help="Gradient steps per run; 0 for random pixels only.",
            validator=AT_LEAST_0,
            show_default=f"{Effort.steps}, or 0 for a model without gradients",
        ),
    ] = None
    random: Annotated[int, Parameter(help="Random patches per image.", validator=AT_LEAST_0)] = Effort.random
    thorough: Annotated[bool, Parameter(help="Try as hard on certified images as on the others.")] = (
        Effort.thorough
    )

    def to_effort(self, model: Classifier) -> Effort:
        """The effort on this model; without gradients only random pixels are tried unless steps are given."""
        from costcert.attacks.optimizer import has_gradients

        steps = self.steps
        if steps is None:
            steps = Effort.steps if has_gradients(model) else 0
        return Effort(self.places, self.restarts, steps, self.random, self.thorough)


@Parameter(name="*", group=RUN)
@dataclass(frozen=True, kw_only=True)
class AttackOptions:
    images: ImageOptions
    network: NetworkOptions
    ballots: BallotOptions = field(default_factory=BallotOptions)
    patch: Annotated[str, Parameter(alias="-p", help="One patch, spelled as for certify.")]
    k: Annotated[
        int,
        Parameter(
            alias="-k", help="The attack aims to push the true label out of the top k.", validator=AT_LEAST_1
        ),
    ] = 1
    run: Annotated[
        PathOrUrl | None,
        Parameter(help="Attack the classifier of these votes or certificates."),
    ] = None
    votes: Annotated[
        PathOrUrl | None,
        Parameter(help="The votes of --run, if those are certificates.", show_default="votes beside them"),
    ] = None
    defender: Annotated[
        str | None,
        Parameter(
            alias="-d",
            help="Defender that predicts and certifies.",
            show_default="that of --run or --tuned, or costcert (for masks patchcleanser)",
        ),
    ] = None
    universal: Annotated[
        str | None,
        Parameter(
            group=EFFORT, help="Also one patch for all images: fixed (at one position) or random (at any)."
        ),
    ] = None
    effort: EffortOptions = field(default_factory=EffortOptions)
    out: Annotated[
        PathOrUrl,
        Parameter(
            alias="-o", group=OUTPUT, help="Folder for the patched images; a started one is continued."
        ),
    ]
    shard_size: Annotated[
        int | None, Parameter(group=OUTPUT, help="Images per shard.", validator=AT_LEAST_1)
    ] = None
    engine: EngineOptions = field(default_factory=EngineOptions)


def run(options: AttackOptions) -> int:
    """Attack predictions with patches of real pixels.

    A broken certificate is a bug: evidence is written, and the exit code is 3.
    """
    from costcert.attacks.evidence import FalseCertificateError
    from costcert.attacks.results import SUMMARY
    from costcert.console import make_console
    from costcert.geometry.patches import parse_patch
    from costcert.store.files import read_json
    from costcert.store.folder_names import refuse_file_name

    # What is quick to refuse comes before the model, which takes seconds to load.
    parse_patch(options.patch)
    refuse_file_name(options.out, "patched images are")
    began = time.monotonic()
    job = AttackJob(replace(options, out=options.out.resolve()))
    try:
        campaign = spread(options.engine, job, "attacking", begin=job.begin)
    except FalseCertificateError as error:
        make_console(stderr=True, soft_wrap=True).print(f"costcert: {error}", markup=False)
        return FALSE_CERTIFICATE
    if rank_and_world_size()[0] > 0:
        # Only rank 0 prints.
        return 0
    console = make_console(soft_wrap=True)
    judge = campaign.judge
    console.print(
        f"{judge.at_input if judge.original else judge.patch} against {judge.classifier}: touches at most "
        f"{judge.touched.delta} of "
        f"{judge.touched.num_mutants} mutants"
    )
    _print_table(console, read_json(campaign.folder / SUMMARY), options)
    console.print(f"Patched images: {options.out}")
    console.print(f"Time of this run: {time.monotonic() - began:.0f} s")
    return 0


@dataclass(frozen=True)
class AttackJob(JobSpec):
    """Makes shards of an attack in any process."""

    request: AttackOptions

    @cached_property
    def campaign(self) -> Campaign:
        from costcert.attacks.campaign import Campaign

        options = self.request
        model, dataset, classifier = _load(options)
        return Campaign(
            model,
            dataset,
            options.patch,
            options.k,
            options.out,
            classifier=classifier,
            effort=options.effort.to_effort(model),
            universal=options.universal,
            seed=options.images.seed,
        )

    def begin(self) -> Campaign:
        """The folder, with everything that its shards share."""
        if self.request.effort.steps is None and not self.campaign.effort.steps:
            self._say_that_pixels_are_random()
        self.campaign.begin(self.request.shard_size)
        if rank_and_world_size()[0] == 0:
            self.campaign.share()
        wait_until(self.campaign.is_shared)
        return self.campaign

    def _say_that_pixels_are_random(self) -> None:
        if rank_and_world_size()[0] == 0:
            note(
                f"{self.request.network.model} has no gradients, so only random pixels are tried "
                f"({self.campaign.effort.random} patches per image; --random tries more): a weak attack, "
                "which says little about images that are not certified"
            )

    def open(self) -> Callable[[int], None]:
        return self.campaign.make

    def is_done(self, number: int) -> bool:
        from costcert.store.parquet import shard_path

        return shard_path(self.request.out, number).exists()


def _load(options: AttackOptions) -> tuple[Classifier, Dataset, Defence]:
    """The network, the images and the classifier: that of --run, or as the options define it."""
    from costcert.certification.deployment import Deployed, model_of_run
    from costcert.defenders import default_for
    from costcert.store.runs import open_run

    network, ballots = options.network, options.ballots
    if options.run is None:
        if options.votes is not None:
            raise CostcertError("--votes are the votes of --run: pass that, too")
        model, dataset, requested = load_inputs(options.images, network, ballots)
        # A tuned classifier keeps the patch it masks for, whichever patch attacks it.
        mask = requested.mask if options.defender is None else None
        deployed = Deployed(
            model,
            requested.ablation,
            defender=options.defender or requested.defender or default_for(requested.ablation),
            patch=mask or options.patch,
            soft=requested.soft,
        )
        return model, dataset, deployed.classifier
    values = {
        "--ablation": ballots.ablation,
        "--soft": ballots.soft,
        "--hide": ballots.hide,
        "--tuned": ballots.tuned,
        "--image-size": network.image_size,
        "--channels": network.channels,
        "--mean": network.mean,
        "--std": network.std,
        "--precision": network.precision,
        "--calibration": network.calibration,
        "--autocast": network.autocast or None,
    }
    given = [option for option, value in values.items() if value is not None]
    if given:
        raise CostcertError(f"--run defines which classifier is attacked: leave {', '.join(given)} out")
    run = open_run(options.run, options.votes)
    return (
        model_of_run(run, network.model, checkpoint=network.checkpoint, device=network.device),
        load_images(options.images),
        run.classifier_by(options.defender, options.patch),
    )


def _print_table(console: Console, summary: dict[str, Any], options: AttackOptions) -> None:
    """Accuracies, the largest first, and how tight the bound is on images that are not certified."""
    from rich import box
    from rich.table import Table

    from costcert.certification.accuracy import wilson
    from costcert.reports.terminal import print_whole

    count, k = summary["images"], summary["k"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column(f"true label in the top {k} of {count:,} images", overflow="fold")
    table.add_column("%", justify="right", no_wrap=True)
    table.add_column("95 %", no_wrap=True, min_width=len("100.0 - 100.0"))
    effort = options.effort
    lines = [("images as they are", "clean")]
    if effort.random:
        lines.append((f"random pixels ({effort.random} patches per image)", "under_random_patches"))
    if options.universal is not None:
        lines.append((f"one patch for all ({options.universal} place)", "under_universal_patch"))
    lines += [("under attack, the worst that was found", "under_attack"), ("certified", "certified")]
    for text, key in lines:
        low, high = wilson(round(summary[key] * count), count)
        table.add_row(text, f"{100 * summary[key]:.1f}", f"{100 * low:.1f} - {100 * high:.1f}")
    print_whole(console, table)
    open_images, broken = summary["open_images"], summary["broken"]
    console.print(
        f"Of {summary['right']:,} right images {summary['certified_images']:,} are certified, and none of "
        f"these was broken. Of the other {open_images:,} the attack broke {broken:,}; "
        f"{open_images - broken:,} ({100 * summary['gap']:.1f} % of all) are neither broken nor certified."
    )
    if open_images:
        rivals = "best placed rival" if k == 1 else f"{k} best placed rivals"
        console.print(
            f"On those {open_images:,} it lifted {summary['rivals_lifted']:,} rivals past the true label, of "
            f"{summary['rivals_liftable']:,} that the bound allows; {100 * summary['ballots_won']:.0f} % of "
            f"the touched ballots went to the {rivals}, where the bound assumes all."
        )
