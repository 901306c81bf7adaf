"""Fixtures of all tests of the explorer."""

import numpy as np
import pytest

import costcert as cc
from browser import opened
from explorer_page import ready


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


@pytest.fixture(scope="module")
def window():
    with opened("about:blank") as found:
        yield found


@pytest.fixture
def visit(window):
    """Opens a service in a new page; requests to other sites and console messages fail the test."""
    page, record = window
    visited = []
    allowed = []

    def go(where, *, width=1280, scheme="light", wait=True, complaints=()):
        page.goto("about:blank")
        if not visited:
            for found in record.values():
                found.clear()
        visited.append(where)
        allowed.extend(complaints)
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        page.goto(where)
        if wait:
            ready(page)
        return page

    yield go
    homes = tuple(where.partition("#")[0] for where in visited)
    elsewhere = ("about:", "data:", "blob:", *homes)
    assert [url for url in record["requests"] if not url.startswith(elsewhere)] == []
    assert [text for text in record["complaints"] if not any(known in text for known in allowed)] == []
