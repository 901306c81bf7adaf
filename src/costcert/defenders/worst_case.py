"""From Votes and Touched to the compiled walk, one thread a core."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from costcert.compiled import ready, side_by_side
from costcert.defenders import kernels
from costcert.errors import VotesError
from costcert.geometry.touch import Touched
from costcert.votes import Votes

Ties = Literal["against", "lowest"]
Counts = npt.NDArray[np.int64]

_NO_UNITS = np.zeros((0, 0, 0), np.int32)


def known_ties(ties: str) -> bool:
    """Whether ties go to the lowest label; otherwise they count against the promise."""
    if ties not in ("against", "lowest"):
        raise VotesError(f"ties are 'against' or 'lowest', got {ties!r}")
    return ties == "lowest"


def worst_case(
    rule: int,
    votes: Votes,
    touched: Touched,
    *,
    members: npt.NDArray[Any],
    ties: str = "against",
    unknown: npt.NDArray[np.bool_] | None = None,
    tau: int = 0,
    extra: int = 0,
) -> Counts:
    """[N], the worst count over all T_p (`kernels.worst`).

    Args:
        members: [N, M] labels the promise is about, -1 where an image has fewer than M.
        unknown: [N, B], mutants that belong to the attacker whatever he touches.
        tau: units by which any clean soft ballot may be off, per label.
        extra: further budget.
    """
    labels = votes.ballots[:, :, None] if votes.labels is None else votes.labels
    units = _NO_UNITS if votes.units is None else votes.units
    if unknown is not None:
        labels = np.where(unknown[:, :, None], np.int32(-1), labels)
    labels = np.ascontiguousarray(labels)
    members = np.ascontiguousarray(members, dtype=np.int32)
    out = np.empty(len(votes), dtype=np.int64)
    lowest = known_ties(ties)

    def work(start: int, stop: int) -> None:
        kernels.worst(
            labels[start:stop],
            units[start:stop],
            members[start:stop],
            votes.cap,
            votes.num_classes,
            touched.flips,
            touched.offsets,
            extra,
            tau,
            lowest,
            rule,
            out[start:stop],
        )

    ready(work, 0, 0)
    side_by_side(work, len(votes))
    return out
