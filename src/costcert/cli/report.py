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
    from costcert.store.votes import VotesSource

_ENDINGS = (".html", ".tex", ".md", ".csv", ".json")
# Markdown files of these names are model cards: README.md is what model hubs show.
_CARDS = ("card", "readme")

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
        Parameter(
            required=True,
            help="Certificates: folders, or .parquet, .csv or .json files; or .json files of results.",
        ),
    ]
    _: KW_ONLY
    names: Annotated[
        tuple[str, ...], Parameter(name="--name", help="Name of each run, in their order; repeatable.")
    ] = ()
    compare: Annotated[
        str | None,
        Parameter(
            help="Published numbers to compare with: paper, imagenet, gtsrb or cifar100; or other systems: "
            "imagenet-peers (PatchCleanser, PatchCURE, ECViT, ViP, smoothed-vit, DRS, PatchGuard, BagCert) "
            "or cifar10-peers (smoothed-vit, BagCert, DRS, IBP)."
        ),
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
        PathOrUrl | None,
        Parameter(
            alias="-o",
            group=OUTPUT,
            help="The report: .html (a page), .tex, .md, .csv or .json (results); card.md and README.md are "
            "model cards, with the results in the header that model hubs read.",
            show_default="report.html, unless there are --figures",
        ),
    ] = None
    title: Annotated[str | None, Parameter(group=OUTPUT, help="Title of the page.")] = None
    ks: Annotated[
        str, Parameter(name=("--k", "-k"), group=OUTPUT, help="Values of k, as in 1-5 or 1,5,10.")
    ] = "1-5"
    leaderboard: Annotated[bool, Parameter(group=OUTPUT, help="One table with all runs.")] = False
    style: Annotated[
        str,
        Parameter(
            group=OUTPUT,
            help="Of .tex: narrow tables fit a column and show one patch each, wide ones fit a page.",
        ),
    ] = "wide"
    intervals: Annotated[bool, Parameter(group=OUTPUT, help="Confidence intervals also in .tex and .md.")] = (
        False
    )
    figures: Annotated[PathOrUrl | None, Parameter(group=OUTPUT, help="Folder for figures as files.")] = None
    formats: Annotated[str, Parameter(group=OUTPUT, help="Formats of those files: svg, pdf.")] = "svg,pdf"

    @property
    def path(self) -> Location | None:
        """Where the report is written; None if only figures were requested."""
        if self.out is not None:
            return self.out
        return Path("report.html") if self.figures is None else None


def run(options: ReportOptions) -> None:
    """Write a page, tables or figures of what was certified."""
    from costcert.console import make_console
    from costcert.reports import summary
    from costcert.store.files import atomic_write

    console = make_console(soft_wrap=True)
    results = _read(options)
    figures, compared = _figures(options, results)
    # Drawn before anything is written, so that bad options leave no files.
    files = list(_files(options, results, figures, compared))
    if options.path is not None:
        _write(options.path, options, results, figures, compared)
    for path, content in files:
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
        console.print(f"Figure: {path}", markup=False)
    console.print(summary.promise(results[0], summary.headline(results[0])), soft_wrap=False)
    if options.path is None:
        console.print("No report besides the figures: name one with --out, as in --out report.html")
        return
    console.print(f"Report: {options.path}", markup=False)
    if options.path.suffix == ".tex":
        from costcert.reports.tables.as_latex import PACKAGES, STYLES

        console.print(f"It fits {STYLES[options.style].fits}, and needs {PACKAGES}.", markup=False)


def write_report(options: ReportOptions) -> list[Results]:
    """Write the report alone, without printing anything; returns the results in it."""
    results = _read(options)
    assert options.path is not None
    _write(options.path, options, results, *_figures(options, results))
    return results


def _read(options: ReportOptions) -> list[Results]:
    from costcert.reports.results import read_results

    path = options.path
    if path is not None and path.suffix not in _ENDINGS:
        raise CostcertError(
            f"{path} ends in {path.suffix or 'nothing'}: a report ends in {', '.join(_ENDINGS)}"
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
    path: Location,
    options: ReportOptions,
    results: list[Results],
    figures: list[dict[str, ReportFigure]],
    compared: ReportFigure | None,
) -> None:
    from costcert.store.files import atomic_write

    ks, ending, beside = parse_ks(options.ks), path.suffix, _beside(options, results)
    if ending == ".html" and not options.leaderboard:
        from costcert.reports.page import RunSection, page

        runs = [
            RunSection(each, figures[index], _examples(options, index, each))
            for index, each in enumerate(results)
        ]
        text = page(
            runs, ks=ks, published=beside, mixed=options.mixed, title=options.title, compared=compared
        )
        with atomic_write(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    elif ending == ".json" and len(results) == 1 and not options.leaderboard:
        results[0].write(path)
    else:
        with atomic_write(path) as temporary:
            temporary.write_text(_table(path, options, results, ks, beside, compared), encoding="utf-8")


def _table(
    path: Location,
    options: ReportOptions,
    results: list[Results],
    ks: list[int],
    beside: Published | None,
    compared: ReportFigure | None,
) -> str:
    from costcert.reports import tables
    from costcert.reports.leaderboard import leaderboard, leaderboard_markdown

    ending = path.suffix
    if ending == ".json":
        return tables.json_text(results, ks, beside)
    if ending == ".csv" and not options.leaderboard:
        return tables.csv_text(results, ks, beside)
    laid_out = leaderboard if options.leaderboard else tables.paper_table
    table = laid_out(results, ks, beside, mixed=options.mixed)
    if ending == ".csv":
        return tables.csv_table(table)
    if ending == ".md":
        if path.stem.lower() in _CARDS and not options.leaderboard:
            from costcert.reports.card import card

            return card(results, table, ks, title=options.title)
        if options.leaderboard:
            return leaderboard_markdown(table, intervals=options.intervals)
        return tables.markdown(table, intervals=options.intervals)
    if ending == ".tex":
        return tables.latex(table, style=options.style, intervals=options.intervals)
    from costcert.reports.page import table_page

    title = options.title or "Leaderboard"
    return table_page(table, title, runs=results, published=beside, compared=compared)


def _beside(options: ReportOptions, results: list[Results]) -> Published | None:
    return None if options.compare is None else _published(options.compare, results[0])


def _published(name: str, results: Results) -> Published:
    """The paper's numbers on the data of this run, or on the named data."""
    from costcert.reports.published import DATASETS, PEERS, published

    if name != "paper":
        return published(name)
    data = str(((results.votes.get("made") or {}).get("data") or {}).get("name") or results.name).lower()
    for known in DATASETS:
        if known in data.replace("-", ""):
            return published(known)
    raise CostcertError(
        f"the paper has no numbers on {data}: name what to compare with, as in --compare gtsrb; there are "
        f"{', '.join((*DATASETS, *PEERS))}"
    )


def _examples(options: ReportOptions, index: int, results: Results) -> list[Any]:
    """Single images, where certificates and their votes were passed."""
    from costcert.reports import summary
    from costcert.reports.examples import choose, examples
    from costcert.store.runs import open_run
    from costcert.store.sources import holds_certificates

    if not options.votes or not holds_certificates(options.runs[index]):
        return []
    run = open_run(options.runs[index], options.votes[index])
    votes, folder = run.votes, run.certificates
    assert folder is not None
    found = summary.headline(results)
    defender = "costcert" if "costcert" in results.defenders else found.defender
    chosen = choose(folder, defender, found.patch, found.k)
    return examples(results, folder, votes, chosen, found.patch, _pictures(options, votes, chosen))


def _pictures(
    options: ReportOptions, votes: VotesSource, chosen: Mapping[str, str]
) -> dict[str, npt.NDArray[np.uint8]]:
    """These images as the model gets them, where the data are known."""
    from costcert.cli.pictures import pictures_of

    pictures = pictures_of(chosen, votes, options.data, options.split)
    return {} if pictures is None else {name: pictures.pixels(name) for name in chosen if name in pictures}
