"""Hidden pixels painted over in one colour; the network looks at the whole picture.

| spelling | hidden pixels are |
|---|---|
| `zero` | 0 after normalisation (the paper) |
| `black` | 0 before it (smoothed-vit) |
| `mean` | the whole pixel nearest to the mean that normalisation takes off; mid-grey for raw pixels |
| `drop-tokens` | not there: tokens.py |
| `crop` | not there: crops.py |
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from costcert.errors import CostcertError, nearest
from costcert.geometry.ablations import Region
from costcert.models.preprocessing import Preprocessing
from costcert.models.views import View, kept

PAINTED = ("zero", "black", "mean")
HIDES = (*PAINTED, "drop-tokens", "crop")
_MID_GREY = 128 / 255


def known_hide(hide: str) -> str:
    """`hide` if it is a way of hiding, or a sentence with the nearest one."""
    if hide not in HIDES:
        raise CostcertError(
            f"unknown way of hiding {hide!r}{nearest(hide, HIDES)}: hidden pixels are {', '.join(HIDES)}"
        )
    return hide


class Painted(View):
    """Shows the whole picture, hidden pixels in one colour."""

    def __init__(self, hide: str, preprocessing: Preprocessing) -> None:
        self.hide = hide
        self._whole = preprocessing.image_size[0] * preprocessing.image_size[1]
        self._colour = _colour(hide, preprocessing)

    def area(self, region: Region) -> int:
        return self._whole

    def show(self, pixels: Tensor, images: Tensor, regions: Sequence[Region]) -> Tensor:
        height, width = pixels.shape[-2:]
        rows = kept([region.rows for region in regions], height, pixels.device)
        columns = kept([region.columns for region in regions], width, pixels.device)
        visible = rows[:, None, :, None] & columns[:, None, None, :]
        return torch.where(visible, pixels[images], self._colour.to(pixels))


def _colour(hide: str, preprocessing: Preprocessing) -> Tensor:
    """[C, 1, 1], in the values that the network takes."""
    channels, mean = preprocessing.channels, preprocessing.mean
    if hide == "zero":
        if mean is None:
            raise CostcertError(
                "zero is a value after normalisation, but this model gets raw pixels: hide them as black or "
                "mean, or say how to normalise (mean and std)"
            )
        return torch.zeros(channels, 1, 1)
    grey = (0.0,) * channels if hide == "black" else mean or (_MID_GREY,) * channels
    pixel = torch.tensor([round(255 * value) for value in grey], dtype=torch.uint8)
    # The same arithmetic as for a picture that was painted over before.
    return preprocessing.normalise(pixel.reshape(1, 1, 1, channels))[0]
