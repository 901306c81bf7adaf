"""T_p: counted by the library, listed by the naive twin."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import costcert as cc
import naive
from costcert.geometry import bitsets
from costcert.geometry.touch import touched
from strategies import Scene, scenes

AT_224 = (224, 224)


def cases(scene):
    """The library's T_p as frozensets, in its order."""
    walk = touched(scene.ablation, scene.patch, scene.image_size)
    return walk, [frozenset(np.flatnonzero(mask).tolist()) for mask in walk.sets()]


def placed(scene, corners):
    """The pixels of the scene's patches with their top left corners there."""
    top, left = min(y for y, _ in scene.pixels), min(x for _, x in scene.pixels)
    return frozenset(
        (y - top + int(down), x - left + int(right)) for down, right in corners for y, x in scene.pixels
    )


@settings(max_examples=800)
@given(scenes())
def test_cases_are_the_maximal_touched_sets(scene):
    """Every distinct T_p that lies in no other, each once: an antichain, and nothing is lost."""
    _, found = cases(scene)
    assert len(found) == len(set(found))
    assert set(found) == set(scene.windows)
    assert all(any(attacked <= case for case in found) for attacked in scene.sets)


@pytest.mark.parametrize(("width", "times"), [(3, 2), (4, 3), (5, 2), (5, 4)])
def test_patches_on_mutants_apart_touch_any_so_many_of_them(width, times):
    """Of three mutants a patch touches one of three, two patches two: as many sets, but others."""
    walk = touched(cc.Columns(1), cc.Several(cc.Square(1), times), (1, width))
    found = {tuple(np.flatnonzero(mask)) for mask in walk.sets()}
    assert found == set(combinations(range(width), times))


@given(scenes())
def test_budgets_and_places_belong_to_the_cases(scene):
    """q_p is the size of T_p, Δ the largest, and the place given for a case touches just that T_p."""
    walk, found = cases(scene)
    assert walk.budgets.tolist() == [len(attacked) for attacked in found]
    assert walk.delta == scene.most
    assert walk.num_mutants == len(scene.mutants)
    assert walk.places.shape == (len(found), scene.times, 2)
    height, width = scene.image_size
    for corners, attacked in zip(walk.places, found, strict=True):
        place = placed(scene, corners)
        assert all(0 <= y < height and 0 <= x < width for y, x in place)
        assert naive.touched(scene.mutants, place) == attacked


@given(scenes())
def test_a_walk_only_flips_what_changes(scene):
    """Step p turns T_(p-1) into T_p: only clean mutants become touched, only touched ones clean."""
    walk, _ = cases(scene)
    now = set()
    for start, stop in pairwise(walk.offsets.tolist()):
        for flip in walk.flips[start:stop].tolist():
            mutant = flip if flip >= 0 else ~flip
            assert (mutant in now) == (flip < 0)
            now ^= {mutant}


def test_places_between_two_pooled_blocks_are_dropped():
    """Blocks in opposite corners: a place beside both touches nothing, and is no case of its own."""
    corners = [naive.Strips("blocks", 1, span=(0, 0)), naive.Strips("blocks", 1, span=(4, 4))]
    scene = Scene((5, 5), corners, cc.Square(1), naive.rectangle(1, 1))
    assert frozenset() in scene.sets
    assert set(cases(scene)[1]) == {frozenset({0}), frozenset({1})}


@settings(max_examples=60)
@given(st.data(), st.integers(65, 150))
def test_more_mutants_than_bits_in_a_word(data, width):
    """The same on axes long enough that sets take several words."""
    kept, stride = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 2))
    wrap = data.draw(st.booleans())
    family = naive.Strips("columns", kept, stride, wrap)
    mask = data.draw(st.lists(st.booleans(), min_size=1, max_size=12).filter(any))
    scene = Scene((1, width), [family], cc.Shape([mask]), naive.shape([mask]))
    assert set(cases(scene)[1]) == set(scene.windows)


@settings(max_examples=10)
@given(st.integers(65, 80), st.integers(1, 9), st.integers(1, 3))
def test_two_patches_on_a_long_axis(width, kept, side):
    """Unions of two, where sets take several words."""
    family = naive.Strips("columns", kept)
    patch = cc.Several(cc.Rectangle(1, side), 2)
    scene = Scene((1, width), [family], patch, naive.rectangle(1, side), 2)
    assert set(cases(scene)[1]) == set(scene.windows)


@given(st.lists(st.frozensets(st.integers(0, 129), max_size=6), min_size=1, max_size=12), st.booleans())
def test_maximal_rows_of_bits(sets, close):
    """Rows of bits are kept when no other row contains them, and the first of equal ones stays."""
    if close:
        sets = [frozenset(i % 7 + 60 for i in one) for one in sets]
    table = np.zeros((len(sets), 130), dtype=bool)
    for row, one in zip(table, sets, strict=True):
        row[list(one)] = True
    words = bitsets.pack(table)
    keep = bitsets.maximal(words).tolist()
    assert keep == sorted({sets.index(one) for one in naive.maximal(sets)})
    assert (bitsets.unpack(words, 130) == table).all()
    assert bitsets.sizes(words).tolist() == [len(one) for one in sets]


@given(scenes())
def test_one_of_several_is_one(scene):
    """`1*patch` touches what the patch touches."""
    single = scene.patch.patch if isinstance(scene.patch, cc.Several) else scene.patch
    once = Scene(scene.image_size, scene.families, cc.Several(single, 1), scene.pixels)
    alone = Scene(scene.image_size, scene.families, single, scene.pixels)
    assert set(cases(once)[1]) == set(cases(alone)[1])


@pytest.mark.parametrize(
    ("ablation", "side", "delta"),
    [
        ("columns:19", 32, 50),
        ("columns:19", 96, 114),
        ("rows:19", 32, 50),
        ("columns:19/stride=10", 32, 6),
        ("blocks:75/stride=10", 32, 144),
        ("columns:19+rows:19", 32, 100),
    ],
)
def test_budgets_at_224(ablation, side, delta):
    """Counted budgets: m + s - 1 for stride 1, and more than the published ⌈(m+s-1)/stride⌉ for strides."""
    assert touched(cc.parse_ablation(ablation), cc.Square(side), AT_224).delta == delta


def test_places_at_224_become_193_cases():
    """The 37,249 places of a 32-pixel square are 193 cases for columns, all with the same budget."""
    walk = touched(cc.Columns(19), cc.Square(32), AT_224)
    assert len(walk) == 193
    assert set(walk.budgets.tolist()) == {50}


@pytest.mark.parametrize("side", [1, 16, 32, 96, 112, 206, 207, 224])
def test_wrapping_columns_touch_a_run_of_mutants(side):
    """A square that starts at column i touches mutants i-s+1 … i+m-1, going round."""
    walk = touched(cc.Columns(19), cc.Square(side), AT_224)
    expected = {
        frozenset(mutant % 224 for mutant in range(start - 18, start + side))
        for start in range(224 - side + 1)
    }
    assert {frozenset(np.flatnonzero(mask).tolist()) for mask in walk.sets()} == expected
