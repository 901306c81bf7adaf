"""`costcert report`: pages, tables and figures of what was certified."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from costcert.cli.options import DATA, OUTPUT, RUN, PathOrUrl
from costcert.cli.spellings import parse_ks, parse_list
from costcert.errors import CostcertError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from costcert.reports.figures import ReportFigure
    from costcert.reports.published import Published
    from costcert.reports.results import Results
    from costcert.store.locations import Location
    from costcert.store.votes import VotesFolder

_ENDINGS = (".html", ".tex", ".md", ".csv", ".json")

EXAMPLES = (
    "costcert report certs --votes votes --data sample --out report.html",
    "costcert report certs-a certs-b --name baseline --name ours \\\n"
    "  --compare paper -k 1,5 --figures figures --out table.tex",
)


@Parameter(name="*", group=RUN)
@dataclass(frozen=True)
class ReportOptions:
    runs: Annotated[
        tuple[PathOrUrl, ...],
        Parameter(required=True, help="Folders of certificates, or .json files of results."),
    ]
    _: KW_ONLY
    names: Annotated[
        tuple[str, ...], Parameter(name="--name", help="Name of each run, in their order; repeatable.")
    ] = ()
    compare: Annotated[
        str | None, Parameter(help="Published numbers to compare with: paper, imagenet, gtsrb or cifar100.")
    ] = None
    defenders: Annotated[
        str | None,
        Parameter(
            name=("--defender", "-d"),
            help="Defenders in the figure that compares runs, separated by commas.",
            show_default="costcert",
        ),
    ] = None
    mixed: Annotated[bool, Parameter(help="Allow runs on different data.")] = False
    votes: Annotated[
        tuple[PathOrUrl, ...],
        Parameter(
            group=DATA, help="Votes of each run, in their order, for classes and single images; repeatable."
        ),
    ] = ()
    data: Annotated[str | None, Parameter(group=DATA, help="The images, to show some of them.")] = None
    split: Annotated[str | None, Parameter(group=DATA, help="Part of the dataset.", show_default="test")] = (
        None
    )
    out: Annotated[
        PathOrUrl,
        Parameter(
            alias="-o", group=OUTPUT, help="The report: .html (a page), .tex, .md, .csv or .json (results)."
        ),
    ] = Path("report.html")
    title: Annotated[str | None, Parameter(group=OUTPUT, help="Title of the page.")] = None
    ks: Annotated[
        str, Parameter(name=("--k", "-k"), group=OUTPUT, help="Values of k, as in 1-5 or 1,5,10.")
    ] = "1-5"
    leaderboard: Annotated[bool, Parameter(group=OUTPUT, help="One table with all runs.")] = False
    intervals: Annotated[bool, Parameter(group=OUTPUT, help="Confidence intervals also in .tex and .md.")] = (
        False
    )
    figures: Annotated[PathOrUrl | None, Parameter(group=OUTPUT, help="Folder for figures as files.")] = None
    formats: Annotated[str, Parameter(group=OUTPUT, help="Formats of those files: svg, pdf.")] = "svg,pdf"


def run(options: ReportOptions) -> None:
    """Write a page, tables or figures of what was certified."""
    from rich.console import Console

    from costcert.reports import summary
    from costcert.store.files import atomic_write

    console = Console(highlight=False, soft_wrap=True)
    results = _read(options)
    figures, compared = _figures(options, results)
    # Drawn before anything is written, so that bad options leave no files.
    files = list(_files(options, results, figures, compared))
    _write(options, results, figures, compared)
    for path, content in files:
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
        console.print(f"Figure: {path}", markup=False)
    console.print(summary.promise(results[0], summary.headline(results[0])), soft_wrap=False)
    console.print(f"Report: {options.out}", markup=False)


def write_report(options: ReportOptions) -> list[Results]:
    """Write the report alone, without printing anything; returns the results in it."""
    results = _read(options)
    _write(options, results, *_figures(options, results))
    return results


def _read(options: ReportOptions) -> list[Results]:
    from costcert.reports.results import read_results

    if options.out.suffix not in _ENDINGS:
        raise CostcertError(
            f"{options.out} ends in {options.out.suffix or 'nothing'}: a report ends in {', '.join(_ENDINGS)}"
        )
    for option, values in (("--name", options.names), ("--votes", options.votes)):
        if values and len(values) != len(options.runs):
            raise CostcertError(
                f"got {len(values)} {option} for {len(options.runs)} runs: pass one for each, in their order"
            )
    return [
        read_results(
            path,
            votes=options.votes[index] if options.votes else None,
            name=options.names[index] if options.names else None,
        )
        for index, path in enumerate(options.runs)
    ]


def _figures(
    options: ReportOptions, results: list[Results]
) -> tuple[list[dict[str, ReportFigure]], ReportFigure | None]:
    """The figures of each run, and the one of several runs or of published numbers; drawn when used."""
    from costcert.reports.figures import ReportFigure, comparison, figures

    defenders = None if options.defenders is None else parse_list(options.defenders)
    compared = None
    if len(results) > 1 or options.compare is not None:
        draw = partial(
            comparison,
            results,
            parse_ks(options.ks),
            _beside(options, results),
            defenders=defenders,
            mixed=options.mixed,
        )
        compared = ReportFigure(draw)
    elif defenders is not None:
        raise CostcertError(
            "--defender selects the defenders in the figure of several runs: pass more runs, or --compare"
        )
    return [figures(each) for each in results], compared


def _files(
    options: ReportOptions,
    results: list[Results],
    figures: list[dict[str, ReportFigure]],
    compared: ReportFigure | None,
) -> Iterator[tuple[Location, bytes]]:
    """Path and bytes of each figure; with several runs each run has a folder."""
    from costcert.reports.figures import as_files, check_formats
    from costcert.reports.tables.provenance import run_names

    folder = options.figures
    if folder is None:
        return
    formats = check_formats(options.formats.split(","))
    if compared is not None:
        yield from as_files({"comparison": compared}, folder, formats)
    for named, run_name in zip(figures, run_names(results), strict=True):
        yield from as_files(named, folder if len(results) == 1 else folder / _as_folder(run_name), formats)


def _as_folder(name: str) -> str:
    """A run's name as a folder name, without path separators."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "run"


def _write(
    options: ReportOptions,
    results: list[Results],
    figures: list[dict[str, ReportFigure]],
    compared: ReportFigure | None,
) -> None:
    from costcert.store.files import atomic_write

    ks, ending, beside = parse_ks(options.ks), options.out.suffix, _beside(options, results)
    if ending == ".html" and not options.leaderboard:
        from costcert.reports.page import RunSection, page

        runs = [
            RunSection(each, figures[index], _examples(options, index, each))
            for index, each in enumerate(results)
        ]
        text = page(
            runs, ks=ks, published=beside, mixed=options.mixed, title=options.title, compared=compared
        )
        with atomic_write(options.out) as temporary:
            temporary.write_text(text, encoding="utf-8")
    elif ending == ".json" and len(results) == 1 and not options.leaderboard:
        results[0].write(options.out)
    else:
        with atomic_write(options.out) as temporary:
            temporary.write_text(_table(options, results, ks, beside, compared), encoding="utf-8")


def _table(
    options: ReportOptions,
    results: list[Results],
    ks: list[int],
    beside: Published | None,
    compared: ReportFigure | None,
) -> str:
    from costcert.reports import tables
    from costcert.reports.leaderboard import leaderboard

    ending = options.out.suffix
    if ending == ".json":
        return tables.json_text(results, ks, beside)
    if ending == ".csv" and not options.leaderboard:
        return tables.csv_text(results, ks, beside)
    laid_out = leaderboard if options.leaderboard else tables.paper_table
    table = laid_out(results, ks, beside, mixed=options.mixed)
    if ending == ".csv":
        return tables.csv_table(table)
    if ending == ".md":
        return tables.markdown(table, intervals=options.intervals)
    if ending == ".tex":
        return tables.latex(table, intervals=options.intervals)
    from costcert.reports.page import table_page

    return table_page(table, options.title or "Leaderboard", compared=compared)


def _beside(options: ReportOptions, results: list[Results]) -> Published | None:
    return None if options.compare is None else _published(options.compare, results[0])


def _published(name: str, results: Results) -> Published:
    """The paper's numbers on the data of this run, or on the named data."""
    from costcert.reports.published import published

    if name != "paper":
        return published(name)
    data = str(((results.votes.get("made") or {}).get("data") or {}).get("name") or results.name).lower()
    for known in ("imagenet", "gtsrb", "cifar100"):
        if known in data.replace("-", ""):
            return published(known)
    raise CostcertError(
        f"the paper has no numbers on {data}: name the data to compare with, as in --compare gtsrb"
    )


def _examples(options: ReportOptions, index: int, results: Results) -> list[Any]:
    """Single images, where the certificates are a folder and its votes were passed."""
    if not options.votes or not options.runs[index].is_dir():
        return []
    from costcert.reports import summary
    from costcert.reports.examples import choose, examples
    from costcert.store.runs import certificates_of
    from costcert.store.votes import VotesFolder

    votes = VotesFolder(options.votes[index])
    folder = certificates_of(options.runs[index], votes)
    found = summary.headline(results)
    defender = "costcert" if "costcert" in results.defenders else found.defender
    chosen = choose(folder, defender)
    return examples(results, folder, votes, chosen, found.patch, _pictures(options, votes, chosen))


def _pictures(
    options: ReportOptions, votes: VotesFolder, chosen: Mapping[str, str]
) -> dict[str, npt.NDArray[np.uint8]]:
    """These images as the model gets them, where the data are known."""
    from costcert.datasets.parse import parse_dataset
    from costcert.models.preprocessing import Preprocessing

    made = votes.manifest["made"]
    known = (made.get("data") or {}).get("name")
    spelling = options.data or (known if known == "sample" else None)
    settings = (made.get("model") or {}).get("preprocessing")
    if spelling is None or not settings:
        return {}
    data = parse_dataset(spelling, options.split or "test")
    prepare = Preprocessing.from_json(settings).prepare
    return {name: prepare(data.image(row)) for row, name in enumerate(data.ids) if name in chosen}
