"""`costcert tune`: choose how mutants vote and which defender ranks, from ballots of validation images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from costcert.cli.options import AT_LEAST_1, BALLOTS, OUTPUT, RUN, PathOrUrl
from costcert.cli.spellings import parse_ks, parse_list
from costcert.errors import CostcertError, StoreError
from costcert.progress import bar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from costcert.store.locations import Location
    from costcert.votes.defence import Defence
    from costcert.votes.search import Goal, Setting
    from costcert.votes.tuning import Comparison, Tuning

EXAMPLES = (
    "costcert tune votes-validation --patch 2,5 -k 1,5 --most-passes 100 \\\n  --out tuned.json",
    "costcert tune votes-columns votes-masks --patch 2,5 -k 1-5",
)

# Columns of the console for one value of k, and between two columns.
_VALUE, _GAP = 6, 2


@Parameter(name="*", group=RUN)
@dataclass(frozen=True)
class TuneOptions:
    votes: Annotated[
        tuple[PathOrUrl, ...],
        Parameter(
            required=True,
            help="Votes of validation images, with soft ballots of all mutants; of several runs, to compare "
            "them.",
        ),
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
    defenders: Annotated[
        str | None,
        Parameter(
            name=("--defender", "-d"),
            help="Defenders to choose from, separated by commas; or all.",
            show_default="costcert,patchguard, for small images double-masking; for masks patchcleanser",
        ),
    ] = None
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
            show_default="tuned.json beside the votes; none for several runs",
        ),
    ] = None


def run(options: TuneOptions) -> None:
    """Choose how mutants vote and which defender ranks, from stored votes.

    The choice maximises certified accuracy; no model is evaluated. With votes of several runs on the same
    images, compare the runs.
    """
    from costcert.console import make_console

    console = make_console()
    if len(options.votes) > 1:
        _compare(console, options)
    else:
        _tune(console, options)


def _tune(console: Console, options: TuneOptions) -> None:
    from costcert.store.sources import read_votes
    from costcert.votes.tuning import TUNED, tune

    (path,) = options.votes
    out = _file(options.out or path.with_name(TUNED))
    before = _written_before(out)
    votes = read_votes(path)
    with bar("tuning", "settings") as on_progress:
        found = tune(
            votes,
            parse_list(options.patches),
            parse_ks(options.ks),
            defenders=_defenders(options),
            most_passes=options.most_passes,
            temperature=options.temperature,
            progress=on_progress,
        )
    found.write(out)
    _print_steps(console, found)
    _print_choices(console, found)
    _print_written(console, found, out, before)


def _compare(console: Console, options: TuneOptions) -> None:
    from costcert.store.sources import read_votes
    from costcert.votes.tuning import compare_runs

    out = None if options.out is None else _file(options.out)
    before = None if out is None else _written_before(out)
    with bar("tuning", "settings") as on_progress:
        found = compare_runs(
            {name: read_votes(path) for name, path in _named(options.votes).items()},
            parse_list(options.patches),
            parse_ks(options.ks),
            defenders=_defenders(options),
            most_passes=options.most_passes,
            temperature=options.temperature,
            progress=on_progress,
        )
    _print_comparison(console, found)
    best = found.best.tuning
    if out is not None and best is not None:
        best.write(out)
        _print_written(console, best, out, before)


def _defenders(options: TuneOptions) -> list[str] | None:
    return None if options.defenders is None else parse_list(options.defenders)


def _named(paths: Sequence[Location]) -> dict[str, Location]:
    """The runs by the names of their folders, or by their paths where names are alike."""
    names = [path.name for path in paths]
    named = {path.name if names.count(path.name) == 1 else str(path): path for path in dict.fromkeys(paths)}
    if len(named) < len(paths):
        raise CostcertError("the same votes are named twice: pass votes of different runs")
    return named


def _file(out: Location) -> Location:
    from costcert.store.folder_names import refuse_file_name
    from costcert.votes.tuning import TUNED

    if out.suffix == ".json" and not out.is_dir():
        return out
    refuse_file_name(out, "what tune found is", [".json"])
    return out / TUNED


def _written_before(out: Location) -> Defence | None:
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


def _print_written(console: Console, found: Tuning, out: Location, before: Defence | None) -> None:
    """What the file says now, and what it said before."""
    from costcert.votes.tuning import read_tuned

    now = read_tuned(out)
    if before is None:
        kept = ""
    elif before == now:
        kept = " (as it did before)"
    else:
        kept = f" (replaced: it said {before})"
    model = (found.model or {}).get("name")
    for line in (
        f"Tuned: {out} says {now}, {found.step.passes} passes per image{kept}",
        *([] if model is None else [f"Voted by: {model}"]),
        f"Next: costcert vote --tuned {out} --model MODEL --data IMAGES --out VOTES",
    ):
        console.print(line, soft_wrap=True, markup=False)


def _print_steps(console: Console, found: Tuning) -> None:
    from costcert.reports.terminal import print_whole

    console.print(
        f"Certified accuracy in %, the mean over {_in_words(found.goal)}, on {found.images:,} images. "
        "Cross-validated: chosen on four fifths of them, measured on the other fifth."
    )
    table = _table(("defender", "ablation", "ballots"), ("passes", "certified", "cross-val.", "gain"))
    first = found.steps[0].cross_validated
    for step in found.steps:
        is_chosen = step.setting == found.setting
        table.add_row(
            step.setting.defender,
            str(step.setting.ablation),
            _ballots(step.setting),
            str(step.passes),
            f"{100 * step.reached:.1f}",
            _marked(step.cross_validated, is_chosen),
            f"{100 * (step.cross_validated - first):+.1f}",
            style="bold" if is_chosen else None,
        )
    print_whole(console, table)


def _print_choices(console: Console, found: Tuning) -> None:
    """For each patch and k what each defender would give at its best, beside what was chosen."""
    goal = found.goal
    console.print(
        "For each patch and k alone, each defender at its best setting (cross-validated; * the best). One "
        "classifier has one setting for all of them: chosen is what that gives."
    )
    rows: list[tuple[str, str, list[float | None]]] = []
    for p, patch in enumerate(goal.patches):
        for defender in found.defenders:
            alone = [found.choice(patch, k, defender).cross_validated for k in goal.ks]
            rows.append((str(patch), defender, [*alone]))
        rows.append((str(patch), "chosen", [*found.step.by_patch[p]]))
    _print_by_k(console, goal, ("patch", "defender"), rows, unmarked="chosen")


def _print_comparison(console: Console, found: Comparison) -> None:
    from costcert.reports.terminal import print_whole

    goal = found.goal
    console.print(
        f"Each run at its best setting for the mean over {_in_words(goal)}, on the same {found.images:,} "
        "images; accuracies in %, certified ones cross-validated (* the best)."
    )
    table = _table(("run", "defender", "ballots"), ("passes", "clean", "certified"))
    for row in found.rows:
        if row.tuning is None:
            table.add_row(row.name, *["-"] * 5)
            continue
        setting = row.tuning.setting
        table.add_row(
            row.name,
            setting.defender,
            _ballots(setting),
            str(row.tuning.step.passes),
            f"{100 * row.clean:.1f}",
            _marked(row.score, row is found.best),
            style="bold" if row is found.best else None,
        )
    print_whole(console, table)
    for row in found.rows:
        if row.tuning is not None:
            console.print(f"{row.name}: {row.tuning.setting.ablation}", markup=False)
    rows = [
        (str(patch), row.name, [row.certified(patch, k) for k in goal.ks])
        for patch in goal.patches
        for row in found.rows
    ]
    _print_by_k(console, goal, ("patch", "run"), rows)
    for row in found.rows:
        for sentence in dict.fromkeys(row.refusals.values()):
            console.print(f"- {row.name}: {sentence}.", markup=False)
    console.print(f"Best for all of these: {found.best.name}", markup=False)


def _print_by_k(
    console: Console,
    goal: Goal,
    titles: tuple[str, str],
    rows: Sequence[tuple[str, str, Sequence[float | None]]],
    unmarked: str | None = None,
) -> None:
    """Accuracies by patch and name, with a column for each k, in as many tables as the width needs."""
    from costcert.reports.terminal import print_whole

    best: dict[tuple[str, int], float] = {}
    for patch, name, values in rows:
        for k, share in enumerate(values):
            if share is not None and name != unmarked:
                best[patch, k] = max(share, best.get((patch, k), 0.0))
    stub = sum(max(map(len, [titles[at], *(row[at] for row in rows)])) + _GAP for at in (0, 1))
    length = max((console.width - stub) // (_VALUE + _GAP), 1)
    for start in range(0, len(goal.ks), length):
        block = range(start, min(start + length, len(goal.ks)))
        table = _table(titles, [f"top-{goal.ks[k]}" for k in block])
        before = None
        for patch, name, values in rows:
            cells = [
                _marked(values[k], name != unmarked and values[k] == best.get((patch, k))) for k in block
            ]
            table.add_row("" if patch == before else patch, name, *cells)
            before = patch
        print_whole(console, table)


def _table(texts: Sequence[str], numbers: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for title in texts:
        table.add_column(title, overflow="fold")
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _marked(share: float | None, is_best: bool) -> str:
    return "- " if share is None else f"{100 * share:.1f}{'*' if is_best else ' '}"


def _ballots(setting: Setting) -> str:
    return "hard" if setting.temperature is None else f"T={setting.temperature:.3g}"


def _in_words(goal: Goal) -> str:
    return f"{', '.join(map(str, goal.patches))} and {', '.join(f'top {k}' for k in goal.ks)}"
