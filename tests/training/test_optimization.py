"""Learning rates, parameter groups and averaged weights, each compared with its definition."""

import copy
import math

import pytest

pytest.importorskip("torch", reason="training needs costcert[models]")

import torch
from torch import nn

from costcert.errors import CostcertError
from costcert.training.optimization import LearningRates, averaged, make_optimizer
from costcert.training.recipes import Recipe


class Network(nn.Module):
    """A backbone with a norm, and a head that has a name."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 2, bias=False)

    def get_classifier(self):
        return self.head


def rate(recipe, epoch):
    """The learning rate after this many epochs, as the recipe defines it."""
    if epoch < recipe.warmup:
        return recipe.lr * max(epoch / recipe.warmup, 1e-3)
    if recipe.schedule == "constant":
        return recipe.lr
    if recipe.schedule == "steps":
        return recipe.lr * 0.1 ** math.floor(3 * epoch / recipe.epochs)
    done = (epoch - recipe.warmup) / (recipe.epochs - recipe.warmup)
    return recipe.lr * 0.5 * (1 + math.cos(math.pi * done))


@pytest.mark.parametrize("schedule", ["constant", "steps", "cosine"])
@pytest.mark.parametrize("warmup", [0, 0.5, 1.3, 6, 100])
@pytest.mark.parametrize("scale", [1.0, 0.03])
def test_learning_rates_of_all_steps(schedule, warmup, scale):
    recipe = Recipe(epochs=6, warmup=warmup, schedule=schedule, backbone_lr_scale=scale)
    optimizer = make_optimizer(Network(), recipe)
    scales = [group["lr"] / recipe.lr for group in optimizer.param_groups]
    assert set(scales) == {1.0, scale}
    steps = 7
    learning_rates = LearningRates(optimizer, recipe, steps)
    for step in range(6 * steps):
        learning_rates.set(step)
        expected = [one * rate(recipe, step / steps) for one in scales]
        assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("scale", [1.0, 0.1])
def test_weights_decay_and_the_backbone_has_its_own_rate(optimizer, scale):
    network = Network()
    recipe = Recipe(optimizer=optimizer, weight_decay=0.3, backbone_lr_scale=scale, lr=0.01)
    made = make_optimizer(network, recipe)
    groups = {id(one): group for group in made.param_groups for one in group["params"]}
    for name, parameter in network.named_parameters():
        group = groups.pop(id(parameter))
        assert group["weight_decay"] == (0.3 if parameter.ndim > 1 else 0), name
        assert group["lr"] == (0.01 if name.startswith("head.") else 0.01 * scale), name
    assert not groups
    nn.Sequential(network.backbone, network.head)(torch.rand(5, 3)).sum().backward()
    made.step()


def test_a_network_without_a_named_head_has_one_rate():
    network = nn.Linear(3, 2)
    assert make_optimizer(network, Recipe()).param_groups
    with pytest.raises(CostcertError, match="does not name its last layer: leave backbone_lr_scale at 1"):
        make_optimizer(network, Recipe(backbone_lr_scale=0.5))


def test_the_average_weighs_recent_weights_more_at_first():
    torch.manual_seed(0)
    network = Network().double()
    mean = copy.deepcopy(network.state_dict())
    average = averaged(network, 0.5, torch.device("cpu"))
    for step in range(1, 30):
        for parameter in network.parameters():
            parameter.data += torch.randn_like(parameter)
        network.backbone(torch.rand(5, 3).double())
        average.update_parameters(network)
        decay = min(0.5, (1 + step) / (10 + step))
        for name, value in network.state_dict().items():
            floats = value.is_floating_point()
            mean[name] = decay * mean[name] + (1 - decay) * value if floats else value.clone()
    for name, value in average.module.state_dict().items():
        assert torch.allclose(value, mean[name]), name
