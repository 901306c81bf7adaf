"""The training loss: of each mutant alone, of the vote of an image's mutants, and of its certificate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from costcert.errors import CostcertError
from costcert.geometry.ablations import Ablation, Masks
from costcert.geometry.patches import concrete
from costcert.geometry.sizes import ImageSize
from costcert.geometry.touch import touched
from costcert.training.recipes import Recipe

# The inverse temperature of the vote loss, and the factor that makes it about as large as the mutant loss.
_STEEPNESS = 10.0
_VOTE_SCALE = 0.4
# Positions of a patch that one step considers; more are drawn at random.
_POSITIONS = 128


class TrainingLoss:
    """The loss of a batch, as the recipe weighs its parts.

    Args:
        ablation: whose mutants are drawn, by their numbers.
    """

    def __init__(self, recipe: Recipe, ablation: Ablation, image_size: ImageSize) -> None:
        self._recipe = recipe
        self._clean = clean_mutants(recipe, ablation, image_size) if recipe.certificate_loss_weight else []

    def __call__(
        self,
        logits: Tensor,
        truth: Tensor,
        drawn: npt.NDArray[np.int64],
        rng: np.random.Generator,
        taught: Tensor | None = None,
    ) -> Tensor:
        """The loss of B mutants of each of N images.

        Args:
            logits: [B * N, L], the first mutant of every image, then the second, and so on.
            truth: [N], the label of each image.
            drawn: [B, N], the numbers of the mutants.
            taught: [N, L], a teacher's logits.
        """
        recipe, mutants = self._recipe, len(drawn)
        loss = nn.functional.cross_entropy(logits, truth.repeat(mutants), label_smoothing=recipe.smoothing)
        if taught is not None:
            of_teacher = teacher_loss(logits, taught.repeat(mutants, 1), recipe.teacher_temperature)
            loss = (1 - recipe.teacher_weight) * loss + recipe.teacher_weight * of_teacher
        of_votes, of_certificates = recipe.vote_loss_weight, recipe.certificate_loss_weight
        if not of_votes and not of_certificates:
            return loss
        ballots = logits.float().softmax(dim=1).reshape(mutants, -1, logits.shape[1])
        loss = (1 - of_votes - of_certificates) * loss
        if of_votes:
            loss = loss + of_votes * vote_loss(ballots, truth, recipe.margin)
        if of_certificates:
            clean = [some_rows(of_patch, rng)[:, drawn] for of_patch in self._clean]
            tables = [torch.from_numpy(table).to(ballots) for table in clean]
            loss = loss + of_certificates * certificate_loss(ballots, truth, tables, recipe.certified_ks)
        return loss


def teacher_loss(logits: Tensor, taught: Tensor, temperature: float) -> Tensor:
    """The divergence of the teacher's soft labels, in the scale of a cross-entropy (Hinton et al., 2015)."""
    divergence = nn.functional.kl_div(
        (logits / temperature).log_softmax(dim=1),
        (taught / temperature).log_softmax(dim=1),
        log_target=True,
        reduction="batchmean",
    )
    return divergence * temperature**2


def vote_loss(ballots: Tensor, truth: Tensor, margin: float) -> Tensor:
    """Smooth hinge loss of soft ballots [B, N, L]: the truth should lead every rival by this share of them.

    It is almost flat once the margin is reached, so that training works on images where it is not.
    """
    shares = ballots.mean(dim=0) - margin * nn.functional.one_hot(truth, ballots.shape[2])
    return _VOTE_SCALE * nn.functional.cross_entropy(_STEEPNESS * shares, truth)


def certificate_loss(ballots: Tensor, truth: Tensor, clean: Sequence[Tensor], ks: Sequence[int]) -> Tensor:
    """Smooth hinge loss of what lifting k rivals costs beyond the budget, at each patch's worst position.

    This is the paper's Eq. 1 for the mutants that were drawn: an image is certified for k where the sum of
    the k smallest gaps, alpha_p[y0] - alpha_p[y], is larger than q_p for every position p. Gaps may be
    negative here, so that images far from a certificate have a gradient as well.

    Args:
        ballots: [B, N, L], soft ballots.
        clean: for each patch [P, B, N], 1 where a mutant is not touched from position p, else 0.
    """
    total = ballots.new_zeros(())
    most = min(max(ks), ballots.shape[2] - 1)
    for table in clean:
        votes = torch.einsum("pbn,bnl->npl", table, ballots) / len(ballots)
        budgets = (1 - table).mean(dim=1).T
        own = truth[:, None, None].expand(-1, votes.shape[1], 1)
        gaps = votes.gather(2, own) - votes.scatter(2, own, -torch.inf).topk(most, dim=2).values
        costs = gaps.cumsum(dim=2)
        for k in ks:
            beyond = (costs[:, :, min(k, most) - 1] - budgets).amin(dim=1)
            # The sum of k gaps varies about as the square root of k.
            total = total + nn.functional.softplus(-_STEEPNESS / k**0.5 * beyond).mean()
    return _VOTE_SCALE * total / (len(clean) * len(ks))


def clean_mutants(recipe: Recipe, ablation: Ablation, image_size: ImageSize) -> list[npt.NDArray[np.float32]]:
    """For each of the recipe's patches [P, B], 1 where position p does not touch a mutant, else 0."""
    if isinstance(ablation, Masks):
        raise CostcertError(
            f"certificate_loss_weight is for votes that are counted, as of columns:4, but {ablation} are "
            "ranked by their best row: leave it out"
        )
    sets = [
        touched(ablation, concrete(patch, image_size), image_size).sets()
        for patch in recipe.certified_patches
    ]
    return [1 - np.stack(list(each)).astype(np.float32) for each in sets]


def some_rows(table: npt.NDArray[np.float32], rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """All rows, or as many random ones as a step considers."""
    if len(table) <= _POSITIONS:
        return table
    return table[rng.choice(len(table), _POSITIONS, replace=False)]
