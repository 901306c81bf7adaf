"""The view that crops an image to the kept strip or block and adds coordinate channels.

Each pixel carries its position along the axes on which something is hidden, so the network has one or two
more input channels (timm's `in_chans`). The cost is proportional to the kept area.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from costcert.errors import CostcertError
from costcert.geometry.ablations import Ablation, Kept, Masks, Region
from costcert.geometry.sizes import ImageSize
from costcert.models.views import View, indices


class Crops(View):
    """Inputs of kept pixels alone, [M, C + coordinates, kept rows, kept columns].

    A strip that wraps at the end of an axis is one crop, in the order of the segment; its coordinates show
    where it jumps.
    """

    hide = "crop"

    def __init__(self, ablation: Ablation, image_size: ImageSize) -> None:
        if isinstance(ablation, Masks):
            raise CostcertError(
                f"crop shows a strip or a block by itself, but {ablation} keep all but two masks: hide them "
                "as zero, or drop tokens of a ViT, and use a network of whole images, as image:small"
            )
        self.image_size = image_size
        regions = ablation.regions(image_size)
        self.shapes = tuple(dict.fromkeys((r.rows.length, r.columns.length) for r in regions))
        # Along an axis that is always kept completely a coordinate carries no information.
        self._along_rows = any(height < image_size[0] for height, _ in self.shapes)
        self._along_columns = any(width < image_size[1] for _, width in self.shapes)

    @property
    def coordinates(self) -> int:
        """The number of coordinate channels."""
        return self._along_rows + self._along_columns

    def group(self, region: Kept) -> Hashable:
        kept = _strip_or_block(region)
        return kept.rows.length, kept.columns.length

    def area(self, region: Kept) -> int:
        kept = _strip_or_block(region)
        return kept.rows.length * kept.columns.length

    def inputs(self, pixels: Tensor, images: Tensor, regions: Sequence[Kept]) -> Tensor:
        height, width = self.image_size
        kept = [_strip_or_block(region) for region in regions]
        rows = indices([region.rows for region in kept], height, pixels.device)[:, :, None]
        columns = indices([region.columns for region in kept], width, pixels.device)[:, None, :]
        colours = pixels.permute(0, 2, 3, 1)[images[:, None, None], rows, columns].permute(0, 3, 1, 2)
        planes = [colours]
        if self._along_rows:
            planes.append(_coordinate(rows, height, colours))
        if self._along_columns:
            planes.append(_coordinate(columns, width, colours))
        return torch.cat(planes, dim=1)


def _strip_or_block(region: Kept) -> Region:
    if not isinstance(region, Region):
        raise CostcertError(
            "this model takes crops of strips or blocks and cannot see all of a picture but two masks: use a "
            "network of whole images, as image:small or timm:NAME"
        )
    return region


def _coordinate(positions: Tensor, axis_length: int, colours: Tensor) -> Tensor:
    """A coordinate channel [M, 1, h, w]: -1 at one end of the axis, 1 at the other."""
    scaled = positions.to(colours.dtype) * (2 / max(axis_length - 1, 1)) - 1
    return scaled[:, None].expand(-1, 1, *colours.shape[-2:])
