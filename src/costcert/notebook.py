"""How votes, certificates, results and attacks look in a notebook: small pieces of HTML.

They take the colours of the notebook, so they can be read on a light and on a dark page, load nothing, and
escape every name. The colours of ballots are those of Okabe and Ito.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from costcert.certification.certificates import Certificates
    from costcert.certification.witnesses import Witness
    from costcert.reports.results import Results
    from costcert.votes.table import Votes

_TRUE, _OTHER, _ATTACKER = "#0072B2", "#8a929a", "#D55E00"
# Colours of the labels that the attacker votes for, in order.
_RIVALS = ("#E69F00", "#009E73", "#CC79A7", "#56B4E9")
# The longer side of an image, and the width of a strip of ballots on its own, in pixels.
_SIDE = 200
_IMAGES_SHOWN = 3
_KS = (1, 2, 3, 5, 10)
_CELL = "padding:.15em .7em;text-align:right;white-space:nowrap;border-bottom:1px solid rgba(128,128,128,.35)"


def votes_html(votes: Votes) -> str:
    """What the votes are of, and the ballots of the first images."""
    kind = f"soft, at most {votes.cap:,} units" if votes.is_soft else "hard"
    facts = {
        "images": f"{len(votes):,}",
        "mutants": f"{votes.num_mutants} ({votes.ablation} on {_size(votes.image_size)})",
        "ballots": kind,
        "classes": f"{votes.num_classes:,}",
        "hidden pixels": votes.hide or "unknown",
    }
    if votes.known is not None:
        facts["known ballots"] = f"{100 * votes.known.mean():.1f} %"
    if votes.unread is not None:
        facts["unread images"] = f"{int(votes.unread.sum()):,}"
    strips = []
    for image in range(min(_IMAGES_SHOWN, len(votes))):
        truth = int(votes.truth[image])
        colours = [_TRUE if label == truth else _OTHER for label in votes.ballots[image].tolist()]
        name = f"{votes.image_ids[image]}: {_name(votes, truth)}"
        picture = f'<svg width="{_SIDE}" height="14" role="img">{_strip(colours, 0, _SIDE)}</svg>'
        strips.append(f"<div>{picture} {escape(name)}</div>")
    note = _small(f"{_square(_TRUE)} ballots for the true label {_square(_OTHER)} for another one")
    return _framed("Votes", f"{_list(facts)}{''.join(strips)}{note}")


def certificates_html(certificates: Certificates) -> str:
    """Clean and certified accuracy of all defenders against all patches."""
    facts = {
        "images": f"{len(certificates):,}",
        "classes": f"{certificates.num_classes:,}",
        "classifier": str(certificates.classifier),
    }
    table = _accuracy(certificates.accuracy(_ks(certificates.num_classes)))
    return _framed("Certificates", f"{_list(facts)}{table}")


def results_html(results: Results) -> str:
    """Clean and certified accuracy of a run."""
    facts = {
        "images": f"{results.images:,}",
        "classes": f"{results.num_classes:,}",
        "classifier": str(results.classifier),
    }
    table = _accuracy(results.accuracy(_ks(results.num_classes)))
    return _framed(f"Results of {results.name}", f"{_list(facts)}{table}")


def witness_html(witness: Witness) -> str:
    """The patch on the image, and the ballots before and after the attack."""
    votes = witness.votes
    before = votes.ballots[0].tolist()
    after = _rewritten(witness, before)
    rivals = [label for label in dict.fromkeys(witness.labels.tolist()) if label != witness.truth]
    colours = {witness.truth: _TRUE, **dict(zip(rivals, _RIVALS, strict=False))}
    height, width = votes.image_size
    scale = _SIDE / max(height, width)
    tall, wide = height * scale, width * scale
    outline = f'<rect width="{wide:.1f}" height="{tall:.1f}" fill="none" stroke="currentColor"/>'
    patches = "".join(
        f'<rect x="{piece.left * scale:.1f}" y="{piece.top * scale:.1f}" '
        f'width="{piece.width * scale:.1f}" height="{piece.height * scale:.1f}" fill="{_ATTACKER}"/>'
        for piece in witness.rectangles()
    )
    rows = []
    for row, (what, labels) in enumerate((("before", before), ("after", after))):
        top = tall + 10 + row * 20
        cells = _strip([colours.get(label, _OTHER) for label in labels], top, wide)
        rows.append(f'{cells}<text x="{wide + 6:.0f}" y="{top + 11:.0f}">{what}</text>')
    underlined = _strip(
        [_ATTACKER if mutant in set(witness.touched.tolist()) else None for mutant in range(len(before))],
        tall + 48,
        wide,
        high=4,
    )
    picture = (
        f'<svg width="{wide + 60:.0f}" height="{tall + 56:.0f}" '
        f'viewBox="-1 -1 {wide + 60:.0f} {tall + 56:.0f}" '
        f'role="img" aria-label="{escape(repr(witness))}" font-size="12" fill="currentColor">'
        f"{outline}{patches}{''.join(rows)}{underlined}</svg>"
    )
    legend = " ".join(
        f"{_square(colour)} {escape(_name(votes, label))}{' (true)' if label == witness.truth else ''}"
        for label, colour in colours.items()
    )
    note = _small(f"{legend} {_square(_OTHER)} others {_square(_ATTACKER)} the patch, ballots it touches")
    return _framed("Witness", f"<div>{escape(repr(witness))}</div>{picture}{note}")


def _rewritten(witness: Witness, ballots: Sequence[int]) -> list[int]:
    """The label that each mutant gives the most units to after the attack."""
    after = list(ballots)
    most: dict[int, int] = {}
    for mutant, label, units in zip(
        witness.mutants.tolist(), witness.labels.tolist(), witness.units.tolist(), strict=True
    ):
        if units > most.get(mutant, 0):
            most[mutant], after[mutant] = units, label
    return after


def _accuracy(table: pd.DataFrame) -> str:
    """Rows of patches and defenders; each cell has certified and, in brackets, clean accuracy."""
    ks = list(dict.fromkeys(table["k"].tolist()))
    head = _row(["patch", "defender", *(f"top-{k}" for k in ks)], "th")
    rows = []
    patches = list(dict.fromkeys(table["patch"]))
    by_patch = table.sort_values("patch", key=lambda column: column.map(patches.index), kind="stable")
    for (patch, defender), part in by_patch.groupby(["patch", "defender"], sort=False):
        shares = [
            f"{100 * certified:.1f} ({100 * clean:.1f})"
            for certified, clean in zip(part["certified"], part["clean"], strict=True)
        ]
        rows.append(_row([str(patch), str(defender), *shares], "td"))
    note = _small("certified accuracy in percent, and clean accuracy in brackets")
    style = "border-collapse:collapse;background:none;color:inherit;font-size:inherit"
    return f'<table style="{style}">{head}{"".join(rows)}</table>{note}'


def _ks(num_classes: int) -> list[int]:
    """All k for which something can be proved: the top k of k classes holds every label."""
    return [k for k in _KS if k < num_classes] or [1]


def _strip(colours: Sequence[str | None], top: float, wide: float, high: int = 14) -> str:
    """One cell per mutant; neighbours of one colour are one rectangle."""
    cell = wide / len(colours)
    parts, at = [], 0
    for colour, run in groupby(colours):
        count = len(list(run))
        if colour is not None:
            parts.append(
                f'<rect x="{at * cell:.2f}" y="{top:.0f}" width="{count * cell:.2f}" height="{high}" '
                f'fill="{colour}"/>'
            )
        at += count
    return "".join(parts)


def _name(votes: Votes, label: int) -> str:
    return str(label) if votes.class_names is None else votes.class_names[label]


def _size(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


def _framed(title: str, content: str) -> str:
    return (
        f'<div style="font-size:13px;line-height:1.5;overflow-x:auto"><b>{escape(title)}</b>{content}</div>'
    )


def _list(facts: Mapping[str, Any]) -> str:
    return "<div>" + " · ".join(f"{escape(k)}: {escape(str(v))}" for k, v in facts.items()) + "</div>"


def _row(cells: Iterable[str], tag: str) -> str:
    return "<tr>" + "".join(f'<{tag} style="{_CELL}">{escape(cell)}</{tag}>' for cell in cells) + "</tr>"


def _square(colour: str) -> str:
    return f'<span style="color:{colour}">■</span>'


def _small(markup: str) -> str:
    return f'<div style="font-size:12px">{markup}</div>'
