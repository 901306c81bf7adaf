"""The table of the paper: one block of rows per k, clean and certified accuracy per patch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from costcert.reports.published import Published
from costcert.reports.results import Results
from costcert.reports.tables.comparison import METRICS, Comparison, Entry
from costcert.reports.tables.layout import PaperTable, Row, with_best


def paper_table(
    results: Sequence[Results],
    ks: Iterable[int] = range(1, 6),
    published: Published | None = None,
    confidence: float = 0.95,
    *,
    mixed: bool = False,
) -> PaperTable:
    """Rows by k and defender, columns by metric and patch; without results, the published table only.

    Args:
        published: rows to add next to the same defender, for patches that cover the same share of the image.
        mixed: allow runs on different datasets, whose numbers are not comparable.
    """
    comparison = Comparison.of(results, ks, published=published, mixed=mixed, confidence=confidence)
    columns = [(metric, threat) for metric in METRICS for threat in range(len(comparison.threats))]
    is_several = len({entry.run for entry in comparison.entries}) > 1
    rows: list[Row] = []
    for k in comparison.ks:
        block = [
            Row(
                labels=(f"Top-{k}", entry.title, *([entry.run] if is_several else [])),
                cells=tuple(entry.cell(metric, threat, k) for metric, threat in columns),
                is_published=entry.is_published,
            )
            for entry in _by_defender(comparison.entries)
            if any(key[2] == k for key in entry.cells)
        ]
        rows += with_best(block)
    return PaperTable(
        caption=f"Clean and certified accuracy in % on {comparison.entries[0].data}: the true label is in "
        "the top k; and stays there whatever the patch shows, wherever it lies",
        stub=("k", "defender", *(["run"] if is_several else [])),
        columns=tuple((metric, str(comparison.threats[threat])) for metric, threat in columns),
        rows=tuple(rows),
        notes=comparison.notes,
        confidence=confidence,
        is_grouped=True,
    )


def _by_defender(entries: Sequence[Entry]) -> list[Entry]:
    """Sorted so that rows of the same defender are next to each other, those of the paper last."""
    own = list(dict.fromkeys(entry.defender for entry in entries if not entry.is_published))
    places = {defender: place for place, defender in enumerate(own)}
    return sorted(entries, key=lambda entry: places.get(entry.defender, len(places)))
