"""Optimizer, learning rates and averaged weights: timm's and torch's, set up from a recipe."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from costcert.errors import CostcertError
from costcert.models.checkpoints import head_name
from costcert.models.torchvision_repair import import_timm
from costcert.training.recipes import Recipe


def make_optimizer(network: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Biases and norms have no weight decay; the backbone has its own learning rate."""
    import_timm()
    timm: Any = import_module("timm.optim")
    groups = timm.param_groups_weight_decay(network, recipe.weight_decay)
    if recipe.backbone_lr_scale < 1:
        head = head_name(network)
        if head is None:
            raise CostcertError(
                f"backbone_lr_scale is {recipe.backbone_lr_scale}, but this network does not name its last "
                "layer: leave backbone_lr_scale at 1"
            )
        groups = _split(groups, network.get_submodule(head), recipe)
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.momentum)
    return torch.optim.AdamW(groups, lr=recipe.lr)


def _split(groups: list[dict[str, Any]], head: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """Each parameter group as two: the head's parameters and the backbone's, with their learning rates."""
    in_head = {id(parameter) for parameter in head.parameters()}
    split = []
    for group in groups:
        head_part = [parameter for parameter in group["params"] if id(parameter) in in_head]
        backbone_part = [parameter for parameter in group["params"] if id(parameter) not in in_head]
        split.append({**group, "params": head_part, "lr": recipe.lr})
        split.append({**group, "params": backbone_part, "lr": recipe.backbone_lr_scale * recipe.lr})
    return split


class LearningRates:
    """Sets the learning rate of a step: linear warm-up, then the recipe's schedule."""

    def __init__(self, optimizer: torch.optim.Optimizer, recipe: Recipe, steps_per_epoch: int) -> None:
        import_timm()
        timm: Any = import_module("timm.scheduler")
        steps = recipe.epochs * steps_per_epoch
        self._warmup = recipe.warmup * steps_per_epoch
        options = {"warmup_t": self._warmup, "t_in_epochs": False}
        if recipe.schedule == "cosine":
            # For a single step timm warns that there is nothing to schedule.
            after_warmup = max(steps - self._warmup, 2)
            self._scheduler = timm.CosineLRScheduler(optimizer, after_warmup, warmup_prefix=True, **options)
        else:
            decay_rate = 0.1 if recipe.schedule == "steps" else 1.0
            self._scheduler = timm.StepLRScheduler(
                optimizer, steps / 3, decay_rate, warmup_prefix=False, **options
            )

    def set(self, step: int) -> None:
        # The first step of the warm-up would have a learning rate of 0, and so no effect.
        self._scheduler.step_update(max(step, self._warmup / 1000))


def averaged(mutants: nn.Module, decay: float, device: torch.device) -> AveragedModel:
    """An exponential moving average of the weights, which votes better than those of the last step."""

    def average(means: Any, currents: Any, updates: Tensor | int) -> None:
        # A smaller decay at first, so that the random initial weights do not count for long.
        count = int(updates)
        weight = 1 - min(decay, (1 + count) / (10 + count))
        for mean, current in zip(means, currents, strict=True):
            if mean.is_floating_point():
                mean.lerp_(current, weight)
            else:
                mean.copy_(current)

    model = AveragedModel(mutants, device=device, multi_avg_fn=average, use_buffers=True)
    # At 0 the first update would copy the weights instead of averaging them.
    model.n_averaged += 1
    return model
