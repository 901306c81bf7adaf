"""Votes from logits are those that `vote` makes of the same logits."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import costcert as cc
from costcert.errors import CostcertError
from costcert.votes import table
from costcert.votes.table import Votes
from tiny import Tiny, pictures

GEOMETRY = {"ablation": "columns:3", "image_size": (6, 8)}
FIELDS = ("ballots", "truth", "margins", "cuts", "labels", "units")


def logits(model, data):
    regions = cc.Columns(3).regions(model.image_size)
    return model.logits(np.stack([model.prepare(data.image(n)) for n in range(len(data))]), regions)


def same(votes, other):
    for name in FIELDS:
        found, expected = getattr(votes, name), getattr(other, name)
        assert (found is None) == (expected is None)
        if found is not None:
            assert found.dtype == expected.dtype
            assert np.array_equal(found, expected)
    return votes.recipe == other.recipe and votes.num_classes == other.num_classes


@pytest.mark.parametrize("soft", [None, cc.Soft(0.35, 2), cc.Soft(1, 3, cap=100), cc.Soft(2, 99)])
@pytest.mark.parametrize("at_once", [1, 100, 1 << 22])
def test_the_votes_of_a_model_from_its_logits(monkeypatch, soft, at_once):
    monkeypatch.setattr(table, "_LOGITS_AT_ONCE", at_once)
    data = pictures(9)
    made = Votes.from_logits(logits(Tiny(), data), data.labels, soft=soft, image_ids=data.ids, **GEOMETRY)
    voted = cc.vote(Tiny(), data, "columns:3", soft=soft)
    assert same(made, voted)
    assert made.image_ids.tolist() == voted.image_ids.tolist()
    certificates = [cc.certify(votes, "2").to_pandas() for votes in (made, voted)]
    assert certificates[0].equals(certificates[1])


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 6), st.booleans())
def test_the_definition_of_a_ballot(seed, classes, best, tied):
    """Slowly, mutant by mutant: the best label, its lead, and the best shares rounded down."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(2, 8, classes)).astype(np.float32)
    values = values.round() if tied else values
    votes = Votes.from_logits(values, [0, 0], soft=cc.Soft(0.5, best, cap=1000), **GEOMETRY)
    for image in range(2):
        for mutant in range(8):
            row = values[image, mutant].astype(np.float64)
            order = sorted(range(classes), key=lambda label: (-row[label], label))
            assert votes.ballots[image, mutant] == order[0]
            lead = np.float32(row[order[0]] - row[order[1]]) if classes > 1 else np.inf
            assert votes.margins[image, mutant] == pytest.approx(lead, rel=1e-5, abs=1e-6)
            share = np.exp(row / 0.5) / np.exp(row / 0.5).sum()
            kept = order[: min(best, classes)]
            assert votes.labels[image, mutant].tolist() == kept
            assert np.allclose(votes.units[image, mutant], 1000 * share[kept], atol=1.01)
            assert (votes.units[image, mutant] <= 1000 * share[kept] + 1e-6).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_tensors_of_every_float_type(dtype):
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(np.random.default_rng(0).normal(size=(3, 8, 4))).to(getattr(torch, dtype))
    truth = torch.tensor([0, 1, 2])
    votes = Votes.from_logits(tensor.requires_grad_(), truth, **GEOMETRY)
    assert same(votes, Votes.from_logits(tensor.detach().float().numpy(), [0, 1, 2], **GEOMETRY))


def test_probabilities_are_logits_after_a_logarithm():
    """At temperature 1 the shares of a soft ballot are the probabilities."""
    probabilities = np.random.default_rng(0).dirichlet(np.ones(4), size=(3, 8)).astype(np.float32)
    votes = Votes.from_logits(np.log(probabilities), [0, 1, 2], soft=cc.Soft(1, 4), **GEOMETRY)
    shares = np.take_along_axis(probabilities, votes.labels, axis=2)
    assert np.allclose(votes.units / votes.cap, shares, atol=2 / votes.cap)


GOOD = np.random.default_rng(0).normal(size=(3, 8, 4))


def changed(value):
    logits = GOOD.copy()
    logits[1, 2, 3] = value
    return logits


@pytest.mark.parametrize(
    ("logits", "truth", "message"),
    [
        (changed(np.nan), [0, 1, 2], r"logits\[1, 2, 3\] is nan, but logits must be finite"),
        (changed(-np.inf), [0, 1, 2], r"logits\[1, 2, 3\] is -inf, but"),
        (changed(1e300), [0, 1, 2], r"logits\[1, 2, 3\] is 1e\+300, but"),
        (GOOD[0], [0], r"the shape \[images, mutants, classes\], got \[8, 4\]"),
        (GOOD[:0], [], r"the shape \[images, mutants, classes\], got \[0, 8, 4\]"),
        (GOOD[:, :5], [0, 1, 2], "got 5 ballots per image, but columns:3 on 6x8 makes 8"),
        (GOOD, [0, 1], "got ballots of 3 images, but truth of shape"),
        (GOOD, [0, 1, 4], r"truth\[2\] is 4, but 4 classes"),
        (GOOD.astype(str), [0, 1, 2], "logits must be numbers, got <U"),
        (GOOD + 1j, [0, 1, 2], "logits must be numbers, got complex128"),
        (None, [0, 1, 2], "logits must be numbers, got object"),
    ],
)
def test_logits_that_are_refused(logits, truth, message):
    with pytest.raises(CostcertError, match=message):
        Votes.from_logits(logits, truth, **GEOMETRY)


def test_soft_ballots_need_a_temperature():
    with pytest.raises(CostcertError, match="soft ballots need a temperature"):
        Votes.from_logits(GOOD, [0, 1, 2], soft=cc.Soft(None, 2), **GEOMETRY)


@pytest.mark.slow
def test_logits_of_numpy_need_no_deep_learning_library():
    code = (
        "import sys, numpy, costcert as cc; v = cc.Votes.from_logits(numpy.zeros((1, 8, 4)), [0], "
        "ablation='columns:3', image_size=(6, 8), soft=cc.Soft(1, 2)); v._repr_html_(); cc.certify(v, '2'); "
        "assert not {'torch', 'timm', 'torchvision'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
