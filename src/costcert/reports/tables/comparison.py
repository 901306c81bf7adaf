"""Every defender of every run, and of the paper, with common columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from costcert.errors import CostcertError
from costcert.geometry.sizes import positive_int
from costcert.reports.published import Published
from costcert.reports.resizing import resizing_notes
from costcert.reports.results import Results
from costcert.reports.style import defender_title
from costcert.reports.tables.layout import Cell
from costcert.reports.tables.patch_matching import MATCH_RULE, Threat, match_patches
from costcert.reports.tables.provenance import Data, difference, model_name, run_names, unlike_published

# In the order of columns: certified first, so that it is in view on a narrow screen, too.
METRICS = ("certified", "clean")


@dataclass(frozen=True)
class Entry:
    """One defender of one run.

    Args:
        defender: the name, by which entries of several runs are grouped.
        cells: by (metric, number of the patch, k); missing values were not measured.
    """

    run: str
    model: str | None
    data: str
    defender: str
    title: str
    passes: int | None
    cells: Mapping[tuple[str, int, int], Cell]
    is_published: bool = False

    def cell(self, metric: str, threat: int, k: int) -> Cell:
        return self.cells.get((metric, threat, k), Cell())


@dataclass(frozen=True)
class Comparison:
    """Entries in the order of the runs, those of the paper last, and notes about them."""

    threats: tuple[Threat, ...]
    ks: tuple[int, ...]
    entries: tuple[Entry, ...]
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        runs: Sequence[Results],
        ks: Iterable[int],
        *,
        published: Published | None,
        mixed: bool,
        confidence: float,
    ) -> Comparison:
        if not runs and published is None:
            raise CostcertError("there is no run to show: pass the results of one, or published numbers")
        notes = []
        if reason := difference(runs, published):
            if not mixed:
                raise CostcertError(f"{reason}: pass runs on the same data, or allow mixed data")
            notes.append(f"These numbers are not comparable: {reason}.")
        elif published is not None and (doubt := unlike_published(runs, published)):
            notes.append(doubt)
        ks = _possible_ks(ks, runs, published)
        threats: list[Threat] = []
        entries: list[Entry] = []
        for results, name in zip(runs, run_names(runs), strict=True):
            entries += _of_run(results, name, ks, threats, confidence)
        notes += [
            f"{threat.patch} of {threat.run} is a column of its own, because "
            + (
                "its originals have other sizes."
                if all(each.originals for each in threats if each.patch == threat.patch)
                else "it is not known whether all originals have the same sizes: pass --votes of all runs."
            )
            for threat in threats
            if threat.run
        ]
        notes += dict.fromkeys(note for results in runs for note in resizing_notes(results))
        if published is not None:
            printed = [Threat(each.patch, published.image_size) for each in published.patches]
            if not runs:
                threats = printed
            pairs = match_patches(printed, threats)
            rows = _of_paper(published, ks, pairs)
            entries += rows
            notes += _sources(published, rows) + (_matches(published, pairs, threats) if runs else [])
        if not entries:
            raise CostcertError(f"nothing is published for k of {', '.join(map(str, ks))}: choose 1 to 5")
        return cls(tuple(threats), tuple(ks), tuple(entries), tuple(notes))


def _possible_ks(ks: Iterable[int], runs: Sequence[Results], published: Published | None) -> list[int]:
    """The requested k that do not exceed the number of classes."""
    requested = list(dict.fromkeys(positive_int(k, "k") for k in ks))
    classes = max(
        [results.num_classes for results in runs] + ([published.classes] if published is not None else [])
    )
    kept = [k for k in requested if k <= classes]
    if not kept:
        raise CostcertError(
            f"got k of {requested}, but there are {classes} classes: pass a smaller k"
            if requested
            else "got no k: pass at least one, as in ks=[1, 5]"
        )
    return kept


def _of_run(
    results: Results, name: str, ks: list[int], threats: list[Threat], confidence: float
) -> list[Entry]:
    """The defenders of one run; appends the patches that match none of `threats` to them."""
    pictures = results.provenance.get("data")
    digest = pictures.get("digest") if isinstance(pictures, Mapping) else None
    own = [
        Threat.of(patch, results.image_size)._replace(originals=frozenset(results.originals), data=digest)
        for patch in results.patches
    ]
    columns = match_patches(own, threats)
    for number, threat in enumerate(own):
        if number not in columns:
            again = threat.is_pixels_of_original and any(threat.patch == other.patch for other in threats)
            columns[number] = len(threats)
            threats.append(threat._replace(run=name) if again else threat)
    column_of = {patch: columns[number] for number, patch in enumerate(results.patches)}
    cells: dict[str, dict[tuple[str, int, int], Cell]] = {defender: {} for defender in results.defenders}
    for row in results.accuracy(ks, confidence=confidence).to_dict(orient="records"):
        for metric in METRICS:
            cells[row["defender"]][metric, column_of[row["patch"]], row["k"]] = Cell(
                row[metric], row[f"{metric}_low"], row[f"{metric}_high"]
            )
    return [
        Entry(
            run=name,
            model=model_name(results),
            data=str(Data.of(results)),
            defender=defender,
            title=defender_title(defender),
            passes=results.passes,
            cells=cells[defender],
        )
        for defender in results.defenders
    ]


def _of_paper(published: Published, ks: list[int], pairs: Mapping[int, int]) -> list[Entry]:
    entries = []
    for defender in published.defenders:
        cells = {
            (metric, pairs[number], k): Cell(published.shares[key])
            for number, patch in enumerate(published.patches)
            for metric in METRICS
            for k in ks
            if number in pairs and (key := (defender.name, metric, patch.spelled, k)) in published.shares
        }
        if cells:
            entries.append(
                Entry(
                    run=published.cited(defender),
                    model=defender.model,
                    data=str(Data.published(published)),
                    defender=defender.defender,
                    title=defender.name,
                    passes=published.passes(defender),
                    cells=cells,
                    is_published=True,
                )
            )
    return entries


def _sources(published: Published, rows: Sequence[Entry]) -> list[str]:
    """The citation of the paper and what its defenders are, if any of its rows is shown."""
    names = {row.title for row in rows}
    descriptions = [
        f"{defender.name}: {defender.description}, {defender.model}"
        for defender in published.defenders
        if defender.name in names
    ]
    cited = "" if published.source.table is None else f"{published.source.short}: "
    source = f"{cited}{published.source}; {Data.published(published)}"
    return [f"{source}. {'; '.join(descriptions)}."] if descriptions else []


def _matches(published: Published, pairs: Mapping[int, int], threats: Sequence[Threat]) -> list[str]:
    """Which column each patch of the paper is in, and which patches are left out."""
    matched, missing = [], []
    for number, patch in enumerate(published.patches):
        if number in pairs:
            matched.append(f"{patch} is in the column of {threats[pairs[number]].patch}")
        else:
            missing.append(str(patch))
    notes = [f"Published numbers are matched by {MATCH_RULE}: {', '.join(matched) or 'none are'}."]
    if missing:
        notes.append(
            f"Left out, because no run has such squares: published numbers for {', '.join(missing)}."
        )
    return notes
