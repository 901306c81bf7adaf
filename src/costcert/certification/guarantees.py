"""Guarantees other than "the true label stays in the top k", all with CostCert's price.

Each is exact: some rewriting of the touched ballots attains the bound, and none exceeds it. They hold for
hard and soft ballots, every ablation and every patch, but not for votes of masks, which are ranked by another
rule (defenders/patchcleanser.py) and refused. `bounds` alone answers for masks as well, by that rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from costcert.certification.certify import AnyPatch, with_unread_last
from costcert.defenders import find, kernels
from costcert.defenders.worst_case import Counts, fewest_ahead, worst_case
from costcert.errors import VotesError
from costcert.geometry.ablations import Masks
from costcert.geometry.patches import certified_patch
from costcert.geometry.sizes import positive_int, several
from costcert.geometry.touch import Touched
from costcert.votes.originals import on_input, touched_by
from costcert.votes.table import Votes, check_votes
from costcert.votes.validation import as_labels, as_mask

# Entries of the table of scores [images, classes] that are computed at a time.
_SCORES_AT_ONCE = 1 << 24


def min_k_all(
    votes: Votes, patch: AnyPatch, truths: Sequence[Iterable[int]], *, ties: str = "against"
) -> Counts:
    """[N], the smallest k for which all of an image's true labels stay in the top k.

    Args:
        truths: the true labels of each image, at least one.
    """
    members = _members(votes, truths)
    image, column = np.nonzero(members >= 0)
    each = _lifted(votes.take(image), patch, members[image, column][:, None], ties)
    worst = np.zeros(len(votes), dtype=np.int64)
    np.maximum.at(worst, image, each)
    return with_unread_last(1 + worst, votes)


def min_k_any(
    votes: Votes, patch: AnyPatch, truths: Sequence[Iterable[int]], *, ties: str = "against"
) -> Counts:
    """[N], the smallest k for which at least one of an image's true labels stays in the top k.

    The attacker has to lift rivals past the strongest of them, cheapest first.
    """
    return with_unread_last(1 + _lifted(votes, patch, _members(votes, truths), ties), votes)


def exclusion(
    votes: Votes, patch: AnyPatch, labels: npt.ArrayLike, k: int, *, ties: str = "against"
) -> npt.NDArray[np.bool_]:
    """Whether labels can never enter the top k.

    Label z stays out iff for every p at least k labels have α_p[y] > α_p[z] + q_p.

    Args:
        labels: one label, M labels, or [N, M] with M labels for each image.

    Returns:
        [N] for one label, otherwise [N, M].
    """
    check_votes(votes)
    k = positive_int(k, "k")
    wanted = as_labels(labels, "labels", votes.num_classes)
    if wanted.ndim > 2 or (wanted.ndim == 2 and len(wanted) != len(votes)):
        raise VotesError(
            f"labels must be one label, a list of labels, or a table of shape [{len(votes)}, M], "
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
    """[N], how many of the top-k labels of the clean image provably stay in the top k.

    To expel j of them, j other labels must pass the j-th weakest of them.
    """
    check_votes(votes)
    k = min(positive_int(k, "k"), votes.num_classes)
    positions = _touched(votes, patch)
    expelled = worst_case(
        kernels.CHEAPEST_FIRST,
        votes,
        [positions],
        members=_top(votes, k),
        ties=ties,
        kernel=kernels.most_expelled,
    ).ravel()
    return k - expelled if votes.unread is None else np.where(votes.unread, 0, k - expelled)


class Bounds(NamedTuple):
    """Bounds on rank and min-k, each [N], from part of the ballots; see `bounds`."""

    rank_low: Counts
    rank_high: Counts
    min_k_low: Counts
    min_k_high: Counts


def bounds(
    votes: Votes, patch: AnyPatch, known: npt.ArrayLike | None = None, *, ties: str = "against"
) -> Bounds:
    """Bounds on rank and min-k from part of the ballots: CostCert's, and PatchCleanser's for votes of masks.

    At worst a mutant that is not known belongs to the attacker; at best it gives all its units to the true
    label. The lower bounds are attained, by one completion for both: it gives the true label the most and
    every rival the least in each mutant, and rank and min-k can only grow with what rivals have, and fall
    with what the true label has, by votes as by best row.

    CostCert's upper bounds are attained as well. PatchCleanser's min-k is 1 for every completion iff its
    upper bound is 1: one rival can have all unknown ballots. For more rivals the bound may be too high, as it
    gives the same ballot to each of them; that of the rank also, as it counts equal best rows against the
    true label, whatever the votes.

    Args:
        known: [N, B], the ballots to use, of those that are known in `votes`; all of them by default.
    """
    check_votes(votes)
    part = votes
    if known is not None:
        mask = as_mask(known, "known", votes.ballots.shape, "ballots")
        part = votes.replace(known=mask if votes.known is None else mask & votes.known)
    wanted = certified_patch(patch, votes.image_size)
    defender = find("patchcleanser" if isinstance(votes.ablation, Masks) else "costcert")
    positions = touched_by(votes, wanted)
    if votes.unread is None or not votes.unread.all():
        defender.refuse(votes.ablation, on_input(votes, wanted), votes.image_size)
    best, nothing = _completed(part), Touched.nothing(votes.num_mutants)
    found = (
        defender.rank(best, nothing),
        defender.rank(part, nothing),
        defender.min_k(best, [positions], ties=ties)[0],
        defender.min_k(part, [positions], ties=ties)[0],
    )
    return Bounds(*(with_unread_last(each, votes) for each in found))


def _completed(votes: Votes) -> Votes:
    """The votes if every unknown ballot gave all its units to the true label."""
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
    if isinstance(votes.ablation, Masks):
        raise VotesError(
            f"this guarantee is about labels ranked by their votes, but {votes.ablation} rank a label by the "
            "mask under which it stands best: vote with columns, rows or blocks, or use certify"
        )
    return touched_by(votes, certified_patch(patch, votes.image_size))


def _lifted(votes: Votes, patch: AnyPatch, members: npt.NDArray[np.int32], ties: str) -> Counts:
    """[N], the most labels outside `members` that the attacker can lift past all of `members`."""
    positions = [_touched(votes, patch)]
    return worst_case(kernels.CHEAPEST_FIRST, votes, positions, members=members, ties=ties).ravel()


def _members(votes: Votes, truths: Sequence[Iterable[int]]) -> npt.NDArray[np.int32]:
    """The true labels of each image as a table, padded with -1."""
    check_votes(votes)
    lists = [as_labels(several(labels), "true labels", votes.num_classes) for labels in several(truths)]
    if any(each.ndim != 1 for each in lists):
        raise VotesError("true labels must be one list of labels per image")
    sets = [list(dict.fromkeys(each.tolist())) for each in lists]
    if len(sets) != len(votes):
        raise VotesError(f"got true labels of {len(sets)} images for votes of {len(votes)}")
    if not all(sets):
        raise VotesError(
            f"image {[bool(s) for s in sets].index(False)} has no true label: each image needs at least one"
        )
    table = np.full((len(sets), max(map(len, sets))), -1, dtype=np.int32)
    for row, labels in zip(table, sets, strict=True):
        row[: len(labels)] = labels
    return table


def _top(votes: Votes, k: int) -> npt.NDArray[np.int64]:
    """[N, k], the prediction on the clean images."""
    costcert, nothing = find("costcert"), Touched.nothing(votes.num_mutants)
    step = max(1, _SCORES_AT_ONCE // votes.num_classes)
    return np.concatenate(
        [
            costcert.predict(votes.take(slice(start, start + step)), nothing, k)
            for start in range(0, len(votes), step)
        ]
    )
