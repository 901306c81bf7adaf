"""What the probe measures is what moves, and certifying takes it into account."""

import numpy as np
import pytest

from costcert.errors import CostcertError
from costcert.geometry.ablations import Columns
from costcert.models.classifier import Soft, ballots_of
from costcert.probe import SAFETY, probe
from tiny import Tiny, pictures

REGIONS = Columns(3).regions(Tiny.image_size)


def images(model, count=5):
    data = pictures(count)
    return np.stack([model.prepare(data.image(n)) for n in range(count)])


def test_a_model_that_does_not_move_has_no_epsilon():
    model = Tiny()
    found = probe(model, images(model), REGIONS, soft=Soft(0.5, 2))
    assert (found.epsilon, found.tau, found.flips, found.mutants) == (0.0, 0, 0, 5 * len(REGIONS))
    assert (1, 1) in model.asked
    assert (1, 3) in model.asked


def test_epsilon_is_twice_the_largest_shift_with_room_to_spare():
    model, soft = Tiny(drift=0.01), Soft(0.5, 4)
    pixels = images(model)
    found = probe(model, pixels, REGIONS, soft=soft)
    largest = 0.01 * (len(pixels) * len(REGIONS) - 1)
    assert found.epsilon == pytest.approx(2 * SAFETY * largest, rel=1e-4)
    assert found.shifts["one mutant at a time"] == max(found.shifts.values())
    assert found.shifts["once more"] == 0
    assert 0 < found.tau <= soft.cap
    still = Tiny()
    usual, moved = still.logits(pixels, REGIONS), still.logits(pixels, REGIONS)
    usual[..., 0] += 0.01 * len(pixels) * len(REGIONS)
    moved[..., 0] += 0.01
    assert found.flips >= (usual.argmax(-1) != moved.argmax(-1)).sum()
    # What the docstring promises: no vote above epsilon changed.
    top = np.sort(usual, axis=-1)
    sure = top[..., -1] - top[..., -2] > found.epsilon
    assert (usual.argmax(-1) == moved.argmax(-1))[sure].all()


def test_tau_is_twice_what_any_label_moved_in_any_way_with_room_to_spare():
    """Only one of the ways moves, and not the last: one image at a time."""

    class Nervous(Tiny):
        def logits(self, images, regions):
            alone = len(images) == 1 and len(regions) == len(REGIONS)
            return super().logits(images, regions) + np.array([0.01 * alone, 0, 0, 0])

    soft, pixels = Soft(0.5, 4), images(Tiny())
    found = probe(Nervous(), pixels, REGIONS, soft=soft)
    usual = Tiny().logits(pixels, REGIONS)
    given = []
    for logits in (usual, usual + np.array([0.01, 0, 0, 0])):
        _, _, labels, units = ballots_of(logits, soft)
        given.append(np.take_along_axis(units, labels.argsort(axis=-1), axis=-1))
    moved = np.abs(given[0] - given[1]).max()
    assert 0 < found.tau == 2 * SAFETY * moved < soft.cap


def test_torch_threads_are_tried_and_put_back():
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    seen = []

    class Counting(Tiny):
        def logits(self, images, regions):
            seen.append(torch.get_num_threads())
            return super().logits(images, regions)

    found = probe(Counting(), images(Tiny()), REGIONS)
    assert {1, 2, 4} <= set(seen)
    assert {"threads: 1", "threads: 4"} <= set(found.shifts)
    assert torch.get_num_threads() == before


def test_a_probe_of_nothing():
    with pytest.raises(CostcertError, match="at least one image and one region"):
        probe(Tiny(), np.zeros((0, 6, 8, 1), np.uint8), REGIONS)
