"""What resizing does to patches: how much of the original a size at the input covers, in sentences."""

from __future__ import annotations

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


def resizing_notes(results: Results) -> list[str]:
    """A sentence about each patch of a run, if the sizes of originals and their preparation are known."""
    recorded = (results.provenance.get("model") or {}).get("preprocessing")
    if not recorded or not results.originals:
        return []
    try:
        preparation = Preparation.from_json(recorded)
    except GeometryError:
        return []
    if preparation.image_size != results.image_size:
        return []
    original = max(results.originals, key=lambda size: results.originals[size])
    some = "" if len(results.originals) == 1 else f", the most frequent of {len(results.originals):,} sizes"
    notes, undone = [], False
    for patch in map(parse_patch, results.patches):
        if isinstance(patch, Original):
            reach = footprint(patch, original, preparation)
            notes.append(
                f"{patch} is a patch on the picture before it is resized; it changes up to {reach.height}x"
                f"{reach.width} px of the input, of originals of {shown(original)}{some}."
            )
        elif isinstance(patch, Square | Rectangle) and (
            found := undone_by_resizing(patch, original, preparation)
        ):
            notes.append(f"{found}{some}.")
            undone = True
    return [*notes, ADVICE] if undone else notes
