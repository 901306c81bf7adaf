"""`costcert report`: what was certified, for people."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from rich.console import Console

from costcert.cli.certify import parse_ks, parse_list
from costcert.errors import CostcertError
from costcert.reports import summary
from costcert.reports.published import Published, published
from costcert.reports.results import Results, read_results
from costcert.reports.tables.provenance import run_names
from costcert.store.files import atomic_write
from costcert.store.locations import Location
from costcert.store.runs import certificates_of
from costcert.store.votes import VotesFolder

if TYPE_CHECKING:
    from costcert.reports.figures import ReportFigure

_ENDINGS = (".html", ".tex", ".md", ".csv", ".json")


@dataclass(frozen=True)
class Request:
    """What was asked on the command line, as it was spelled."""

    runs: Sequence[Location]
    out: Location
    names: Sequence[str] = ()
    votes: Sequence[Location] = ()
    data: str | None = None
    split: str | None = None
    compare: str | None = None
    figures: Location | None = None
    formats: str = "svg,pdf"
    ks: str = "1-5"
    defenders: str | None = None
    leaderboard: bool = False
    intervals: bool = False
    mixed: bool = False
    title: str | None = None


def run(request: Request) -> None:
    console = Console(highlight=False, soft_wrap=True)
    results = _read(request)
    figures, compared = _figures(request, results)
    # Drawn before anything is written, so that a bad request leaves no files.
    files = list(_files(request, results, figures, compared))
    _write(request, results, figures, compared)
    for path, content in files:
        with atomic_write(path) as temporary:
            temporary.write_bytes(content)
        console.print(f"Figure: {path}", markup=False)
    console.print(summary.promise(results[0], summary.headline(results[0])), soft_wrap=False)
    console.print(f"Report: {request.out}", markup=False)


def write_report(request: Request) -> list[Results]:
    """Write what was asked for; returns what it is about."""
    results = _read(request)
    _write(request, results, *_figures(request, results))
    return results


def _read(request: Request) -> list[Results]:
    if request.out.suffix not in _ENDINGS:
        raise CostcertError(
            f"{request.out} ends in {request.out.suffix or 'nothing'}: a report ends in {', '.join(_ENDINGS)}"
        )
    for option, values in (("--name", request.names), ("--votes", request.votes)):
        if values and len(values) != len(request.runs):
            raise CostcertError(
                f"got {len(values)} {option} for {len(request.runs)} runs: pass one for each, in their order"
            )
    return [
        read_results(
            path,
            votes=request.votes[index] if request.votes else None,
            name=request.names[index] if request.names else None,
        )
        for index, path in enumerate(request.runs)
    ]


def _figures(
    request: Request, results: list[Results]
) -> tuple[list[dict[str, ReportFigure]], ReportFigure | None]:
    """The figures of each run, and the one of several runs or of published numbers; drawn when used."""
    from costcert.reports.figures import ReportFigure, comparison, figures

    defenders = None if request.defenders is None else parse_list(request.defenders)
    compared = None
    if len(results) > 1 or request.compare is not None:
        draw = partial(
            comparison,
            results,
            parse_ks(request.ks),
            _beside(request, results),
            defenders=defenders,
            mixed=request.mixed,
        )
        compared = ReportFigure(draw)
    elif defenders is not None:
        raise CostcertError(
            "--defender selects the defenders in the figure of several runs: pass more runs, or --compare"
        )
    return [figures(each) for each in results], compared


def _files(
    request: Request,
    results: list[Results],
    figures: list[dict[str, ReportFigure]],
    compared: ReportFigure | None,
) -> Iterator[tuple[Location, bytes]]:
    """Path and bytes of each figure; with several runs each run has a folder."""
    from costcert.reports.figures import as_files, check_formats

    folder = request.figures
    if folder is None:
        return
    formats = check_formats(request.formats.split(","))
    if compared is not None:
        yield from as_files({"comparison": compared}, folder, formats)
    for named, run_name in zip(figures, run_names(results), strict=True):
        yield from as_files(named, folder if len(results) == 1 else folder / _as_folder(run_name), formats)


def _as_folder(name: str) -> str:
    """A run's name as the name of a folder, which leads nowhere else."""
    return re.sub(r"[^\w.-]+", "-", name).strip(".-") or "run"


def _write(
    request: Request,
    results: list[Results],
    figures: list[dict[str, ReportFigure]],
    compared: ReportFigure | None,
) -> None:
    ks, ending, beside = parse_ks(request.ks), request.out.suffix, _beside(request, results)
    if ending == ".html" and not request.leaderboard:
        from costcert.reports.page import RunSection, page

        runs = [
            RunSection(each, figures[index], _examples(request, index, each))
            for index, each in enumerate(results)
        ]
        text = page(
            runs, ks=ks, published=beside, mixed=request.mixed, title=request.title, compared=compared
        )
        with atomic_write(request.out) as temporary:
            temporary.write_text(text, encoding="utf-8")
    elif ending == ".json" and len(results) == 1 and not request.leaderboard:
        results[0].write(request.out)
    else:
        with atomic_write(request.out) as temporary:
            temporary.write_text(_table(request, results, ks, beside, compared), encoding="utf-8")


def _table(
    request: Request,
    results: list[Results],
    ks: list[int],
    beside: Published | None,
    compared: ReportFigure | None,
) -> str:
    from costcert.reports import tables
    from costcert.reports.leaderboard import leaderboard

    ending = request.out.suffix
    if ending == ".json":
        return tables.json_text(results, ks, beside)
    if ending == ".csv" and not request.leaderboard:
        return tables.csv_text(results, ks, beside)
    laid_out = leaderboard if request.leaderboard else tables.paper_table
    table = laid_out(results, ks, beside, mixed=request.mixed)
    if ending == ".csv":
        return tables.csv_table(table)
    if ending == ".md":
        return tables.markdown(table, intervals=request.intervals)
    if ending == ".tex":
        return tables.latex(table, intervals=request.intervals)
    from costcert.reports.page import table_page

    return table_page(table, request.title or "Leaderboard", compared=compared)


def _beside(request: Request, results: list[Results]) -> Published | None:
    return None if request.compare is None else _published(request.compare, results[0])


def _published(name: str, results: Results) -> Published:
    """The paper's numbers on the data of this run, or on data that are named."""
    if name != "paper":
        return published(name)
    said = str(((results.votes.get("made") or {}).get("data") or {}).get("name") or results.name).lower()
    for known in ("imagenet", "gtsrb", "cifar100"):
        if known in said.replace("-", ""):
            return published(known)
    raise CostcertError(
        f"the paper has no numbers on {said}: name the data to compare with, as in --compare gtsrb"
    )


def _examples(request: Request, index: int, results: Results) -> list[Any]:
    """Single images, where the certificates are a folder and its votes are at hand."""
    if not request.votes or not request.runs[index].is_dir():
        return []
    from costcert.reports.examples import choose, examples

    votes = VotesFolder(request.votes[index])
    folder = certificates_of(request.runs[index], votes)
    found = summary.headline(results)
    defender = "costcert" if "costcert" in results.defenders else found.defender
    chosen = choose(folder, defender)
    return examples(results, folder, votes, chosen, found.patch, _pictures(request, votes, chosen))


def _pictures(
    request: Request, votes: VotesFolder, chosen: Mapping[str, str]
) -> dict[str, npt.NDArray[np.uint8]]:
    """What the model saw of these images, where the data are at hand."""
    from costcert.datasets.parse import parse_dataset
    from costcert.models.preprocessing import Preprocessing

    made = votes.manifest["made"]
    known = (made.get("data") or {}).get("name")
    spelling = request.data or (known if known == "sample" else None)
    settings = (made.get("model") or {}).get("preprocessing")
    if spelling is None or not settings:
        return {}
    data = parse_dataset(spelling, request.split or "test")
    prepare = Preprocessing.from_json(settings).prepare
    return {name: prepare(data.image(row)) for row, name in enumerate(data.ids) if name in chosen}
