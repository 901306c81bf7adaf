"""Patches as people write them: height × width in pixels, and the share of the image."""

from __future__ import annotations

from costcert.geometry.patches import OnePatch, Several, Shape, concrete
from costcert.geometry.sizes import ImageSize
from costcert.reports.tables.patch_matching import Threat


def size(patch: str, image_size: ImageSize) -> str:
    """`4 × 4 px`, `2 of 16 × 16 px` or `shape of 4 px`; lines break only between these parts."""
    value = concrete(patch, image_size)
    if not isinstance(value, Several):
        return _one(value)
    inner = _one(value.patch.at(image_size))
    return f"{value.times} of {inner}" if value.times > 1 else inner


def size_and_share(patch: str, image_size: ImageSize) -> str:
    """The same with the share of the image: `4 × 4 px (2.0 %)`."""
    return f"{size(patch, image_size)} ({share(patch, image_size)})"


def share(patch: str, image_size: ImageSize) -> str:
    percent = 100 * Threat.of(patch, image_size).share
    return f"{percent:.1f}\u00a0%" if percent >= 0.05 else f"{percent:.1g}\u00a0%"


def sticker(patch: str, image_size: ImageSize) -> str:
    """The patch in a sentence: `4 × 4 pixel sticker`."""
    value = concrete(patch, image_size)
    if isinstance(value, Several):
        inner = sticker(str(value.patch), image_size)
        return f"{value.times} stickers at once, each a {inner}" if value.times > 1 else inner
    if isinstance(value, Shape):
        return f"sticker of this shape of {_pixels(value)} pixels"
    return f"{value.height}\u00a0×\u00a0{value.width} pixel sticker"


def _one(value: OnePatch) -> str:
    if isinstance(value, Shape):
        return f"shape of {_pixels(value)}\u00a0px"
    return f"{value.height}\u00a0×\u00a0{value.width}\u00a0px"


def _pixels(shape: Shape) -> int:
    return sum(map(sum, shape.mask))
