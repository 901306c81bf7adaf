"""From Votes and Touched to the compiled walks, one thread per core."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from costcert.compiled import ready, side_by_side
from costcert.defenders import kernels
from costcert.geometry.touch import Touched
from costcert.votes.defence import check_ties
from costcert.votes.table import Votes, read_only

Counts = npt.NDArray[np.int64]

# At most this many flips are laid end to end, to bound memory: a walk among blocks alone has millions.
_LONG_WALK = 1 << 20


def known_ties(ties: str) -> bool:
    """Whether ties go to the lowest label; otherwise they count against the promise."""
    check_ties(ties)
    return ties == "lowest"


class Arrays(NamedTuple):
    """Votes as the kernels read them: [N, B, j] labels, -1 where a ballot is unknown, and their units."""

    labels: npt.NDArray[np.int32]
    units: npt.NDArray[np.int32]

    @classmethod
    def of(cls, votes: Votes) -> Arrays:
        labels = votes.ballots[:, :, None] if votes.labels is None else votes.labels
        units = np.zeros((len(votes), 0, 0), np.int32) if votes.units is None else votes.units
        if votes.known is not None:
            # Every certificate passes here, so that no unknown ballot is ever counted.
            labels = np.where(votes.known[:, :, None], labels, np.int32(-1))
        # A kernel is compiled once more for arrays of another kind: all that it reads are read-only.
        return cls(read_only(labels), read_only(units))


def worst_case(
    rule: int,
    votes: Votes,
    patches: Sequence[Touched],
    *,
    members: npt.NDArray[Any],
    ties: str = "against",
    extras: Sequence[int] | None = None,
    kernel: Any = kernels.worst,
) -> Counts:
    """[P, N], for each of P patches the worst count over all its T_p.

    Args:
        members: [N, M] labels the promise is about, -1 where an image has fewer than M.
        extras: [P], further budget.
        kernel: what is counted: `kernels.worst`, rivals lifted, or `kernels.most_expelled`, members expelled.
    """
    labels, units = Arrays.of(votes)
    members = read_only(np.asarray(members, dtype=np.int32))
    budgets = np.zeros(len(patches), np.int64) if extras is None else np.asarray(extras, np.int64)
    terms = kernels.Terms(votes.num_classes, votes.cap, votes.tau, known_ties(ties), rule)
    sizes = (labels.shape[1], labels.shape[2], members.shape[1])
    out = np.empty((len(patches), len(votes)), dtype=np.int64)
    for together in _groups(patches):
        walks = _joined(patches[together])
        # Images first: slices of it are contiguous as it is itself, so that the kernel is compiled once.
        counts = np.empty((len(votes), len(patches[together])), dtype=np.int64)

        def work(
            first: int,
            last: int,
            walks: kernels.Walks = walks,
            extras: Counts = budgets[together],
            counts: Counts = counts,
        ) -> None:
            images = slice(first, last)
            kernel(
                labels[images],
                units[images],
                members[images],
                walks,
                extras,
                terms,
                kernels.blank_image(*sizes, votes.num_classes),
                kernels.blank_scratch(*sizes, hard=not votes.is_soft),
                counts[images],
            )

        ready(kernel, partial(work, 0, 0))
        side_by_side(work, len(votes))
        out[together] = counts.T
    return out


def fewest_ahead(votes: Votes, touched: Touched, excluded: npt.NDArray[Any], *, ties: str) -> Counts:
    """[N], how many labels stay ahead of an excluded one at the worst position (`kernels.fewest_ahead`).

    Args:
        excluded: [N], for each image the label that must stay out of the list.
    """
    labels, units = Arrays.of(votes)
    members = read_only(np.asarray(excluded[:, None], dtype=np.int32))
    terms = kernels.Terms(votes.num_classes, votes.cap, votes.tau, known_ties(ties), kernels.CHEAPEST_FIRST)
    out = np.empty(len(votes), dtype=np.int64)

    def work(first: int, last: int) -> None:
        images = slice(first, last)
        image = kernels.blank_image(labels.shape[1], labels.shape[2], 1, votes.num_classes)
        kernels.fewest_ahead(
            labels[images],
            units[images],
            members[images],
            touched.flips,
            touched.offsets,
            terms,
            image,
            np.empty_like(image.total),
            out[images],
        )

    ready(kernels.fewest_ahead, partial(work, 0, 0))
    side_by_side(work, len(votes))
    return out


def _groups(patches: Sequence[Touched]) -> Iterator[slice]:
    """Neighbouring patches whose walks are short enough to be laid end to end."""
    start = length = 0
    for index, patch in enumerate(patches):
        if index > start and length + len(patch.flips) > _LONG_WALK:
            yield slice(start, index)
            start, length = index, 0
        length += len(patch.flips)
    yield slice(start, len(patches))


def _joined(patches: Sequence[Touched]) -> kernels.Walks:
    """Walks laid end to end, so that the ballots of an image are read once for all of them."""
    if len(patches) == 1:
        return kernels.Walks(patches[0].flips, patches[0].offsets, np.array([0, len(patches[0])]))
    lengths = np.cumsum([0] + [len(patch.flips) for patch in patches])
    offsets = [patch.offsets[:-1] + length for patch, length in zip(patches, lengths[:-1], strict=True)]
    return kernels.Walks(
        np.concatenate([patch.flips for patch in patches]),
        np.concatenate([*offsets, lengths[-1:]]),
        np.cumsum([0] + [len(patch) for patch in patches]),
    )
