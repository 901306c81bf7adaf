"""`costcert attack`: stickers of real pixels, beside what is proved about all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from costcert.attacks.campaign import Campaign
from costcert.attacks.effort import Effort
from costcert.attacks.evidence import FalseCertificateError
from costcert.attacks.results import SUMMARY
from costcert.certification.accuracy import wilson
from costcert.certification.deployment import Deployed, model_of_run
from costcert.cli import vote
from costcert.cli.engine_options import spread, wait_until
from costcert.datasets.base import Dataset
from costcert.engines.base import JobSpec
from costcert.engines.on_local import rank_and_world_size
from costcert.errors import CostcertError
from costcert.geometry.patches import parse_patch
from costcert.models.classifier import Classifier
from costcert.store.files import read_json
from costcert.store.locations import Location
from costcert.store.parquet import shard_path
from costcert.store.runs import open_run
from costcert.votes.defence import Defence

# The code of a run that found a false certificate: neither a success nor the user's mistake.
FALSE_CERTIFICATE = 3


@dataclass(frozen=True)
class Request:
    """What was asked on the command line, as it was spelled.

    Args:
        asked: the model and the images, where to write, and who does the work.
        run: a folder of votes or certificates whose classifier is attacked.
    """

    asked: vote.Request
    patch: str
    k: int = 1
    defender: str | None = None
    run: Location | None = None
    universal: str | None = None
    effort: Effort = field(default_factory=Effort)


def run(request: Request) -> int:
    """The exit code."""
    # What is quick to refuse comes before the model, which takes seconds to load.
    asked = request.asked
    parse_patch(request.patch)
    began = time.monotonic()
    job = AttackJob(replace(request, asked=replace(asked, out=asked.out.resolve())))
    try:
        campaign = spread(asked.engine, job, "attacking", begin=job.begin)
    except FalseCertificateError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"costcert: {error}", markup=False)
        return FALSE_CERTIFICATE
    if rank_and_world_size()[0] > 0:
        # Of many processes the first one speaks for all.
        return 0
    console = Console(highlight=False, soft_wrap=True)
    judge = campaign.judge
    console.print(
        f"{judge.patch} against {judge.classifier}: touches at most {judge.touched.delta} of "
        f"{judge.touched.num_mutants} mutants"
    )
    _table(console, read_json(campaign.folder / SUMMARY), request)
    console.print(f"Patched images: {asked.out}")
    console.print(f"Time of this run: {time.monotonic() - began:.0f} s")
    return 0


@dataclass(frozen=True)
class AttackJob(JobSpec):
    """Makes shards of an attack, anywhere."""

    request: Request

    @cached_property
    def campaign(self) -> Campaign:
        request, asked = self.request, self.request.asked
        model, dataset, classifier = _loaded(request)
        return Campaign(
            model,
            dataset,
            request.patch,
            request.k,
            asked.out,
            classifier=classifier,
            effort=request.effort,
            universal=request.universal,
            seed=asked.seed,
        )

    def begin(self) -> Campaign:
        """The folder, with all that its shards share."""
        self.campaign.begin(self.request.asked.shard_size)
        if rank_and_world_size()[0] == 0:
            self.campaign.share()
        wait_until(self.campaign.is_shared)
        return self.campaign

    def open(self) -> Callable[[int], None]:
        return self.campaign.make

    def is_done(self, number: int) -> bool:
        return shard_path(self.request.asked.out, number).exists()


def _loaded(request: Request) -> tuple[Classifier, Dataset, Defence]:
    """The network, the images and the classifier: that of a run, or as asked for."""
    asked = request.asked
    if request.run is None:
        model, dataset, ablation, soft = vote.loaded(asked)
        deployed = Deployed(
            model, ablation, defender=request.defender or "costcert", patch=request.patch, soft=soft
        )
        return model, dataset, deployed.classifier
    given = {"--ablation": asked.ablation, "--soft": asked.soft, "--hide": asked.hide}
    known = [option for option, value in given.items() if value is not None]
    if known:
        raise CostcertError(f"--run says which classifier is attacked: leave {', '.join(known)} out")
    run = open_run(request.run)
    return (
        model_of_run(run, asked.model, checkpoint=asked.checkpoint, device=asked.device),
        vote.dataset_of(asked),
        run.classifier_by(request.defender, request.patch),
    )


def _table(console: Console, summary: dict[str, Any], request: Request) -> None:
    """Accuracies side by side, the largest first, and what lies between the last two."""
    count, k = summary["images"], summary["k"]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    table.add_column(f"true label in the top {k} of {count:,} images", no_wrap=True)
    table.add_column("%", justify="right", no_wrap=True)
    table.add_column("95 %", no_wrap=True)
    effort = request.effort
    lines = [("images as they are", "clean")]
    if effort.random:
        lines.append((f"random pixels ({effort.random} patches an image)", "under_random_patches"))
    if request.universal is not None:
        lines.append((f"one patch for all ({request.universal} place)", "under_universal_patch"))
    lines += [("under attack, the worst that was found", "under_attack"), ("certified", "certified")]
    for text, key in lines:
        low, high = wilson(round(summary[key] * count), count)
        table.add_row(text, f"{100 * summary[key]:.1f}", f"{100 * low:.1f} - {100 * high:.1f}")
    console.print(table)
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
