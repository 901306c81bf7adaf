"""From Votes and Touched to the compiled walk, one thread a core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from costcert.compiled import ready, side_by_side
from costcert.defenders import kernels
from costcert.errors import VotesError
from costcert.geometry.touch import Touched
from costcert.votes.table import Votes, read_only

Counts = npt.NDArray[np.int64]

_NO_UNITS = read_only(np.zeros((0, 0, 0), np.int32))
# Flips laid end to end at most, to bound memory: a walk among blocks alone has millions.
_LONG_WALK = 1 << 20


def known_ties(ties: str) -> bool:
    """Whether ties go to the lowest label; otherwise they count against the promise."""
    if ties not in ("against", "lowest"):
        raise VotesError(f"ties are 'against' or 'lowest', got {ties!r}")
    return ties == "lowest"


def worst_case(
    rule: int,
    votes: Votes,
    cases: Sequence[Touched],
    *,
    members: npt.NDArray[Any],
    ties: str = "against",
    extras: Sequence[int] | None = None,
) -> Counts:
    """[P, N], for each of P patches the worst count over all its T_p (`kernels.worst`).

    Args:
        members: [N, M] labels the promise is about, -1 where an image has fewer than M.
        extras: [P], further budget.
    """
    labels = votes.ballots[:, :, None] if votes.labels is None else votes.labels
    units = _NO_UNITS if votes.units is None else votes.units
    if votes.known is not None:
        # Here, where every certificate comes by, so that no ballot is counted that nobody knows.
        labels = np.where(votes.known[:, :, None], labels, np.int32(-1))
    # Kernels are compiled for arrays that nobody can write to, as those of votes are.
    labels = read_only(labels)
    members = np.ascontiguousarray(members, dtype=np.int32)
    budgets = np.zeros(len(cases), np.int64) if extras is None else np.asarray(extras, np.int64)
    out = np.empty((len(cases), len(votes)), dtype=np.int64)
    lowest = known_ties(ties)
    for start, stop in _together(cases):
        flips, offsets, walks = _joined(cases[start:stop])

        def work(
            first: int,
            last: int,
            flips: npt.NDArray[np.int32] = flips,
            offsets: npt.NDArray[np.int64] = offsets,
            walks: npt.NDArray[np.int64] = walks,
            patches: slice = slice(start, stop),
        ) -> None:
            kernels.worst(
                labels[first:last],
                units[first:last],
                members[first:last],
                votes.cap,
                votes.num_classes,
                flips,
                offsets,
                walks,
                budgets[patches],
                votes.tau,
                lowest,
                rule,
                out[patches, first:last],
            )

        ready(kernels.worst, partial(work, 0, 0))
        side_by_side(work, len(votes))
    return out


def _together(cases: Sequence[Touched]) -> Iterator[tuple[int, int]]:
    """Neighbouring patches whose walks are short enough to be laid end to end."""
    start = length = 0
    for index, case in enumerate(cases):
        if index > start and length + len(case.flips) > _LONG_WALK:
            yield start, index
            start, length = index, 0
        length += len(case.flips)
    yield start, len(cases)


def _joined(
    cases: Sequence[Touched],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Walks laid end to end, so that the ballots of an image are read once for all of them."""
    if len(cases) == 1:
        return cases[0].flips, cases[0].offsets, np.array([0, len(cases[0])])
    lengths = np.cumsum([0] + [len(case.flips) for case in cases])
    offsets = [case.offsets[:-1] + length for case, length in zip(cases, lengths[:-1], strict=True)]
    return (
        np.concatenate([case.flips for case in cases]),
        np.concatenate([*offsets, lengths[-1:]]),
        np.cumsum([0] + [len(case) for case in cases]),
    )
