"""Votes in one file of any form: the same votes as in a folder, or one sentence."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import costcert as cc
from costcert.errors import CostcertError
from costcert.store.runs import open_run
from costcert.store.sources import open_votes
from costcert.store.vote_files import COLUMNS
from costcert.store.votes import ORIGINALS

HOW = {"ablation": "columns:3", "num_classes": 5, "image_size": (4, 12)}


def some_votes(kind="hard"):
    rng = np.random.default_rng(1)
    more = {
        "image_ids": [f"00{n}" for n in range(9)],
        "margins": rng.random((9, 12)).astype(np.float32),
        "known": rng.random((9, 12)) < 0.8,
        "unread": np.arange(9) == 3,
        "hide": "zero",
        "class_names": ["a", "b", "é", "d", "e"],
        "provenance": {"data": {"name": "made up"}},
    }
    truth = rng.integers(0, 5, 9)
    if kind == "plain":
        return cc.Votes(rng.integers(0, 5, (9, 12)), truth, **HOW)
    if kind == "hard":
        return cc.Votes(rng.integers(0, 5, (9, 12)), truth, **more, **HOW)
    labels = np.stack([rng.permutation(5)[:2] for _ in range(9 * 12)]).reshape(9, 12, 2)
    units = rng.integers(0, 5, (9, 12, 2))
    cuts = rng.random((9, 12)).astype(np.float32)
    return cc.Votes.soft(labels, units, truth, cap=9, temperature=0.5, cuts=cuts, **more, **HOW)


def same(one, other):
    assert (one.classifier, one.num_classes, one.image_size) == (
        other.classifier,
        other.num_classes,
        other.image_size,
    )
    for name in ("ballots", "truth", "image_ids", "margins", "cuts", "known", "unread", "labels", "units"):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert (mine is None) == (theirs is None), name
        assert mine is None or np.array_equal(mine, theirs), name


@pytest.mark.parametrize("kind", ["plain", "hard", "soft"])
@pytest.mark.parametrize("ending", [".npz", ".parquet", ".json"])
def test_votes_are_read_as_they_were_written(tmp_path, kind, ending):
    votes, path = some_votes(kind), tmp_path / f"votes{ending}"
    cc.write_votes(votes, path)
    back = cc.read_votes(path)
    same(back, votes)
    assert (back.class_names, back.provenance) == (votes.class_names, votes.provenance)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    with pytest.raises(CostcertError, match="exists: choose another name, or pass overwrite=True"):
        cc.write_votes(votes, path)
    cc.write_votes(votes.take([0]), path, overwrite=True)
    assert len(cc.read_votes(path)) == 1


def test_a_csv_cannot_record_how_votes_were_made(tmp_path):
    with pytest.raises(CostcertError, match=r"ends in \.npz, \.parquet, \.json"):
        cc.write_votes(some_votes(), tmp_path / "votes.csv")
    assert not list(tmp_path.iterdir())


def by_hand(path, votes):
    """The file that another program would write, without a description."""
    rows = [
        {"image_id": str(name), "truth": int(truth), "ballots": ballots.tolist()}
        for name, truth, ballots in zip(votes.image_ids, votes.truth, votes.ballots, strict=True)
    ]
    if path.suffix == ".npz":
        np.savez(path, ballots=votes.ballots, truth=votes.truth, image_ids=votes.image_ids, images=[0])
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            # The order of the columns does not matter.
            writer.writerow([*(f"ballot_{n}" for n in reversed(range(12))), "image_id", "truth"])
            writer.writerows([*row["ballots"][::-1], row["image_id"], row["truth"]] for row in rows)


@pytest.mark.parametrize("ending", [".npz", ".parquet", ".csv", ".json"])
def test_votes_of_other_programs(tmp_path, ending):
    votes, path = some_votes("plain").replace(image_ids=[f"00{n}" for n in range(9)]), tmp_path / f"v{ending}"
    by_hand(path, votes)
    same(cc.read_votes(path, **HOW), votes)
    source = open_votes(path, ablation="columns:3", classes=5, image_size="4x12")
    assert (source.num_images, source.num_mutants, source.unread()) == (9, 12, [])
    assert open_run(path, ablation="columns:3", classes=5, image_size="4x12").classifier == votes.classifier
    with pytest.raises(CostcertError, match="pass --classes, --image-size, as in"):
        cc.read_votes(path, ablation="columns:3")


@pytest.mark.parametrize("ending", [".npz", ".parquet", ".json", ""])
def test_options_that_contradict_the_description_are_refused(tmp_path, ending):
    path = tmp_path / f"votes{ending}"
    cc.write_votes(some_votes(), path)
    with pytest.raises(CostcertError, match="holds votes of columns:3, but --ablation is rows:3"):
        cc.read_votes(path, ablation="rows:3")
    assert len(cc.read_votes(path, ablation="columns:3")) == 9
    for option in ({"num_classes": 6}, {"image_size": 12}):
        with pytest.raises(CostcertError, match=r"records|is for \.npz files"):
            cc.read_votes(path, **option)
    if ending:
        assert len(cc.read_votes(path, **HOW)) == 9
    # As with a folder, an ablation selects mutants when votes are certified.
    assert open_votes(path, ablation="columns:3/stride=2").ablation == cc.Columns(3)


def test_an_archive_of_one_class_and_an_image_size_of_one_side(tmp_path):
    np.savez(
        tmp_path / "v.npz",
        ballots=np.zeros((2, 8), int),
        truth=np.zeros(2, int),
        ablation="rows:2",
        num_classes=[1],
        image_size=8,
        class_names=["only"],
    )
    votes = cc.read_votes(tmp_path / "v.npz")
    assert (votes.class_names, votes.image_size, str(votes.ablation)) == (("only",), (8, 8), "rows:2")


ROW = {"truth": 0, "ballots": [0] * 12}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ([], "holds no array 'ballots', only nothing"),
        ({"rows": [ROW]}, "cannot be read as .json"),
        ([ROW, {**ROW, "known": [True] * 12}], "cannot be read as .json"),
        ([{**ROW, "knwon": [True] * 12}], "has a column 'knwon', which votes do not have"),
        ([ROW, {**ROW, "ballots": [0] * 11}], "have different lengths"),
        ([ROW, {**ROW, "truth": None}], "missing values in its column 'truth'"),
        ([{**ROW, "truth": 10**30}], "cannot be read as .json"),
        ([{**ROW, "truth": "0"}], "truth must be integers"),
        ([{**ROW, "truth": {}}], "votes.json"),
        ([{**ROW, "ballots": 0}], "ballots must have the shape"),
        ([{"truth": 0}], "holds no array 'ballots'"),
        ({"votes": [ROW], "ablation": 7}, "its ablation is 7"),
        ({"votes": [ROW], "num_classes": "five"}, "records num_classes five, but --classes is 5"),
        ({"votes": [ROW], "image_size": [4]}, "the image size must be"),
        ({"votes": [ROW], "hide": 3}, "its hide is 3"),
        ({"votes": [ROW], "class_names": ["a"]}, "1 class names for 5 classes"),
        ({"votes": [ROW], "made": "yesterday"}, "its made is 'yesterday'"),
        ({"votes": [ROW], "made": {"data": "mine"}}, "its made is {'data': 'mine'}"),
    ],
)
def test_bad_json_gets_one_sentence(tmp_path, content, says):
    path = tmp_path / "votes.json"
    path.write_text(json.dumps(content))
    with pytest.raises(CostcertError) as caught:
        cc.read_votes(path, **HOW)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be read as .csv"),
        ("truth,ballot_0,ballot_2\n0,0,0\n", "has no column 'ballot_1'"),
        ("truth,truth,ballot_0\n0,0,0\n", "two columns of the same name"),
        ("truth,ballot_0,ballot_00\n0,0,0\n", "a column 'ballot_00'"),
        ("truth,ballot_0\n0,\n", "missing values in its column 'ballot_0'"),
        ("truth,ballot_0\n0,zero\n", "ballots must be integers"),
        ("truth,ballot_0\n0\n", "cannot be read as .csv"),
        ("truth,ballot_0\n", "votes.csv"),
    ],
)
def test_bad_csv_gets_one_sentence(tmp_path, text, says):
    path = tmp_path / "votes.csv"
    path.write_text(text)
    with pytest.raises(CostcertError) as caught:
        cc.read_votes(path, ablation="columns:1", num_classes=5, image_size=1)
    assert says in str(caught.value)


def test_masks_and_margins_of_a_csv(tmp_path):
    path = tmp_path / "votes.csv"
    path.write_text(
        "truth,ballot_0,ballot_1,known_0,known_1,margin_0,margin_1,unread\n"
        "0,0,1,1,0,0.5,2,0\n1,1,1,1,1,1,inf,1\n"
    )
    votes = cc.read_votes(path, ablation="columns:1", num_classes=3, image_size="1x2")
    assert votes.known.tolist() == [[True, False], [True, True]]
    assert votes.margins.tolist() == [[0.5, 2], [1, float("inf")]]
    assert votes.unread.tolist() == [False, True]


def test_other_endings_and_missing_files(tmp_path):
    (tmp_path / "votes.txt").write_text("")
    for name, says in (
        ("votes.txt", "votes in one file end in .npz, .parquet, .csv, .json"),
        ("votes", "is not there: expected a folder of votes"),
        ("votes.csv", "is not there: expected a folder of votes or a .csv file"),
    ):
        with pytest.raises(CostcertError, match=says):
            open_votes(tmp_path / name)


def test_every_column_is_a_field_of_votes():
    assert set(COLUMNS) - {"image_id", *ORIGINALS} <= set(cc.Votes.__dataclass_fields__)


@pytest.mark.parametrize("name", ["m0", "ballots"])
def test_a_csv_says_how_the_ballots_of_its_mutants_are_named(tmp_path, name):
    path = tmp_path / "votes.csv"
    path.write_text(f"truth,{name}\n0,1\n")
    with pytest.raises(CostcertError) as raised:
        cc.read_votes(path, ablation="columns:1", num_classes=2, image_size=(1, 1))
    assert str(raised.value) == (
        f"{path} has a column {name!r}, which votes in a .csv do not have: leave it out, or name it as one "
        "of image_id, truth, unread, original_height, original_width, ballot_0, ballot_1, ..., margin_0, "
        "margin_1, ..., cut_0, cut_1, ..., known_0, known_1, ..."
    )
