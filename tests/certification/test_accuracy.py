"""Accuracy at k and its intervals."""

import math

import numpy as np
import pytest

import costcert as cc
from costcert.certification.accuracy import Tally, wilson


def certificates(rank, min_k, num_classes=10):
    rank, min_k = np.asarray(rank), np.asarray(min_k)
    return cc.Certificates(
        {("costcert", cc.Square(2)): (rank, min_k)},
        image_ids=np.arange(len(rank)).astype(str),
        num_classes=num_classes,
        image_size=(8, 8),
        classifier=cc.Defence(cc.Columns(2)),
    )


def test_accuracy_counts_ranks_and_min_ks():
    table = certificates([1, 1, 2, 4], [1, 3, 2, 10]).accuracy(k=[1, 2, 3, 10])
    assert table["k"].tolist() == [1, 2, 3, 10]
    assert table["clean"].tolist() == [0.5, 0.75, 0.75, 1.0]
    assert table["certified"].tolist() == [0.25, 0.5, 0.75, 1.0]
    assert set(table["defender"]) == {"costcert"}
    assert set(table["patch"]) == {"square:2"}
    assert (table["certified_low"] <= table["certified"]).all()
    assert (table["certified"] <= table["certified_high"]).all()


def test_shards_add_up():
    tally = Tally()
    tally.add(certificates([1, 1], [1, 3]))
    tally.add(certificates([2, 4], [2, 10]))
    whole = certificates([1, 1, 2, 4], [1, 3, 2, 10]).accuracy(k=range(1, 11))
    assert tally.accuracy(k=range(1, 11)).equals(whole)


@pytest.mark.parametrize(("hits", "images"), [(0, 10), (10, 10), (3, 10), (668, 1000)])
def test_wilson_solves_its_own_equation(hits, images):
    """The ends p of the interval satisfy |hits/n - p| = z sqrt(p(1-p)/n)."""
    share = hits / images
    for end in wilson(hits, images):
        if end not in (0.0, 1.0) and end != share:
            assert math.isclose(
                abs(share - end), 1.959964 * math.sqrt(end * (1 - end) / images), rel_tol=1e-5
            )
    low, high = wilson(hits, images)
    assert 0 <= low <= share <= high <= 1
    assert high > low


def test_wilson_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    truth, images = 0.66, 400
    intervals = [wilson(int(hits), images) for hits in rng.binomial(images, truth, size=4000)]
    covered = np.mean([low <= truth <= high for low, high in intervals])
    assert abs(covered - 0.95) < 0.015


def test_to_pandas_has_a_row_per_image_defender_and_patch():
    votes = cc.Votes(
        [[0, 1, 1, 2], [1, 1, 1, 1]], [1, 1], num_classes=3, ablation="columns:1", image_size=(1, 4)
    )
    table = cc.certify(votes, [1, "rectangle:1x2"], ["costcert", "drs"]).to_pandas()
    assert list(table.columns) == ["image", "defender", "patch", "rank", "min_k"]
    assert len(table) == 2 * 2 * 2


@pytest.mark.parametrize("columns", [50, 80, 200])
def test_no_number_is_left_out_of_a_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    votes = cc.Votes([[0, 1, 0, 0]] * 9, [0] * 9, ablation="columns:1", num_classes=2, image_size=(1, 4))
    table = cc.certify(votes, ["1"]).accuracy([1])
    shown = repr(table)
    assert max(map(len, shown.splitlines())) <= columns
    assert "..." not in shown
    assert all(name in shown for name in table.columns)
    # Also of a part of it.
    assert "certified_low" in repr(table[table.defender == "costcert"])
