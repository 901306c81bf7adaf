"""From ballots to certificates: every image, defender and patch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from costcert.certification.certificates import Case, Certificates, Counts
from costcert.defenders import chosen
from costcert.errors import CostcertError, SpellingError, VotesError
from costcert.geometry.patches import OnePatch, Patch, Several, concrete
from costcert.geometry.sizes import ImageSize, positive_int
from costcert.geometry.touch import Touched, touched
from costcert.votes.defence import Defence
from costcert.votes.table import Votes

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
    mask: AnyPatch | None = None,
) -> Certificates:
    """Rank and min-k of every image, for each defender against each patch.

    Args:
        patches: values like `Square(32)` or spellings like `"2%"`.
        defenders: names, or `all`.
        ties: `against` lets every tie push the true label down; `lowest` knows that ties go to the lowest
            label.
        uncertain: [N, B], mutants that may vote otherwise on another machine; every patch touches them.
        epsilon: the same for mutants whose ballot is at most this far, in logits, from being another one.
        tau: units by which any soft ballot may be off on another machine, per label.
        mask: the patch that defenders who mask, such as PatchGuard, mask for, whatever they are certified
            against; by default each patch is certified for the classifier that masks for it.
    """
    wanted = concrete_patches(patches, votes.image_size)
    certified = chosen(defenders, soft=votes.is_soft, partial=votes.known is not None)
    fixed = None if mask is None else concrete(mask, votes.image_size)
    # Who does not mask predicts the same, whatever others mask for.
    masking = any(defender.masks for defender in certified)
    classifier = replace(votes.classifier, ties=ties, mask=fixed if masking else None)
    trusted = distrusting(votes, uncertain=uncertain, epsilon=epsilon, tau=tau)
    sets = {patch: touched(votes.ablation, patch, votes.image_size) for patch in wanted}
    results: dict[Case, tuple[Counts, Counts]] = {}
    by_votes: Counts | None = None
    for defender in certified:
        windows = {
            patch: masked_for(classifier, patch, votes.image_size) if defender.masks else of
            for patch, of in sets.items()
        }
        min_ks = defender.min_k(trusted, list(windows.values()), ties=ties)
        for (patch, window), min_k in zip(windows.items(), min_ks, strict=True):
            if not defender.ranks_by_votes:
                rank = defender.rank(votes, window)
            else:
                rank = by_votes = defender.rank(votes, window) if by_votes is None else by_votes
            results[defender.name, patch] = (without_unread(rank, votes), without_unread(min_k, votes))
    return Certificates(
        results,
        image_ids=votes.image_ids,
        num_classes=votes.num_classes,
        image_size=votes.image_size,
        classifier=classifier,
        metadata={
            "epsilon": epsilon,
            "tau": tau,
            **({} if uncertain is None else {"uncertain": "mutants that the caller named"}),
        },
    )


def masked_for(classifier: Defence, patch: OnePatch | Several, image_size: ImageSize) -> Touched:
    """What a masking defender masks, and is certified against, where a patch is asked about.

    Whoever controls a window can do all that a patch inside it allows, so what holds against the patch that
    is masked for holds against every patch that touches no more.
    """
    mine = touched(classifier.ablation, patch, image_size)
    if classifier.mask is None or classifier.mask == patch:
        return mine
    windows = touched(classifier.ablation, concrete(classifier.mask, image_size), image_size)
    if not mine.lies_within(windows):
        raise CostcertError(
            f"{classifier.mask} is masked for, and {patch} touches mutants beyond that: nothing is promised; "
            f"mask for {patch}, or ask about a patch that fits into {classifier.mask}"
        )
    return windows


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


def distrusting(
    votes: Votes, *, uncertain: npt.ArrayLike | None = None, epsilon: float | None = None, tau: int = 0
) -> Votes:
    """The votes with what another machine may count differently left to the attacker.

    Args:
        epsilon: a hard ballot is another one where its two best logits change places, a soft one where the
            last label it names and the first it does not.
        tau: units by which soft ballots may be off otherwise.
    """
    known = np.ones(votes.ballots.shape, np.bool_) if votes.known is None else votes.known
    if uncertain is not None:
        known = known & ~mutant_mask(uncertain, votes, "uncertain")
    if epsilon is not None:
        if not epsilon >= 0:
            raise VotesError(f"epsilon is not negative, got {epsilon}")
        known = known & (_distances(votes) > epsilon)
    tau = positive_int(tau, "tau", at_least=0)
    if tau and not votes.is_soft:
        raise VotesError("tau is in units of soft ballots, but these votes are hard: use epsilon")
    if uncertain is None and epsilon is None and not tau:
        return votes
    return votes.replace(known=known, tau=max(tau, votes.tau))


def _distances(votes: Votes) -> npt.NDArray[np.float32]:
    """[N, B], by how much logits must move for a ballot to name other labels."""
    if not votes.is_soft:
        if votes.margins is None:
            raise VotesError("these votes hold no margins, so no mutant can be told to be within epsilon")
        return votes.margins
    if votes.cuts is not None:
        return votes.cuts
    if votes.recipe is not None and votes.recipe.best >= votes.num_classes:
        return np.full(votes.ballots.shape, np.inf, np.float32)
    raise VotesError(
        "these soft ballots do not say how near the labels they name are to those they do not (cuts), so "
        "no mutant can be told to be within epsilon: vote once more with this version, or certify with --hard"
    )


def mutant_mask(mask: Any, votes: Votes, name: str) -> npt.NDArray[np.bool_]:
    """`mask` as booleans of the shape of the ballots."""
    array = np.asarray(mask)
    if array.dtype != np.bool_ or array.shape != votes.ballots.shape:
        raise VotesError(
            f"{name} is a mask of true and false of shape {votes.ballots.shape}, got {array.dtype} "
            f"of shape {array.shape}"
        )
    return array
