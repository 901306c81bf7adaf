"""Reports as one HTML file, which opens from disk, prints well and loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from costcert import __version__
from costcert.geometry.ablations import Masks
from costcert.reports import drawing, summary
from costcert.reports.examples import Example, just_misses
from costcert.reports.figures import ReportFigure, as_bytes, title_and_note
from costcert.reports.figures.layout import shortened
from costcert.reports.glossary import by_name, glossary
from costcert.reports.patch_names import share, size, size_and_share, sticker
from costcert.reports.published import Published
from costcert.reports.rendering import data_url, render
from costcert.reports.results import CLASS_KS, Results
from costcert.reports.standing import Standing
from costcert.reports.style import defender_title
from costcert.reports.summary import Headline
from costcert.reports.tables import PaperTable, paper_table
from costcert.reports.tables.patch_matching import Threat
from costcert.reports.tables.provenance import Data, model_name, run_names

_HIDDEN = {
    "zero": "0 after normalisation",
    "black": "black",
    "mean": "of the mean colour",
    "drop-tokens": "not shown: tokens that see none of the kept pixels are dropped",
    "crop": "not shown: each part is cut out",
}

# Figures that are open when the page is; the others unfold.
_OPEN = ("accuracy-by-size", "accuracy-by-class")
_WEAKEST = 5


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
    all_results = [run.results for run in runs]
    table = _readable(paper_table(all_results, ks, published, mixed=mixed), all_results)
    names = run_names(all_results)
    terms = glossary(all_results, published)
    return render(
        "report.html.j2",
        title=title or f"Certified robustness to stickers: {Data.of(main).name or main.name}",
        sentence=summary.promise(main, headline),
        numbers=summary.key_numbers(main, headline),
        glance=[_glance(results, name) for results, name in zip(all_results, names, strict=True)],
        weakest=_weakest(main, headline),
        next=_next(runs[0], headline),
        facts=facts(main),
        table=table,
        short_table=_short(table, headline.k),
        intervals=True,
        figures=_embedded({"comparison": compared}, "compared"),
        runs=[
            _section(run, number, name) for number, (run, name) in enumerate(zip(runs, names, strict=True))
        ],
        terms=by_name(terms),
        version=__version__,
        is_masks=isinstance(main.classifier.ablation, Masks),
        is_soft=main.classifier.soft is not None,
        is_uncertain=main.manifest.get("epsilon") is not None or bool(main.manifest.get("tau")),
        ties=main.classifier.ties,
    )


def table_page(
    table: PaperTable,
    title: str,
    *,
    runs: Sequence[Results] = (),
    published: Published | None = None,
    compared: ReportFigure | None = None,
) -> str:
    """A page with one table, such as a leaderboard, a glossary, and optionally one figure.

    Args:
        runs, published: those in the table, whose defenders the glossary explains.
    """
    return render(
        "leaderboard.html.j2",
        title=title,
        table=table,
        intervals=True,
        figures=_embedded({"comparison": compared}, "compared"),
        terms=by_name(glossary(runs, published)),
        version=__version__,
    )


def _embedded(figures: Mapping[str, ReportFigure | None], prefix: str) -> list[dict[str, Any]]:
    """Figures as images inside the page, one for wide and one for narrow screens."""
    return [
        {
            "anchor": f"{prefix}-{name}",
            "title": title_and_note(figure.page_wide)[0],
            "is_open": name in _OPEN,
            "wide": data_url(as_bytes(figure.page_wide, "svg"), "image/svg+xml"),
            "narrow": data_url(as_bytes(figure.column_wide, "svg"), "image/svg+xml"),
            "description": ". ".join(title_and_note(figure.page_wide)),
        }
        for name, figure in figures.items()
        if figure is not None
    ]


def _readable(table: PaperTable, runs: Sequence[Results]) -> PaperTable:
    """The certified columns first, so that a phone shows them, and patches as height × width."""
    names = {
        str(Threat.of(patch, results.image_size)): size_and_share(patch, results.image_size)
        for results in runs
        for patch in results.patches
    }
    order = sorted(range(len(table.columns)), key=lambda place: table.columns[place][0] != "certified")
    return replace(
        table,
        columns=tuple(tuple(names.get(text, text) for text in table.columns[place]) for place in order),
        rows=tuple(replace(row, cells=tuple(row.cells[place] for place in order)) for row in table.rows),
    )


def _short(table: PaperTable, k: int) -> PaperTable | None:
    """The rows of this k alone; None if the table has only one k, or not this one."""
    rows = tuple(row for row in table.rows if row.labels[0] == f"Top-{k}")
    return replace(table, rows=rows) if rows and len(rows) < len(table.rows) else None


def _glance(results: Results, name: str) -> dict[str, Any]:
    """The headline of a run as a row of a table."""
    found = summary.headline(results)
    clean = results.tally.ranks[found.defender, found.patch][: found.k + 1].sum() / results.images
    return {
        "name": name,
        "defender": defender_title(found.defender),
        "ballots": summary.ballots(results),
        "patch": size_and_share(found.patch, results.image_size),
        "k": found.k,
        "certified": f"{100 * found.share:.1f} %",
        "clean": f"{100 * clean:.1f} %",
    }


def _weakest(results: Results, found: Headline) -> dict[str, Any] | None:
    """The classes with the fewest certified images; None without counts by class."""
    k = min(CLASS_KS)
    if results.by_class is None or (found.defender, found.patch, k) not in results.by_class.certified:
        return None
    classes = summary.classes(results, found.defender, found.patch, k)
    # Of equally weak classes those with more images, which are better known.
    weakest = sorted(classes, key=lambda each: (each.certified, -each.images, each.clean))
    return {
        "k": k,
        "defender": defender_title(found.defender),
        "patch": size_and_share(found.patch, results.image_size),
        "classes": weakest[:_WEAKEST],
        "number": len(classes),
        "without": sum(each.certified == 0 for each in classes),
    }


def _next(run: RunSection, found: Headline) -> dict[str, Any]:
    """What to look at after the headline."""
    results = run.results
    largest = max(results.patches, key=lambda patch: Threat.of(patch, results.image_size).extent)
    counts = results.tally.min_ks.get((found.defender, largest))
    return {
        "k": found.k,
        "missing": summary.just_missing(results, found),
        "images": [
            (_card(0, number), shortened(example.name(example.truth), 36))
            for number, example in enumerate(run.examples)
            if example.reason == just_misses(found.k)
        ],
        "largest": size_and_share(largest, results.image_size),
        "certified_at_largest": None
        if counts is None or largest == found.patch
        else f"{100 * counts[: found.k + 1].sum() / results.images:.1f} %",
        "has_votes": results.by_class is not None,
    }


def _card(run: int, number: int) -> str:
    """The anchor of a single image."""
    return f"image-{run}-{number}"


def _section(run: RunSection, number: int, name: str) -> dict[str, Any]:
    results = run.results
    return {
        "name": name,
        "anchor": f"run-{number}",
        "figures": _embedded(run.figures, f"figure-{number}"),
        "examples": [
            {
                "anchor": _card(number, index),
                "id": example.image_id,
                "reason": example.reason,
                "truth": example.name(example.truth),
                "sentence": _sentence(example),
                "picture": drawing.picture(example, f"{number}-{index}"),
                "bars": drawing.bars(example, f"{number}-{index}"),
                "patches": [size(patch, results.image_size) for patch in results.patches],
                "rows": [
                    (
                        defender_title(defender),
                        [_min_k(example, defender, patch, results.num_classes) for patch in results.patches],
                    )
                    for defender in results.defenders
                ],
            }
            for index, example in enumerate(run.examples)
        ],
        "num_classes": results.num_classes,
        "has_rows": any(isinstance(example.attack, Standing) for example in run.examples),
    }


def _min_k(example: Example, defender: str, patch: str, num_classes: int) -> str:
    """Min-k in a table; the number of classes is no certificate."""
    if (defender, patch) not in example.certified:
        return ""
    min_k = example.certified[defender, patch][1]
    return str(min_k) if min_k < num_classes else "no promise"


def _sentence(example: Example) -> str:
    """What the strongest attack on this image achieves."""
    if isinstance(example.attack, Standing):
        return _standing_sentence(example, example.attack)
    budget, mutants = len(example.attack.touched), example.votes.num_mutants
    patch = sticker(str(example.patch), example.votes.image_size)
    name = example.name(example.truth)
    if example.lifted == 0:
        end = f"that is not enough to bring any rival level with “{name}”, so it stays first."
    else:
        rivals = "one rival" if example.lifted == 1 else f"{example.lifted:,} rivals"
        end = f"with them the attacker brings {rivals} level with “{name}” or above it, so "
        end += (
            "there is no promise."
            if example.lifted + 1 >= example.votes.num_classes
            else f"the promise is the top {example.lifted + 1:,}."
        )
    return f"At its worst place the {patch} touches {budget} of {mutants} votes; {end}"


def _standing_sentence(example: Example, stand: Standing) -> str:
    """What stands of this image under masks, whatever the patch shows."""
    patch = sticker(str(example.patch), example.votes.image_size)
    name = example.name(example.truth)
    masks = "one mask hides" if len(stand.safe) == 1 else f"{len(stand.safe)} masks hide"
    start = f"At its worst place {masks} the {patch}; "
    if not stand.least:
        return f"{start}what it shows may leave “{name}” without a score, so there is no promise."
    start += f"whatever it shows, “{name}” scores at least {stand.least / example.votes.cap:.2g} of 1"
    if example.lifted == 0:
        return f"{start}, which no rival can reach, so it stays first."
    rivals = "one rival" if example.lifted == 1 else f"{example.lifted:,} rivals"
    end = (
        "there is no promise."
        if example.lifted + 1 >= example.votes.num_classes
        else f"the promise is the top {example.lifted + 1:,}."
    )
    return f"{start}, which {rivals} can reach, so {end}"


def facts(results: Results) -> list[tuple[str, str]]:
    """What was tested, as far as the manifest records it."""
    model: Mapping[str, Any] = results.provenance.get("model") or {}
    versions: Mapping[str, Any] = results.provenance.get("versions") or {}
    classifier = results.classifier
    at = height, width = results.image_size
    facts = [
        ("Images", f"{Data.of(results)}, {results.num_classes:,} classes, {height} × {width} pixels"),
        ("Model", model_name(results)),
        ("Weights", str(model.get("digest") or "")),
        ("What each mutant sees", f"{classifier.ablation} ({results.passes:,} per image)"),
        ("Hidden pixels are", _HIDDEN.get(classifier.hide or "", classifier.hide)),
        ("Ballots", str(classifier.soft or "hard ballots, one label each")),
        (
            "Stickers",
            ", ".join(
                f"{patch} ({', '.join(part for part in (size(patch, at), share(patch, at)) if part)})"
                for patch in results.patches
            ),
        ),
        ("Made with", ", ".join(f"{name} {version}" for name, version in versions.items())),
    ]
    return [(name, value) for name, value in facts if value]
