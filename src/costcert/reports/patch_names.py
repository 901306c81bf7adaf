"""Patches as people write them: height × width in pixels, and the share of the image."""

from __future__ import annotations

from costcert.geometry.patches import AreaShare, OnePatch, Original, Several, Shape, certified_patch
from costcert.geometry.sizes import ImageSize
from costcert.reports.tables.patch_matching import Threat


def size(patch: str, image_size: ImageSize) -> str:
    """`4 × 4 px`, `2 of 16 × 16 px`, `shape of 4 px` or `2 × 2 px of the original`.

    Lines break only between these parts.
    """
    value = certified_patch(patch, image_size)
    if isinstance(value, Original):
        on = value.patch
        named = f"{on.percent:f}\u00a0%" if isinstance(on, AreaShare) else _one(on)
        return f"{named} of the original"
    if not isinstance(value, Several):
        return _one(value)
    inner = _one(value.patch.at(image_size))
    return f"{value.times} of {inner}" if value.times > 1 else inner


def size_and_share(patch: str, image_size: ImageSize) -> str:
    """The same with the share of the image: `4 × 4 px (2.0 %)`."""
    known = share(patch, image_size)
    return size(patch, image_size) if known is None else f"{size(patch, image_size)} ({known})"


def share(patch: str, image_size: ImageSize) -> str | None:
    """The share of the model's input; None for a patch on the original."""
    threat = Threat.of(patch, image_size)
    if threat.share is None or isinstance(threat.patch, Original):
        return None
    percent = 100 * threat.share
    return f"{percent:.1f}\u00a0%" if percent >= 0.05 else f"{percent:.1g}\u00a0%"


def sticker(patch: str, image_size: ImageSize) -> str:
    """The patch in a sentence: `4 × 4 pixel sticker`."""
    value = certified_patch(patch, image_size)
    if isinstance(value, Original):
        return f"sticker of {size(patch, image_size)}"
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
