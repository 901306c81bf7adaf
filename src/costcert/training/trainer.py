"""Trains a network on random mutants, so that it votes well on the few pixels that a mutant keeps.

Mutants are shown to the network through the same view as in voting. Training writes a checkpoint after every
epoch and resumes from the last one; its result is a model folder that `vote` reads without further options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import Sampler

from costcert.datasets.base import Dataset as Images
from costcert.errors import CostcertError
from costcert.geometry.ablations import Ablation, Kept
from costcert.models.checkpoints import read_torch_file
from costcert.models.mutants import Mutants
from costcert.models.preprocessing import Preprocessing
from costcert.models.torch_classifier import resolve_device
from costcert.store.files import atomic_write, join_manifest
from costcert.store.locations import Location, fetched
from costcert.training.augmentation import augment, draw_mutants
from costcert.training.losses import TrainingLoss
from costcert.training.optimization import LearningRates, averaged, make_optimizer
from costcert.training.prepared_images import PreparedImages
from costcert.training.random_masks import regions_for_training
from costcert.training.recipes import Recipe
from costcert.training.teacher import Teacher

VERSION = 1
CHECKPOINT = "checkpoint.pt"
# Counted up when what a checkpoint holds changes: another order of parameters would load without an error.
_CHECKPOINT_FORMAT = 2


class Epoch(NamedTuple):
    """Results of epoch `number` of `of`; `accuracy` and `validation` are shares of correct mutants."""

    number: int
    of: int
    loss: float
    accuracy: float
    validation: float | None


class Trainer:
    """One training run in one folder.

    Args:
        mutants: the network and its view.
        ablation: what mutants keep.
        teacher: a network whose soft labels the mutants learn as well.
        identity: what defines this run; a folder that holds a run with another identity is refused.
        precision: `no`, `fp16` or `bf16`, as Accelerate names them.
        device: as for `TorchClassifier`; one that is not available is refused.
        workers: number of processes that prepare images.
    """

    def __init__(
        self,
        mutants: Mutants,
        preprocessing: Preprocessing,
        ablation: Ablation,
        recipe: Recipe,
        folder: Location,
        *,
        identity: dict[str, Any],
        teacher: Teacher | None = None,
        precision: str = "no",
        device: str = "auto",
        workers: int = 0,
    ) -> None:
        self.recipe, self.folder = recipe, folder
        self.regions: list[Kept] = regions_for_training(ablation, preprocessing.image_size, recipe.seed)
        self._loss = TrainingLoss(recipe, ablation, preprocessing.image_size)
        self._teacher = teacher
        self._preprocessing = preprocessing
        self._workers = workers
        self._accelerator = _accelerator(resolve_device(device), precision)
        self._mutants = mutants
        self._averaged = (
            averaged(mutants, recipe.average, self._accelerator.device) if recipe.average else None
        )
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
        unread: int = 0,
        on_resume: Callable[[int], None] = lambda done: None,
        after_epoch: Callable[[Epoch], None] = lambda epoch: None,
        after_images: Callable[[int], None] = lambda done: None,
    ) -> nn.Module:
        """Train from the last checkpoint, if any, to the last epoch; returns the trained network.

        Args:
            unread: the number of validation images that cannot be read; they count as wrong.
            on_resume: called with the number of epochs that an earlier run finished, if there are any.
            after_epoch: called with the results of each epoch.
            after_images: called after each step with the number of images used so far, over all epochs.
        """
        recipe, accelerator = self.recipe, self._accelerator
        order = _ShuffledOrder(len(train), recipe.seed)
        prepared = PreparedImages(train, self._preprocessing, order=order, workers=self._workers)
        loader: Any = prepared.loader(
            recipe.batch_size, sampler=order, drop_last=len(train) >= recipe.batch_size
        )
        optimizer = make_optimizer(self._mutants.network, recipe)
        model, optimizer, loader = accelerator.prepare(self._mutants, optimizer, loader)
        learning_rates = LearningRates(optimizer, recipe, len(loader))
        held_out = None
        if validation is not None:
            held_out = PreparedImages(validation, self._preprocessing, workers=self._workers)
        first_epoch = self._resume(optimizer)
        if first_epoch:
            on_resume(first_epoch)
        after_images(first_epoch * len(train))
        for epoch in range(first_epoch, recipe.epochs):
            # Seeded by the epoch, so that a resumed epoch draws what the interrupted one did.
            order.epoch = epoch
            rng = np.random.default_rng((recipe.seed, epoch))
            torch.manual_seed(int(rng.integers(1 << 62)))
            model.train()
            loss_sum = correct = total = 0.0
            for step, (pixels, image_labels) in enumerate(loader):
                learning_rates.set(epoch * len(loader) + step)
                pixels = augment(self._preprocessing.normalise(pixels), recipe, rng)
                drawn = draw_mutants(len(pixels), len(self.regions), recipe, rng)
                regions = [self.regions[mutant] for mutant in drawn.ravel()]
                images = torch.arange(len(pixels), device=pixels.device).repeat(len(drawn))
                labels = image_labels.repeat(len(drawn))
                taught = None if self._teacher is None else self._teacher.logits(pixels)
                with accelerator.autocast():
                    logits = model(pixels, regions, images)
                    loss = self._loss(logits, image_labels, drawn, rng, taught)
                if not torch.isfinite(loss):
                    raise CostcertError(
                        f"the loss is not finite in epoch {epoch + 1}: use a learning rate below {recipe.lr}"
                    )
                accelerator.backward(loss)
                if recipe.clip:
                    accelerator.clip_grad_norm_(model.parameters(), recipe.clip)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                if self._averaged is not None:
                    self._averaged.update_parameters(self._mutants)
                loss_sum += float(loss.detach()) * len(labels)
                correct += float((logits.argmax(1) == labels).sum())
                total += len(labels)
                after_images(
                    min(epoch * len(train) + (step + 1) * recipe.batch_size, (epoch + 1) * len(train))
                )
            accuracy = None if held_out is None else self._accuracy(held_out, unread)
            self._save(optimizer, epoch + 1)
            after_epoch(Epoch(epoch + 1, recipe.epochs, loss_sum / total, correct / total, accuracy))
        if self._averaged is not None:
            self._mutants.load_state_dict(self._averaged.module.state_dict())
        return self._mutants.network

    def finish(self, save: Callable[[], None]) -> None:
        """Save the model, then remove the checkpoint."""
        self._accelerator.wait_for_everyone()
        if self._accelerator.is_main_process:
            save()
            (self.folder / CHECKPOINT).unlink(missing_ok=True)

    def _accuracy(self, images: PreparedImages, unread: int) -> float:
        """Share of mutants that are classified correctly: one per image, the same ones in every epoch.

        Further images, which cannot be read, count as wrong.
        """
        rng = np.random.default_rng(0)
        model = self._mutants if self._averaged is None else self._averaged
        model.eval()
        correct = total = 0
        device = next(model.parameters()).device
        with torch.inference_mode():
            for pixels, labels in images.loader(256):
                regions = [self.regions[i] for i in rng.integers(len(self.regions), size=len(pixels))]
                logits = model(self._preprocessing.normalise(pixels.to(device)), regions)
                correct += int((logits.argmax(1).cpu() == labels).sum())
                total += len(labels)
        return correct / (total + unread)

    def _save(self, optimizer: Any, epoch: int) -> None:
        if not self._accelerator.is_main_process:
            return
        state = {
            "format": _CHECKPOINT_FORMAT,
            "epoch": epoch,
            "network": self._mutants.network.state_dict(),
            "average": None if self._averaged is None else self._averaged.state_dict(),
            "optimizer": optimizer.state_dict(),
        }
        with atomic_write(self.folder / CHECKPOINT) as temporary:
            torch.save(state, temporary)

    def _resume(self, optimizer: Any) -> int:
        """Load the checkpoint, if there is one; returns the number of epochs that are done."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            return 0
        with fetched(path) as file:
            try:
                state = read_torch_file(file, path)
                if state.get("format") != _CHECKPOINT_FORMAT:
                    raise CostcertError(
                        f"{path} was written by another version of costcert: remove it to start again"
                    )
                self._mutants.network.load_state_dict(state["network"])
                if self._averaged is not None:
                    self._averaged.load_state_dict(state["average"])
                optimizer.load_state_dict(state["optimizer"])
                return int(state["epoch"])
            except CostcertError:
                raise
            except Exception as error:
                raise CostcertError(
                    f"{path} is damaged or of another network: remove it to start again"
                ) from error


def _accelerator(device: torch.device, precision: str) -> Accelerator:
    """Accelerate on this device; under torchrun each rank has a GPU of its own."""
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    accelerator = Accelerator(mixed_precision=precision, cpu=device.type == "cpu")
    if accelerator.device.type != device.type:
        raise CostcertError(
            f"the device is {str(device)!r}, but Accelerate takes {str(accelerator.device)!r} here: use "
            "--device auto"
        )
    return accelerator


class _ShuffledOrder(Sampler[int]):
    """Each image once per epoch, in an order that depends on the seed and the epoch alone."""

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed, self.epoch = count, seed, 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        rng = np.random.default_rng((self._seed, self.epoch, 1))
        return iter(rng.permutation(self._count).tolist())
