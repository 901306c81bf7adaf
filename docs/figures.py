"""Draws the figures of README.md, theory.md and guide.md; the library computes every number in them.

python docs/figures.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import costcert as cc
from costcert.geometry.ablations import Segment
from costcert.geometry.footprints import footprint
from costcert.geometry.preparation import Preparation
from costcert.geometry.touch import touched

# The palette of Okabe and Ito, which colour-blind readers can distinguish; touched mutants are also dashed.
CLEAN, TOUCHED, PATCH, TRUTH = "#0072B2", "#E69F00", "#D55E00", "#009E73"
INK, PAPER, LINE, MASK = "#1b1f24", "#ffffff", "#c9ced6", "#6b737d"


def text(
    x: float,
    y: float,
    content: str,
    *,
    size: int = 14,
    weight: int = 400,
    anchor: str = "start",
    colour: str = INK,
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{colour}">{content}</text>'
    )


def box(
    x: float,
    y: float,
    width: float,
    height: float,
    *,
    fill: str = "none",
    opacity: float = 1,
    stroke: str = "none",
    dashed: bool = False,
    line: float = 2,
) -> str:
    dashes = ' stroke-dasharray="5 3"' if dashed else ""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" fill="{fill}" '
        f'fill-opacity="{opacity:g}" stroke="{stroke}" stroke-width="{line:g}"{dashes}/>'
    )


def grid(x: float, y: float, columns: int, rows: int, cell: float) -> str:
    """The pixels of an image."""
    right, bottom = x + columns * cell, y + rows * cell
    lines = [f"M{x + i * cell:g} {y:g}V{bottom:g}" for i in range(columns + 1)]
    lines += [f"M{x:g} {y + i * cell:g}H{right:g}" for i in range(rows + 1)]
    return f'<path d="{"".join(lines)}" stroke="{LINE}" fill="none"/>'


def card(width: int, height: int, label: str, parts: list[str]) -> str:
    """An SVG with a white background, so that it is legible on a dark page too."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="Helvetica, Arial, sans-serif" role="img" aria-label="{label}">'
        f'<rect width="{width}" height="{height}" rx="6" fill="{PAPER}"/>' + "".join(parts) + "</svg>\n"
    )


def touched_at(
    ablation: cc.Columns | cc.Blocks, side: int, size: tuple[int, int], top: int, left: int
) -> set[int]:
    """T_p of a square with this upper left corner, as the library computes it."""
    sets = touched(ablation, cc.Square(side), size)
    found = {(int(p[0, 0]), int(p[0, 1])): mask for p, mask in zip(sets.places, sets.sets(), strict=True)}
    # T_p of columns does not depend on the row, so the library keeps the first position only.
    members = found[(0 if isinstance(ablation, cc.Columns) else top), left]
    return set(np.flatnonzero(members).tolist())


def pieces(segment: Segment, length: int) -> list[tuple[int, int]]:
    """Start and length of a segment, in two parts if it wraps."""
    inside = min(segment.length, length - segment.start)
    return [(segment.start, inside)] + ([(0, segment.length - inside)] if inside < segment.length else [])


def columns(left: int, *, title: str, remark: str) -> str:
    """The image, and below it a bar for the columns that each mutant keeps."""
    kept, side, height, width, cell, x, y = cc.Columns(4), 3, 6, 16, 32.0, 150.0, 58.0
    top = 2
    members = touched_at(kept, side, (height, width), top, left)
    parts = [text(24, 34, title, weight=600), text(24, y + 3 * cell + 4, "the image")]
    parts.append(grid(x, y, width, height, cell))
    parts.append(
        box(x + left * cell, y + top * cell, side * cell, side * cell, fill=PATCH, opacity=0.85, stroke=PATCH)
    )
    parts.append(
        f'<text x="{x + (left + side / 2) * cell:g}" y="{y + (top + side / 2) * cell + 5:g}" font-size="14" '
        f'text-anchor="middle" fill="{PAPER}">patch</text>'
    )
    start = y + height * cell + 22
    parts.append(text(24, start + 12, "what each"))
    parts.append(text(24, start + 30, "mutant keeps"))
    for mutant, region in enumerate(kept.regions((height, width))):
        at = start + 17 * mutant
        hit = mutant in members
        parts.append(text(x - 8, at + 11, str(mutant), size=11, anchor="end"))
        parts.extend(
            box(
                x + first * cell + 1,
                at,
                length * cell - 2,
                13,
                fill=TOUCHED if hit else CLEAN,
                opacity=0.45 if hit else 0.9,
                stroke=PATCH if hit else CLEAN,
                dashed=hit,
                line=1.5,
            )
            for first, length in pieces(region.columns, width)
        )
    parts.extend(
        f'<line x1="{edge:g}" y1="{y + (top + side) * cell:g}" x2="{edge:g}" y2="{start + 17 * 16:g}" '
        f'stroke="{PATCH}" stroke-dasharray="2 4"/>'
        for edge in (x + left * cell, x + (left + side) * cell)
    )
    bottom = start + 17 * 16 + 26
    parts += legend(x, bottom)
    parts.append(text(24, bottom + 34, f"Touched: {len(members)} of 16. {remark}"))
    return card(690, int(bottom + 54), title, parts)


def legend(x: float, y: float) -> list[str]:
    return [
        box(x, y - 11, 26, 13, fill=CLEAN, opacity=0.9, stroke=CLEAN, line=1.5),
        text(x + 34, y, "clean: the ballot cannot change"),
        box(x + 266, y - 11, 26, 13, fill=TOUCHED, opacity=0.45, stroke=PATCH, dashed=True, line=1.5),
        text(x + 300, y, "touched: the attacker's"),
    ]


def blocks() -> str:
    """Two blocks on the image, and the mutants as a map of their upper left corners."""
    kept, side, size, cell, y = cc.Blocks(4), 3, 12, 24.0, 84.0
    top, left = 5, 6
    members = touched_at(kept, side, (size, size), top, left)
    title = "blocks:4 on a 12 x 12 image: 144 mutants, one from every pixel on"
    parts = [text(24, 34, title, weight=600)]
    x = 24.0
    parts.append(text(x, y - 14, "the image, the patch and two mutants"))
    parts.append(grid(x, y, size, size, cell))
    parts.append(box(x + left * cell, y + top * cell, side * cell, side * cell, fill=PATCH, opacity=0.85))
    for row, column, hit in ((3, 3, True), (1, 8, False)):
        assert (row * size + column in members) == hit
        parts.append(
            box(
                x + column * cell,
                y + row * cell,
                4 * cell,
                4 * cell,
                fill=TOUCHED if hit else CLEAN,
                opacity=0.35,
                stroke=PATCH if hit else CLEAN,
                dashed=hit,
                line=2.5,
            )
        )
    x = 366.0
    parts.append(text(x, y - 14, "every mutant at its block's upper left pixel"))
    for mutant in range(size * size):
        row, column = divmod(mutant, size)
        hit = mutant in members
        parts.append(
            box(
                x + column * cell + 2,
                y + row * cell + 2,
                cell - 4,
                cell - 4,
                fill=TOUCHED if hit else CLEAN,
                opacity=0.45 if hit else 0.9,
                stroke=PATCH if hit else CLEAN,
                dashed=hit,
                line=1.5,
            )
        )
    parts.append(box(x + left * cell, y + top * cell, side * cell, side * cell, stroke=INK, line=2.5))
    bottom = y + size * cell + 32
    parts += legend(24, bottom)
    parts.append(
        text(
            24,
            bottom + 34,
            f"Touched: {len(members)} of 144, a window of 6 x 6 corners. The black frame is the patch.",
        )
    )
    return card(690, int(bottom + 54), title, parts)


def price() -> str:
    """Clean votes with the gap of each rival on top; the same gaps end to end, compared with the budget."""
    counts, budget = (16, 7, 5, 2), 7
    ballots = [1] * counts[1] + [0] * counts[0] + [2] * counts[2] + [3] * counts[3]
    votes = cc.Votes([ballots], [0], num_classes=4, ablation=cc.Columns(1), image_size=(1, len(ballots)))
    patch = cc.Rectangle(1, budget)
    certificates = cc.certify(votes, [patch], ["costcert", "cbn"])
    ours, pairwise = (int(certificates.min_k(name, patch)[0]) for name in ("costcert", "cbn"))
    # The worst position: that of the attack on the largest list that can be broken.
    attack = cc.witness(votes, 0, patch, ours - 1)
    assert attack is not None
    clean = np.bincount(np.delete(votes.ballots[0], attack.touched), minlength=4)
    gaps = clean[0] - clean[1:]
    names = ("Panda", "Dog", "Cat", "Bear")
    unit, x, base = 22.0, 60.0, 290.0
    title = f"A patch holds {budget} ballots. How many rivals can it lift to Panda?"
    parts = [text(24, 34, title, weight=600), text(24, 62, "Clean votes, and what each rival lacks")]
    for i, name in enumerate(names):
        at, high = x + 78 * i, clean[i] * unit
        parts.append(box(at, base - high, 52, high, fill=TRUTH if i == 0 else CLEAN))
        parts.append(text(at + 26, base - high / 2 + 5, str(clean[i]), anchor="middle", colour=PAPER))
        if i:
            lack = gaps[i - 1] * unit
            parts.append(
                box(at, base - high - lack, 52, lack, fill=TOUCHED, opacity=0.45, stroke=PATCH, dashed=True)
            )
            parts.append(text(at + 26, base - high - lack / 2 + 5, f"+{gaps[i - 1]}", anchor="middle"))
        parts.append(text(at + 26, base + 20, name, anchor="middle"))
    level = base - clean[0] * unit
    parts.append(
        f'<line x1="{x - 10:g}" y1="{level:g}" x2="{x + 78 * 4 - 10:g}" y2="{level:g}" stroke="{INK}" '
        'stroke-width="1.5"/>'
    )
    unit, x = 25.0, 420.0
    parts.append(text(x, 62, "One budget: cheapest first, end to end"))
    at = x
    for i, gap in enumerate(gaps, 1):
        fits = at + gap * unit <= x + budget * unit
        parts.append(
            box(
                at,
                92,
                gap * unit,
                34,
                fill=TOUCHED if fits else PAPER,
                opacity=0.45,
                stroke=PATCH,
                dashed=True,
            )
        )
        parts.append(text(at + gap * unit / 2, 114, f"{names[i]} {gap}", size=13, anchor="middle"))
        at += gap * unit
    edge = x + budget * unit
    parts.append(
        f'<line x1="{edge:g}" y1="84" x2="{edge:g}" y2="142" stroke="{INK}" stroke-width="2.5"/>'
        + text(edge, 160, f"budget {budget}", size=13, anchor="middle")
    )
    parts.append(text(x, 184, f"{ours - 1} rivals fit: min-k = {ours}", weight=600))
    parts.append(text(x, 222, "Pair by pair: the same ballots once per rival"))
    for i, gap in enumerate(gaps, 1):
        row = 236 + 24 * (i - 1)
        parts.append(
            box(x, row, gap * unit, 18, fill=TOUCHED, opacity=0.45, stroke=PATCH, dashed=True, line=1.5)
        )
        parts.append(text(x + 5, row + 14, f"{names[i]} {gap}", size=13))
    parts.append(
        f'<line x1="{edge:g}" y1="230" x2="{edge:g}" y2="{236 + 24 * 3:g}" stroke="{INK}" '
        'stroke-width="2.5"/>'
    )
    parts.append(text(x, 334, f"each fits alone: only min-k = {pairwise} is proved", weight=600))
    return card(780, 358, title, parts)


def panda() -> str:
    """The README's figure: 17 ballots, a patch that touches 3, and what lifting rivals costs."""
    names, colours = ("Panda", "Dog", "Cat"), (CLEAN, TOUCHED, TRUTH)
    ballots = [1] * 4 + [0] * 9 + [2] * 4
    first, count = 7, 3
    votes = cc.Votes([ballots], [0], num_classes=3, ablation=cc.Columns(1), image_size=(1, 17))
    patch = cc.Rectangle(1, count)
    certificates = cc.certify(votes, [patch], ["costcert", "cbn"])
    ours, pairwise = (int(certificates.min_k(name, patch)[0]) for name in ("costcert", "cbn"))
    clean = np.bincount(ballots[:first] + ballots[first + count :], minlength=3)
    gaps = [int(clean[0] - clean[label]) for label in (1, 2)]

    parts = [text(24, 34, "17 mutants vote; a patch, wherever it lies, touches 3 of them", weight=600)]
    for mutant, label in enumerate(ballots):
        hit = first <= mutant < first + count
        x = 24 + 45 * mutant
        parts.append(box(x, 52, 40, 40, fill=colours[label], opacity=0.25 if hit else 1))
        parts.append(
            text(
                x + 20,
                76,
                "?" if hit else names[label],
                size=11,
                anchor="middle",
                colour=INK if hit else PAPER,
            )
        )
    parts.append(box(19 + 45 * first, 46, 45 * count + 5, 52, stroke=PATCH, dashed=True, line=3))

    parts.append(text(24, 136, "Clean votes: out of the patch's reach", weight=600))
    end = 84 + 30 * clean[0]
    for label, name in enumerate(names):
        y = 152 + 40 * label
        parts.append(text(24, y + 20, name))
        parts.append(box(84, y, 30 * clean[label], 28, fill=colours[label]))
        if label:
            missing = gaps[label - 1]
            parts.append(
                box(84 + 30 * clean[label], y + 1, 30 * missing, 26, stroke=PATCH, dashed=True, line=2)
            )
            parts.append(text(end + 10, y + 20, f"lacks {missing}"))
        else:
            parts.append(text(end + 10, y + 20, f"{clean[0]} votes"))
    parts.append(f'<line x1="{end}" y1="146" x2="{end}" y2="266" stroke="{INK}"/>')

    x = 392
    parts.append(text(x, 136, "What pushing Panda out would cost", weight=600))
    parts.append(text(x, 166, f"of the top 1: {min(gaps)} ballots; the patch holds {count}: possible"))
    costs = f"of the top 2: {gaps[0]} + {gaps[1]} = {sum(gaps)} ballots; it holds {count}: impossible"
    parts.append(text(x, 192, costs))
    parts.append(text(x, 228, f"CostCert: Panda stays in the top {ours}, proved", weight=600))
    parts.append(text(x, 254, f"Pairwise bounds spend ballots twice: only top {pairwise}"))
    parts.append(text(24, 308, "Every position of the patch is checked; the worst one counts."))
    return card(820, 330, "How CostCert certifies a list", parts)


def masking() -> str:
    """Nine masks on the image, and the pairs of them as a triangle with the safe row."""
    masks, size, cell = cc.Masks(3, patch=3), (12, 12), 24.0
    top, left = 2, 5
    regions, table = masks.masks(size), masks.table()
    covered = np.array(
        [not region.pixels(size)[top : top + 3, left : left + 3].any() for region in masks.regions(size)]
    )
    safe = [row for row in range(masks.num_masks) if covered[table[row]].all()]
    (row,) = safe
    title = "masks:3/patch=3 on a 12 x 12 image: 9 masks, 45 mutants"
    x, y = 24.0, 84.0
    parts = [text(24, 34, title, weight=600), text(x, y - 14, "the image, the patch and the masks")]
    parts.append(grid(x, y, 12, 12, cell))
    for number, mask in enumerate(regions):
        (mask_top, height), (mask_left, width) = mask.rows, mask.columns
        hides = number == row
        # Drawn a little inside, so that masks that overlap can be told apart.
        inset = 3 if hides else 2 + number % 3
        parts.append(
            box(
                x + mask_left * cell + inset,
                y + mask_top * cell + inset,
                width * cell - 2 * inset,
                height * cell - 2 * inset,
                fill=CLEAN if hides else "none",
                opacity=0.22,
                stroke=CLEAN if hides else MASK,
                line=3 if hides else 1.5,
                dashed=not hides,
            )
        )
    parts.append(box(x + left * cell, y + top * cell, 3 * cell, 3 * cell, fill=PATCH, opacity=0.85))
    parts.append(
        text(x + (left + 1.5) * cell, y + (top + 1.5) * cell + 5, "patch", anchor="middle", colour=PAPER)
    )
    x, side = 390.0, 30.0
    parts.append(text(x, y - 14, "mutant (i, j) hides masks i and j"))
    for i in range(masks.num_masks):
        parts.append(text(x - 8 + i * side, y + i * side + 20, str(i), size=12, anchor="end"))
        for j in range(i, masks.num_masks):
            clean = bool(covered[table[i, j]])
            parts.append(
                box(
                    x + j * side + 2,
                    y + i * side + 2,
                    side - 4,
                    side - 4,
                    fill=CLEAN if clean else TOUCHED,
                    opacity=0.9 if clean else 0.45,
                    stroke=CLEAN if clean else PATCH,
                    dashed=not clean,
                    line=1.5,
                )
            )
    count = masks.num_masks
    corners = [(row, 0), (row + 1, 0), (row + 1, row), (count, row), (count, row + 1), (row, row + 1)]
    path = "L".join(f"{x + a * side:g} {y + b * side:g}" for a, b in corners)
    parts.append(f'<path d="M{path}Z" fill="none" stroke="{INK}" stroke-width="3"/>')
    parts.append(text(x, y + 9 * side - 20, f"framed: row {row},", size=13))
    parts.append(text(x, y + 9 * side - 2, "the safe row", size=13))
    bottom = y + 12 * cell + 32
    parts += legend(24, bottom)
    remark = (
        f"Mask {row} alone hides the patch, so all {count} mutants of row {row} are clean: the row is safe."
    )
    parts.append(text(24, bottom + 34, remark))
    others = [
        (i, j) for i in range(count) for j in range(i, count) if covered[table[i, j]] and row not in (i, j)
    ]
    ((i, j),) = others
    parts.append(
        text(24, bottom + 56, f"Masks {i} and {j} hide it only together: mutant ({i}, {j}) is clean, too.")
    )
    return card(700, int(bottom + 76), title, parts)


def footprints() -> str:
    """2 x 2 pixels of an original of 8 x 8, and what they change at an input of 24 x 24."""
    original, size, side, place = (8, 8), (24, 24), 192, (2, 4)
    patch = cc.Original(cc.Square(2))
    reaches = {
        how: footprint(patch, original, Preparation(size, interpolation=how))
        for how in ("nearest", "bicubic")
    }
    cell, top = side / original[0], 66
    parts = [
        text(24, 32, "original, 8 × 8", weight=700),
        text(24, 52, "2 × 2 pixels are rewritten", size=13),
        grid(24, top, *original[::-1], cell),
        box(24 + place[1] * cell, top + place[0] * cell, 2 * cell, 2 * cell, fill=PATCH, stroke=PATCH),
    ]
    for number, (how, reach) in enumerate(reaches.items(), start=1):
        x, cell = 24 + number * (side + 44), side / size[0]
        parts += [
            text(x, 32, f"input, 24 × 24, {how}", weight=700),
            text(x, 52, f"up to {reach.height} × {reach.width} pixels change", size=13),
            *(
                box(
                    x + p.left * cell,
                    top + p.top * cell,
                    p.width * cell,
                    p.height * cell,
                    fill=TOUCHED,
                    line=0,
                )
                for p in reach.rectangles(*place)
            ),
            grid(x, top, *size[::-1], cell),
            # What the size of the patch alone suggests.
            box(x + 3 * place[1] * cell, top + 3 * place[0] * cell, 6 * cell, 6 * cell, stroke=PATCH),
        ]
    parts.append(
        text(24, top + side + 26, "frame: 6 × 6 pixels, the size of the patch after resizing (2/8)", size=13)
    )
    label = (
        "Two by two pixels of an original of eight by eight are rewritten. At an input of twenty-four by "
        f"twenty-four they change {reaches['nearest'].height} by {reaches['nearest'].width} pixels with "
        f"nearest interpolation, and up to {reaches['bicubic'].height} by {reaches['bicubic'].width} with "
        "bicubic."
    )
    return card(24 + 3 * side + 2 * 44 + 24, top + side + 44, label, parts)


def figures() -> dict[str, str]:
    """All figures, by file name."""
    return {
        "panda.svg": panda(),
        "geometry-columns.svg": columns(
            7,
            title="columns:4 on an image 16 pixels wide, a 3 pixel patch at column 7",
            remark="3 + 4 - 1 = 6, wherever the patch lies.",
        ),
        "geometry-wrap.svg": columns(
            0,
            title="The same patch at the border: mutants that wrap are touched too",
            remark="Mutants 13, 14 and 15 go round the end and keep column 0.",
        ),
        "geometry-blocks.svg": blocks(),
        "geometry-price.svg": price(),
        "geometry-masks.svg": masking(),
        "geometry-footprint.svg": footprints(),
    }


if __name__ == "__main__":
    for name, figure in figures().items():
        Path(__file__).with_name(name).write_text(figure, encoding="utf-8")
        print(f"wrote {name}")
