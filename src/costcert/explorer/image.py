"""One image: its ballots, and the certificates of one of its labels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from costcert.certification.certify import certify, distrusting
from costcert.certification.witnesses import strongest
from costcert.defenders import chosen
from costcert.errors import GeometryError
from costcert.explorer.limits import (
    MAX_ATTACK_COST,
    MAX_MASKING_COST,
    checked_sticker,
    clear_large_cache,
    masking_cost,
)
from costcert.geometry.patches import Patch
from costcert.reports.standing import worst_standing
from costcert.votes.originals import touched_by
from costcert.votes.table import Votes


@dataclass(frozen=True)
class Terms:
    """Options of `certify` that hold for all images: the tie rule, and which ballots are distrusted."""

    ties: str = "against"
    epsilon: float | None = None
    tau: int = 0


@dataclass(frozen=True)
class LabelledImage:
    """The ballots of one image; its truth is the label to certify.

    Args:
        mask: the patch that masking defenders mask for, if the run has one.
    """

    votes: Votes
    terms: Terms = field(default_factory=Terms)
    mask: Patch | None = None

    @property
    def label(self) -> int:
        return int(self.votes.truth[0])


def certify_image(
    image: LabelledImage, patches: list[str], defenders: list[str] | None = None, *, attack: bool = False
) -> list[dict[str, Any]]:
    """Rank and min-k per patch and defender; with `attack` also the strongest place of each patch."""
    votes, terms = image.votes, image.terms
    stickers = [checked_sticker(patch, votes) for patch in patches]
    requested = chosen(
        defenders or "all", ablation=votes.ablation, soft=votes.is_soft, partial=votes.known is not None
    )
    rows = []
    for sticker in dict.fromkeys(stickers):
        names = [
            defender.name
            for defender in requested
            if not defender.masks or masking_cost(votes, sticker) <= MAX_MASKING_COST
        ]
        if not names:
            raise GeometryError(
                f"{sticker} has too many places for {requested[0].title} in the service: use costcert certify"
            )
        certificates = certify(
            votes, sticker, names, ties=terms.ties, epsilon=terms.epsilon, tau=terms.tau, mask=image.mask
        )
        sets = touched_by(votes, sticker)
        row: dict[str, Any] = {
            "patch": str(sticker),
            "budget": sets.delta,
            "defenders": {
                name: {
                    "rank": int(certificates.rank(name, sticker)[0]),
                    "min_k": int(certificates.min_k(name, sticker)[0]),
                }
                for name in names
            },
            "attack": None,
        }
        if attack:
            if len(sets) * votes.num_classes > MAX_ATTACK_COST:
                raise GeometryError(f"{sticker} has too many places to search for the worst one")
            if votes.known is None:
                worst = (
                    worst_standing(votes, 0, sticker)
                    if "patchcleanser" in names
                    else strongest(votes, 0, sticker, ties=terms.ties)
                )
                ((top, left),) = worst.places
                row["attack"] = {"top": top, "left": left, "position": worst.position}
        rows.append(row)
        clear_large_cache(sets)
    return rows


def ballots_json(votes: Votes, terms: Terms) -> dict[str, Any]:
    """The ballots of the only image of `votes`, as the page reads them."""
    soft = votes.labels is not None and votes.units is not None
    trusted = distrusting(votes, epsilon=terms.epsilon, tau=terms.tau if soft else 0)
    ballots = votes.ballots if votes.known is None else np.where(votes.known, votes.ballots, -1)
    unread = bool(votes.unread is not None and votes.unread[0])
    return {
        "truth": int(votes.truth[0]),
        "unread": unread,
        "original": None if unread or votes.originals is None else votes.originals[0].tolist(),
        "cap": votes.cap,
        "ballots": ballots[0].tolist(),
        "labels": votes.labels[0].tolist() if soft and votes.labels is not None else None,
        "units": votes.units[0].tolist() if soft and votes.units is not None else None,
        "unknown": [] if trusted.known is None else np.flatnonzero(~trusted.known[0]).tolist(),
    }


def with_label(votes: Votes, label: int) -> Votes:
    """The same ballots of one image, with another label to certify."""
    return votes.replace(truth=[label])
