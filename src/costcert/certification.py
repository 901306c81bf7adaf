"""From ballots to certificates: every image, defender and patch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from costcert.certificates import Case, Certificates, Counts
from costcert.defenders import chosen
from costcert.defenders.base import Doubt
from costcert.errors import SpellingError, VotesError
from costcert.geometry.patches import OnePatch, Patch, Several, concrete
from costcert.geometry.sizes import ImageSize, whole
from costcert.geometry.touch import touched
from costcert.votes import Votes

AnyPatch = Patch | str | int


def certify(
    votes: Votes,
    patches: AnyPatch | Iterable[AnyPatch],
    defenders: str | Iterable[str] = "all",
    *,
    ties: str = "against",
    uncertain: npt.ArrayLike | None = None,
    epsilon: float | None = None,
    tau: int = 0,
) -> Certificates:
    """Rank and min-k of every image, for each defender against each patch.

    Args:
        patches: values like `Square(32)` or spellings like `"2%"`.
        defenders: names, or `all`.
        ties: `against` lets every tie push the true label down; `lowest` knows that ties go to the lowest
            label.
        uncertain: [N, B], mutants that may vote otherwise on another machine; every patch touches them.
        epsilon: the same for mutants whose margin is at most this.
        tau: units by which any soft ballot may be off on another machine, per label.
    """
    wanted = concrete_patches(patches, votes.image_size)
    doubt = doubtful(votes, uncertain=uncertain, epsilon=epsilon, tau=tau)
    guards = chosen(defenders, soft=votes.is_soft, part=votes.asked is not None)
    cases = [touched(votes.ablation, patch, votes.image_size) for patch in wanted]
    results: dict[Case, tuple[Counts, Counts]] = {}
    by_votes = None
    for guard in guards:
        min_ks = guard.min_k(votes, cases, ties=ties, doubt=doubt)
        for patch, case, min_k in zip(wanted, cases, min_ks, strict=True):
            if not guard.ranks_by_votes:
                rank = guard.rank(votes, case)
            else:
                rank = by_votes = guard.rank(votes, case) if by_votes is None else by_votes
            results[guard.name, patch] = (without_unread(rank, votes), without_unread(min_k, votes))
    return Certificates(
        results,
        image_ids=votes.image_ids,
        num_classes=votes.num_classes,
        image_size=votes.image_size,
        about={
            "ties": ties,
            "epsilon": epsilon,
            "tau": tau,
            **({} if uncertain is None else {"uncertain": "mutants that the caller named"}),
        },
    )


def without_unread(positions: Counts, votes: Votes) -> Counts:
    """Positions of the true label, the last one for images that could not be read."""
    if votes.unread is None:
        return positions
    return np.where(votes.unread, votes.num_classes, positions)


def concrete_patches(
    patches: AnyPatch | Iterable[AnyPatch], image_size: ImageSize
) -> list[OnePatch | Several]:
    """The patches in pixels of this image, each once."""
    if isinstance(patches, str | int | Patch):
        patches = [patches]
    wanted = list(dict.fromkeys(concrete(patch, image_size) for patch in patches))
    if not wanted:
        raise SpellingError("no patch is named: pass one, such as square:32")
    return wanted


def doubtful(
    votes: Votes, *, uncertain: npt.ArrayLike | None = None, epsilon: float | None = None, tau: int = 0
) -> Doubt:
    """Which ballots to distrust."""
    unknown: npt.NDArray[np.bool_] | None = None
    if uncertain is not None:
        unknown = mutant_mask(uncertain, votes, "uncertain")
    if epsilon is not None:
        if votes.margins is None:
            raise VotesError("these votes hold no margins, so no mutant can be told to be within epsilon")
        if not epsilon >= 0:
            raise VotesError(f"epsilon is not negative, got {epsilon}")
        close = votes.margins <= epsilon
        unknown = close if unknown is None else unknown | close
    tau = whole(tau, "tau", at_least=0)
    if tau and not votes.is_soft:
        raise VotesError("tau is in units of soft ballots, but these votes are hard: use epsilon")
    # A shift of a whole ballot already makes every label equal; more would only overflow.
    return Doubt(unknown, min(tau, votes.cap))


def mutant_mask(mask: Any, votes: Votes, name: str) -> npt.NDArray[np.bool_]:
    """`mask` as booleans of the shape of the ballots."""
    array = np.asarray(mask)
    if array.dtype != np.bool_ or array.shape != votes.ballots.shape:
        raise VotesError(
            f"{name} is a mask of true and false of shape {votes.ballots.shape}, got {array.dtype} "
            f"of shape {array.shape}"
        )
    return array
