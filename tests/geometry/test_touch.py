"""T_p: counted by the library, compared with the naive twin."""

from itertools import combinations, pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import costcert as cc
import naive
from costcert.errors import GeometryError
from costcert.geometry import bitsets, unions
from costcert.geometry.touch import touched
from strategies import Scene, examples, families, placed, scenes

AT_224 = (224, 224)


def touched_sets(scene):
    """The library's T_p as frozensets, in its order."""
    walk = touched(scene.ablation, scene.patch, scene.image_size)
    return walk, [frozenset(np.flatnonzero(mask).tolist()) for mask in walk.sets()]


@settings(max_examples=examples(800))
@given(scenes())
def test_walks_hold_the_maximal_touched_sets(scene):
    """Every distinct T_p that lies in no other, each once: an antichain, and nothing is lost."""
    _, found = touched_sets(scene)
    assert len(found) == len(set(found))
    assert set(found) == set(scene.windows)
    assert all(any(attacked <= kept for kept in found) for attacked in scene.sets)


@pytest.mark.parametrize(("width", "times"), [(3, 2), (4, 3), (5, 2), (5, 4)])
def test_patches_on_disjoint_mutants_touch_every_combination(width, times):
    """Of three disjoint mutants one patch touches any one, two patches touch any two."""
    walk = touched(cc.Columns(1), cc.Several(cc.Square(1), times), (1, width))
    found = {tuple(np.flatnonzero(mask)) for mask in walk.sets()}
    assert found == set(combinations(range(width), times))


@given(scenes())
def test_budgets_and_places_belong_to_the_touched_sets(scene):
    """q_p is the size of T_p, Δ the largest q_p, and a patch at `places[p]` touches exactly T_p."""
    walk, found = touched_sets(scene)
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
    walk, _ = touched_sets(scene)
    now = set()
    for start, stop in pairwise(walk.offsets.tolist()):
        for flip in walk.flips[start:stop].tolist():
            mutant = flip if flip >= 0 else ~flip
            assert (mutant in now) == (flip < 0)
            now ^= {mutant}


@given(scenes())
def test_words_hold_the_same_touched_sets(scene):
    """The same sets as bits, 64 mutants per word."""
    walk, found = touched_sets(scene)
    assert as_sets(walk.words, len(scene.mutants)) == found


def test_places_between_two_pooled_blocks_are_dropped():
    """Blocks in opposite corners: a position between them touches nothing, and its empty set is dropped."""
    corners = [naive.Strips("blocks", 1, span=(0, 0)), naive.Strips("blocks", 1, span=(4, 4))]
    scene = Scene((5, 5), corners, cc.Square(1), naive.rectangle(1, 1))
    assert frozenset() in scene.sets
    assert set(touched_sets(scene)[1]) == {frozenset({0}), frozenset({1})}


@settings(max_examples=examples(60))
@given(st.data(), st.integers(65, 150))
def test_more_mutants_than_bits_in_a_word(data, width):
    """The same on axes so long that a set takes several words."""
    kept, stride = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 2))
    wrap = data.draw(st.booleans())
    family = naive.Strips("columns", kept, stride, wrap)
    mask = data.draw(st.lists(st.booleans(), min_size=1, max_size=12).filter(any))
    scene = Scene((1, width), [family], cc.Shape([mask]), naive.shape([mask]))
    assert set(touched_sets(scene)[1]) == set(scene.windows)


@pytest.mark.slow
@settings(max_examples=examples(10))
@given(st.integers(65, 80), st.integers(1, 9), st.integers(1, 3))
def test_two_patches_on_a_long_axis(width, kept, side):
    """Unions of two, where sets take several words."""
    family = naive.Strips("columns", kept)
    patch = cc.Several(cc.Rectangle(1, side), 2)
    scene = Scene((1, width), [family], patch, naive.rectangle(1, side), 2)
    assert set(touched_sets(scene)[1]) == set(scene.windows)


@pytest.mark.parametrize("few", [0, bitsets.FEW], ids=["compiled", "few"])
@given(
    sets=st.lists(st.frozensets(st.integers(0, 129), max_size=6), min_size=1, max_size=12),
    close=st.booleans(),
)
def test_maximal_rows_of_bits(few, sets, close):
    """Rows of bits are kept when no other row contains them, and the first of equal ones stays."""
    if close:
        sets = [frozenset(i % 7 + 60 for i in one) for one in sets]
    table = np.zeros((len(sets), 130), dtype=bool)
    for row, one in zip(table, sets, strict=True):
        row[list(one)] = True
    words = bitsets.pack(table)
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(bitsets, "FEW", few)
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
    assert set(touched_sets(once)[1]) == set(touched_sets(alone)[1])


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


def test_positions_at_224_become_193_touched_sets():
    """The 37,249 positions of a 32-pixel square have 193 touched sets of columns, all of the same size."""
    walk = touched(cc.Columns(19), cc.Square(32), AT_224)
    assert len(walk) == 193
    assert set(walk.budgets.tolist()) == {50}


@pytest.mark.parametrize("side", [1, 16, 32, 96, 112, 206, 207, 224])
def test_wrapping_columns_touch_a_run_of_mutants(side):
    """A square that starts at column i touches mutants i-s+1 … i+m-1, wrapping around."""
    walk = touched(cc.Columns(19), cc.Square(side), AT_224)
    expected = {
        frozenset(mutant % 224 for mutant in range(start - 18, start + side))
        for start in range(224 - side + 1)
    }
    assert {frozenset(np.flatnonzero(mask).tolist()) for mask in walk.sets()} == expected


@st.composite
def crowded_scenes(draw):
    """Scenes with two to four patches at once, small enough to try all their positions."""
    times = draw(st.integers(2, 4))
    sizes = {2: [(1, 30), (4, 5), (7, 3)], 3: [(1, 16), (3, 4), (8, 2)], 4: [(1, 12), (3, 3), (6, 2)]}
    height, width = draw(st.sampled_from(sizes[times]))
    chosen = [draw(families((height, width))) for _ in range(draw(st.integers(1, 2)))]
    rows, columns = draw(st.integers(1, min(2, height))), draw(st.integers(1, min(4, width)))
    row = st.lists(st.booleans(), min_size=columns, max_size=columns)
    mask = draw(st.lists(row, min_size=rows, max_size=rows).filter(lambda mask: any(map(any, mask))))
    return Scene((height, width), chosen, cc.Several(cc.Shape(mask), times), naive.shape(mask), times)


@settings(max_examples=examples(200))
@given(crowded_scenes())
def test_touched_sets_of_several_patches_are_the_maximal_unions(scene):
    """Every maximal union once, each with places that touch exactly those mutants."""
    walk, found = touched_sets(scene)
    assert len(found) == len(set(found))
    assert set(found) == set(scene.windows)
    for corners, attacked in zip(walk.places, found, strict=True):
        assert naive.touched(scene.mutants, placed(scene, corners)) == attacked


def as_words(sets, size):
    """Sets of numbers below `size` as rows of bits."""
    table = np.zeros((len(sets), size), dtype=bool)
    for row, one in zip(table, sets, strict=True):
        row[list(one)] = True
    return bitsets.pack(table)


def as_sets(words, size):
    """Rows of bits as sets of numbers."""
    return [frozenset(np.flatnonzero(row).tolist()) for row in bitsets.unpack(words, size)]


@settings(max_examples=examples(400))
@given(
    st.lists(st.frozensets(st.integers(0, 11), max_size=7), min_size=1, max_size=12),
    st.integers(1, 4),
    st.sampled_from([1, 61]),
)
def test_maximal_unions_of_any_sets(sets, times, apart):
    """The same for arbitrary sets, which have no neighbours, in one word or spread over many."""
    sets, size = naive.maximal([frozenset(apart * i for i in one) for one in sets]), 12 * apart
    found, chosen = unions.maximal(as_words(sets, size), times)
    expected = naive.maximal(naive.unions(sets, times))
    assert sorted(map(sorted, as_sets(found, size))) == sorted(map(sorted, expected))
    assert chosen.shape == (len(found), times)
    assert as_sets(found, size) == [frozenset().union(*(sets[i] for i in one)) for one in chosen]


def test_a_cover_that_the_greedy_choice_misses():
    """Two sets cover all 30, but greedy choice takes those with 16, 8, 4 and 2 and needs four."""
    halves = [range(15), range(15, 30)]
    greedy, start = [], 0
    for size in (8, 4, 2, 1):
        greedy.append({*range(start, start + size), *range(start + 15, start + 15 + size)})
        start += size
    words = as_words([*halves, *greedy], 30)
    assert unions.covering(words, 3) is None
    found, chosen = unions.maximal(words, 3)
    assert as_sets(found, 30) == [frozenset(range(30))]
    assert set(chosen[0].tolist()) == {0, 1}


def test_enough_patches_for_all_mutants_have_one_touched_set():
    """Twelve pixels touch all 224 columns of 19, so 64 do; eleven do not, and have too many unions."""
    walk = touched(cc.Columns(19), cc.parse_patch("64*square:1"), AT_224)
    assert walk.budgets.tolist() == [224]
    assert walk.places.shape == (1, 64, 2)
    lefts = set(walk.places[0, :, 1].tolist())
    assert len(lefts) == 12
    assert {(left - back) % 224 for left in lefts for back in range(19)} == set(range(224))


@pytest.mark.slow
def test_three_squares_of_16_at_224():
    """On a sample: any three lie in a touched set, no such set lies in another, and its places touch it."""
    walk = touched(cc.Columns(19), cc.parse_patch("3*square:16"), AT_224)
    random = Random(5)

    def run(left):
        return frozenset(mutant % 224 for mutant in range(left - 18, left + 16))

    unions_of_three = [frozenset().union(*(run(random.randrange(209)) for _ in range(3))) for _ in range(50)]
    for union in as_words(unions_of_three, 224):
        assert ((union & ~walk.words) == 0).all(axis=1).any()
    for index in random.sample(range(len(walk)), 50):
        row = walk.words[index]
        assert np.flatnonzero(((row & ~walk.words) == 0).all(axis=1)).tolist() == [index]
        expected = frozenset().union(*(run(int(left)) for _, left in walk.places[index]))
        assert as_sets(row[None], 224) == [expected]
        assert walk.budgets[index] == len(expected)


@pytest.mark.parametrize(
    ("patch", "ablation", "side"),
    [
        ("4*square:1", "columns:19", 224),
        ("6*square:1", "columns:19", 224),
        ("11*square:1", "columns:19", 224),
        ("64*square:1", "columns:1", 224),
        ("2*square:32", "columns:19+rows:19", 224),
        ("3*square:2", "columns:4+rows:4", 32),
        ("3*square:32", "blocks:75/stride=7", 224),
        ("2*square:32", "blocks:75/stride=3", 224),
    ],
)
def test_too_many_touched_sets_are_refused_before_any_is_made(monkeypatch, patch, ablation, side):
    """One sentence that names the patch, the ablation and the size, and says what to do."""
    made = []
    monkeypatch.setattr(unions, "one_more", lambda *given: made.append(given))
    size = (side, side)
    with pytest.raises(GeometryError) as refusal:
        touched(cc.parse_ablation(ablation), cc.parse_patch(patch, size), size)
    sentence = str(refusal.value)
    assert sentence.startswith(
        f"{patch} against {ablation} on {side}x{side} makes too many touched sets to compare"
    )
    assert "fewer patches" in sentence
    assert not made


@pytest.mark.parametrize(
    ("module", "limit", "most"),
    [
        (bitsets, "MOST_STEPS", 100),
        (unions, "MOST_READ", 100_000),
        (unions, "MOST_STORED", 10_000),
        (unions, "MOST_UNIONS", 200),
    ],
)
def test_limits_hold_where_the_estimate_was_too_low(monkeypatch, module, limit, most):
    """Blocks of 8 at 32 px have 10,612 touched sets of three patches: refused while they are counted."""
    arguments = (cc.parse_ablation("blocks:8/stride=4"), cc.parse_patch("3*square:2"), (32, 32))
    touched.cache_clear()
    assert len(touched(*arguments)) == 10_612
    touched.cache_clear()
    monkeypatch.setattr(unions, "estimate", lambda *given: 0)
    monkeypatch.setattr(module, limit, most)
    with pytest.raises(GeometryError, match=r"3\*square:2 against blocks:8/stride=4 on 32x32 makes too"):
        touched(*arguments)
    touched.cache_clear()


def test_maximal_rows_among_thousands():
    """Five thousand pairs, singletons inside one of them, and singletons inside none."""
    pairs = [frozenset({2 * i, 2 * i + 1}) for i in range(5000)]
    within = [frozenset({i}) for i in range(0, 10000, 7)]
    alone = [frozenset({i}) for i in range(10000, 10050)]
    sets = [*within, *pairs, *alone]
    keep = bitsets.maximal(as_words(sets, 10050)).tolist()
    assert keep == list(range(len(within), len(sets)))


@given(st.lists(st.frozensets(st.integers(0, 129), max_size=2), max_size=12), st.booleans())
def test_equal_rows_are_found_whatever_their_keys(sets, useless):
    """Keys only sort: if all rows share one key, the rows themselves are compared."""
    with pytest.MonkeyPatch.context() as patching:
        if useless:
            patching.setattr(bitsets, "_ODD", np.uint64(0))
        keep = bitsets._first_of_equals(as_words(sets, 130)).tolist()
    assert keep == sorted({sets.index(one) for one in sets})


@pytest.mark.parametrize(
    ("patch", "ablation"),
    [
        ("2*square:16", "columns:19"),
        ("3*square:32", "columns:19/stride=4"),
        ("2*square:32", "columns:19/stride=10+rows:19/stride=10"),
        ("2*square:32", "blocks:75/stride=20"),
    ],
)
def test_estimates_are_hardly_too_high(patch, ablation):
    """An estimate exceeds the exact number by less than a fifth, and is at most 12 times too low."""
    patch, kept = cc.parse_patch(patch), cc.parse_ablation(ablation)
    words = touched(kept, patch.patch, AT_224).words
    exact = len(touched(kept, patch, AT_224))
    found = unions.estimate(words, unions.nearest(words), patch.times)
    assert exact / 12 < found < 1.2 * exact
