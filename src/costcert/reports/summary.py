"""The main result of a run in one sentence, for readers who do not know the paper."""

from __future__ import annotations

from typing import NamedTuple

from costcert.geometry.patches import Rectangle, Several, Shape, Square, concrete
from costcert.geometry.sizes import ImageSize
from costcert.reports.results import Results


class Headline(NamedTuple):
    """The share of images that a defender certifies against a patch at some k."""

    share: float
    defender: str
    patch: str
    k: int


def headline(results: Results) -> Headline:
    """The best defender against the middle one of the patches, at a k that suits the number of classes."""
    k = 5 if results.num_classes > 20 else 3 if results.num_classes > 5 else 1
    patch = results.patches[len(results.patches) // 2]
    certified = {
        defender: float(results.tally.min_ks[defender, patch][: k + 1].sum()) / results.images
        for defender in results.defenders
    }
    best = max(certified, key=lambda defender: certified[defender])
    return Headline(certified[best], best, patch, k)


def promise(results: Results, found: Headline) -> str:
    """The headline as a sentence."""
    top = "the first place" if found.k == 1 else f"the top {found.k}"
    return (
        f"For {100 * found.share:.1f} % of the {results.images:,} test images no "
        f"{sticker(found.patch, results.image_size)}, anywhere, with any pixels, can push the right label "
        f"out of {top}."
    )


def sticker(patch: str, image_size: ImageSize) -> str:
    """A patch in words."""
    value = concrete(patch, image_size)
    if isinstance(value, Several):
        inner = sticker(str(value.patch), image_size)
        return f"{value.times} stickers at once, each a {inner}" if value.times > 1 else inner
    if isinstance(value, Square):
        return f"{value.side}-pixel square sticker"
    if isinstance(value, Rectangle):
        return f"{value.height} by {value.width} pixel sticker"
    assert isinstance(value, Shape)
    return f"sticker of this shape of {sum(map(sum, value.mask))} pixels"
