"""The training loss: of each mutant alone, and of the vote of an image's mutants."""

from __future__ import annotations

from torch import Tensor, nn

from costcert.training.recipes import Recipe

# The inverse temperature of the vote loss, and the factor that makes it about as large as the mutant loss.
_STEEPNESS = 10.0
_VOTE_SCALE = 0.4


def training_loss(logits: Tensor, labels: Tensor, recipe: Recipe) -> Tensor:
    """Cross-entropy of mutants in the order of `draw_mutants`, mixed with the vote loss of their images."""
    mutant_loss = nn.functional.cross_entropy(logits, labels, label_smoothing=recipe.smoothing)
    if not recipe.vote_loss_weight:
        return mutant_loss
    ballots = logits.float().softmax(dim=1).reshape(recipe.mutants, -1, logits.shape[1])
    of_votes = vote_loss(ballots, labels[: ballots.shape[1]], recipe.margin)
    return (1 - recipe.vote_loss_weight) * mutant_loss + recipe.vote_loss_weight * of_votes


def vote_loss(ballots: Tensor, truth: Tensor, margin: float) -> Tensor:
    """Smooth hinge loss of soft ballots [B, N, L]: the truth should lead every rival by this share of them.

    It is almost flat once the margin is reached, so that training works on images where it is not.
    """
    shares = ballots.mean(dim=0) - margin * nn.functional.one_hot(truth, ballots.shape[2])
    return _VOTE_SCALE * nn.functional.cross_entropy(_STEEPNESS * shares, truth)
