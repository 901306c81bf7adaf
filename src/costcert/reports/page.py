"""Reports as one HTML file, which opens from disk, prints well and loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from costcert import __version__
from costcert.reports import drawing, summary
from costcert.reports.examples import Example
from costcert.reports.figures import ReportFigure, as_bytes, title_and_note
from costcert.reports.published import Published
from costcert.reports.rendering import data_url, render
from costcert.reports.results import Results
from costcert.reports.style import defender_title
from costcert.reports.tables import PaperTable, paper_table
from costcert.reports.tables.patch_matching import Threat
from costcert.reports.tables.provenance import Data, model_name

_HIDDEN = {
    "zero": "0 after normalisation",
    "black": "black",
    "mean": "of the mean colour",
    "drop-tokens": "not shown: tokens that see none of the kept pixels are dropped",
    "crop": "not shown: each part is cut out",
}


@dataclass(frozen=True)
class RunSection:
    """What a page shows of one run."""

    results: Results
    figures: Mapping[str, ReportFigure]
    examples: Sequence[Example] = ()


def page(
    runs: Sequence[RunSection],
    *,
    ks: Iterable[int] = range(1, 6),
    published: Published | None = None,
    mixed: bool = False,
    title: str | None = None,
    compared: ReportFigure | None = None,
) -> str:
    """The page of one or several runs; the headline is about the first run.

    Args:
        compared: the figure of the runs side by side.
    """
    main = runs[0].results
    headline = summary.headline(main)
    ranks = main.tally.ranks[headline.defender, headline.patch]
    return render(
        "report.html.j2",
        title=title or f"Certified robustness to stickers: {Data.of(main).name or main.name}",
        sentence=summary.promise(main, headline),
        headline=headline,
        defender=defender_title(headline.defender),
        clean=float(ranks[: headline.k + 1].sum()) / main.images,
        facts=_facts(main),
        table=paper_table([run.results for run in runs], ks, published, mixed=mixed),
        intervals=True,
        figures=_embedded(compared),
        runs=[_section(run, number) for number, run in enumerate(runs)],
        version=__version__,
        is_soft=main.classifier.soft is not None,
        is_uncertain=main.manifest.get("epsilon") is not None or bool(main.manifest.get("tau")),
        ties=main.classifier.ties,
    )


def table_page(table: PaperTable, title: str, *, compared: ReportFigure | None = None) -> str:
    """A page with one table, such as a leaderboard, and optionally one figure."""
    return render(
        "leaderboard.html.j2",
        title=title,
        table=table,
        intervals=True,
        figures=_embedded(compared),
        version=__version__,
    )


def _embedded(*figures: ReportFigure | None) -> list[dict[str, str]]:
    """Figures as images inside the page, one for wide and one for narrow screens."""
    return [
        {
            "wide": data_url(as_bytes(figure.page_wide, "svg"), "image/svg+xml"),
            "narrow": data_url(as_bytes(figure.column_wide, "svg"), "image/svg+xml"),
            "description": ". ".join(title_and_note(figure.page_wide)),
        }
        for figure in figures
        if figure is not None
    ]


def _section(run: RunSection, number: int) -> dict[str, Any]:
    results = run.results
    return {
        "name": results.name,
        "figures": _embedded(*run.figures.values()),
        "examples": [
            {
                "id": example.image_id,
                "reason": example.reason,
                "truth": example.name(example.truth),
                "sentence": _sentence(example),
                "picture": drawing.picture(example, f"{number}-{index}"),
                "bars": drawing.bars(example, f"{number}-{index}"),
                "patches": results.patches,
                "rows": [
                    (
                        defender_title(defender),
                        [example.certified[defender, patch][1] for patch in results.patches],
                    )
                    for defender in results.defenders
                ],
            }
            for index, example in enumerate(run.examples)
        ],
        "num_classes": results.num_classes,
    }


def _sentence(example: Example) -> str:
    """What the strongest attack on this image achieves."""
    budget, mutants = len(example.attack.touched), example.votes.num_mutants
    sticker = summary.sticker(str(example.patch), example.votes.image_size)
    name = example.name(example.truth)
    if example.lifted == 0:
        end = f"that is not enough to bring any rival level with “{name}”."
    else:
        rivals = "one rival" if example.lifted == 1 else f"{example.lifted} rivals"
        end = (
            f"with them the attacker brings {rivals} level with “{name}” or above it, so only the top "
            f"{example.lifted + 1} is certified."
        )
    return f"At its worst place the {sticker} touches {budget} of {mutants} votes; {end}"


def _facts(results: Results) -> list[tuple[str, str]]:
    """What was tested, as far as the manifest records it."""
    model: Mapping[str, Any] = results.provenance.get("model") or {}
    versions: Mapping[str, Any] = results.provenance.get("versions") or {}
    classifier = results.classifier
    height, width = results.image_size
    facts = [
        ("Images", f"{Data.of(results)}, {results.num_classes:,} classes, {height} x {width} pixels"),
        ("Model", model_name(results)),
        ("Weights", str(model.get("digest") or "")),
        ("What each mutant sees", f"{classifier.ablation} ({results.passes:,} per image)"),
        ("Hidden pixels are", _HIDDEN.get(classifier.hide or "", classifier.hide)),
        ("Ballots", str(classifier.soft or "hard ballots, one label each")),
        (
            "Stickers",
            ", ".join(
                f"{patch} ({100 * Threat.of(patch, results.image_size).share:.2g} % of the image)"
                for patch in results.patches
            ),
        ),
        ("Made with", ", ".join(f"{name} {version}" for name, version in versions.items())),
    ]
    return [(name, value) for name, value in facts if value]
