"""From votes to certificates: the rank and the min-k of every image, for each defender and patch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from costcert.certification.certificates import Certificates, Counts, Key
from costcert.defenders import chosen
from costcert.defenders.base import Defender
from costcert.errors import CostcertError, SpellingError, VotesError
from costcert.geometry.patches import (
    Certified,
    OnePatch,
    Original,
    Patch,
    Several,
    certified_patch,
    concrete,
)
from costcert.geometry.sizes import ImageSize, positive_int, several
from costcert.geometry.touch import Touched
from costcert.votes.defence import Defence
from costcert.votes.originals import (
    Images,
    naming_group,
    of_one_size,
    on_input,
    refuse_unfit_votes,
    touched_by,
)
from costcert.votes.table import Votes, check_votes
from costcert.votes.validation import as_mask

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
        patches: values like `Square(32)` or spellings like `"2%"`; `"original:2"` is 2 x 2 pixels of the
            picture before it is resized, and needs votes that record how large pictures were.
        defenders: names, or `all`.
        ties: `against` counts every tie as lost for the true label; `lowest` breaks ties in favour of the
            lowest label.
        uncertain: [N, B], mutants that may vote differently on another machine; every patch touches them.
        epsilon: the same for mutants whose margin (of a hard ballot) or cut (of a soft one) is at most this.
        tau: units by which any soft ballot may be off on another machine, per label.
        mask: the patch that masking defenders, such as PatchGuard, mask for, whichever patch they are
            certified against; by default each patch is certified for the classifier that masks for it.
    """
    parts = list(
        certified_in_parts(
            votes, patches, defenders, ties=ties, uncertain=uncertain, epsilon=epsilon, tau=tau, mask=mask
        )
    )
    return joined_parts(parts)


def certified_in_parts(
    votes: Votes,
    patches: AnyPatch | Iterable[AnyPatch],
    defenders: str | Iterable[str] = "all",
    *,
    at_once: int | None = None,
    ties: str = "against",
    uncertain: npt.ArrayLike | None = None,
    epsilon: float | None = None,
    tau: int = 0,
    mask: AnyPatch | None = None,
) -> Iterator[tuple[Images, Certificates]]:
    """What `certify` returns, as numbers of images with their certificates.

    Images whose originals have another size are another part, if any patch is on the original.

    Args:
        at_once: the most images of a part.
    """
    check_votes(votes)
    wanted = certified_patches(patches, votes.image_size)
    certified = chosen(
        defenders, ablation=votes.ablation, soft=votes.is_soft, partial=votes.known is not None
    )
    fixed = None if mask is None else certified_patch(mask, votes.image_size)
    # The prediction of a defender that does not mask is the same for every masked patch.
    masking = any(defender.masks for defender in certified)
    classifier = replace(votes.classifier, ties=ties, mask=fixed if masking else None)
    trusted = distrusting(votes, uncertain=uncertain, epsilon=epsilon, tau=tau)
    for defender in certified:
        for patch in wanted:
            if not isinstance(patch, Original):
                defender.refuse(votes.ablation, patch, votes.image_size)
    refuse_unfit_votes(votes, [*wanted, classifier.mask])
    metadata = {
        "epsilon": epsilon,
        "tau": tau,
        **({} if uncertain is None else {"uncertain": "mutants that the caller named"}),
    }
    for group in of_one_size(votes, [*wanted, classifier.mask]):
        step = at_once or max(1, len(group))
        for start in range(0, max(1, len(group)), step):
            images = group[start : start + step]
            everything = len(images) == len(votes)
            part = votes if everything else votes.take(images)
            try:
                results = _certified(
                    part, trusted if everything else trusted.take(images), wanted, certified, classifier
                )
            except CostcertError as error:
                raise naming_group(error, votes, group) from None
            yield (
                images,
                Certificates(
                    results,
                    image_ids=part.image_ids,
                    num_classes=votes.num_classes,
                    image_size=votes.image_size,
                    classifier=classifier,
                    metadata=metadata,
                ),
            )


def joined_parts(parts: Sequence[tuple[Images, Certificates]]) -> Certificates:
    """The certificates of all parts, in the order of the votes."""
    found = Certificates.joined([part for _, part in parts])
    if len(parts) == 1:
        return found
    return found.select(np.argsort(np.concatenate([images for images, _ in parts]), kind="stable"))


def _certified(
    votes: Votes,
    trusted: Votes,
    patches: Sequence[Certified],
    defenders: Sequence[Defender],
    classifier: Defence,
) -> dict[Key, tuple[Counts, Counts]]:
    """Rank and min-k of images whose originals have one size, if any patch is on the original."""
    if votes.unread is None or not votes.unread.all():
        for defender in defenders:
            for patch in patches:
                if isinstance(patch, Original):
                    defender.refuse(votes.ablation, on_input(votes, patch), votes.image_size)
    sets = {patch: touched_by(votes, patch) for patch in patches}
    results: dict[Key, tuple[Counts, Counts]] = {}
    by_votes: Counts | None = None
    for defender in defenders:
        windows = {
            patch: masked_for(votes, classifier, patch) if defender.masks else touched_sets
            for patch, touched_sets in sets.items()
        }
        min_ks = defender.min_k(trusted, list(windows.values()), ties=classifier.ties)
        for (patch, window), min_k in zip(windows.items(), min_ks, strict=True):
            if not defender.ranks_by_votes:
                rank = defender.rank(votes, window)
            else:
                rank = by_votes = defender.rank(votes, window) if by_votes is None else by_votes
            results[defender.name, patch] = (with_unread_last(rank, votes), with_unread_last(min_k, votes))
    return results


def masked_for(votes: Votes, classifier: Defence, patch: Certified) -> Touched:
    """The windows that a masking defender masks, which are the touched sets it is certified against.

    An attacker who controls a window can do everything that a patch inside it allows, so a certificate
    against the masked patch also holds for every patch that touches no more.
    """
    own = touched_by(votes, patch)
    if classifier.mask is None or classifier.mask == patch:
        return own
    windows = touched_by(votes, certified_patch(classifier.mask, votes.image_size))
    if not own.lies_within(windows):
        raise CostcertError(
            f"{patch} touches mutants outside the windows of {classifier.mask}, which the classifier masks "
            f"for: mask for {patch}, or certify against a patch that fits into {classifier.mask}"
        )
    return windows


def with_unread_last(positions: Counts, votes: Votes) -> Counts:
    """Positions of the true label, with the last position for images that could not be read."""
    if votes.unread is None:
        return positions
    return np.where(votes.unread, votes.num_classes, positions)


def concrete_patches(
    patches: AnyPatch | Iterable[AnyPatch], image_size: ImageSize
) -> list[OnePatch | Several]:
    """The patches in pixels of this image size, without duplicates; patches on the original are refused."""
    return [concrete(patch, image_size) for patch in certified_patches(patches, image_size)]


def certified_patches(patches: AnyPatch | Iterable[AnyPatch], image_size: ImageSize) -> list[Certified]:
    """The patches in pixels of this image size, without duplicates; those on the original as they are."""
    wanted = list(dict.fromkeys(certified_patch(patch, image_size) for patch in several(patches)))
    if not wanted:
        raise SpellingError("no patch is named: pass one, such as square:32")
    return wanted


def distrusting(
    votes: Votes, *, uncertain: npt.ArrayLike | None = None, epsilon: float | None = None, tau: int = 0
) -> Votes:
    """The votes without the ballots that may differ on another machine, which are left to the attacker.

    Args:
        epsilon: a hard ballot changes if its two best logits swap order, a soft one if the lowest of its
            labels and the highest of the others do; ballots within this distance of a swap are not known.
        tau: units by which the other soft ballots may be off.
    """
    known = np.ones(votes.ballots.shape, np.bool_) if votes.known is None else votes.known
    if uncertain is not None:
        known = known & ~as_mask(uncertain, "uncertain", votes.ballots.shape, "ballots")
    if epsilon is not None:
        known = known & (_distance_to_change(votes) > _checked_epsilon(epsilon))
    tau = positive_int(tau, "tau", at_least=0)
    if uncertain is None and epsilon is None and not tau:
        return votes
    return votes.replace(known=known, tau=max(tau, votes.tau))


def _checked_epsilon(epsilon: Any) -> float:
    if isinstance(epsilon, bool) or not isinstance(epsilon, Real) or not float(epsilon) >= 0:
        raise VotesError(f"epsilon must be a number of at least 0, got {epsilon!r}")
    return float(epsilon)


def _distance_to_change(votes: Votes) -> npt.NDArray[np.float32]:
    """[N, B], the difference of the two logits that must swap order for a ballot to name other labels."""
    if not votes.is_soft:
        if votes.margins is None:
            raise VotesError("these votes hold no margins, which epsilon needs: vote again, or omit it")
        return votes.margins
    if votes.cuts is not None:
        return votes.cuts
    if votes.recipe is not None and votes.recipe.best >= votes.num_classes:
        return np.full(votes.ballots.shape, np.inf, np.float32)
    raise VotesError(
        "these soft ballots hold no cuts, which epsilon needs: vote again with this version, or certify with "
        "--hard"
    )
