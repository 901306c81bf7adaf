"""Several runs in one table, sorted by certified accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from costcert.errors import CostcertError
from costcert.geometry.patches import certified_patch
from costcert.reports.published import Published
from costcert.reports.results import Results
from costcert.reports.tables.as_markdown import escaped, markdown
from costcert.reports.tables.comparison import METRICS, Comparison, Entry
from costcert.reports.tables.layout import UNKNOWN, PaperTable, Row, with_best


def leaderboard(
    results: Sequence[Results],
    ks: Iterable[int] = (1, 5),
    published: Published | None = None,
    confidence: float = 0.95,
    *,
    by: tuple[str, int] | None = None,
    mixed: bool = False,
) -> PaperTable:
    """One row per defender and run, sorted by certified accuracy, best first.

    Args:
        published: rows of the paper to add, for patches that cover the same share of the image.
        by: the patch and the k to sort by, the first ones by default; the other columns break ties.
        mixed: allow runs on different datasets, whose numbers are not comparable.
    """
    comparison = Comparison.of(results, ks, published=published, mixed=mixed, confidence=confidence)
    first = (0, comparison.ks[0]) if by is None else _column(comparison, *by)
    pairs = [(threat, k) for threat in range(len(comparison.threats)) for k in comparison.ks]
    columns = [(metric, *pair) for metric in METRICS for pair in pairs]

    def certified(entry: Entry) -> list[float]:
        cells = [entry.cell("certified", *pair) for pair in (first, *pairs)]
        return [-1.0 if cell.value is None else cell.value for cell in cells]

    data = list(dict.fromkeys(entry.data for entry in comparison.entries))
    # If all rows are on the same data, the caption names it instead of a column.
    is_mixed = len(data) > 1
    rows = [
        Row(
            labels=(
                entry.run,
                entry.model or UNKNOWN,
                *([entry.data] if is_mixed else []),
                entry.title,
                UNKNOWN if entry.passes is None else f"{entry.passes:,}",
            ),
            cells=tuple(entry.cell(*column) for column in columns),
            is_published=entry.is_published,
        )
        for entry in sorted(comparison.entries, key=certified, reverse=True)
    ]
    return PaperTable(
        caption=f"Clean and certified accuracy in %{'' if is_mixed else f' on {data[0]}'}, sorted by "
        f"certified top-{first[1]} against {comparison.threats[first[0]].patch}",
        stub=("run", "model", *(["data"] if is_mixed else []), "defender", "passes per image"),
        columns=tuple((metric, str(comparison.threats[threat]), f"top-{k}") for metric, threat, k in columns),
        rows=tuple(with_best(rows)),
        notes=comparison.notes,
        confidence=confidence,
    )


def leaderboard_markdown(table: PaperTable, *, intervals: bool = False) -> str:
    """A leaderboard in Markdown, patch by patch, because all columns side by side are too wide to read."""
    parts = [markdown(part, intervals=intervals) for part in table.by_patch()]
    return "\n".join([f"{escaped(table.caption)}.\n", *parts])


def _column(comparison: Comparison, patch: str, k: int) -> tuple[int, int]:
    for number, threat in enumerate(comparison.threats):
        if certified_patch(patch, threat.image_size) == threat.patch and k in comparison.ks:
            return number, k
    raise CostcertError(
        f"cannot sort by top-{k} against {patch}, which is not a column: choose a k of "
        f"{', '.join(map(str, comparison.ks))} and a patch of "
        f"{', '.join(str(threat.patch) for threat in comparison.threats)}"
    )
