"""`costcert attack`: stickers of real pixels, beside what is proved about all of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from costcert.attacks.campaign import attack
from costcert.attacks.effort import Effort
from costcert.attacks.evidence import FalseCertificateError
from costcert.commands import vote
from costcert.commands.progress import bar
from costcert.geometry.ablations import parse_ablation
from costcert.geometry.patches import concrete, parse_patch
from costcert.geometry.touch import touched
from costcert.metrics import wilson

# The code of a run that found a false certificate: neither a success nor the user's mistake.
FALSE_CERTIFICATE = 3


@dataclass(frozen=True)
class Request:
    """What was asked on the command line, as it was spelled.

    Args:
        asked: the model and the images, and where to write.
    """

    asked: vote.Request
    patch: str
    k: int = 1
    defender: str = "costcert"
    universal: str | None = None
    effort: Effort = field(default_factory=Effort)


def run(request: Request) -> int:
    """The exit code."""
    # What is quick to refuse comes before the model, which takes seconds to load.
    asked = request.asked
    parse_patch(request.patch)
    soft = None if asked.soft is None else vote.parse_soft(asked.soft)
    ablation = None if asked.ablation is None else parse_ablation(asked.ablation)
    model, dataset, ablation = vote.loaded(asked, ablation)
    console = Console(highlight=False, soft_wrap=True)
    try:
        with bar("attacking") as tell:
            results = attack(
                model,
                dataset,
                request.patch,
                request.k,
                asked.out,
                ablation=ablation,
                defender=request.defender,
                soft=soft,
                effort=request.effort,
                universal=request.universal,
                seed=asked.seed,
                shard_size=asked.shard_size,
                progress=tell,
            )
    except FalseCertificateError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"costcert: {error}", markup=False)
        return FALSE_CERTIFICATE
    patch = concrete(request.patch, model.image_size)
    delta = touched(ablation, patch, model.image_size).delta
    console.print(
        f"{patch} against {ablation}: touches at most {delta} of {ablation.count(model.image_size)} mutants"
    )
    _table(console, results.summary(request.k), request)
    console.print(f"Patched images: {asked.out}")
    return 0


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
    console.print(f"Time: {summary['seconds']:.0f} s, {count / max(summary['seconds'], 1e-9):.1f} images/s")
