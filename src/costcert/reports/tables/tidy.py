"""Accuracy for other programs: tidy rows with all digits, as CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any

from costcert.geometry.sizes import shown
from costcert.reports.published import Published
from costcert.reports.results import Results
from costcert.reports.tables.layout import PaperTable
from costcert.reports.tables.patch_matching import Threat
from costcert.reports.tables.provenance import Data, model_name, run_names

FORMAT = "costcert accuracy"

# In the order of `Certificates.accuracy`.
METRICS = ("clean", "certified")


def tidy_rows(
    results: Sequence[Results],
    ks: Iterable[int] = range(1, 6),
    published: Published | None = None,
    confidence: float = 0.95,
) -> list[dict[str, Any]]:
    """One row per run, defender, patch and k; unknown values are None."""
    ks = list(ks)
    rows = [
        {
            "run": name,
            "is_published": False,
            "model": model_name(run),
            "data": Data.of(run).name,
            "images": run.images,
            "classes": run.num_classes,
            "defender": row["defender"],
            "passes": run.passes,
            "patch": row["patch"],
            "image_size": shown(run.image_size),
            "area_share": Threat.of(row["patch"], run.image_size).share,
            "k": row["k"],
            **{
                f"{metric}{end}": row[f"{metric}{end}"] for metric in METRICS for end in ("", "_low", "_high")
            },
        }
        for run, name in zip(results, run_names(results), strict=True)
        for row in run.accuracy(ks, confidence=confidence).to_dict(orient="records")
    ]
    return rows if published is None else rows + _published_rows(published, ks)


def _published_rows(published: Published, ks: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {
            "run": published.cited(defender),
            "is_published": True,
            "model": defender.model,
            "data": Data.published(published).name,
            "images": published.images,
            "classes": published.classes,
            "defender": defender.name,
            "passes": published.passes(defender),
            "patch": str(patch.patch),
            "image_size": shown(published.image_size),
            "area_share": Threat(patch.patch, published.image_size).share,
            "k": k,
            **{
                f"{metric}{end}": None if end else published.shares[defender.name, metric, patch.spelled, k]
                for metric in METRICS
                for end in ("", "_low", "_high")
            },
        }
        for defender in published.defenders
        for patch in published.patches
        for k in ks
        if (defender.name, "clean", patch.spelled, k) in published.shares
    ]


def csv_text(
    results: Sequence[Results],
    ks: Iterable[int] = range(1, 6),
    published: Published | None = None,
    confidence: float = 0.95,
) -> str:
    """`tidy_rows` as CSV; unknown values are empty."""
    rows = tidy_rows(results, ks, published, confidence)
    return _csv([list(rows[0]), *(list(row.values()) for row in rows)]) if rows else ""


def json_text(
    results: Sequence[Results],
    ks: Iterable[int] = range(1, 6),
    published: Published | None = None,
    confidence: float = 0.95,
) -> str:
    """`tidy_rows` as JSON, with the source of published numbers."""
    content = {
        "format": FORMAT,
        "confidence": confidence,
        "published": None if published is None else published.source.full,
        "accuracy": tidy_rows(results, ks, published, confidence),
    }
    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def csv_table(table: PaperTable) -> str:
    """A table with its layout, but with all digits."""
    headings = [" ".join(levels) for levels in table.columns]
    ends = [f"{heading}{end}" for heading in headings for end in ("", " low", " high")]
    return _csv(
        [
            [*table.stub, *ends],
            *(
                [*row.labels, *(value for cell in row.cells for value in (cell.value, cell.low, cell.high))]
                for row in table.rows
            ),
        ]
    )


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
