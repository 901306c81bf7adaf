"""The sizes of originals in votes: recorded, joined, and refused where a patch does not fit."""

import numpy as np
import pytest

import costcert as cc
from costcert.store.sources import open_votes
from costcert.votes.originals import SameSize, sizes_of_originals
from mixed_sizes import model_of, pictures, votes_of


@pytest.fixture(scope="module")
def votes():
    return votes_of(model_of())


def test_joined_votes_know_their_originals_only_if_all_parts_do(votes):
    first, second = votes.take([0, 1]), votes.take([2, 3])
    assert cc.Votes.joined([first, second]).originals.tolist() == votes.originals[:4].tolist()
    other = {"model": {"preprocessing": {**votes.provenance["model"]["preprocessing"], "crop_pct": 0.5}}}
    for part in (second.replace(originals=None), second.replace(provenance=other)):
        joined = cc.Votes.joined([first, part])
        assert joined.originals is None
        with pytest.raises(cc.CostcertError, match="do not record how large the originals were"):
            cc.certify(joined, "original:1")


def test_votes_record_the_sizes_of_originals(votes, tmp_path):
    assert votes.originals.tolist() == [[5, 6], [9, 12], [5, 6], [14, 20], [9, 12], [5, 6]]
    for name in ("folder", "one.npz", "one.parquet", "one.json"):
        cc.write_votes(votes, tmp_path / name)
        np.testing.assert_array_equal(cc.read_votes(tmp_path / name).originals, votes.originals)


def test_sizes_are_counted_without_reading_ballots(votes, tmp_path):
    """In the order of their first images; those that could not be read have none."""
    some = votes.replace(unread=[True, False, False, False, False, False])
    expected = {(9, 12): SameSize(2, "1"), (5, 6): SameSize(2, "2"), (14, 20): SameSize(1, "3")}
    found = sizes_of_originals(some.image_ids, some.originals, some.unread)
    assert [*found.items()] == [*expected.items()]
    cc.write_votes(some, tmp_path / "votes", shard_size=2)
    cc.write_votes(some, tmp_path / "votes.npz")
    cc.write_votes(some.replace(originals=None), tmp_path / "unknown", shard_size=2)
    for source in ("votes", "votes.npz"):
        assert open_votes(tmp_path / source).sizes_of_originals() == expected
    assert open_votes(tmp_path / "unknown").sizes_of_originals() == {}


def test_pictures_that_refuse_a_patch_are_named():
    model = model_of(fit="center")
    small = cc.vote(model, (pictures([(9, 9), (3, 9), (9, 9), (9, 3)]), [0, 1, 2, 0]), "columns:3")
    with pytest.raises(cc.CostcertError, match=r"image 1 and 1 more of 4: original:4 does not fit .* 3x9 "):
        cc.certify(small, "original:4")
    with pytest.raises(cc.CostcertError, match=r"^original:4 does not fit an original of 3x9 pixels"):
        cc.certify(small.take([1]), "original:4")
    thin = small.replace(originals=[[9, 9], [9, 9], [9, 9], [1, 500]])
    with pytest.raises(cc.CostcertError, match=r"^image 3 of 4: original:1% does not fit .* or leave"):
        cc.certify(thin, "original:1%")
    wide = small.replace(originals=[[9, 9], [9, 9], [9, 9], [1, 65000]])
    with pytest.raises(cc.CostcertError, match=r"^image 3 of 4: .* 1x65000 .* is resized to 9x585000"):
        cc.certify(wide, "original:1")
    shown = (pictures([(9, 12), (3, 4)]), [0, 1])
    masked = cc.vote(model_of(interpolation="nearest"), shown, "masks:3/patch=2")
    with pytest.raises(cc.CostcertError, match=r"^image 1 of 2: .* original:1 of 3x4 changes up to 3x3 "):
        cc.certify(masked, "original:1", "patchcleanser")
