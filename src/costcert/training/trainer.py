"""Fine-tune a network on random mutants, so that it votes well on what little a mutant keeps.

Training shows mutants through the same view that voting does. It leaves a checkpoint after every epoch and
goes on from the last one; what it ends with is a folder that `vote` reads by itself.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from costcert.datasets.base import Dataset as Images
from costcert.errors import CostcertError
from costcert.geometry.ablations import Region
from costcert.models.checkpoints import head_name, read_torch_file
from costcert.models.mutants import Mutants
from costcert.models.preprocessing import Preprocessing
from costcert.store.files import atomic_write, join_manifest
from costcert.store.locations import Location, fetched
from costcert.training.recipes import Recipe

VERSION = 1
CHECKPOINT = "checkpoint.pt"

# Prepared images of up to so many bytes are kept in memory; of larger data each epoch prepares all anew.
_IN_MEMORY = 4 << 30

# How many images a worker hands over at a time.
_HANDED_OVER = 16

# How sharply the loss of a vote turns where the margin suffices, and what makes it about as large as that of
# mutants.
_STEEPNESS = 10.0
_VOTE_SCALE = 0.4


class Epoch(NamedTuple):
    """What one epoch came to."""

    number: int
    of: int
    loss: float
    accuracy: float
    validation: float | None


class Prepared(Dataset[tuple[Tensor, int]]):
    """A data set as the network's input, [H, W, C] whole pixels; what fits in memory is prepared once.

    Args:
        order: how images are asked for at first, which is how workers prepare them ahead.
        workers: processes that prepare images.
    """

    def __init__(
        self,
        images: Images,
        preprocessing: Preprocessing,
        *,
        order: Sampler[int] | None = None,
        workers: int = 0,
    ) -> None:
        self._images = images
        self._prepare = preprocessing.prepare
        height, width = preprocessing.image_size
        fits = len(images) * height * width * preprocessing.channels <= _IN_MEMORY
        self._kept: dict[int, npt.NDArray[np.uint8]] | None = {} if fits else None
        # What a worker keeps, no other process sees: so what is to be kept is handed over to this one, and
        # whoever loads from here needs no workers of its own.
        self.workers = 0 if fits else workers
        self._ahead = self._handed_over(order, workers) if fits and workers else iter(())

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(self._pixels(index)), self._images.label(index)

    def _pixels(self, index: int) -> npt.NDArray[np.uint8]:
        if self._kept is None:
            return self._prepare(self._images.image(index))
        if index not in self._kept:
            for number, pixels in self._ahead:
                self._kept[number] = pixels
                if number == index:
                    break
            else:
                self._kept[index] = self._prepare(self._images.image(index))
        return self._kept[index]

    def _handed_over(
        self, order: Sampler[int] | None, workers: int
    ) -> Iterator[tuple[int, npt.NDArray[np.uint8]]]:
        loader = DataLoader(
            _Numbered(self._images, self._prepare),
            batch_size=_HANDED_OVER,
            sampler=order,
            num_workers=workers,
            # Chance of its own: training must draw the same numbers whether or not images are kept already.
            generator=torch.Generator(),
        )
        try:
            for numbers, pixels in loader:
                # Copied, because what workers hand over lies in shared memory, of which there is little.
                yield from zip(numbers.tolist(), map(np.copy, pixels.numpy()), strict=True)
        except CostcertError:
            # A worker's error comes as a page of text: prepared here, the same image is one sentence.
            return


class _Numbered(Dataset[tuple[int, npt.NDArray[np.uint8]]]):
    """What workers prepare: an image's number, so that nobody confuses them, and its pixels."""

    def __init__(self, images: Images, prepare: Callable[[Any], npt.NDArray[np.uint8]]) -> None:
        self._images, self._prepare = images, prepare

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[int, npt.NDArray[np.uint8]]:
        return index, self._prepare(self._images.image(index))


class Trainer:
    """One training run in one folder.

    Args:
        mutants: the network and its view.
        regions: what the mutants of the ablation keep.
        identity: what makes this run this one; a folder begun with another is refused.
        precision: `no`, `fp16` or `bf16`, as Accelerate names them.
        workers: processes that prepare images.
    """

    def __init__(
        self,
        mutants: Mutants,
        preprocessing: Preprocessing,
        regions: list[Region],
        recipe: Recipe,
        folder: Location,
        *,
        identity: dict[str, Any],
        precision: str = "no",
        device: str = "cpu",
        workers: int = 0,
    ) -> None:
        self.recipe, self.folder, self.regions = recipe, folder, regions
        self._preprocessing = preprocessing
        self._workers = workers
        self._accelerator = Accelerator(mixed_precision=precision, cpu=device == "cpu")
        self._plain = mutants
        self._average = _Average(mutants, recipe.average)
        if self._accelerator.is_main_process:
            join_manifest(
                folder, {"format": "costcert training", "version": VERSION, **identity}, "training", VERSION
            )
        self._accelerator.wait_for_everyone()

    def fit(
        self,
        train: Images,
        validation: Images | None,
        *,
        after_epoch: Callable[[Epoch], None] = lambda epoch: None,
        after_images: Callable[[int], None] = lambda done: None,
    ) -> nn.Module:
        """Train from where the folder stands to the last epoch; returns the network to be saved."""
        recipe, accelerator = self.recipe, self._accelerator
        order = _Shuffled(len(train), recipe.seed)
        prepared = Prepared(train, self._preprocessing, order=order, workers=self._workers)
        loader = DataLoader(
            prepared,
            batch_size=recipe.batch_size,
            sampler=order,
            drop_last=len(train) >= recipe.batch_size,
            num_workers=prepared.workers,
        )
        optimizer = _optimizer(self._plain, recipe)
        model, optimizer, loader = accelerator.prepare(self._plain, optimizer, loader)
        checked = None
        if validation is not None:
            checked = Prepared(validation, self._preprocessing, workers=self._workers)
        begun = self._resume(optimizer)
        after_images(begun * len(train))
        steps = len(loader)
        for epoch in range(begun, recipe.epochs):
            # Each epoch has its own seeds, so that one resumed is the one that was interrupted.
            order.epoch = epoch
            rng = np.random.default_rng((recipe.seed, epoch))
            torch.manual_seed(int(rng.integers(1 << 62)))
            model.train()
            loss_sum = right = seen = 0.0
            for step, (pixels, labels) in enumerate(loader):
                for group in optimizer.param_groups:
                    group["lr"] = group["share"] * recipe.lr * _factor(recipe, epoch + step / steps)
                shown = augmented(self._preprocessing.normalise(pixels), recipe, rng)
                images, regions = draw(len(pixels), self.regions, recipe, rng)
                wanted = labels[images.to(labels.device)]
                with accelerator.autocast():
                    logits = model(shown, regions, images.to(shown.device))
                    loss = loss_of(logits, wanted, recipe)
                if not torch.isfinite(loss):
                    raise CostcertError(
                        f"the loss is no longer finite in epoch {epoch + 1}: use a smaller rate than "
                        f"{recipe.lr}"
                    )
                accelerator.backward(loss)
                if recipe.clip:
                    accelerator.clip_grad_norm_(model.parameters(), recipe.clip)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                self._average.update()
                loss_sum += float(loss.detach()) * len(wanted)
                right += float((logits.argmax(1) == wanted).sum())
                seen += len(wanted)
                after_images(
                    min(epoch * len(train) + (step + 1) * recipe.batch_size, (epoch + 1) * len(train))
                )
            score = None if checked is None else self._score(checked)
            self._save(optimizer, epoch + 1)
            after_epoch(Epoch(epoch + 1, recipe.epochs, loss_sum / seen, right / seen, score))
        self._average.apply()
        return self._plain.network

    def finish(self, save: Callable[[], None]) -> None:
        """Write the model; the checkpoint has served."""
        self._accelerator.wait_for_everyone()
        if self._accelerator.is_main_process:
            save()
            (self.folder / CHECKPOINT).unlink(missing_ok=True)

    def _score(self, images: Prepared) -> float:
        """Share of mutants that vote right, over a fixed draw of regions."""
        rng = np.random.default_rng(0)
        module = self._average.shadow if self._average.shadow is not None else self._plain
        module.eval()
        right = total = 0
        device = next(module.parameters()).device
        with torch.inference_mode():
            for pixels, labels in DataLoader(images, batch_size=256, num_workers=images.workers):
                chosen = [self.regions[i] for i in rng.integers(len(self.regions), size=len(pixels))]
                logits = module(self._preprocessing.normalise(pixels.to(device)), chosen)
                right += int((logits.argmax(1).cpu() == labels).sum())
                total += len(labels)
        return right / total

    def _save(self, optimizer: Any, epoch: int) -> None:
        if not self._accelerator.is_main_process:
            return
        state = {
            "epoch": epoch,
            "steps": self._average.steps,
            "network": self._plain.network.state_dict(),
            "average": None if self._average.shadow is None else self._average.shadow.network.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        with atomic_write(self.folder / CHECKPOINT) as temporary:
            torch.save(state, temporary)

    def _resume(self, optimizer: Any) -> int:
        path = self.folder / CHECKPOINT
        if not path.exists():
            return 0
        with fetched(path) as file:
            try:
                state = read_torch_file(file, path)
                self._plain.network.load_state_dict(state["network"])
                if self._average.shadow is not None:
                    self._average.shadow.network.load_state_dict(state["average"])
                self._average.steps = int(state["steps"])
                optimizer.load_state_dict(state["optimizer"])
                return int(state["epoch"])
            except CostcertError:
                raise
            except Exception as error:
                raise CostcertError(
                    f"{path} is damaged or of another network: remove it to start again"
                ) from error


class _Shuffled(Sampler[int]):
    """Every image once an epoch, in an order that seed and epoch decide."""

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed, self.epoch = count, seed, 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng((self._seed, self.epoch, 1))
        return iter(rng.permutation(self._count).tolist())


class _Average:
    """A moving average of the weights, which votes better than the last step's."""

    def __init__(self, mutants: Mutants, decay: float) -> None:
        self._live, self._decay, self.steps = mutants, decay, 0
        self.shadow: Mutants | None = None
        if decay:
            self.shadow = copy.deepcopy(mutants).requires_grad_(False)

    def update(self) -> None:
        if self.shadow is None:
            return
        self.steps += 1
        # At first the average follows closely, or it would remember the random start.
        decay = min(self._decay, (1 + self.steps) / (10 + self.steps))
        with torch.no_grad():
            for mean, now in zip(
                self.shadow.state_dict().values(), self._live.state_dict().values(), strict=True
            ):
                if mean.dtype.is_floating_point:
                    mean.lerp_(now.to(mean.device), 1 - decay)
                else:
                    mean.copy_(now)

    def apply(self) -> None:
        if self.shadow is not None:
            self._live.load_state_dict(self.shadow.state_dict())


def draw(
    count: int, regions: list[Region], recipe: Recipe, rng: np.random.Generator
) -> tuple[Tensor, list[Region]]:
    """Which image each mutant of a batch is of, and what it keeps."""
    own = 1 if recipe.shared else count
    if recipe.vote_loss_weight:
        # EngineOptions evenly, so that a few speak for all.
        places = np.arange(recipe.mutants)[:, None] + rng.random((1, own))
        chosen = (places * len(regions) / recipe.mutants).astype(np.int64)
    else:
        chosen = rng.integers(len(regions), size=(recipe.mutants, own))
    chosen = np.broadcast_to(chosen, (recipe.mutants, count))
    images = torch.arange(count).repeat(recipe.mutants)
    return images, [regions[i] for i in chosen.ravel()]


def loss_of(logits: Tensor, wanted: Tensor, recipe: Recipe) -> Tensor:
    """Cross-entropy of mutants in the order of `draw` and, as the recipe weighs it, of each image's vote."""
    alone = nn.functional.cross_entropy(logits, wanted, label_smoothing=recipe.smoothing)
    if not recipe.vote_loss_weight:
        return alone
    ballots = logits.float().softmax(dim=1).reshape(recipe.mutants, -1, logits.shape[1])
    together = vote_loss(ballots, wanted[: ballots.shape[1]], recipe.margin)
    return (1 - recipe.vote_loss_weight) * alone + recipe.vote_loss_weight * together


def vote_loss(ballots: Tensor, truth: Tensor, margin: float) -> Tensor:
    """How far the votes of soft ballots [B, N, L] are from a truth that leads every rival by this share.

    A smooth hinge: nothing is left to gain once the margin is there, so that effort goes where it is not.
    """
    ahead = ballots.mean(dim=0) - margin * nn.functional.one_hot(truth, ballots.shape[2])
    return _VOTE_SCALE * nn.functional.cross_entropy(_STEEPNESS * ahead, truth)


def augmented(pixels: Tensor, recipe: Recipe, rng: np.random.Generator) -> Tensor:
    """Images moved a little, in other light and, where asked for, mirrored; each by itself."""
    count, _, height, width = pixels.shape
    rows = torch.arange(height)[None].repeat(count, 1)
    columns = torch.arange(width)[None].repeat(count, 1)
    if recipe.shift:
        moves = torch.from_numpy(rng.integers(-recipe.shift, recipe.shift + 1, size=(2, count, 1)))
        rows, columns = (rows + moves[0]).clamp(0, height - 1), (columns + moves[1]).clamp(0, width - 1)
    if recipe.flip:
        mirrored = torch.from_numpy(rng.random((count, 1)) < 0.5)
        columns = torch.where(mirrored, columns.flip(1), columns)
    if recipe.shift or recipe.flip:
        where = (torch.arange(count)[:, None, None], slice(None), rows[:, :, None], columns[:, None, :])
        pixels = pixels[where].permute(0, 3, 1, 2)
    if recipe.warp:
        pixels = _warped(pixels, recipe.warp, rng)
    if recipe.brightness_contrast:
        scale = torch.from_numpy(
            rng.uniform(-recipe.brightness_contrast, recipe.brightness_contrast, size=(2, count, 1, 1, 1))
        )
        brightness, contrast = scale.to(pixels)
        pixels = pixels * (1 + contrast) + brightness
    if recipe.colour:
        scale = torch.from_numpy(
            rng.uniform(-recipe.colour, recipe.colour, size=(2, *pixels.shape[:2], 1, 1))
        )
        brightness, contrast = scale.to(pixels)
        mean, deviation = (f(pixels, dim=(1, 2, 3), keepdim=True) for f in (torch.mean, torch.std))
        pixels = mean + (pixels - mean) * (1 + contrast) + deviation * brightness
    return pixels


def _warped(pixels: Tensor, most: float, rng: np.random.Generator) -> Tensor:
    """Each image turned, slanted and stretched by its own amounts about its middle, borders repeated."""
    amounts = torch.from_numpy(rng.uniform(-most, most, size=(4, len(pixels)))).to(pixels)
    wider, taller, slant = 1 + amounts[0], 1 + amounts[1], amounts[2]
    angle = math.pi / 2 * amounts[3]
    still = torch.zeros_like(angle)
    across = torch.stack([wider * angle.cos(), slant - angle.sin(), still], dim=1)
    down = torch.stack([angle.sin(), taller * angle.cos(), still], dim=1)
    moves = torch.stack([across, down], dim=1)
    grid = nn.functional.affine_grid(moves, list(pixels.shape), align_corners=False)
    return nn.functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)


def _factor(recipe: Recipe, epoch: float) -> float:
    """The learning rate at this point of training, as a share of the recipe's."""
    if epoch < recipe.warmup:
        return max(epoch / recipe.warmup, 1e-3)
    done = (epoch - recipe.warmup) / max(recipe.epochs - recipe.warmup, 1e-9)
    if recipe.schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    if recipe.schedule == "steps":
        return 0.1 ** math.floor(3 * epoch / recipe.epochs)
    return 1.0


def _optimizer(mutants: Mutants, recipe: Recipe) -> torch.optim.Optimizer:
    """Biases and norms are not decayed; all layers but the last learn at the body's share of the rate."""
    head = head_name(mutants.network)
    if head is None and recipe.backbone_lr_scale < 1:
        raise CostcertError("this network does not say which layer is its last: leave body at 1")
    parts: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in mutants.network.named_parameters():
        if parameter.requires_grad:
            decay = recipe.weight_decay if parameter.ndim > 1 else 0.0
            share = 1.0 if name.startswith(f"{head}.") else recipe.backbone_lr_scale
            parts.setdefault((decay, share), []).append(parameter)
    groups = [
        {"params": part, "weight_decay": decay, "share": share} for (decay, share), part in parts.items()
    ]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum)
    return torch.optim.AdamW(groups, lr=recipe.lr)
