"""One image: its ballots, and what is promised for one of its labels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from costcert.certification.certify import certify, distrusting
from costcert.certification.witnesses import strongest
from costcert.defenders import chosen
from costcert.errors import GeometryError
from costcert.explorer.limits import MOST_MASKED, MOST_PRICED, forget, masked_cost, reasonable
from costcert.geometry.patches import Patch
from costcert.geometry.touch import touched
from costcert.votes.table import Votes


@dataclass(frozen=True)
class Terms:
    """How certificates are to be read: who wins ties, and which ballots are distrusted."""

    ties: str = "against"
    epsilon: float | None = None
    tau: int = 0


@dataclass(frozen=True)
class Labelled:
    """One image's ballots, and the label that a promise is wanted for.

    Args:
        mask: the patch that masking defenders mask for, where the run has one.
    """

    votes: Votes
    terms: Terms = field(default_factory=Terms)
    mask: Patch | None = None

    @classmethod
    def of(
        cls, votes: Votes, row: int, label: int | None, terms: Terms, mask: Patch | None = None
    ) -> Labelled:
        one = votes.take([row])
        return cls(one if label is None else with_label(one, label), terms, mask)


def certified(
    case: Labelled, patches: list[str], defenders: list[str] | None = None, *, attack: bool = False
) -> list[dict[str, Any]]:
    """Certificates of one image: a row for each patch and defender, and where an attack does most."""
    votes, terms = case.votes, case.terms
    stickers = [reasonable(patch, votes.ablation, votes.image_size) for patch in patches]
    wanted = chosen(defenders or "all", soft=votes.is_soft, partial=votes.known is not None)
    rows = []
    for sticker in dict.fromkeys(stickers):
        able = [
            defender.name
            for defender in wanted
            if not defender.masks or masked_cost(votes, sticker) <= MOST_MASKED
        ]
        if not able:
            raise GeometryError(f"{sticker} has too many places here for {wanted[0].title}")
        found = certify(
            votes, sticker, able, ties=terms.ties, epsilon=terms.epsilon, tau=terms.tau, mask=case.mask
        )
        cases = touched(votes.ablation, sticker, votes.image_size)
        row: dict[str, Any] = {
            "patch": str(sticker),
            "budget": cases.delta,
            "defenders": {
                name: {
                    "rank": int(found.rank(name, sticker)[0]),
                    "min_k": int(found.min_k(name, sticker)[0]),
                }
                for name in able
            },
            "attack": None,
        }
        if attack:
            if len(cases) * votes.num_classes > MOST_PRICED:
                raise GeometryError(f"{sticker} has too many places here to say which is the worst")
            if votes.known is None:
                worst = strongest(votes, 0, sticker, ties=terms.ties)
                ((top, left),) = worst.places
                row["attack"] = {"top": top, "left": left, "position": worst.position}
        rows.append(row)
        forget(cases)
    return rows


def ballots_json(votes: Votes, terms: Terms) -> dict[str, Any]:
    """The ballots of the only image of `votes`, for the page."""
    soft = votes.labels is not None and votes.units is not None
    trusted = distrusting(votes, epsilon=terms.epsilon, tau=terms.tau if soft else 0)
    ballots = votes.ballots if votes.known is None else np.where(votes.known, votes.ballots, -1)
    return {
        "truth": int(votes.truth[0]),
        "unread": bool(votes.unread is not None and votes.unread[0]),
        "cap": votes.cap,
        "ballots": ballots[0].tolist(),
        "labels": votes.labels[0].tolist() if soft and votes.labels is not None else None,
        "units": votes.units[0].tolist() if soft and votes.units is not None else None,
        "unknown": [] if trusted.known is None else np.flatnonzero(~trusted.known[0]).tolist(),
    }


def with_label(votes: Votes, label: int) -> Votes:
    """The same ballots of one image, asked about another label."""
    return votes.replace(truth=[label])
