"""Patches on original pictures, which the explorer does not show."""

import pytest

import costcert as cc
from costcert.explorer.image import LabelledImage, certify_image
from costcert.explorer.session import Session
from mixed_sizes import model_of, votes_of


@pytest.fixture(scope="module")
def votes():
    return votes_of(model_of())


def test_the_explorer_refuses_patches_on_originals(votes):
    session = Session(votes, certificates=cc.certify(votes, ["original:1", "3"]))
    assert session.summary()["images"] == 6
    assert session.summary()["sides"] == [3]
    assert session.on_originals == ["original:1"]
    with pytest.raises(cc.CostcertError, match="original:1 is a patch on the original picture"):
        session.table("original:1")
    with pytest.raises(cc.CostcertError, match="original:1 is a patch on the original picture"):
        certify_image(LabelledImage(votes.take([0])), ["original:1"])
