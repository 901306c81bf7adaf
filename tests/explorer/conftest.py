"""Fixtures of all tests of the explorer."""

import numpy as np
import pytest

import costcert as cc


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels():
    """Compile the kernels before the first test: a request must not wait for that."""
    ballots = np.zeros((1, 6), int)
    shape = {"num_classes": 2, "ablation": "columns:2", "image_size": 6}
    hard = cc.Votes(ballots, [0], **shape)
    soft = cc.Votes.soft(ballots[..., None], ballots[..., None] + 1, [0], cap=1, **shape)
    for votes in (hard, soft):
        cc.certify(votes, 1)
        cc.strongest(votes, 0, 1)
