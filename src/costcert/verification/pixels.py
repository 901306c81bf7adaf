"""The geometry of the second derivation: which mutants a patch touches, counted pixel by pixel.

Nothing of the package is imported. A set of mutants is an integer: bit i stands for mutant i. So is a set of
columns of an image: bit x stands for column x.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import cache, reduce
from itertools import combinations_with_replacement, groupby
from math import cos, floor, pi, sin
from operator import or_

# Above these limits this code would take hours: mutants times pixels, and pairs of touched sets.
MOST_PIXELS, MOST_PAIRS = 1 << 28, 1 << 17

Sets = list[int]
# What a mutant keeps: in each row of the image, the set of columns.
Kept = tuple[int, ...]


@cache
def mutants(ablation: str, height: int, width: int) -> list[Kept]:
    """What each mutant keeps."""
    if ablation.startswith("masks:"):
        return _pairs(ablation, height, width)
    kept: list[Kept] = []
    for family in ablation.split("+"):
        found = re.fullmatch(r"(columns|rows|blocks):(\d{1,6})((?:/(?:stride|wrap|span)=[\w-]+)*)", family)
        if not found:
            raise ValueError(f"cannot read the ablation {family!r}")
        size, options = int(found[2]), dict(option.split("=") for option in found[3].split("/")[1:])
        axes = []
        for side, keeps_all in ((height, found[1] == "columns"), (width, found[1] == "rows")):
            last = side - size if options.get("wrap") == "no" else side - 1
            first, stop = map(int, options.get("span", f"0-{last}").split("-")) if not keeps_all else (0, 0)
            if not keeps_all and (size > side or stop > last):
                raise ValueError(f"{family} does not fit an image of {height}x{width}")
            starts = range(first, stop + 1, int(options.get("stride", 1)))
            axes.append([(0, side)] if keeps_all else [(start, size) for start in starts])
        # What wraps around the border continues at the beginning.
        rows = [[(y - top) % height < tall for y in range(height)] for top, tall in axes[0]]
        columns = [union(1 << (left + x) % width for x in range(wide)) for left, wide in axes[1]]
        kept += [tuple(across if row else 0 for row in down) for down in rows for across in columns]
    return kept


def num_masks(ablation: str) -> int:
    """n, the number of masks: mutants hide masks i and j, in the order (0, 0), (0, 1), …, (1, 1), …."""
    found = re.fullmatch(r"masks:(\d{1,3})/patch=\d{1,6}(?:x\d{1,6})?", ablation)
    if not found:
        raise ValueError(f"{ablation!r} are not masks")
    return int(found[1]) ** 2


def _pairs(ablation: str, height: int, width: int) -> list[Kept]:
    """Rectangles, row by row, and all but what two of them hide."""
    per_axis = round(num_masks(ablation) ** 0.5)
    tall, _, wide = ablation.partition("patch=")[2].partition("x")
    axes = []
    for side, patch in ((height, int(tall)), (width, int(wide or tall))):
        if not 1 <= patch <= side or per_axis < 1:
            raise ValueError(f"{ablation} does not fit an image of {height}x{width}")
        stride = (side - patch) // per_axis + 1
        hidden = stride + patch - 1
        starts = [min(number * stride, side - hidden) for number in range(per_axis)]
        axes.append([set(range(start, start + hidden)) for start in starts])
    masks = [
        tuple(union(1 << x for x in across) if y in down else 0 for y in range(height))
        for down in axes[0]
        for across in axes[1]
    ]
    everything = (1 << width) - 1
    return [
        tuple(everything & ~(first | second) for first, second in zip(one, other, strict=True))
        for one, other in combinations_with_replacement(masks, 2)
    ]


def patch_pixels(patch: str) -> tuple[int, list[tuple[int, ...]], int]:
    """The number of patches at once; the columns of the pixels in each row of one patch; and its width."""
    times, _, single = patch.rpartition("*")
    if found := re.fullmatch(r"square:(\d{1,6})|rectangle:(\d{1,6})x(\d{1,6})", single):
        tall, wide = int(found[1] or found[2]), int(found[1] or found[3])
        return int(times or 1), [tuple(range(wide))] * tall, wide
    if found := re.fullmatch(r"shape:([01]+(?:/[01]+)*)", single):
        mask = found[1].split("/")
        pixels = [tuple(x for x, pixel in enumerate(row) if pixel == "1") for row in mask]
        return int(times or 1), pixels, len(mask[0])
    raise ValueError(f"cannot read the patch {patch!r}")


@cache
def keepers_of(ablation: str, height: int, width: int) -> list[list[int]]:
    """The mutants that keep each pixel."""
    kept = mutants(ablation, height, width)
    if len(kept) * height * width > MOST_PIXELS:
        raise ValueError(f"{len(kept):,} mutants are too many for this checker: certify fewer (--ablation)")
    keepers = [[0] * width for _ in range(height)]
    for y, line in enumerate(keepers):
        alike: Counter[int] = Counter()
        for number, rows_kept in enumerate(kept):
            alike[rows_kept[y]] |= 1 << number
        for columns, keeping in alike.items():
            for x in range(width):
                line[x] |= keeping if columns >> x & 1 else 0
    return keepers


@cache
def touched(ablation: str, patch: str, height: int, width: int) -> Sets:
    """The maximal T_p over all positions p of the patch: the mutants that keep a pixel of it."""
    kept, keepers = mutants(ablation, height, width), keepers_of(ablation, height, width)
    times, rows, breadth = patch_pixels(patch)
    tops, lefts = range(height - len(rows) + 1), range(width - breadth + 1)
    if not tops or not lefts or times < 1:
        raise ValueError(f"{patch} does not fit an image of {height}x{width}")
    # What each row of the patch touches at every position, then the union over its rows.
    of = {r: [[union(line[at + x] for x in r) for at in lefts] for line in keepers] for r in set(rows)}
    sets = single = maximal({union(of[r][y + d][x] for d, r in enumerate(rows)) for y in tops for x in lefts})
    for _ in range(min(times, len(kept)) - 1):  # more patches than mutants touch nothing new
        if len(sets) * len(single) > MOST_PAIRS:
            raise ValueError(f"{patch} may touch too many sets of mutants for this checker")
        sets = maximal({one | other for one in sets for other in single})
    return sets


# A kernel by the distance in its own pixels, and the distance from which on it is zero.
KERNELS: dict[str, tuple[Callable[[float], float], int]] = {
    "box": (lambda x: float(abs(x) <= 0.5 + 1e-9), 1),
    "bilinear": (lambda x: max(0.0, 1 - abs(x)), 1),
    "hamming": (lambda x: _sinc(x) * (0.54 + 0.46 * cos(pi * x)) if abs(x) < 1 else 0.0, 1),
    "bicubic": (
        lambda x: (
            1.5 * abs(x) ** 3 - 2.5 * x * x + 1
            if abs(x) < 1
            else -0.5 * (abs(x) - 1) * (abs(x) - 2) ** 2 * (abs(x) < 2)
        ),
        2,
    ),
    "lanczos": (lambda x: _sinc(x) * _sinc(x / 3) if abs(x) < 3 else 0.0, 3),
}
# Below this a weight is a rounding error: weights that count are at least 100 times as large up to 16,384 px.
NO_WEIGHT = 1e-14


def _sinc(x: float) -> float:
    return sin(pi * x) / (pi * x) if x else 1.0


def weighted(length: int, n: int, m: int, start: int, interpolation: str) -> list[set[int]]:
    """For every input pixel of an axis the picture's pixels that it is made of.

    The axis has n pixels in the picture and m when resized; the input shows `length` of these from `start`.
    """
    found: list[set[int]] = []
    for at in range(start, start + length):
        middle = Fraction((2 * at + 1) * n, 2 * m)
        if not 0 <= at < m:
            found.append(set())
        elif interpolation == "nearest":
            exact = Fraction(n, m).denominator.bit_count() == 1  # in binary, so that no rounding error occurs
            here = int(middle)
            found.append({here, here - 1} if middle == here and not exact else {here})
        else:
            kernel, support = KERNELS[interpolation]
            scale = max(Fraction(n, m), Fraction(1))
            first, last = (int(middle + sign * (support * scale + 1)) for sign in (-1, 1))
            near = range(max(0, first), min(n, last + 1))
            weights = {y: kernel(float((y + Fraction(1, 2) - middle) / scale)) for y in near}
            found.append({y for y, weight in weights.items() if abs(weight) > NO_WEIGHT})
    return found


def resized(size: tuple[int, int], original: tuple[int, int], part: float, fit: str) -> tuple[int, int]:
    """Height and width of the picture after resizing, before it is cropped or padded."""
    height, width = (floor(side / part) for side in size)
    if fit == "squash":
        return height, width
    if fit == "center" and height == width:
        return height * original[0] // min(original), height * original[1] // min(original)
    if fit not in ("center", "border"):
        raise ValueError(f"{fit!r} is no way to fit a picture")
    ratios = (original[0] / height, original[1] / width)
    ratio = max(ratios) if fit == "border" else min(ratios)
    return round(original[0] / ratio), round(original[1] / ratio)


def original_sides(patch: str, original: tuple[int, int]) -> tuple[int, int]:
    """Height and width of a patch on a picture of this size."""
    if found := re.fullmatch(r"original:(\d{1,6})(?:x(\d{1,6}))?", patch):
        return int(found[1]), int(found[2] or found[1])
    if found := re.fullmatch(r"original:(\d{1,3}(?:\.\d{1,9})?)%", patch):
        area, side = Fraction(found[1]) / 100 * original[0] * original[1], 1
        while side * side < area:
            side += 1
        return side, side
    raise ValueError(f"cannot read the patch {patch!r}")


@cache
def touched_from_original(
    ablation: str,
    patch: str,
    height: int,
    width: int,
    original: tuple[int, int],
    how: tuple[float, str, str],
) -> Sets:
    """The maximal T_p of a patch on pictures of this size: the mutants that keep a pixel made of it.

    Args:
        how: crop_pct, crop_mode and interpolation of the preprocessing.
    """
    part, fit, interpolation = how
    if interpolation not in (*KERNELS, "nearest") or not 0 < part <= 1:
        raise ValueError(f"pictures were prepared in an unknown way: {how}")
    tall, wide = original_sides(patch, original)
    if not (1 <= tall <= original[0] and 1 <= wide <= original[1]):
        raise ValueError(f"{patch} does not fit a picture of {original[0]}x{original[1]}")
    lines = []
    for side, n, m, long in zip(
        (height, width), original, resized((height, width), original, part, fit), (tall, wide), strict=True
    ):
        made_of = weighted(side, n, m, round((m - side) / 2), interpolation)
        # For every place of the patch the input's rows, or columns, that are made of a pixel of it.
        covers = ({place + step for step in range(long)} for place in range(n - long + 1))
        lines.append({tuple(i for i in range(side) if made_of[i] & covered) for covered in covers})
    keepers = keepers_of(ablation, height, width)
    by_columns = {across: [union(line[x] for x in across) for line in keepers] for across in lines[1]}
    return maximal({union(rows[y] for y in down) for down in lines[0] for rows in by_columns.values()})


def union(sets: Iterable[int]) -> int:
    return reduce(or_, sets, 0)


def maximal(sets: set[int]) -> Sets:
    """The sets that no other contains: controlling a set allows all that controlling a subset does."""
    found: Sets = []
    for _, equal in groupby(sorted(sets, key=int.bit_count, reverse=True), key=int.bit_count):
        found += [one for one in equal if not any(one & other == one for other in found)]
    return found
