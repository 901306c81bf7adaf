"""Promises other than "the true label stays in the top k", all with CostCert's price.

Each is exact: no single rewriting of the touched ballots does worse, and one does just this. They hold for
hard and soft ballots, every ablation and every patch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from costcert.certification.certify import AnyPatch, mutant_mask, without_unread
from costcert.defenders import find, kernels
from costcert.defenders.worst_case import Counts, fewest_ahead, worst_case
from costcert.errors import VotesError
from costcert.geometry.patches import concrete
from costcert.geometry.sizes import positive_int
from costcert.geometry.touch import Touched, touched
from costcert.votes.table import Votes, as_labels

# Scores are a table of images by classes: so many numbers at a time.
_AT_ONCE = 1 << 24


def min_k_all(
    votes: Votes, patch: AnyPatch, truths: Sequence[Iterable[int]], *, ties: str = "against"
) -> Counts:
    """[N], the smallest k for which all of an image's true labels stay in the top k.

    Args:
        truths: for each image its true labels, at least one.
    """
    members = _members(votes, truths)
    image, column = np.nonzero(members >= 0)
    each = _lifted(votes.take(image), patch, members[image, column][:, None], ties)
    worst = np.zeros(len(votes), dtype=np.int64)
    np.maximum.at(worst, image, each)
    return without_unread(1 + worst, votes)


def min_k_any(
    votes: Votes, patch: AnyPatch, truths: Sequence[Iterable[int]], *, ties: str = "against"
) -> Counts:
    """[N], the smallest k for which at least one of an image's true labels stays in the top k.

    The attacker has to pass the strongest of them; labels outside the set are lifted, cheapest first.
    """
    return without_unread(1 + _lifted(votes, patch, _members(votes, truths), ties), votes)


def exclusion(
    votes: Votes, patch: AnyPatch, labels: npt.ArrayLike, k: int, *, ties: str = "against"
) -> npt.NDArray[np.bool_]:
    """Whether labels (a counterfeit, a toxic herb) can never enter the top k.

    Label z stays out iff for every p at least k labels have α_p[y] > α_p[z] + q_p.

    Args:
        labels: one label, or M labels, or [N, M] labels of their own for each image.

    Returns:
        [N] for one label, otherwise [N, M].
    """
    k = positive_int(k, "k")
    wanted = as_labels(labels, "labels", votes.num_classes)
    if wanted.ndim > 2 or (wanted.ndim == 2 and len(wanted) != len(votes)):
        raise VotesError(
            f"labels are one label, a list of labels, or a table of shape [{len(votes)}, M], "
            f"got shape {wanted.shape}"
        )
    table = np.broadcast_to(np.atleast_1d(wanted), (len(votes), wanted.shape[-1] if wanted.ndim else 1))
    positions = _touched(votes, patch)
    ahead = [fewest_ahead(votes, positions, column, ties=ties) for column in table.T]
    stays_out = np.stack(ahead, axis=1) >= k if ahead else np.zeros((len(votes), 0), dtype=np.bool_)
    if votes.unread is not None:
        stays_out &= ~votes.unread[:, None]
    return stays_out if wanted.ndim else stays_out[:, 0]


def stability(votes: Votes, patch: AnyPatch, k: int, *, ties: str = "against") -> Counts:
    """[N], how many of today's top-k labels provably stay in the top k.

    To expel j of them, j outsiders must pass the j-th weakest insider.
    """
    k = min(positive_int(k, "k"), votes.num_classes)
    cases = _touched(votes, patch)
    expelled = worst_case(kernels.EXPEL, votes, [cases], members=_top(votes, k), ties=ties).ravel()
    return k - expelled if votes.unread is None else np.where(votes.unread, 0, k - expelled)


class Bounds(NamedTuple):
    """What part of the ballots already decides; some completion of the ballots attains each bound."""

    rank_low: Counts
    rank_high: Counts
    min_k_low: Counts
    min_k_high: Counts


def bounds(votes: Votes, patch: AnyPatch, known: npt.ArrayLike, *, ties: str = "against") -> Bounds:
    """Bounds on rank and CostCert's min-k from part of the ballots.

    At worst a mutant not yet evaluated is one more that the attacker holds; at best it votes for the truth.

    Args:
        known: [N, B], the ballots to go by, of those that `votes` knows; what it holds for the others is not
            looked at.
    """
    mask = mutant_mask(known, votes, "known")
    if votes.known is not None:
        # What the votes do not know nobody else does.
        mask = mask & votes.known
    part = votes.replace(known=mask)
    costcert = find("costcert")
    positions, nothing = _touched(votes, patch), Touched.nothing(votes.num_mutants)
    best = _completed(part)
    found = (
        costcert.rank(best, nothing),
        costcert.rank(part, nothing),
        costcert.min_k(best, [positions], ties=ties)[0],
        costcert.min_k(part, [positions], ties=ties)[0],
    )
    return Bounds(*(without_unread(each, votes) for each in found))


def _completed(votes: Votes) -> Votes:
    """The votes if every mutant that is not known gave all it has to the true label."""
    if votes.known is None:
        return votes
    known = votes.known
    ballots = np.where(known, votes.ballots, votes.truth[:, None])
    if votes.labels is None or votes.units is None:
        return votes.replace(ballots=ballots, known=None)
    everything = np.zeros(votes.labels.shape[2], dtype=np.int32)
    everything[0] = votes.cap
    return votes.replace(
        ballots=ballots,
        labels=np.where(known[..., None], votes.labels, votes.truth[:, None, None]),
        units=np.where(known[..., None], votes.units, everything),
        known=None,
    )


def _touched(votes: Votes, patch: AnyPatch) -> Touched:
    return touched(votes.ablation, concrete(patch, votes.image_size), votes.image_size)


def _lifted(votes: Votes, patch: AnyPatch, members: npt.NDArray[np.int32], ties: str) -> Counts:
    cases = [_touched(votes, patch)]
    return worst_case(kernels.CHEAPEST_FIRST, votes, cases, members=members, ties=ties).ravel()


def _members(votes: Votes, truths: Sequence[Iterable[int]]) -> npt.NDArray[np.int32]:
    """The true labels of each image as a table, -1 where an image has fewer than another."""
    sets = [list(dict.fromkeys(int(label) for label in labels)) for labels in truths]
    if len(sets) != len(votes):
        raise VotesError(f"got true labels of {len(sets)} images for votes of {len(votes)}")
    if not all(sets):
        raise VotesError(f"image {[bool(s) for s in sets].index(False)} has no true label: each needs one")
    table = np.full((len(sets), max(map(len, sets))), -1, dtype=np.int32)
    for row, labels in zip(table, sets, strict=True):
        row[: len(labels)] = as_labels(labels, "true labels", votes.num_classes)
    return table


def _top(votes: Votes, k: int) -> npt.NDArray[np.int64]:
    """[N, k], today's list."""
    costcert, nothing = find("costcert"), Touched.nothing(votes.num_mutants)
    step = max(1, _AT_ONCE // votes.num_classes)
    return np.concatenate(
        [
            costcert.predict(votes.take(slice(start, start + step)), nothing, k)
            for start in range(0, len(votes), step)
        ]
    )
