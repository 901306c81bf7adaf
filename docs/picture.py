"""Draws docs/panda.svg, the README's picture: the paper's example, with every number asked of the library.

python docs/picture.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import costcert as cc

NAMES = ("Panda", "Dog", "Cat")
# Okabe and Ito's colours, which colour-blind people can tell apart.
COLOURS = ("#0072B2", "#E69F00", "#009E73")
INK, PAPER, ALARM = "#1b1f24", "#ffffff", "#D55E00"

BALLOTS = [1] * 4 + [0] * 9 + [2] * 4
FIRST_TOUCHED, TOUCHED = 7, 3


def text(
    x: float, y: float, content: str, *, size: int = 14, weight: int = 400, anchor: str = "start"
) -> str:
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{INK}">{content}</text>'
    )


def box(x: float, y: float, width: float, height: float, colour: str, *, opacity: float = 1) -> str:
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" fill="{colour}" '
        f'fill-opacity="{opacity}"/>'
    )


def draw() -> str:
    votes = cc.Votes([BALLOTS], [0], num_classes=3, ablation=cc.Columns(1), image_size=(1, 17))
    patch = cc.Rectangle(1, TOUCHED)
    certificates = cc.certify(votes, [patch], ["costcert", "cbn"])
    ours, pairwise = (int(certificates.min_k(name, patch)[0]) for name in ("costcert", "cbn"))
    untouched = BALLOTS[:FIRST_TOUCHED] + BALLOTS[FIRST_TOUCHED + TOUCHED :]
    clean = np.bincount(untouched, minlength=3)
    gaps = [int(clean[0] - clean[label]) for label in (1, 2)]

    parts = [box(0, 0, 820, 330, PAPER)]
    parts.append(text(24, 34, "17 mutants vote; a patch, wherever it lies, touches 3 of them", weight=600))
    for i, label in enumerate(BALLOTS):
        touched = FIRST_TOUCHED <= i < FIRST_TOUCHED + TOUCHED
        parts.append(box(24 + 45 * i, 52, 40, 40, COLOURS[label], opacity=0.25 if touched else 1))
        name = "?" if touched else NAMES[label]
        colour = INK if touched else PAPER
        parts.append(
            f'<text x="{44 + 45 * i}" y="76" font-size="11" text-anchor="middle" fill="{colour}">'
            f"{name}</text>"
        )
    left = 24 + 45 * FIRST_TOUCHED - 5
    parts.append(
        f'<rect x="{left}" y="46" width="{45 * TOUCHED + 5}" height="52" fill="none" stroke="{ALARM}" '
        'stroke-width="3" stroke-dasharray="7 4"/>'
    )

    parts.append(text(24, 136, "Clean votes: out of the patch's reach", weight=600))
    for row, label in enumerate((0, 1, 2)):
        y = 152 + 40 * row
        parts.append(text(24, y + 20, NAMES[label]))
        parts.append(box(84, y, 30 * clean[label], 28, COLOURS[label]))
        if label:
            missing = gaps[label - 1]
            parts.append(
                f'<rect x="{84 + 30 * clean[label]}" y="{y + 1}" width="{30 * missing}" height="26" rx="3" '
                f'fill="none" stroke="{ALARM}" stroke-width="2" stroke-dasharray="5 3"/>'
            )
            parts.append(text(94 + 30 * clean[0], y + 20, f"lacks {missing}"))
        else:
            parts.append(text(94 + 30 * clean[0], y + 20, f"{clean[0]} votes"))
    parts.append(
        f'<line x1="{84 + 30 * clean[0]}" y1="146" x2="{84 + 30 * clean[0]}" y2="266" stroke="{INK}"/>'
    )

    x = 392
    parts.append(text(x, 136, "What pushing Panda out would cost", weight=600))
    parts.append(text(x, 166, f"of the top 1: {min(gaps)} ballots; the patch holds {TOUCHED}: possible"))
    parts.append(
        text(
            x,
            192,
            f"of the top 2: {gaps[0]} + {gaps[1]} = {sum(gaps)} ballots; it holds {TOUCHED}: impossible",
        )
    )
    parts.append(text(x, 228, f"CostCert: Panda stays in the top {ours}, proved", weight=600))
    parts.append(text(x, 254, f"Pairwise bounds spend ballots twice: only top {pairwise}"))
    parts.append(text(24, 308, "Every place the patch may lie at is checked; the worst one counts.", size=14))
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 820 330" width="820" height="330" '
        'font-family="Helvetica, Arial, sans-serif" role="img" aria-label="How CostCert certifies a list">'
        + "".join(parts)
        + "</svg>\n"
    )


if __name__ == "__main__":
    target = Path(__file__).with_name("panda.svg")
    target.write_text(draw(), encoding="utf-8")
    print(f"wrote {target.name}")
