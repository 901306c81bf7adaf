"""`costcert tune`: choose which mutants vote, and how softly, from the ballots of validation images."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from costcert.cli.options import AT_LEAST_1, BALLOTS, OUTPUT, RUN, PathOrUrl
from costcert.cli.spellings import parse_ks, parse_list
from costcert.errors import StoreError
from costcert.progress import bar

if TYPE_CHECKING:
    from rich.console import Console

    from costcert.geometry.ablations import Ablation
    from costcert.store.locations import Location
    from costcert.votes.defence import Soft
    from costcert.votes.tuning import Tuning

    Tuned = tuple[Ablation, Soft | None]

EXAMPLES = (
    "costcert tune votes-validation --patch 2%",
    "costcert tune votes-validation --patch 2,5 -k 1,5 --most-passes 100 \\\n  --out tuned.json",
)


@Parameter(name="*", group=RUN)
@dataclass(frozen=True)
class TuneOptions:
    votes: Annotated[
        PathOrUrl, Parameter(help="Votes of validation images, with soft ballots of all mutants.")
    ]
    _: KW_ONLY
    patches: Annotated[
        str,
        Parameter(
            name=("--patch", "-p"), help="Patches to maximise certified accuracy for, as in 2,5 or 2%."
        ),
    ]
    ks: Annotated[str, Parameter(name=("--k", "-k"), help="Values of k to maximise it for, as in 1,5.")] = (
        "1,5"
    )
    most_passes: Annotated[
        int | None, Parameter(group=BALLOTS, help="Maximum number of mutants.", validator=AT_LEAST_1)
    ] = None
    temperature: Annotated[
        float | None, Parameter(group=BALLOTS, help="Of the soft ballots, where the votes do not record it.")
    ] = None
    out: Annotated[
        PathOrUrl | None,
        Parameter(
            alias="-o",
            group=OUTPUT,
            help="The .json file for the result.",
            show_default="tuned.json beside the votes",
        ),
    ] = None


def run(options: TuneOptions) -> None:
    """Choose which mutants vote, and how softly, from stored votes.

    The choice maximises certified accuracy; no model is evaluated.
    """
    from costcert.console import make_console
    from costcert.store.folder_names import refuse_file_name
    from costcert.store.sources import read_votes
    from costcert.votes.tuning import TUNED, tune

    console = make_console()
    out = options.out or options.votes.with_name(TUNED)
    if out.is_dir() or out.suffix != ".json":
        refuse_file_name(out, "what tune found is", [".json"])
        out = out / TUNED
    before = _written_before(out)
    votes = read_votes(options.votes)
    patches = parse_list(options.patches)
    with bar("tuning") as on_progress:
        found = tune(
            votes,
            patches,
            parse_ks(options.ks),
            most_passes=options.most_passes,
            temperature=options.temperature,
            progress=on_progress,
        )
    found.write(out)
    _print_steps(console, found)
    _print_written(console, found, out, before)


def _written_before(out: Location) -> Tuned | None:
    """What an earlier `tune` wrote there; a file of another program is refused before the search begins."""
    from costcert.votes.tuning import read_tuned

    if not out.is_file():
        return None
    try:
        return read_tuned(out)
    except StoreError:
        raise StoreError(
            f"{out} was not written by this version of `costcert tune`, so it is not overwritten: remove it, "
            "or pass another --out"
        ) from None


def _print_written(console: Console, found: Tuning, out: Location, before: Tuned | None) -> None:
    """What the file says now, and what it said before."""
    from costcert.votes.tuning import read_tuned

    now = read_tuned(out)
    passes = next(step.passes for step in found.steps if step.setting == found.setting)
    if before is None:
        kept = ""
    elif before == now:
        kept = " (as it did before)"
    else:
        kept = f" (replaced: it said {_in_words(before)})"
    console.print(
        f"Tuned: {out} says {_in_words(now)}, {passes} passes per image{kept}", soft_wrap=True, markup=False
    )
    console.print(
        f"Next: costcert vote --tuned {out} --model MODEL --data IMAGES --out VOTES",
        soft_wrap=True,
        markup=False,
    )


def _in_words(tuned: Tuned) -> str:
    ablation, soft = tuned
    return f"{ablation} with {soft or 'hard ballots'}"


def _print_steps(console: Console, found: Tuning) -> None:
    from rich import box
    from rich.table import Table

    from costcert.reports.terminal import print_whole

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
    print_whole(console, table)
