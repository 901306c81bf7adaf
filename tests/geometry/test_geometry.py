"""The pixels mutants keep, the pixels patches cover, and the spelling of both."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costcert as cc
import naive
from costcert.errors import CostcertError
from strategies import ablation, families, patches, scenes

image_sizes = st.tuples(st.integers(1, 9), st.integers(1, 9))


def pixels_of(region, image_size):
    """The kept pixels of a region of the library."""
    height, width = image_size
    rows = np.flatnonzero(region.rows.pixels(height)).tolist()
    columns = np.flatnonzero(region.columns.pixels(width)).tolist()
    return frozenset((y, x) for y in rows for x in columns)


@given(scenes(largest_side=9, most_families=3))
def test_regions_keep_the_pixels_of_the_definition(scene):
    """Mutant i keeps exactly its strip or block, in the order of the ballots."""
    regions = scene.ablation.regions(scene.image_size)
    assert [pixels_of(region, scene.image_size) for region in regions] == scene.mutants
    assert scene.ablation.count(scene.image_size) == len(scene.mutants)


def test_columns_of_the_paper():
    """Columns of 19 at 224: one mutant per column, mutant i keeps columns i … i+18, wrapping around."""
    regions = cc.Columns(19).regions((224, 224))
    assert len(regions) == 224
    assert np.flatnonzero(regions[0].columns.pixels(224)).tolist() == list(range(19))
    assert np.flatnonzero(regions[223].columns.pixels(224)).tolist() == [*range(18), 223]
    assert regions[7].rows.pixels(224).all()


@given(st.data(), image_sizes)
def test_ablations_are_read_back_as_spelled(data, image_size):
    """`str()` of an ablation is its spelling."""
    value = ablation(data.draw(st.lists(families(image_size), min_size=1, max_size=3)))
    assert cc.parse_ablation(str(value)) == value
    assert hash(cc.parse_ablation(str(value))) == hash(value)


@given(st.data(), image_sizes)
def test_patches_are_read_back_as_spelled(data, image_size):
    """`str()` of a patch is its spelling, with and without an image."""
    value, _, _ = data.draw(patches(image_size))
    assert cc.parse_patch(str(value)) == value
    assert cc.parse_patch(str(value), image_size) == value


@given(st.data(), image_sizes)
def test_pieces_cover_the_patch_exactly(data, image_size):
    """The rectangles a patch is split into hold each of its pixels once."""
    value, pixels, times = data.draw(patches(image_size))
    single = value.patch if isinstance(value, cc.Several) else value
    covered = [
        (y, x)
        for piece in single.pieces()
        for y in range(piece.top, piece.top + piece.height)
        for x in range(piece.left, piece.left + piece.width)
    ]
    top, left = min(y for y, _ in pixels), min(x for _, x in pixels)
    assert sorted(covered) == sorted((y - top, x - left) for y, x in pixels)
    assert times == getattr(value, "times", 1)


def test_spellings():
    """The spellings of the manual."""
    assert str(cc.Columns(19)) == "columns:19"
    assert str(cc.Columns(19, stride=4)) == "columns:19/stride=4"
    assert str(cc.Columns(4, span=(4, 24))) == "columns:4/span=4-24"
    assert str(cc.Square(32)) == "square:32"
    assert str(cc.Rectangle(16, 64)) == "rectangle:16x64"
    assert str(cc.Several(cc.Square(16), 2)) == "2*square:16"
    assert cc.parse_patch("32") == cc.Square(32)
    assert cc.parse_ablation("columns:4+rows:4") == cc.Pooled(cc.Columns(4), cc.Rows(4))


@pytest.mark.parametrize(
    ("text", "side"), [("1%", 23), ("2%", 32), ("3%", 39), ("2/32", 14), ("5/32", 35), ("32/32", 224)]
)
def test_relative_sizes_at_224(text, side):
    """Percent of the area rounds the side up; pixels of the original scale with the image."""
    assert cc.parse_patch(text, (224, 224)) == cc.Square(side)
    assert str(cc.parse_patch(text)) == text


@given(st.integers(1, 10000), st.integers(40, 300))
def test_percent_is_the_smallest_square_of_that_area(hundredths, side):
    """The side is rounded up, never down: a smaller square would understate the attacker."""
    percent = Fraction(hundredths, 100)
    square = cc.parse_patch(f"{hundredths // 100}.{hundredths % 100:02}%", (side, side))
    area = percent / 100 * side * side
    assert square.side**2 >= area > (square.side - 1) ** 2


@given(st.integers(1, 32), st.integers(1, 300), st.integers(1, 300))
def test_scaled_patches_cover_at_least_the_scaled_pixels(pixels, height, width):
    """A patch given in pixels of a 32-px original is never smaller after scaling, along either axis."""
    patch = cc.parse_patch(f"{pixels}/32", (height, width))
    assert patch.height - 1 < Fraction(pixels * height, 32) <= patch.height
    assert patch.width - 1 < Fraction(pixels * width, 32) <= patch.width


@pytest.mark.parametrize(
    "text",
    [
        "",
        "columns",
        "columns:",
        "columns:0",
        "columns:-1",
        "columns:4/stride=0",
        "columns:4/stripe=2",
        "columns:4/span=9-4",
        "columns:1.5",
        "rings:4",
        "columns:4+",
        "columns:4/wrap=maybe",
        "columns:4/",
    ],
)
def test_unreadable_ablations_are_refused(text):
    """A spelling that means nothing is an error, never a guess."""
    with pytest.raises(CostcertError):
        cc.parse_ablation(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "square:",
        "square:0",
        "0%",
        "101%",
        "nan%",
        "2/0",
        "0/32",
        "rectangle:16",
        "rectangle:0x4",
        "-3",
        "2*2*square:3",
        "0*square:3",
        "shape:",
        "shape:00",
        "shape:01/1",
        "circle:4",
        "3.5",
    ],
)
def test_unreadable_patches_are_refused(text):
    """A spelling that means nothing is an error, never a guess."""
    with pytest.raises(CostcertError):
        cc.parse_patch(text)


@pytest.mark.parametrize(
    ("value", "image_size"),
    [
        (cc.Columns(8), (9, 7)),
        (cc.Rows(8), (7, 9)),
        (cc.Blocks(8), (9, 7)),
        (cc.Columns(2, span=(0, 7)), (7, 7)),
        (cc.Columns(2, wrap=False, span=(0, 6)), (7, 7)),
        (cc.Pooled(cc.Columns(2), cc.Rows(8)), (7, 7)),
    ],
    ids=str,
)
def test_mutants_that_do_not_fit_are_refused(value, image_size):
    """A width beyond the image, or a span beyond the last start, is an error."""
    with pytest.raises(CostcertError):
        value.count(image_size)


@pytest.mark.parametrize(
    "text", ["square:6", "rectangle:1x8", "rectangle:6x1", "shape:11111111", "2*square:6"]
)
def test_patches_that_do_not_fit_are_refused(text):
    """A patch must fit inside the image."""
    with pytest.raises(CostcertError):
        cc.parse_patch(text, (5, 7))


@given(st.data(), image_sizes)
def test_equal_values_keep_equal_pixels(data, image_size):
    """Values of different geometry differ, so that no result is mistaken for that of another."""
    one = data.draw(st.lists(families(image_size), min_size=1, max_size=2))
    other = data.draw(st.lists(families(image_size), min_size=1, max_size=2))
    if naive.kept(one, *image_size) != naive.kept(other, *image_size):
        assert ablation(one) != ablation(other)
        assert str(ablation(one)) != str(ablation(other))


def test_votes_of_another_geometry_are_refused():
    """The number of ballots must be the number of mutants, and the sentence says which."""
    with pytest.raises(CostcertError, match=r"200 .*columns:19.*224"):
        cc.Votes(np.zeros((1, 200), int), [0], num_classes=3, ablation=cc.Columns(19), image_size=(224, 224))
