"""What resizing does to patches: how much of the original a size at the input covers, in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from costcert.errors import GeometryError
from costcert.geometry.footprints import covered_side, footprint
from costcert.geometry.patches import Original, Rectangle, Square, parse_patch
from costcert.geometry.preparation import Preparation
from costcert.geometry.sizes import ImageSize, shown
from costcert.reports.results import Results

ADVICE = (
    "Certificates against patches such as original:2 are about the picture before it is resized; a model "
    "trained with --interpolation nearest keeps what they change small."
)
WITHOUT_VOTES = "Sizes are in pixels of the model's input: pass --votes to see what resizing does to a patch."


def undone_by_resizing(
    patch: Square | Rectangle, original: ImageSize, preparation: Preparation
) -> str | None:
    """How much of the original a patch at the input covers; None if it covers all that its scale suggests.

    A patch of the input that is 7 times as large as the original covers a seventh of its sides, by scale.
    """
    scaled = preparation.scaled(original)
    sides = (patch.height, patch.width)
    by_scale = min(side * n // m for side, n, m in zip(sides, original, scaled, strict=True))
    side = max(1, by_scale)
    covered = covered_side(sides, original, preparation)
    if covered >= side:
        return None
    reach = footprint(Original(Square(side)), original, preparation)
    undone = round(100 * (1 - covered**2 / side**2))
    kept = (
        f"only stickers of up to {covered}x{covered} of these pixels, {undone} % less area"
        if covered
        else "no sticker on the original at all"
    )
    return (
        f"{patch} at the input has the size of {side}x{side} px of an original of {shown(original)}, but "
        f"resizing ({preparation.interpolation}) spreads these to up to {reach.height}x{reach.width} px: it "
        f"covers {kept}; original:{side} covers all of it"
    )


def resizing_note(
    patch: Any, original: ImageSize, provenance: Mapping[str, Any], image_size: ImageSize
) -> str | None:
    """What resizing makes of a patch on pictures of this size; None where nothing can be said.

    Args:
        patch: at the input, or on the original.
        provenance: how the votes were made, which may not say how pictures were prepared.
    """
    try:
        preparation = _preparation(provenance)
        if preparation is None or preparation.image_size != image_size:
            return None
        if isinstance(patch, Square | Rectangle):
            return undone_by_resizing(patch, original, preparation)
        if not isinstance(patch, Original):
            return None
        reach = footprint(patch, original, preparation)
    except GeometryError:
        return None
    return (
        f"{patch} is a patch on the picture before it is resized; it changes up to {reach.height}x"
        f"{reach.width} px of the input, of originals of {shown(original)}"
    )


def resizing_notes(results: Results) -> list[str]:
    """A sentence about each patch of a run of which something can be said."""
    patches = [parse_patch(patch) for patch in results.patches]
    if not results.originals:
        return _without_votes(results, patches)
    original = max(results.originals, key=lambda size: results.originals[size])
    some = "" if len(results.originals) == 1 else f", the most frequent of {len(results.originals):,} sizes"
    found = [
        (patch, resizing_note(patch, original, results.provenance, results.image_size)) for patch in patches
    ]
    notes = [f"{note}{some}." for _, note in found if note]
    undone = any(note and not isinstance(patch, Original) for patch, note in found)
    return [*notes, ADVICE] if undone else notes


def _without_votes(results: Results, patches: Sequence[Any]) -> list[str]:
    """Where the votes, which record the sizes of originals, were not passed and may have something to say."""
    if results.by_class is not None or not any(isinstance(patch, Square | Rectangle) for patch in patches):
        return []
    try:
        preparation = _preparation(results.provenance)
    except GeometryError:
        return []
    # Nearest pixels are only repeated, whatever the size, unless a part is cropped or the ratio is kept.
    if preparation is None or preparation == Preparation(preparation.image_size, interpolation="nearest"):
        return []
    return [WITHOUT_VOTES]


def _preparation(provenance: Mapping[str, Any]) -> Preparation | None:
    """As the manifest of votes records it, if it does."""
    model = provenance.get("model")
    recorded = model.get("preprocessing") if isinstance(model, Mapping) else None
    return Preparation.from_json(recorded) if recorded else None
