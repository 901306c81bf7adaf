"""Random mutants of a batch, and random changes of its images."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from costcert.training.recipes import Recipe


def draw_mutants(
    count: int, num_mutants: int, recipe: Recipe, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """[mutants, count], random mutants for each of `count` images, by their numbers."""
    draws = 1 if recipe.shared else count
    if recipe.vote_loss_weight or recipe.certificate_loss_weight:
        # Evenly spaced from a random start, so that the mean of a few ballots is close to that of all.
        positions = np.arange(recipe.mutants)[:, None] + rng.random((1, draws))
        chosen = (positions * num_mutants / recipe.mutants).astype(np.int64)
    else:
        chosen = rng.integers(num_mutants, size=(recipe.mutants, draws))
    return np.broadcast_to(chosen, (recipe.mutants, count))


def augment(pixels: Tensor, recipe: Recipe, rng: np.random.Generator) -> Tensor:
    """Random translation, mirroring, warping, brightness, contrast and colour, drawn for each image.

    Not torchvision's transforms: those draw once for the entire batch, from torch's global generator.
    """
    count, _, height, width = pixels.shape
    rows = torch.arange(height)[None].repeat(count, 1)
    columns = torch.arange(width)[None].repeat(count, 1)
    if recipe.shift:
        shifts = torch.from_numpy(rng.integers(-recipe.shift, recipe.shift + 1, size=(2, count, 1)))
        rows, columns = (rows + shifts[0]).clamp(0, height - 1), (columns + shifts[1]).clamp(0, width - 1)
    if recipe.flip:
        mirrored = torch.from_numpy(rng.random((count, 1)) < 0.5)
        columns = torch.where(mirrored, columns.flip(1), columns)
    if recipe.shift or recipe.flip:
        index = (torch.arange(count)[:, None, None], slice(None), rows[:, :, None], columns[:, None, :])
        pixels = pixels[index].permute(0, 3, 1, 2)
    if recipe.warp:
        pixels = _warp(pixels, recipe.warp, rng)
    if recipe.brightness_contrast:
        amounts = torch.from_numpy(
            rng.uniform(-recipe.brightness_contrast, recipe.brightness_contrast, size=(2, count, 1, 1, 1))
        )
        brightness, contrast = amounts.to(pixels)
        pixels = pixels * (1 + contrast) + brightness
    if recipe.colour:
        amounts = torch.from_numpy(
            rng.uniform(-recipe.colour, recipe.colour, size=(2, *pixels.shape[:2], 1, 1))
        )
        brightness, contrast = amounts.to(pixels)
        mean, deviation = (f(pixels, dim=(1, 2, 3), keepdim=True) for f in (torch.mean, torch.std))
        pixels = mean + (pixels - mean) * (1 + contrast) + deviation * brightness
    return pixels


def _warp(pixels: Tensor, most: float, rng: np.random.Generator) -> Tensor:
    """A random affine map of each image about its centre: scale, shear and rotation, borders repeated."""
    amounts = torch.from_numpy(rng.uniform(-most, most, size=(4, len(pixels)))).to(pixels)
    x_scale, y_scale, shear = 1 + amounts[0], 1 + amounts[1], amounts[2]
    angle = math.pi / 2 * amounts[3]
    zero = torch.zeros_like(angle)
    x_row = torch.stack([x_scale * angle.cos(), shear - angle.sin(), zero], dim=1)
    y_row = torch.stack([angle.sin(), y_scale * angle.cos(), zero], dim=1)
    matrices = torch.stack([x_row, y_row], dim=1)
    grid = nn.functional.affine_grid(matrices, list(pixels.shape), align_corners=False)
    return nn.functional.grid_sample(pixels, grid, padding_mode="border", align_corners=False)
