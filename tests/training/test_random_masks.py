"""What mutants keep in training."""

import costcert as cc
from costcert.geometry.masks import Hidden
from costcert.training.random_masks import regions_for_training

SIZE = (20, 28)


def test_strips_are_trained_on_as_they_vote():
    columns = cc.Columns(4)
    assert regions_for_training(columns, SIZE, seed=0) == columns.regions(SIZE)


def test_masks_of_the_ablation_come_with_random_ones_up_to_their_size():
    masks = cc.Masks(3, patch=(2, 5))
    regions = regions_for_training(masks, SIZE, seed=0)
    own = masks.regions(SIZE)
    assert regions[: len(own)] == own
    drawn = regions[len(own) :]
    assert all(isinstance(each, Hidden) for each in drawn)
    assert {len(each.masks) for each in drawn} == {1, 2}
    largest = masks.masks(SIZE)[0]
    rectangles = [mask for each in drawn for mask in each.masks]
    for axis, (side, axis_length) in enumerate(zip(("rows", "columns"), SIZE, strict=True)):
        segments = [mask[axis] for mask in rectangles]
        longest = getattr(largest, side).length
        assert {segment.length for segment in segments} == set(range(-(-longest // 2), longest + 1))
        # Anywhere, and never across the border.
        assert min(segment.start for segment in segments) == 0
        assert max(segment.start + segment.length for segment in segments) == axis_length


def test_they_depend_on_the_seed_alone():
    masks = cc.Masks(3, patch=4)
    assert regions_for_training(masks, SIZE, seed=1) == regions_for_training(masks, SIZE, seed=1)
    assert regions_for_training(masks, SIZE, seed=1) != regions_for_training(masks, SIZE, seed=2)
