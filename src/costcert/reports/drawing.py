"""Drawings of single images as SVG: the patch on the image, the ballots, and the votes of the labels."""

from __future__ import annotations

import io
from html import escape
from itertools import pairwise
from typing import cast

import numpy as np
import numpy.typing as npt

from costcert.geometry.ablations import Masks, Region
from costcert.reports.colours import ATTACKER, EMPTY, OTHER, PAPER, QUIET, RIVALS, TRUE
from costcert.reports.examples import Bar, Example
from costcert.reports.figures.layout import shortened
from costcert.reports.rendering import data_url
from costcert.reports.standing import Standing
from costcert.reports.triangle import outlines, triangle
from costcert.votes.originals import reached
from costcert.votes.table import Votes

_SIDE = 224
# With more ballots than this each would be thinner than a line.
_MOST_DRAWN = 448
# Letters of a name beside a bar.
_LONGEST = 15


def picture(example: Example, number: str) -> str:
    """The image with the patch at its worst place, and the ballots of its mutants below."""
    height, width = example.votes.image_size
    scale = _SIDE / max(height, width)
    tall, wide = height * scale, width * scale
    image = _image(example.pixels, wide, tall)
    patches = "".join(
        f'<rect x="{piece.left * scale:.1f}" y="{piece.top * scale:.1f}" '
        f'width="{piece.width * scale:.1f}" height="{piece.height * scale:.1f}" '
        f'fill="url(#hatch-{number})" stroke="{ATTACKER}" stroke-width="2"/>'
        for piece in reached(example.votes, example.patch, example.attack.places)
    )
    if isinstance(example.attack, Standing):

        def colour(label: int) -> str:
            return _colour(example, label)

        masks = outlines(example, example.attack, scale, colour)
        below, bottom = triangle(example, example.attack, wide, tall + 10, colour)
    else:
        masks = ""
        below, bottom = _strip(example, wide, tall + 10)
    description = f"{example.name(example.truth)}, with the patch at its worst place and the ballots below"
    return (
        f'<svg viewBox="-2 -2 {_SIDE + 4} {bottom + 4:.0f}" fill="currentColor" role="img" '
        f'aria-label="{escape(description)}">'
        f"{_hatch(number)}{image}{patches}{masks}{below}</svg>"
    )


def bars(example: Example, number: str) -> str:
    """Bars of the clean votes of the strongest labels, and the votes that the attacker adds.

    Of masks, what the true label scores at least, and rivals with and without the patch at most.

    The numbers are in a column of their own, which the dashed line does not cross.
    """
    shown = example.bars()
    colours = _colours(example)
    most = max(bar.clean + bar.added for bar in shown) or 1.0
    step, left, length, right = 26, 130, 120, 350
    parts = []
    for row, bar in enumerate(shown):
        y = 20 + row * step
        clean, added = bar.clean / most * length, bar.added / most * length
        weight = "bold" if bar.is_true else "normal"
        colour = TRUE if bar.is_true else colours.get(bar.name, OTHER)
        parts.append(
            f'<text x="{left - 8}" y="{y + 12}" text-anchor="end" font-weight="{weight}">'
            f"{escape(shortened(bar.name, _LONGEST))}<title>{escape(bar.name)}</title></text>"
            f'<rect x="{left}" y="{y}" width="{clean:.1f}" height="16" fill="{colour}"/>'
            f'<rect x="{left + clean:.1f}" y="{y}" width="{added:.1f}" height="16" '
            f'fill="url(#hatch-{number}-bars)" stroke="{ATTACKER}" stroke-width="{1 if added else 0}"/>'
            f'<text x="{right}" y="{y + 12}" text-anchor="end" fill="{QUIET}">{escape(_count(bar))}</text>'
        )
    level = left + shown[0].clean / most * length
    bottom = 20 + len(shown) * step
    parts.append(
        f'<path class="level" d="M{level:.1f} 16V{bottom - 4}" stroke="currentColor" stroke-dasharray="3 3"/>'
    )
    is_scored = isinstance(example.attack, Standing)
    unit = "score + what the patch can add" if is_scored else "clean votes + the attacker’s"
    description = f"{'Scores' if is_scored else 'Votes'}: " + ", ".join(
        f"{bar.name} {_count(bar)}" for bar in shown
    )
    return (
        f'<svg viewBox="0 0 {right} {bottom + 4}" fill="currentColor" role="img" '
        f'aria-label="{escape(description)}" font-size="13.5">'
        f"{_hatch(f'{number}-bars')}"
        f'<text x="{right}" y="10" text-anchor="end" fill="{QUIET}" font-size="12.5">'
        f"{unit}</text>{''.join(parts)}</svg>"
    )


def _strip(example: Example, wide: float, top: float) -> tuple[str, float]:
    """One cell per mutant, below its first column if mutants keep columns; touched ones are underlined."""
    votes = example.votes
    count = votes.num_mutants
    if count > _MOST_DRAWN:
        text = f"{count:,} ballots, too many to draw"
        return f'<text x="0" y="{top + 12:.0f}" font-size="11" fill="{QUIET}">{text}</text>', top + 18
    starts = [] if isinstance(votes.ablation, Masks) else _starts(votes)
    if len(set(starts)) == count > 1:
        cell = wide / votes.image_size[1]
        places = [start * cell for start in starts]
        cell *= min(b - a for a, b in pairwise(starts))
    else:
        cell = wide / count
        places = [index * cell for index in range(count)]
    touched = set(example.attack.touched.tolist())
    cells = []
    for index, x in enumerate(places):
        label = int(votes.ballots[0, index])
        cells.append(
            f'<rect x="{x:.2f}" y="{top:.0f}" width="{cell:.2f}" height="16" '
            f'fill="{_colour(example, label)}" '
            f'stroke="{PAPER}" stroke-width="{min(1.0, cell / 8):.2f}"><title>{index}: '
            f"{escape(example.name(label))}</title></rect>"
        )
        if index in touched:
            cells.append(
                f'<rect x="{x:.2f}" y="{top + 18:.0f}" width="{cell:.2f}" height="4" fill="{ATTACKER}"/>'
            )
    return "".join(cells), top + 22


def _starts(votes: Votes) -> list[int]:
    """The first column of each mutant."""
    regions = cast(list[Region], votes.ablation.regions(votes.image_size))
    return [region.columns.start for region in regions]


def _colour(example: Example, label: int) -> str:
    return TRUE if label == example.truth else _colours(example).get(example.name(label), OTHER)


def _colours(example: Example) -> dict[str, str]:
    rivals = [bar.name for bar in example.bars() if not bar.is_true]
    return dict(zip(rivals, RIVALS, strict=False))


def _hatch(name: str) -> str:
    return (
        f'<defs><pattern id="hatch-{name}" width="5" height="5" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="5" height="5" fill="{PAPER}" fill-opacity=".75"/>'
        f'<line x1="0" y1="0" x2="0" y2="5" stroke="{ATTACKER}" stroke-width="3"/></pattern></defs>'
    )


def _image(pixels: npt.NDArray[np.uint8] | None, wide: float, tall: float) -> str:
    if pixels is None:
        return (
            f'<rect width="{wide:.0f}" height="{tall:.0f}" fill="{EMPTY}" stroke="{OTHER}"/>'
            f'<text x="{wide / 2:.0f}" y="{tall / 2:.0f}" text-anchor="middle" font-size="11" fill="{QUIET}">'
            "image not available</text>"
        )
    return (
        f'<image width="{wide:.0f}" height="{tall:.0f}" preserveAspectRatio="none" '
        f'style="image-rendering:pixelated" href="{_embedded(pixels)}"/>'
    )


def _embedded(pixels: npt.NDArray[np.uint8]) -> str:
    """A URL that contains the pixels."""
    from PIL import Image

    plain = pixels[..., 0] if pixels.shape[-1] == 1 else pixels
    file = io.BytesIO()
    # Large photographs as JPEG, which is smaller; small images as PNG, which keeps every pixel.
    file_format = "PNG" if plain.shape[0] * plain.shape[1] <= 64 * 64 else "JPEG"
    options = {"quality": 85} if file_format == "JPEG" else {"optimize": True}
    Image.fromarray(plain).save(file, file_format, **options)
    return data_url(file.getvalue(), f"image/{file_format.lower()}")


def _count(bar: Bar) -> str:
    return f"{_votes(bar.clean)} + {_votes(bar.added)}" if bar.added else _votes(bar.clean)


def _votes(votes: float) -> str:
    """A number of votes; those of soft ballots are fractions, of which two digits matter to a reader."""
    if 0 < votes < 0.005:
        return "<0.01"
    return f"{votes:.0f}" if votes == int(votes) else f"{votes:.2f}"
