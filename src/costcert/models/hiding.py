"""The ways of hiding pixels, and the view that replaces hidden pixels by one colour.

| spelling | hidden pixels are |
|---|---|
| `zero` | 0 after normalisation (the paper) |
| `black` | 0 before normalisation (smoothed-vit) |
| `mean` | the uint8 colour nearest to the mean of the normalisation; mid-grey for raw pixels |
| `drop-tokens` | not part of the input: tokens.py |
| `crop` | not part of the input: crops.py |
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from costcert.errors import CostcertError, nearest
from costcert.geometry.ablations import Kept
from costcert.models.preprocessing import Preprocessing
from costcert.models.views import View, visible

PAINTED = ("zero", "black", "mean")
HIDES = (*PAINTED, "drop-tokens", "crop")
_MID_GREY = 128 / 255


def known_hide(hide: str) -> str:
    """`hide` itself; raises if it is not one of `HIDES`."""
    if hide not in HIDES:
        raise CostcertError(
            f"unknown way of hiding pixels {hide!r}{nearest(hide, HIDES)}: use one of {', '.join(HIDES)}"
        )
    return hide


class Painted(View):
    """Inputs of full size in which hidden pixels have one colour."""

    def __init__(self, hide: str, preprocessing: Preprocessing) -> None:
        self.hide = hide
        self._area = preprocessing.image_size[0] * preprocessing.image_size[1]
        self._colour = _colour(hide, preprocessing)

    def area(self, region: Kept) -> int:
        return self._area

    def inputs(self, pixels: Tensor, images: Tensor, regions: Sequence[Kept]) -> Tensor:
        height, width = pixels.shape[-2:]
        shown = visible(regions, (height, width), pixels.device)[:, None]
        return torch.where(shown, pixels[images], self._colour.to(pixels))


def _colour(hide: str, preprocessing: Preprocessing) -> Tensor:
    """The colour of hidden pixels [C, 1, 1], normalised."""
    channels, mean = preprocessing.channels, preprocessing.mean
    if hide == "zero":
        if mean is None:
            raise CostcertError(
                "zero is a value after normalisation, but this model takes raw pixels: hide them as black or "
                "mean, or pass the mean and std of a normalisation"
            )
        return torch.zeros(channels, 1, 1)
    grey = (0.0,) * channels if hide == "black" else mean or (_MID_GREY,) * channels
    pixel = torch.tensor([round(255 * value) for value in grey], dtype=torch.uint8)
    # Normalised like image pixels, so that the colour is bit for bit that of an image painted beforehand.
    return preprocessing.normalise(pixel.reshape(1, 1, 1, channels))[0]
