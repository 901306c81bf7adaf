"""The report: one HTML file that opens from disk, prints well and asks nobody for anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from costcert import __version__
from costcert.errors import CostcertError
from costcert.reports import drawing, summary
from costcert.reports.examples import Example
from costcert.reports.figures import COLUMN, PAGE, figures, svg
from costcert.reports.published import Published
from costcert.reports.results import Results
from costcert.reports.style import defender_title
from costcert.reports.tables import STYLE, PaperTable, html, paper_table
from costcert.reports.tables.provenance import Data, model_name
from costcert.store.files import atomic_write
from costcert.store.locations import Location

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = "page.html.j2"

_HIDDEN = {
    "zero": "0 after normalisation",
    "black": "black",
    "mean": "of the mean colour",
    "drop-tokens": "not shown: tokens that see none of the kept pixels are dropped",
    "crop": "not shown: each part is cut out",
}


@dataclass(frozen=True)
class Run:
    """One run on the page."""

    results: Results
    examples: Sequence[Example] = field(default_factory=list)


def page(
    runs: Sequence[Run],
    *,
    ks: Iterable[int] = range(1, 6),
    published: Published | None = None,
    mixed: bool = False,
    title: str | None = None,
    compared: Callable[..., Figure] | None = None,
) -> str:
    """The page as text; the first run is the one the headline speaks of.

    Args:
        compared: draws the runs side by side, as wide as it is told.
    """
    main = runs[0].results
    found = summary.headline(main)
    table = paper_table([run.results for run in runs], ks, published, mixed=mixed)
    text: str = _template(TEMPLATE).render(
        title=title or f"What a sticker cannot do: {Data.of(main).name or main.name}",
        promise=summary.promise(main, found),
        found=found,
        by_whom=defender_title(found.defender),
        clean=_clean(main, found),
        facts=_facts(main),
        table=html(table),
        table_style=STYLE,
        compared=_compared(compared),
        runs=[_section(run, number) for number, run in enumerate(runs)],
        several=len(runs) > 1,
        version=__version__,
        soft=main.classifier.soft is not None,
        doubt=main.manifest.get("epsilon") is not None or bool(main.manifest.get("tau")),
        ties=main.classifier.ties,
    )
    return text


def table_page(table: PaperTable, title: str, *, compared: Callable[..., Figure] | None = None) -> str:
    """A page with one table on it, such as a leaderboard, and the same as a figure."""
    text: str = _template("table.html.j2").render(
        title=title, table=html(table), table_style=STYLE, version=__version__, compared=_compared(compared)
    )
    return text


def write_page(path: Location, text: str) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _template(name: str) -> Any:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise CostcertError("the page needs jinja2: pip install 'costcert[report]'") from None
    surroundings = Environment(
        loader=PackageLoader("costcert.reports", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return surroundings.get_template(name)


def _clean(results: Results, found: summary.Headline) -> float:
    return float(results.tally.ranks[found.defender, found.patch][: found.k + 1].sum()) / results.images


def _compared(draw: Callable[..., Figure] | None) -> list[dict[str, str]]:
    return [] if draw is None else [_in_both_widths("comparison", draw(width=PAGE), draw(width=COLUMN))]


def _in_both_widths(name: str, broad: Figure, narrow: Figure) -> dict[str, str]:
    return {"broad": svg(broad, prefix=name), "narrow": svg(narrow, prefix=f"{name}-n")}


def _section(run: Run, number: int) -> dict[str, Any]:
    results = run.results
    return {
        "name": results.name,
        "figures": [
            _in_both_widths(f"{number}-{name}", broad, narrow)
            for (name, broad), narrow in zip(
                figures(results, width=PAGE).items(), figures(results, width=COLUMN).values(), strict=True
            )
        ],
        "examples": [
            {
                "id": example.image_id,
                "why": example.why,
                "truth": example.name(example.truth),
                "words": _in_words(example),
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
        "classes": results.num_classes,
    }


def _in_words(example: Example) -> str:
    budget, mutants = len(example.attack.touched), example.votes.num_mutants
    sticker = summary.sticker(str(example.patch), example.votes.image_size)
    name = example.name(example.truth)
    if example.lifted == 0:
        end = f"that is not enough to bring any rival level with “{name}”."
    else:
        rivals = "one rival" if example.lifted == 1 else f"{example.lifted} rivals"
        end = (
            f"with them the attacker brings {rivals} level with “{name}” or above it, so the promise is the "
            f"top {example.lifted + 1}."
        )
    return f"At its worst place the {sticker} touches {budget} of {mutants} votes; {end}"


def _facts(results: Results) -> list[tuple[str, str]]:
    """What was tested, a line each; what nobody wrote down is left out."""
    made: Mapping[str, Any] = results.votes.get("made") or {}
    model: Mapping[str, Any] = made.get("model") or {}
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
                f"{patch} ({100 * summary.share_of_area(patch, results.image_size):.2g} % of the image)"
                for patch in results.patches
            ),
        ),
        ("Made with", ", ".join(f"{name} {number}" for name, number in (made.get("versions") or {}).items())),
    ]
    return [(name, value) for name, value in facts if value]
