"""`costcert tune`: choose which mutants vote, and how softly, from the ballots of validation images."""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

from costcert.cli.certify import parse_ks, parse_list
from costcert.cli.progress import bar
from costcert.store.locations import Location
from costcert.store.votes import read_votes
from costcert.votes.tuning import TUNED, Tuning, tune


@dataclass(frozen=True)
class Request:
    """What was asked on the command line, as it was spelled."""

    votes: Location
    patches: str
    ks: str = "1,5"
    out: Location | None = None
    most_passes: int | None = None
    temperature: float | None = None


def run(request: Request) -> None:
    console = Console(highlight=False)
    votes = read_votes(request.votes)
    patches = parse_list(request.patches)
    with bar("tuning") as on_progress:
        found = tune(
            votes,
            patches,
            parse_ks(request.ks),
            most_passes=request.most_passes,
            temperature=request.temperature,
            progress=on_progress,
        )
    out = request.out or request.votes.with_name(TUNED)
    if out.is_dir() or out.suffix != ".json":
        out = out / TUNED
    found.write(out)
    _show(console, found)
    console.print(f"Tuned: {out}", soft_wrap=True)
    console.print(
        f"Next: costcert vote --tuned {out} --model MODEL --data IMAGES --out VOTES", soft_wrap=True
    )


def _show(console: Console, found: Tuning) -> None:
    patches = ", ".join(str(patch) for patch in found.goal.patches)
    ks = ", ".join(f"top {k}" for k in found.goal.ks)
    console.print(
        f"Certified accuracy in %, the mean over {patches} and {ks}, on {found.images:,} images. "
        "Cross-validated: chosen on four fifths of them, measured on the other fifth."
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for title in ("who votes", "ablation", "ballots"):
        table.add_column(title, overflow="fold")
    for title in ("passes", "certified", "cross-val.", "gain"):
        table.add_column(title, justify="right", no_wrap=True)
    first = found.steps[0].cross_validated
    for step in found.steps:
        temperature = step.setting.temperature
        is_chosen = step.setting == found.setting
        table.add_row(
            step.name,
            str(step.setting.ablation),
            "hard" if temperature is None else f"T={temperature:.3g}",
            str(step.passes),
            f"{100 * step.reached:.1f}",
            f"{100 * step.cross_validated:.1f}",
            f"{100 * (step.cross_validated - first):+.1f}",
            style="bold" if is_chosen else None,
        )
    console.print(table)
