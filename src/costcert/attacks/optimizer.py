"""Optimises the pixels of a patch by gradient steps through the touched mutants only.

A step moves every pixel of a patch by the sign of its gradient. Pixels are rounded before the network sees
them, so every intermediate result is judged on uint8 pixels. There are two objectives:

- `ballots`: each touched mutant prefers the rival that the placement assigns to it, by a margin;
- `votes`: the k leading rivals, whichever they are, overtake the true label in a soft count of votes; for
  votes of masks by their best rows, S[y] = max over i of min over j of c_ij[y], smoothed so that more than
  one mutant has a gradient.

A batch of attempts is divided into parts that run side by side, each on one thread. The parts do not depend
on the number of cores, nor does the rounding of gradients, and with it the patches found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from costcert.attacks.attempts import Attempt
from costcert.attacks.judging import Judge, Positions, rewritten
from costcert.attacks.placements import Placements, Prices
from costcert.defenders.patchcleanser import PatchCleanser, gifts, masks_of
from costcert.errors import CostcertError
from costcert.models.callables import CallableNetwork
from costcert.models.classifier import Classifier, Pixels, ballots_of
from costcert.models.mutants import Mutants
from costcert.models.onnx import OnnxNetwork
from costcert.models.side_by_side import SideBySide
from costcert.models.torch_classifier import TorchClassifier
from costcert.votes.table import Votes

# Pixels of mutants in one backward pass, and the most mutants.
_SHOWN_AT_ONCE = {"cpu": 1 << 18, "mps": 1 << 21, "cuda": 1 << 23}
_MOST_AT_ONCE = {"cpu": 512, "mps": 1024, "cuda": 4096}
# Parts of a backward pass on a CPU, and the fewest mutants that are worth one.
_PARTS, _FEWEST = 8, 32
# Grey levels by which a pixel moves in the first step and in the last.
_FIRST_STEP, _LAST_STEP = 128.0, 8.0
_MOMENTUM = 0.6
# Margins of the two objectives: in logits of a mutant, and in votes of the count.
_LOGITS_AHEAD, _VOTES_AHEAD = 1.0, 0.5
# How closely smoothed best rows follow the true ones.
_SHARPNESS = 20.0
# Temperature of the softmax that replaces hard ballots, which have no gradient.
_HARD_TEMPERATURE = 0.5


class PatchOptimizer:
    """Improves attempts on some images.

    Args:
        clean: [N, H, W, C], the images.
        votes: the votes of these images.
        k: the attack succeeds when the true label leaves the top k.
    """

    def __init__(self, judge: Judge, placements: Placements, clean: Pixels, votes: Votes, k: int) -> None:
        if not isinstance(judge.model, TorchClassifier):
            raise no_gradients(judge)
        self.judge, self.placements, self.clean, self.votes, self.k = judge, placements, clean, votes, k
        self.model = judge.model
        soft = None if judge.soft is None else judge.soft.temperature
        self.temperature = _HARD_TEMPERATURE if soft is None else soft
        by_rows = isinstance(judge.deployed.defender, PatchCleanser)
        self.rows = self._tensor(masks_of(votes).table()).long() if by_rows else None
        # Along each axis, what an input pixel takes of each pixel of the original.
        original = judge.original
        self.weights = (
            None
            if original is None
            else [self._tensor(self.model.preprocessing.weights(original, axis)) for axis in (0, 1)]
        )

    def optimize(self, attempts: Sequence[Attempt], steps: int) -> None:
        """Take up to `steps` steps with each attempt; attempts on an image that is broken are skipped."""
        broken: set[int] = set()
        waiting = list(attempts)
        while waiting:
            batch, waiting = self._next_batch(waiting)
            batch = [attempt for attempt in batch if attempt.image not in broken]
            if batch:
                self._descend_in_parts(batch, steps)
            broken |= {attempt.image for attempt in batch if attempt.position > self.k}

    def _next_batch(self, waiting: list[Attempt]) -> tuple[list[Attempt], list[Attempt]]:
        """As many attempts as fit into one backward pass, at least one, and the rest."""
        room = mutants_at_once(self.model, self.placements)
        count = total = 0
        for attempt in waiting:
            total += len(attempt.placement.touched)
            if count and total > room:
                break
            count += 1
        return waiting[:count], waiting[count:]

    def _descend_in_parts(self, attempts: list[Attempt], steps: int) -> None:
        if self.model.device.type != "cpu":
            self._descend(self.model.mutants, attempts, steps)
            return
        mutants = sum(len(attempt.placement.touched) for attempt in attempts)
        count = max(1, min(_PARTS, mutants // _FEWEST, len(attempts)))
        parts = [attempts[number::count] for number in range(count)]
        for _ in SideBySide(partial(self._descend, steps=steps), self.model.mutants, parts):
            pass

    def _descend(self, mutants: Mutants, attempts: list[Attempt], steps: int) -> None:
        batch = Batch(self, attempts)
        pixels = self._tensor(np.stack([attempt.start for attempt in attempts])).float()
        direction = torch.zeros_like(pixels)
        for size in [*step_sizes(steps), 0.0]:
            pixels.requires_grad_()
            logits, shown = self.logits(pixels, batch, mutants)
            loss, short = self.loss(logits, batch)
            done = self._record(batch, logits, shown, short)
            if size == 0.0 or all(done):
                return
            direction = _MOMENTUM * direction + normalised(self.gradient(loss.sum(), pixels))
            pixels = (pixels.detach() - size * direction.sign()).clamp(0, 255)
            if any(done):
                remaining = [number for number, is_done in enumerate(done) if not is_done]
                batch = Batch(self, [batch.attempts[number] for number in remaining])
                pixels, direction = pixels[remaining], direction[remaining]

    def logits(self, pixels: Tensor, batch: Batch, mutants: Mutants | None = None) -> tuple[Tensor, Tensor]:
        """[M, L] of the touched mutants, and the rounded images that were evaluated.

        Args:
            mutants: the classifier's own by default, or a copy for the calling thread.
        """
        mutants = mutants or self.model.mutants
        # Straight-through estimator: rounding counts as the identity in the backward pass.
        rounded = pixels + (pixels.detach().round() - pixels.detach())
        shown = torch.where(batch.covered, rounded, batch.clean)
        mutants.eval()
        try:
            inputs = self._inputs(shown)
            logits = mutants(self.model.preprocessing.normalise(inputs), batch.regions, batch.owner)
        except (RuntimeError, MemoryError) as error:
            # A network that leaves torch has no gradient, which torch reports as an error.
            if "requires grad" in str(error):
                raise no_gradients(self.judge) from None
            if "memory" not in str(error).lower():
                raise
            raise CostcertError(
                f"the gradients of {len(batch.regions):,} mutants do not fit into the memory of "
                f"{self.model.device}: pass a smaller --batch-size, or an ablation with a larger stride"
            ) from None
        return logits, shown.detach()

    def _inputs(self, shown: Tensor) -> Tensor:
        """[J, H, W, C], the model's inputs for these pictures, prepared as in use.

        Preparing counts as a linear map in the backward pass.
        """
        if self.weights is None:
            return shown
        down, across = self.weights
        linear = torch.einsum("Yy,jyxc,Xx->jYXc", down, shown, across)
        pictures = shown.detach().round().to(torch.uint8).cpu().numpy()
        prepared = self._tensor(self.judge.inputs(pictures)).float()
        return linear + (prepared - linear.detach())

    def gradient(self, loss: Tensor, pixels: Tensor) -> Tensor:
        if not loss.requires_grad:
            raise no_gradients(self.judge)
        (gradient,) = torch.autograd.grad(loss, pixels)
        return gradient

    def loss(self, logits: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """[J], the loss of each attempt, and the votes that it still lacks."""
        shares = (logits / self.temperature).softmax(dim=1)
        scores = self._scores(shares, batch)
        own = scores.gather(1, batch.truth)
        rivals = scores.scatter(1, batch.truth, -torch.inf).topk(self.k, dim=1).values
        short = (own - rivals + _VOTES_AHEAD).relu().sum(dim=1)
        wanted = logits.gather(1, batch.wanted)[:, 0]
        others = logits.scatter(1, batch.wanted, -torch.inf).amax(dim=1)
        behind = (others - wanted + _LOGITS_AHEAD).relu()
        ballots = torch.zeros_like(short).index_add(0, batch.owner, behind)
        return torch.where(batch.by_votes, short, ballots), short.detach()

    def _scores(self, shares: Tensor, batch: Batch) -> Tensor:
        """[J, L], a soft count of votes; for masks the smoothed best rows, in votes of a whole row."""
        if batch.given is None or self.rows is None:
            return batch.rest.index_add(0, batch.owner, shares)
        given = batch.given.index_put((batch.owner, self._tensor(batch.mutants)), shares)
        least = -(-_SHARPNESS * given[:, self.rows]).logsumexp(dim=2) / _SHARPNESS
        return len(self.rows) * (_SHARPNESS * least).logsumexp(dim=1) / _SHARPNESS

    def _record(self, batch: Batch, logits: Tensor, shown: Tensor, short: Tensor) -> list[bool]:
        """Keep results that are better than before; return which attempts have succeeded."""
        positions = self.positions(batch, logits)
        images = shown.round().to(torch.uint8).cpu().numpy()
        for attempt, position, pixels, missing in zip(
            batch.attempts, positions.tolist(), images, short.tolist(), strict=True
        ):
            if (position, -missing) > (attempt.position, -attempt.short):
                attempt.position, attempt.short, attempt.pixels = position, missing, pixels
        return [attempt.position > self.k for attempt in batch.attempts]

    def positions(self, batch: Batch, logits: Tensor) -> Positions:
        ballots = ballots_of(logits.detach().float().cpu().numpy(), self.judge.soft)
        images = np.array([attempt.image for attempt in batch.attempts])
        changed = rewritten(self.votes, images, batch.owner.cpu().numpy(), batch.mutants, ballots)
        return self.judge.positions(changed)

    def _tensor(self, values: np.ndarray) -> Tensor:
        return torch.as_tensor(values, device=self.model.device)


class Batch:
    """The tensors that stay the same at every step of J attempts with M touched mutants in total."""

    def __init__(self, optimizer: PatchOptimizer, attempts: list[Attempt]) -> None:
        self.attempts = attempts
        votes, placements, device = optimizer.votes, optimizer.placements, optimizer.model.device
        images = [attempt.image for attempt in attempts]
        candidates = [attempt.placement for attempt in attempts]
        self.mutants = np.concatenate([placement.touched for placement in candidates])
        self.regions = [placements.regions[mutant] for mutant in self.mutants.tolist()]
        owner = np.repeat(np.arange(len(candidates)), [len(placement.touched) for placement in candidates])
        covered = np.stack([placements.pixels(placement.places) for placement in candidates])
        rest = [
            Prices(votes, image, optimizer.k).rest(placement.touched)
            for image, placement in zip(images, candidates, strict=True)
        ]
        self.owner = torch.tensor(owner, device=device)
        self.covered = torch.tensor(covered[..., None], device=device)
        self.clean = torch.tensor(optimizer.clean[images], device=device).float()
        self.rest = torch.tensor(np.stack(rest) / votes.cap, dtype=torch.float32, device=device)
        self.given = None
        if optimizer.rows is not None:
            given = np.stack([gifts(votes, image) for image in images]) / votes.cap
            self.given = torch.tensor(given, dtype=torch.float32, device=device)
        self.truth = torch.tensor(votes.truth[images][:, None], dtype=torch.int64, device=device)
        self.wanted = torch.tensor(
            np.concatenate([placement.wanted for placement in candidates])[:, None], device=device
        )
        self.by_votes = torch.tensor([attempt.by_votes for attempt in attempts], device=device)


def step_sizes(steps: int) -> Iterator[float]:
    """Step sizes that decrease geometrically."""
    return iter(np.geomspace(_FIRST_STEP, _LAST_STEP, steps).tolist())


def normalised(gradient: Tensor) -> Tensor:
    """Gradients scaled to a mean absolute value of 1 per image, so that momentum can add them up."""
    return gradient / gradient.abs().mean(dim=(1, 2, 3), keepdim=True).clamp_min(1e-20)


def mutants_at_once(model: TorchClassifier, placements: Placements) -> int:
    """How many mutants fit into one backward pass."""
    kind = model.device.type if model.device.type in _MOST_AT_ONCE else "cpu"
    largest = max(model.mutants.view.area(region) for region in placements.regions)
    return model.batch_size or max(1, min(_SHOWN_AT_ONCE[kind] // largest, _MOST_AT_ONCE[kind]))


def has_gradients(model: Classifier) -> bool:
    """Whether torch computes this model; only a step shows whether a torch module cuts its gradients."""
    return isinstance(model, TorchClassifier) and not any(
        isinstance(network, OnnxNetwork | CallableNetwork) for network in model.mutants.network.modules()
    )


def no_gradients(judge: Judge) -> CostcertError:
    return CostcertError(
        f"{judge.model.metadata()['name']} has no gradients: pass --steps 0 to try random pixels only, "
        "without --universal"
    )
