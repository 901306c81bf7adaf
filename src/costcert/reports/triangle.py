"""Votes of masks as a triangle: one cell per pair of masks, and the rows that decide."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from costcert.geometry.ablations import Masks, Region
from costcert.reports.colours import PAPER, QUIET, TRUE
from costcert.reports.examples import Example
from costcert.reports.standing import Standing

# With more masks than this a cell would be smaller than three pixels.
_MOST_MASKS = 72


def outlines(example: Example, stand: Standing, scale: float, colour: Callable[[int], str]) -> str:
    """The masks that cover the patch, and the mask of the best rival's row, on the image."""
    masks = example.votes.ablation
    assert isinstance(masks, Masks)
    regions = masks.masks(example.votes.image_size)
    drawn = [_outline(regions[row], scale, TRUE, dashed=row != stand.least_row) for row in stand.safe]
    rival = _rival(example, stand)
    if rival is not None:
        drawn.append(_outline(regions[int(stand.most_rows[rival])], scale, colour(rival), dashed=True))
    return "".join(drawn)


def triangle(
    example: Example, stand: Standing, wide: float, top: float, colour: Callable[[int], str]
) -> tuple[str, float]:
    """Mutant (i, j) at row i and column j, and the lower end of the drawing.

    Cells of the attacker are pale. Row i of the theorem goes down column i to the diagonal and then right.
    """
    masks = example.votes.ablation
    assert isinstance(masks, Masks)
    count = masks.num_masks
    if count > _MOST_MASKS:
        text = f"{example.votes.num_mutants:,} pairs of masks, too many to draw"
        return f'<text x="0" y="{top + 12:.0f}" font-size="11" fill="{QUIET}">{text}</text>', top + 18
    cell = wide / count
    touched = set(stand.touched.tolist())
    cells = []
    for i, row in enumerate(masks.table().tolist()):
        for j, mutant in enumerate(row):
            if j < i:
                continue
            label = int(example.votes.ballots[0, mutant])
            at = f'x="{j * cell:.2f}" y="{top + i * cell:.2f}" width="{cell:.2f}" height="{cell:.2f}"'
            hidden = f"mask {i}" if i == j else f"masks {i} and {j}"
            whose = ", the attacker’s" if mutant in touched else ""
            cells.append(
                f'<rect {at} fill="{colour(label)}" fill-opacity="{0.25 if whose else 1}" stroke="{PAPER}" '
                f'stroke-width="{min(1.0, cell / 8):.2f}">'
                f"<title>{hidden} hidden: {escape(example.name(label))}{whose}</title></rect>"
            )
    cells += [_dot(row, cell, top, row in stand.standing) for row in stand.safe.tolist()]
    rival = _rival(example, stand)
    if rival is not None:
        cells.append(_hook(int(stand.most_rows[rival]), count, cell, top, colour(rival), dashed=True))
    if stand.least_row is not None:
        cells.append(_hook(stand.least_row, count, cell, top, TRUE, dashed=False))
    keys: list[tuple[str | None, str, bool] | None] = [
        (TRUE, "the best safe row", False),
        (colour(rival), "a rival’s best row", True) if rival is not None else None,
        (None, "hides the patch", False),
    ]
    lines = [key for key in keys if key is not None]
    first = top + wide - 18 * len(lines) + 12
    cells += [_key(*key, first + 18 * number) for number, key in enumerate(lines)]
    return "".join(cells), top + wide


def _rival(example: Example, stand: Standing) -> int | None:
    """The rival that can score most, if any can score at all."""
    rivals = stand.rivals(example.truth)
    return rivals[0] if rivals and stand.most[rivals[0]] > 0 else None


def _outline(mask: Region, scale: float, colour: str, *, dashed: bool) -> str:
    (top, height), (left, width) = mask.rows, mask.columns
    dashes = ' stroke-dasharray="5 3"' if dashed else ""
    return (
        f'<rect x="{left * scale:.1f}" y="{top * scale:.1f}" width="{width * scale:.1f}" '
        f'height="{height * scale:.1f}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>'
    )


def _hook(row: int, count: int, cell: float, top: float, colour: str, *, dashed: bool) -> str:
    """The outline of a row: down its column to the diagonal, then right."""
    corners = [(row, 0), (row + 1, 0), (row + 1, row), (count, row), (count, row + 1), (row, row + 1)]
    path = "L".join(f"{x * cell:.2f} {top + y * cell:.2f}" for x, y in corners)
    dashes = ' stroke-dasharray="4 2"' if dashed else ""
    return (
        f'<path d="M{path}Z" fill="none" stroke="{colour}" stroke-width="2"{dashes} pointer-events="none"/>'
    )


def _dot(row: int, cell: float, top: float, stands: bool) -> str:
    """A mark on the diagonal for a mask that hides the patch; it is filled where the row stands."""
    middle = (row + 0.5) * cell
    fill = "currentColor" if stands else PAPER
    return (
        f'<circle cx="{middle:.2f}" cy="{top + middle:.2f}" r="{min(4.0, cell / 3.2):.2f}" fill="{fill}" '
        'stroke="currentColor" stroke-width="1" pointer-events="none"/>'
    )


def _key(colour: str | None, meaning: str, dashed: bool, y: float) -> str:
    dashes = ' stroke-dasharray="4 2"' if dashed else ""
    mark = (
        f'<circle cx="7" cy="{y - 5:.1f}" r="4.5" fill="currentColor"/>'
        if colour is None
        else f'<path d="M0 {y - 5:.1f}h16" stroke="{colour}" stroke-width="2.5"{dashes}/>'
    )
    return f'{mark}<text x="22" y="{y:.1f}" font-size="14">{escape(meaning)}</text>'
