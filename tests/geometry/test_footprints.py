"""Footprints: what patches of original pictures can change at the input, tried with Pillow itself."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from PIL import Image

import costcert as cc
import naive
from costcert.errors import GeometryError
from costcert.geometry.footprints import footprint
from costcert.geometry.preparation import FITS, LARGEST_ORIGINAL, SUPPORTS, Preparation
from costcert.geometry.touch import touched
from costcert.models.preprocessing import Preprocessing
from strategies import ablation, examples, families

INTERPOLATIONS = tuple(SUPPORTS)
sides = st.integers(1, 40)
sizes = st.tuples(sides, sides)
parts = st.sampled_from([1.0, 0.95, 0.9, 0.875, 0.6])
preparations = st.builds(Preparation, sizes, parts, st.sampled_from(FITS), st.sampled_from(INTERPOLATIONS))


def assume_something_is_left(preparation, original):
    """Leave out pictures that are too thin to be resized."""
    try:
        preparation.scaled(original)
    except GeometryError:
        reject()


def pillow_weights(n, m, interpolation):
    """[m, n], the weight of every pixel of a line of n in every pixel of the line resized to m."""
    lines = np.eye(n, dtype=np.float32)
    resample = Image.Resampling[interpolation.upper()]
    rows = [np.array(Image.fromarray(line[None]).resize((m, 1), resample))[0] for line in lines]
    return np.stack(rows, axis=1)


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@settings(max_examples=examples(300))
@given(st.integers(1, 70), st.integers(1, 70))
def test_reads_are_the_pixels_with_a_weight(interpolation, n, m):
    """Pillow gives a weight to exactly these pixels; where rounding decides a tie, to some of them."""
    found = Preparation((1, m), interpolation=interpolation).reads((1, n), 1)
    weighted = np.abs(pillow_weights(n, m, interpolation)) > 1e-6
    assert not (weighted & ~found).any()
    if interpolation not in ("nearest", "box"):
        assert (weighted == found).all()
    extra = found & ~weighted
    # One of two in a tie.
    assert (extra.sum(axis=1) <= 1).all()


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize(("n", "m"), [(32, 224), (28, 56), (32, 16), (500, 200), (7, 7), (96, 32), (31, 64)])
def test_reads_of_usual_sizes_are_exact(interpolation, n, m):
    found = Preparation((1, m), interpolation=interpolation).reads((1, n), 1)
    weighted = np.abs(pillow_weights(n, m, interpolation)) > 1e-7
    assert not (weighted & ~found).any()
    # Of 2.5 pixels a box holds two wholly and halves of two more, of which rounding drops one.
    if (interpolation, n % m) != ("box", 100):
        np.testing.assert_array_equal(weighted, found)


@settings(max_examples=examples(200))
@given(preparations, sizes)
def test_reads_agree_with_the_slow_twin(preparation, original):
    assume_something_is_left(preparation, original)
    for axis in (0, 1):
        found = preparation.reads(original, axis)
        expected = naive.reads(
            preparation.image_size[axis],
            original[axis],
            preparation.scaled(original)[axis],
            preparation.corner(original)[axis],
            preparation.interpolation,
        )
        assert {(int(i), int(y)) for i, y in zip(*np.nonzero(found), strict=True)} == expected


@settings(max_examples=examples(400))
@given(st.data())
def test_nothing_outside_of_a_footprint_changes(data):
    """Pixels of originals are rewritten, both are prepared, and all input pixels outside are compared."""
    geometry, original = data.draw(preparations), data.draw(sizes)
    assume_something_is_left(geometry, original)
    channels = data.draw(st.sampled_from([1, 3]))
    preprocessing = Preprocessing(
        geometry.image_size,
        mean=(0.4,) * channels,
        std=(0.5,) * channels,
        channels=channels,
        crop_pct=geometry.crop_pct,
        crop_mode=geometry.crop_mode,
        interpolation=geometry.interpolation,
    )
    assert preprocessing.geometry == geometry
    height, width = data.draw(st.integers(1, original[0])), data.draw(st.integers(1, original[1]))
    top, left = (
        data.draw(st.integers(0, original[0] - height)),
        data.draw(st.integers(0, original[1] - width)),
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    clean = rng.integers(0, 256, (*original, 3), dtype=np.uint8)
    reached = footprint(cc.Original(cc.Rectangle(height, width)), original, geometry).pixels(top, left)
    before = preprocessing.prepare(Image.fromarray(clean))
    for written in (0, 255, rng.integers(0, 256, (height, width, 3))):
        rewritten = clean.copy()
        rewritten[top : top + height, left : left + width] = written
        changed = (preprocessing.prepare(Image.fromarray(rewritten)) != before).any(axis=2)
        assert not (changed & ~reached).any()


@pytest.mark.parametrize("interpolation", INTERPOLATIONS)
@pytest.mark.parametrize("mode", ["P", "RGBA", "LA", "CMYK", "1"])
def test_nothing_outside_of_a_footprint_changes_in_other_modes(mode, interpolation):
    """Palettes, transparent pixels and others: every value under the patch is rewritten."""
    preprocessing = Preprocessing((9, 13), crop_pct=0.9, crop_mode="center", interpolation=interpolation)
    reach = footprint(cc.Original(cc.Square(2)), (7, 8), preprocessing.geometry)
    rng = np.random.default_rng(0)
    seen = Image.fromarray(rng.integers(0, 256, (7, 8, 3), dtype=np.uint8))
    picture = seen.quantize(16) if mode == "P" else seen.convert(mode)
    before, changes = preprocessing.prepare(picture), False
    for top, left in product(range(6), range(7)):
        rewritten = picture.copy()
        for y, x in product(range(top, top + 2), range(left, left + 2)):
            channels = rng.integers(0, 16 if mode == "P" else 256, len(picture.getbands())).tolist()
            rewritten.putpixel((x, y), tuple(channels) if len(channels) > 1 else channels[0])
        changed = (preprocessing.prepare(rewritten) != before).any(axis=2)
        assert not (changed & ~reach.pixels(top, left)).any()
        changes |= changed.any()
    assert changes


@pytest.mark.parametrize(("interpolation", "fit", "part"), list(product(INTERPOLATIONS, FITS, [1.0, 0.875])))
@pytest.mark.parametrize(
    ("original", "size"),
    [
        ((8, 8), (24, 24)),
        pytest.param((12, 9), (20, 16), marks=pytest.mark.slow),
        ((15, 20), (8, 8)),
        pytest.param((30, 40), (16, 16), marks=pytest.mark.slow),
    ],
)
def test_every_row_and_column_of_a_footprint_changes(interpolation, fit, part, original, size):
    """Footprints are not too large: some rewriting changes each row and each column, wherever it is."""
    preprocessing = Preprocessing(
        size, (0.5,), (0.5,), channels=1, crop_pct=part, crop_mode=fit, interpolation=interpolation
    )
    reach = footprint(cc.Original(cc.Rectangle(2, 3)), original, preprocessing.geometry)
    rng = np.random.default_rng(0)
    grey = np.full(original, 128, np.uint8)
    near = rng.integers(112, 144, original, dtype=np.uint8)
    before = [preprocessing.prepare(Image.fromarray(picture)) for picture in (grey, near)]
    missed = reached = 0
    # All places on small pictures.
    places = rng.permutation(list(product(range(original[0] - 1), range(original[1] - 2))))
    for top, left in places[:100]:
        expected = reach.pixels(top, left)
        changed = np.zeros(size, bool)
        for picture, clean in zip((grey, near), before, strict=True):
            for written in (0, 255, *rng.choice([0, 255], (4, 2, 3))):
                rewritten = picture.copy()
                rewritten[top : top + 2, left : left + 3] = written
                changed |= (preprocessing.prepare(Image.fromarray(rewritten)) != clean).any(axis=2)
        assert not (changed & ~expected).any()
        for axis in (0, 1):
            reached += int(expected.any(axis=axis).sum())
            missed += int((expected.any(axis=axis) & ~changed.any(axis=axis)).sum())
    # Weights below half a grey level change nothing in 8 bits, and a tie counts for both sides.
    assert missed <= {"box": 0.35, "nearest": 0.35}.get(interpolation, 0.2) * reached


def test_sizes_of_the_documentation():
    """2 px of 32 at 224: the numbers that docs/resizing.py measures."""
    sides = {}
    for interpolation in INTERPOLATIONS:
        for part in (1.0, 0.875):
            mode = "squash" if part == 1 else "center"
            geometry = Preparation((224, 224), part, mode, interpolation)
            sides[interpolation, part] = footprint(cc.Original(cc.Square(2)), (32, 32), geometry).height
    assert sides["nearest", 1.0] == sides["box", 1.0] == 14
    assert (sides["bilinear", 1.0], sides["bicubic", 1.0], sides["lanczos", 1.0]) == (20, 34, 48)
    assert (sides["nearest", 0.875], sides["bicubic", 0.875], sides["lanczos", 0.875]) == (16, 40, 56)


def test_a_picture_that_is_not_resized_is_only_shifted():
    """The footprint is the patch, shifted by the crop; outside of the crop it is nothing."""
    geometry = Preparation((6, 6), 0.6, "center", "lanczos")
    reach = footprint(cc.Original(cc.Square(2)), (10, 10), geometry)
    assert geometry.scaled((10, 10)) == (10, 10)
    assert not reach.pixels(0, 0).any()
    assert not reach.pixels(8, 4).any()
    expected = np.zeros((6, 6), bool)
    expected[2:4, 1:3] = True
    np.testing.assert_array_equal(reach.pixels(4, 3), expected)


def test_padding_never_changes():
    geometry = Preparation((8, 8), 1.0, "border", "lanczos")
    reach = footprint(cc.Original(cc.Square(4)), (4, 8), geometry)
    assert not reach.rows[:, [0, 1, 6, 7]].any()
    assert reach.rows[:, 2:6].all()


@settings(max_examples=examples(200))
@given(st.data())
def test_touched_sets_are_those_of_the_footprints(data):
    """T_p is every mutant that keeps a pixel of the footprint; maximal sets are listed, at real places."""
    side = st.integers(2, 7)
    image_size, original = data.draw(st.tuples(side, side)), data.draw(st.tuples(side, side))
    geometry = Preparation(
        image_size,
        data.draw(parts),
        data.draw(st.sampled_from(FITS)),
        data.draw(st.sampled_from(INTERPOLATIONS)),
    )
    assume_something_is_left(geometry, original)
    kept = data.draw(st.lists(families(image_size), min_size=1, max_size=2))
    patch = data.draw(st.tuples(st.integers(1, original[0]), st.integers(1, original[1])))
    reach = footprint(cc.Original(cc.Rectangle(*patch)), original, geometry)
    mutants = naive.kept(kept, *image_size)
    by_place = {}
    for top, left in product(range(original[0] - patch[0] + 1), range(original[1] - patch[1] + 1)):
        pixels = frozenset(zip(*(at.tolist() for at in np.nonzero(reach.pixels(top, left))), strict=True))
        by_place[top, left] = naive.touched(mutants, pixels)
    walk = touched(ablation(kept), reach, image_size)
    found = [frozenset(np.flatnonzero(mask).tolist()) for mask in walk.sets()]
    assert len(found) == len(set(found))
    assert set(found) == set(naive.maximal(naive.distinct(by_place.values())))
    for (corner,), one in zip(walk.places.tolist(), found, strict=True):
        assert by_place[tuple(corner)] == one


@settings(max_examples=examples(60))
@given(st.data())
def test_touched_masks_are_those_of_the_footprints(data):
    image_size, original = (9, 8), data.draw(st.tuples(st.integers(2, 12), st.integers(2, 12)))
    geometry = Preparation(
        image_size, 1.0, data.draw(st.sampled_from(FITS)), data.draw(st.sampled_from(INTERPOLATIONS))
    )
    assume_something_is_left(geometry, original)
    masks = cc.Masks(3, patch=(3, 2))
    reach = footprint(cc.Original(cc.Square(1)), original, geometry)
    kept = [region.pixels(image_size) for region in masks.regions(image_size)]
    sets = {
        frozenset(n for n, pixels in enumerate(kept) if (pixels & reach.pixels(top, left)).any())
        for top, left in product(range(original[0]), range(original[1]))
    }
    walk = touched(masks, reach, image_size)
    found = {frozenset(np.flatnonzero(mask).tolist()) for mask in walk.sets()}
    assert found == set(naive.maximal(list(sets)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("original:2", cc.Original(cc.Square(2))),
        ("original:2x4", cc.Original(cc.Rectangle(2, 4))),
        ("original:1%", cc.Original(cc.parse_patch("1%"))),
        ("original:0.5%", cc.Original(cc.parse_patch("0.5%"))),
    ],
)
def test_spellings(text, value):
    assert cc.parse_patch(text) == value
    assert cc.parse_patch(text, (32, 32)) == value
    assert str(value) == text
    assert hash(value) == hash(cc.parse_patch(text))


def test_shares_are_of_the_original():
    reach = footprint(
        cc.parse_patch("original:1%"), (100, 100), Preparation((200, 200), 1.0, "squash", "nearest")
    )
    assert reach.patch == cc.Square(10)
    assert (reach.height, reach.width) == (20, 20)


@pytest.mark.parametrize(
    "text", ["original:", "original:2/32", "original:shape:11", "original:2x", "original:%"]
)
def test_bad_spellings(text):
    with pytest.raises(cc.CostcertError, match=r"original:2, original:2x4 \(height x width\) or original:1%"):
        cc.parse_patch(text)


def test_refusals():
    with pytest.raises(GeometryError, match="original:9 does not fit an original of 8x10 pixels"):
        footprint(cc.Original(cc.Square(9)), (8, 10), Preparation((4, 4)))
    with pytest.raises(GeometryError, match=r"several patches at once .* got 2\*original:2"):
        cc.parse_patch("2*original:2")
    with pytest.raises(GeometryError, match="Original takes a square"):
        cc.Original(cc.Shape([[1]]))
    with pytest.raises(GeometryError, match="whose size is not known here"):
        touched(cc.Columns(1), cc.Original(cc.Square(1)), (4, 4))
    with pytest.raises(GeometryError, match="too large to be followed"):
        Preparation((16384, 2)).reads((16384, 4), 0)


def test_large_and_thin_pictures():
    """One limit, for the sides of a picture before and after it is resized."""
    two, one = cc.Original(cc.Square(2)), cc.Original(cc.Square(1))
    wide = footprint(two, (2, LARGEST_ORIGINAL), Preparation((8, 8), interpolation="nearest"))
    assert wide.columns.any(axis=1).sum() == 2 * 8
    with pytest.raises(GeometryError, match=r"an original of 2x65537 pixels .* is too large to be followed"):
        footprint(two, (2, LARGEST_ORIGINAL + 1), Preparation((8, 8)))
    with pytest.raises(GeometryError, match=r"1x1500 pixels .* is resized to 56x84000 \(center\), .* 65,536"):
        footprint(one, (1, 1500), Preparation((56, 56), crop_mode="center"))
    thin = r"1x500 pixels .* is too thin: resized into 56x56 .* \(border\) it becomes 0x56, so crop it"
    with pytest.raises(GeometryError, match=thin):
        footprint(one, (1, 500), Preparation((56, 56), crop_mode="border"))
    with pytest.raises(GeometryError, match="the original's height must be at least 1, got 0"):
        footprint(one, (0, 5), Preparation((8, 8)))


@pytest.mark.parametrize(("n", "m"), [(LARGEST_ORIGINAL, 999), (65535, 1000), (50000, 1024), (60000, 1111)])
def test_nearest_pixels_of_large_pictures(n, m):
    """Pillow adds up rounding errors along a line, which still decide nothing but ties."""
    line = Image.fromarray(np.arange(n, dtype=np.int32)[None])
    chosen = np.array(line.resize((m, 1), Image.Resampling.NEAREST))[0]
    found = Preparation((1, m), interpolation="nearest").reads((1, n), 1)
    assert found[np.arange(m), chosen].all()
    assert found.sum(axis=1).max() <= 2
