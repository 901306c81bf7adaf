"""PatchCleanser for every k: its definition, every attack there is, and the published rule at k = 1."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import costcert as cc
import naive
from costcert.defenders import find
from costcert.geometry.touch import touched
from costcert.votes.validation import LARGEST_CAP
from strategies import examples, masked_elections, masked_scenes, ties, worst_attack_on_masks


def certified(election, ties="against", **more):
    patch = election.scene.patch
    certs = cc.certify(election.votes(), [patch], "patchcleanser", ties=ties, **more)
    return certs.min_k("patchcleanser", patch).tolist()


def defined(election, tau=0, uncertain=None):
    scene = election.scene
    found = []
    for n in election.images:
        unknown = frozenset(() if uncertain is None else np.flatnonzero(uncertain[n]).tolist())
        sets = [attacked | unknown for attacked in scene.sets]
        found.append(
            naive.patchcleanser(
                election.ballots(n),
                sets,
                scene.rows,
                election.truth[n],
                election.num_classes,
                election.cap,
                tau,
            )
        )
    return found


@given(masked_scenes())
def test_masks_hide_what_their_definition_says(scene):
    regions = scene.ablation.regions(scene.image_size)
    kept = [
        frozenset(zip(*map(list, region.pixels(scene.image_size).nonzero()), strict=True))
        for region in regions
    ]
    assert kept == scene.mutants
    assert scene.ablation.count(scene.image_size) == len(scene.mutants)
    assert scene.ablation.table().tolist() == [
        [naive.pairs_of(scene.masks).index((min(i, j), max(i, j))) for j in range(len(scene.masks))]
        for i in range(len(scene.masks))
    ]


@given(masked_scenes())
def test_masks_cover_every_position_of_their_patch(scene):
    for place in naive.places(scene.pixels, *scene.image_size):
        assert any(place <= mask for mask in scene.masks)


@given(masked_scenes())
def test_touched_sets_are_counted_by_pixels(scene):
    """Two masks may hide together what neither hides alone."""
    found = touched(scene.ablation, scene.patch, scene.image_size)
    sets = [frozenset(np.flatnonzero(each).tolist()) for each in found.sets()]
    assert sorted(map(sorted, sets)) == sorted(map(sorted, naive.maximal(scene.sets)))
    for attacked, ((top, left),) in zip(sets, found.places.tolist(), strict=True):
        place = frozenset((y + top, x + left) for y, x in scene.pixels)
        assert naive.touched(scene.mutants, place) == attacked


@settings(max_examples=examples(200))
@given(masked_elections(masked_scenes()), ties)
def test_min_k_is_its_definition(election, ties):
    assert certified(election, ties) == defined(election)


@given(masked_elections(masked_scenes(most_masks=2), st.integers(5, 40)), ties)
def test_min_k_with_more_classes_than_votes(election, ties):
    assert certified(election, ties) == defined(election)


@given(st.data(), masked_elections(masked_scenes(most_masks=2)), st.integers(0, 2))
def test_unknown_ballots_are_the_attackers_and_others_may_shift(data, election, tau):
    shape = (len(election.truth), len(election.scene.mutants))
    tau = 0 if election.units is None else tau
    random = data.draw(st.randoms(use_true_random=False))
    uncertain = np.array([[random.random() < 0.1 for _ in range(shape[1])] for _ in range(shape[0])])
    assert certified(election, uncertain=uncertain, tau=tau) == defined(
        election, min(tau, election.cap), uncertain
    )


# The smallest masks there are: four of them, ten mutants, of which a patch touches six.
tiny = masked_scenes(most_masks=2, largest_side=4, smaller=False).filter(
    lambda scene: max(map(len, scene.sets)) <= 6
)


@settings(max_examples=examples(60))
@given(masked_elections(tiny, st.integers(2, 3), largest_cap=1, most_images=1))
def test_it_survives_every_attack_on_hard_ballots(election):
    ways = naive.single_labels(election.num_classes)
    worst, (found,) = worst_attack_on_masks(election, 0, ways), certified(election)
    assert worst <= found
    if found == 2 or election.num_classes == 2:
        assert worst == found


@settings(max_examples=examples(40))
@given(masked_elections(tiny, st.just(2), largest_cap=2, most_images=1))
def test_it_survives_every_attack_on_soft_ballots(election):
    """With two labels it is exact: one rival has all touched ballots."""
    assert worst_attack_on_masks(election, 0, naive.spreads(2, election.cap)) == certified(election)[0]


@pytest.mark.slow
@settings(max_examples=examples(12))
@given(masked_elections(tiny, st.just(3), largest_cap=2, most_images=1))
def test_it_survives_every_attack_on_soft_ballots_of_three_labels(election):
    scene = election.scene
    assume(sum(len(naive.spreads(3, election.cap)) ** len(attacked) for attacked in scene.sets) <= 200_000)
    worst = worst_attack_on_masks(election, 0, naive.spreads(3, election.cap))
    (found,) = certified(election)
    assert worst <= found
    assert (worst == 1) == (found == 1)


@given(masked_elections(masked_scenes(smaller=False), largest_cap=1))
def test_hard_ballots_at_k_1_are_certified_iff_all_mutants_agree(election):
    """The published condition; where another mask covers all that one does, fewer may do."""
    election = election._replace(
        labels=[[b[0] if isinstance(b, list) else b for b in image] for image in election.labels], units=None
    )
    agree = [set(image) == {truth} for image, truth in zip(election.labels, election.truth, strict=True)]
    assume(election.num_classes > 1)
    found = [min_k == 1 for min_k in certified(election)]
    assert all(found[n] or not agree[n] for n in election.images)
    scene = election.scene
    covering = [
        [i for i, mask in enumerate(scene.masks) if place <= mask]
        for place in naive.places(scene.pixels, *scene.image_size)
    ]
    if all([i] in covering for i in range(len(scene.masks))):
        assert found == agree


@given(masked_elections(masked_scenes()))
def test_rank_and_prediction_are_by_best_row_then_votes(election):
    votes, patch = election.votes(), election.scene.patch
    certs = cc.certify(votes, [patch], "patchcleanser")
    windows = touched(votes.ablation, patch, votes.image_size)
    predicted = find("patchcleanser").predict(votes, windows, election.num_classes)
    for n in election.images:
        expected = naive.pair_order(election.ballots(n), election.scene.rows, election.num_classes)
        assert predicted[n].tolist() == expected
        assert certs.rank("patchcleanser", patch)[n] == expected.index(election.truth[n]) + 1
        assert certs.rank("patchcleanser", patch)[n] <= certs.min_k("patchcleanser", patch)[n]


@pytest.mark.parametrize("cap", [1, 65536, LARGEST_CAP])
def test_predictions_are_exact_for_any_cap(cap):
    """Equal best rows, so that the votes decide; no sum may overflow."""
    masks, rng = cc.Masks(3, patch=2), np.random.default_rng(cap)
    units = rng.integers(0, cap // 2 + 1, (20, 45, 2))
    units[:, ::4] = cap // 2
    labels = np.broadcast_to(rng.permutation(3)[:2], units.shape)
    votes = cc.Votes.soft(labels, units, np.zeros(20), num_classes=3, cap=cap, ablation=masks, image_size=8)
    rows = masks.table().tolist()
    ranks = cc.certify(votes, "2").rank("patchcleanser", "2")
    predicted = find("patchcleanser").predict(votes, touched(masks, cc.Square(2), (8, 8)), 3)
    for n in range(len(votes)):
        ballots = [
            dict(zip(*each, strict=True)) for each in zip(labels[n].tolist(), units[n].tolist(), strict=True)
        ]
        expected = naive.pair_order(ballots, rows, 3)
        assert predicted[n].tolist() == expected
        assert ranks[n] == expected.index(0) + 1


@given(st.data(), masked_elections(masked_scenes(most_masks=2), most_images=2))
def test_partial_votes_promise_no_more_than_complete_ones(data, election):
    votes, patch = election.votes(), election.scene.patch
    random = data.draw(st.randoms(use_true_random=False))
    known = np.array([[random.random() < 0.8 for _ in election.scene.mutants] for _ in election.images])
    full, part = (cc.certify(each, [patch], "patchcleanser") for each in (votes, votes.replace(known=known)))
    assert (full.min_k("patchcleanser", patch) <= part.min_k("patchcleanser", patch)).all()
    assert (full.rank("patchcleanser", patch) <= part.rank("patchcleanser", patch)).all()
    assert (part.rank("patchcleanser", patch) <= part.min_k("patchcleanser", patch)).all()


@given(masked_elections(masked_scenes(smaller=False), most_images=2))
def test_a_smaller_patch_is_never_harder(election):
    sides = election.scene.ablation.sides
    larger, smaller = cc.Rectangle(*sides), cc.Rectangle(*(max(1, side - 1) for side in sides))
    certs = cc.certify(election.votes(), [larger, smaller], "patchcleanser")
    assert (certs.min_k("patchcleanser", smaller) <= certs.min_k("patchcleanser", larger)).all()


def masked_votes(ablation="masks:3/patch=2", size=(8, 8)):
    mutants = cc.parse_ablation(ablation).count(size)
    return cc.Votes(np.zeros((2, mutants), int), [0, 1], num_classes=3, ablation=ablation, image_size=size)


def test_all_means_the_defender_that_reads_masks_and_others_are_asked_for_by_name():
    assert cc.certify(masked_votes(), "2").defenders == ["patchcleanser"]
    named = cc.certify(masked_votes(), "2", ["costcert", "patchcleanser"])
    assert named.defenders == ["costcert", "patchcleanser"]
    columns = cc.Votes([[0] * 8], [0], num_classes=3, ablation="columns:2", image_size=8)
    assert "patchcleanser" not in cc.certify(columns, "2").defenders


@pytest.mark.parametrize(
    ("patch", "sentence"),
    [
        (
            "3",
            "masks:3/patch=2 cover patches of up to 2x2 pixels, but square:3 has 3x3: vote with masks for it",
        ),
        ("rectangle:1x4", "cover patches of up to 2x2 pixels, but rectangle:1x4 has 1x4"),
        ("2*square:1", "cover one patch of up to 2x2 pixels, but 2\\*square:1 is several at once"),
    ],
)
def test_a_patch_that_is_not_covered_is_refused_with_both_sizes(patch, sentence):
    with pytest.raises(cc.CostcertError, match=sentence):
        cc.certify(masked_votes(), patch)


def test_votes_of_strips_are_refused():
    columns = cc.Votes([[0] * 8], [0], num_classes=3, ablation="columns:2", image_size=8)
    with pytest.raises(cc.CostcertError, match="needs votes of masks, but these are of columns:2"):
        cc.certify(columns, "2", "patchcleanser")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("masks:6", "masks are spelled masks:6/patch=5"),
        ("masks:6/patch=5/stride=2", "without further options"),
        ("masks:6/wrap=no/patch=5", "without further options"),
        ("masks:6/patch=5+columns:3", "not pooled with other families"),
        ("columns:3+masks:6/patch=5", "unknown ablation"),
        ("mask:6/patch=5", "did you mean 'masks'"),
        ("masks:0/patch=5", "must be at least 1"),
        ("masks:6/patch=0", "must be at least 1"),
    ],
)
def test_spellings_that_are_none(text, sentence):
    with pytest.raises(cc.CostcertError, match=sentence):
        cc.parse_ablation(text)


@pytest.mark.parametrize("text", ["masks:6/patch=5", "masks:6/patch=5x9", "masks:2/patch=1"])
def test_spellings_come_back(text):
    assert str(cc.parse_ablation(text)) == text
    assert eval(repr(cc.parse_ablation(text)), {"Masks": cc.Masks}) == cc.parse_ablation(text)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("masks:3/patch=9", "its patch has 9 pixels along an axis of 8"),
        ("masks:1/patch=2", "makes mutants that hide every pixel"),
        ("masks:2/patch=8x1", "makes mutants that hide every pixel"),
    ],
)
def test_masks_that_do_not_fit(text, sentence):
    with pytest.raises(cc.CostcertError, match=sentence):
        cc.parse_ablation(text).regions((8, 8))
