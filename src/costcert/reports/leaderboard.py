"""Several runs side by side, the best certified first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from costcert.errors import CostcertError
from costcert.geometry.patches import concrete
from costcert.reports.published import Published
from costcert.reports.results import Results
from costcert.reports.tables.comparison import METRICS, Entry, Lineup
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
    """A row for each defender of each run, sorted by certified accuracy.

    Args:
        published: rows of the paper to add, where a patch is of the same share.
        by: the patch and the k to sort by, the first ones by default; then the other columns decide.
        mixed: allow runs on different data, whose numbers do not compare.
    """
    lineup = Lineup.of(results, ks, published=published, mixed=mixed, confidence=confidence)
    first = (0, lineup.ks[0]) if by is None else _column(lineup, *by)
    cases = [(threat, k) for threat in range(len(lineup.threats)) for k in lineup.ks]
    columns = [(metric, *case) for metric in METRICS for case in cases]

    def certified(entry: Entry) -> list[float]:
        cells = [entry.cell("certified", *case) for case in (first, *cases)]
        return [-1.0 if cell.value is None else cell.value for cell in cells]

    data = list(dict.fromkeys(entry.data for entry in lineup.entries))
    # Where all rows are on the same data the caption says so, and a column would only repeat it.
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
        for entry in sorted(lineup.entries, key=certified, reverse=True)
    ]
    return PaperTable(
        caption=f"Clean and certified accuracy in %{'' if is_mixed else f' on {data[0]}'}, sorted by "
        f"certified top-{first[1]} against {lineup.threats[first[0]].patch}",
        stub=("run", "model", *(["data"] if is_mixed else []), "defender", "passes per image"),
        columns=tuple((metric, str(lineup.threats[threat]), f"top-{k}") for metric, threat, k in columns),
        rows=tuple(with_best(rows)),
        notes=lineup.notes,
        confidence=confidence,
    )


def _column(lineup: Lineup, patch: str, k: int) -> tuple[int, int]:
    for number, threat in enumerate(lineup.threats):
        if concrete(patch, threat.image_size) == threat.patch and k in lineup.ks:
            return number, k
    raise CostcertError(
        f"cannot sort by top-{k} against {patch}, which is not shown: choose a k of "
        f"{', '.join(map(str, lineup.ks))} and a patch of "
        f"{', '.join(str(threat.patch) for threat in lineup.threats)}"
    )
