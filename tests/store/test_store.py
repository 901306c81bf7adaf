"""Tables on disk: written atomically, the same when read back, and damaged files are detected."""

import os
import platform

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import costcert as cc
from command_line import invoke
from costcert.store.files import atomic_write, sweep
from costcert.store.vote_files import VotesFile
from costcert.store.votes import VotesFolder
from sealing import classifier_with, resealed, seal

RNG = np.random.default_rng(7)


def hard_votes(count=10, **more):
    return cc.Votes(
        RNG.integers(0, 5, (count, 12)),
        RNG.integers(0, 5, count),
        num_classes=5,
        ablation="columns:3",
        image_size=(4, 12),
        **more,
    )


def soft_votes(count=10):
    labels = RNG.integers(0, 5, (count, 12, 3))
    units = RNG.integers(0, 4, (count, 12, 3))
    return cc.Votes.soft(
        labels,
        units,
        RNG.integers(0, 5, count),
        cap=9,
        num_classes=5,
        ablation="columns:3",
        image_size=(4, 12),
    )


@pytest.mark.parametrize("shard_size", [1, 3, 10, 100])
def test_votes_come_back_as_they_went(tmp_path, shard_size):
    votes = hard_votes(
        margins=RNG.random((10, 12)),
        image_ids=[f"ü{n}" for n in range(10)],
        class_names=list("abcde"),
        provenance={"model": "none"},
    )
    cc.write_votes(votes, tmp_path / "votes", shard_size=shard_size)
    back = cc.read_votes(tmp_path / "votes")
    for name in ("ballots", "truth", "margins", "image_ids"):
        assert np.array_equal(getattr(votes, name), getattr(back, name)), name
    assert (back.class_names, dict(back.provenance)) == (votes.class_names, {"model": "none"})
    assert (back.ablation, back.image_size, back.num_classes) == (votes.ablation, (4, 12), 5)


def test_soft_votes_come_back_as_they_went(tmp_path):
    votes = soft_votes()
    cc.write_votes(votes, tmp_path / "votes", shard_size=4)
    back = cc.read_votes(tmp_path / "votes")
    for name in ("ballots", "labels", "units", "cap"):
        assert np.array_equal(getattr(votes, name), getattr(back, name)), name


def test_more_than_65536_classes_keep_their_labels(tmp_path):
    votes = cc.Votes([[70000, 3]], [70001], num_classes=80000, ablation="columns:1", image_size=(1, 2))
    cc.write_votes(votes, tmp_path / "votes")
    assert cc.read_votes(tmp_path / "votes").ballots.tolist() == [[70000, 3]]


def test_certificates_come_back_as_they_went(tmp_path):
    certificates = cc.certify(hard_votes(), [1, "2*square:1", "shape:01/11"])
    cc.write_certificates(certificates, tmp_path / "certs")
    back = cc.read_certificates(tmp_path / "certs")
    assert back.to_pandas().equals(certificates.to_pandas())
    assert back.patches == certificates.patches


def test_a_second_run_writes_only_what_is_missing(tmp_path):
    votes = hard_votes()
    cc.write_votes(votes, tmp_path / "votes", shard_size=3)
    kept = tmp_path / "votes" / "shard-00001.parquet"
    lost = tmp_path / "votes" / "shard-00002.parquet"
    before, content = kept.stat().st_mtime_ns, lost.read_bytes()
    lost.unlink()
    cc.write_votes(votes, tmp_path / "votes", shard_size=3)
    assert kept.stat().st_mtime_ns == before
    assert lost.read_bytes() == content


def test_another_run_into_the_same_folder_is_refused(tmp_path):
    cc.write_votes(hard_votes(), tmp_path / "votes")
    other = hard_votes(provenance={"model": "another"})
    with pytest.raises(
        cc.CostcertError, match=r'holds another run: its made\.model is null, this run.s is "another"'
    ):
        cc.write_votes(other, tmp_path / "votes")


def test_a_failed_write_leaves_nothing(tmp_path):
    def fail():
        with atomic_write(tmp_path / "table") as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_in_one_sentence(tmp_path):
    def fail():
        with atomic_write(tmp_path / "table"):
            raise OSError(28, "No space left on device")

    with pytest.raises(cc.CostcertError, match="the disk is full"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_is_swept(tmp_path):
    """Only files of this machine: processes of other machines cannot be checked."""
    dead, host = 2**22 + 1, platform.node().replace(".", "-")
    (tmp_path / f".shard-00000.parquet.{host}.{dead}.tmp").write_text("half")
    alive = tmp_path / f".shard-00000.parquet.{host}.{os.getpid()}.tmp"
    elsewhere = tmp_path / f".shard-00000.parquet.another-{host}.{dead}.tmp"
    for path in (alive, elsewhere):
        path.write_text("being written")
    with atomic_write(tmp_path / "shard-00001.parquet") as temporary:
        temporary.write_text("being written, too")
        assert temporary.name == f".shard-00001.parquet.{host}.{os.getpid()}.tmp"
        sweep(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted([alive, elsewhere, temporary])


@pytest.fixture
def folder(tmp_path):
    cc.write_votes(hard_votes(), tmp_path / "votes", shard_size=4)
    return tmp_path / "votes"


def cut(path):
    path.write_bytes(path.read_bytes()[:-20])


def filled(path, content):
    path.write_bytes(content)
    seal(path.parent)


def without_column(path, name):
    pq.write_table(pq.read_table(path).drop_columns([name]), path)
    seal(path.parent)


def with_column(path, name, values):
    table = pq.read_table(path)
    pq.write_table(table.set_column(table.column_names.index(name), name, values), path)
    seal(path.parent)


SHARD = "shard-00001.parquet"
SOFT = {"temperature": None, "best": 2, "cap": 3}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda f: (f / "manifest.json").unlink(), "holds no manifest.json"),
        (lambda f: cut(f / "manifest.json"), "cannot be read as JSON"),
        (lambda f: (f / "manifest.json").write_bytes(b"\xff\xfe"), "cannot be read as JSON"),
        (lambda f: (f / "manifest.json").write_text("[" * 100_000), "cannot be read as JSON"),
        (lambda f: (f / "manifest.json").write_text("[]"), "is not the manifest of votes"),
        (lambda f: resealed(f, format="other"), "its format is 'other'"),
        (lambda f: resealed(f, version=99), "format version 99"),
        (lambda f: resealed(f, images="many"), "images should be a positive integer"),
        (lambda f: resealed(f, images=0), "images should be a positive integer"),
        (lambda f: resealed(f, images=11), "holds 2 images, expected 3"),
        (
            lambda f: resealed(f, classifier=classifier_with(f, ablation="columns:99")),
            "columns:99 does not fit",
        ),
        (lambda f: resealed(f, classifier=classifier_with(f, ablation=None)), "is damaged"),
        (lambda f: resealed(f, classifier=classifier_with(f, ties="sometimes")), "is damaged"),
        (lambda f: resealed(f, classifier=classifier_with(f, mask="triangle:3")), "is damaged"),
        (lambda f: resealed(f, classifier=classifier_with(f, hide=3)), "is damaged"),
        (lambda f: resealed(f, classifier=None), "does not say which classifier it is of"),
        (lambda f: resealed(f, image_size="4"), "is damaged"),
        (lambda f: resealed(f, image_size=None), "is damaged"),
        (lambda f: resealed(f, num_classes=2), "does not fit its manifest: ballots"),
        (lambda f: resealed(f, classifier=classifier_with(f, soft={"best": 2})), "is damaged"),
        (lambda f: resealed(f, classifier=classifier_with(f, soft="yes")), "is damaged"),
        (lambda f: resealed(f, classifier=classifier_with(f, soft=SOFT)), "no column 'soft_labels'"),
        (lambda f: resealed(f, made=None), "is damaged"),
        (lambda f: resealed(f, class_names=["a"]), "got 1 class names for 5 classes"),
        (lambda f: (f / SHARD).unlink(), "1 of 3 shards are missing"),
        (lambda f: cut(f / SHARD), "is not the file that was sealed"),
        (lambda f: filled(f / SHARD, (f / SHARD).read_bytes()[:-20]), "cannot be read as Parquet"),
        (lambda f: filled(f / SHARD, b""), "cannot be read as Parquet"),
        (lambda f: filled(f / SHARD, b"image_id,truth\n"), "cannot be read as Parquet"),
        (lambda f: without_column(f / SHARD, "ballots"), "no column 'ballots'"),
        (lambda f: with_column(f / SHARD, "truth", pa.array([1, None, 2, 3])), "missing values"),
        (lambda f: with_column(f / SHARD, "truth", pa.array([0.5] * 4)), "truth must be integers"),
        (lambda f: with_column(f / SHARD, "ballots", pa.array([1] * 4)), "one list of equal length"),
    ],
)
def test_damage_to_votes_is_noticed(folder, damage, says):
    damage(folder)
    with pytest.raises(cc.CostcertError) as caught:
        cc.read_votes(folder)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda f: cut(f / "shard-00000.parquet"), "is not the file that was sealed"),
        (lambda f: filled(f / "shard-00000.parquet", b"PAR1"), "cannot be read as Parquet"),
        (lambda f: (f / "shard-00000.parquet").unlink(), "is missing"),
        (lambda f: resealed(f, patches=["square:3"]), "does not fit its manifest"),
        (lambda f: resealed(f, patches=["triangle:3"]), "is damaged"),
        (lambda f: resealed(f, defenders=["drs"]), "does not fit its manifest"),
        (lambda f: resealed(f, votes=None), "is damaged"),
        (lambda f: with_column(f / "shard-00000.parquet", "min_k", pa.array([0] * 10)), "does not fit"),
        (lambda f: with_column(f / "shard-00000.parquet", "min_k", pa.array(["a"] * 10)), "does not fit"),
    ],
)
def test_damage_to_certificates_is_noticed(tmp_path, damage, says):
    folder = tmp_path / "certs"
    cc.write_certificates(cc.certify(hard_votes(), [1], ["costcert"]), folder)
    damage(folder)
    with pytest.raises(cc.CostcertError) as caught:
        cc.read_certificates(folder)
    assert says in str(caught.value)


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


def save_one(path):
    with path.open("wb") as file:
        np.save(file, GOOD["ballots"])


GOOD = {"ballots": np.zeros((2, 12), int), "truth": np.zeros(2, int)}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: p, "is not there"),
        (lambda p: save(p, ballots=GOOD["ballots"]), "holds no array 'truth'"),
        (lambda p: save(p, truth=GOOD["truth"]), "holds no array 'ballots'"),
        (lambda p: save(p, **{**GOOD, "ballots": np.zeros((2, 11), int)}), "got 11 ballots per image"),
        (lambda p: save(p, **{**GOOD, "truth": np.array([0, 5])}), "truth[1] is 5"),
        (lambda p: save(p, **{**GOOD, "truth": np.array([{}, {}], object)}), "cannot be read as .npz"),
        (lambda p: save(p, **{**GOOD, "margins": np.full((2, 12), np.nan)}), "margins"),
        (lambda p: p.write_bytes(b"PK\x03\x04 and then nothing"), "cannot be read as .npz"),
        (lambda p: p.write_bytes(b""), "cannot be read as .npz"),
        (lambda p: (save(p, **GOOD), cut(p)), "cannot be read as .npz"),
        (save_one, "is not an .npz archive"),
    ],
)
def test_bad_archives_get_one_sentence(tmp_path, make, says):
    path = tmp_path / "votes.npz"
    make(path)
    with pytest.raises(cc.CostcertError) as caught:
        VotesFile(path, ablation="columns:3", num_classes=5, image_size=(4, 12))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_soft_archives_are_read(tmp_path):
    votes = soft_votes()
    path = save(
        tmp_path / "v.npz", labels=votes.labels, units=votes.units, truth=votes.truth, cap=np.array(9)
    )
    back = VotesFile(path, ablation="columns:3", num_classes=5, image_size=(4, 12)).shard(0)
    assert (back.units == votes.units).all()
    assert back.cap == 9


def test_a_folder_is_read_a_shard_at_a_time(folder):
    source = VotesFolder(folder)
    assert [len(source.shard(n)) for n in range(source.num_shards)] == [4, 4, 2]


@pytest.mark.parametrize("what", ["votes", "certificates"])
def test_other_content_of_the_same_shape_is_never_dropped(tmp_path, what):
    """Same manifest, other numbers: the files on disk stay, and the difference is reported."""
    first, second = hard_votes(), hard_votes()
    second = second.replace(ballots=np.broadcast_to(second.truth[:, None], (10, 12)))
    made = {"votes": (first, second), "certificates": (cc.certify(first, 2), cc.certify(second, 2))}[what]
    write = {"votes": cc.write_votes, "certificates": cc.write_certificates}[what]
    read = {"votes": cc.read_votes, "certificates": cc.read_certificates}[what]
    content = {"votes": lambda v: v.ballots, "certificates": lambda c: c.min_k("costcert", 2)}[what]
    assert not np.array_equal(content(made[0]), content(made[1]))
    write(made[0], tmp_path / "out")
    write(made[0], tmp_path / "out")
    with pytest.raises(cc.CostcertError, match="differs from what is to be written"):
        write(made[1], tmp_path / "out")
    assert np.array_equal(content(read(tmp_path / "out")), content(made[0]))
    write(made[1], tmp_path / "out", overwrite=True)
    assert np.array_equal(content(read(tmp_path / "out")), content(made[1]))


def test_only_folders_of_the_same_kind_are_overwritten(tmp_path):
    cc.write_votes(hard_votes(), tmp_path / "votes")
    with pytest.raises(cc.CostcertError, match="is not a folder of certificates, so it is not overwritten"):
        cc.write_certificates(cc.certify(hard_votes(), 2), tmp_path / "votes", overwrite=True)
    assert len(cc.read_votes(tmp_path / "votes")) == 10


def swapped(folder):
    one, other = folder / "shard-00000.parquet", folder / "shard-00001.parquet"
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second), other.write_bytes(first)


def reordered(folder):
    path = folder / "shard-00000.parquet"
    table = pq.read_table(path)
    rows = [row[::-1] for row in table.column("ballots").to_pylist()]
    column = pa.array(rows, table.schema.field("ballots").type)
    pq.write_table(table.set_column(table.column_names.index("ballots"), "ballots", column), path)


def flipped(folder):
    path = folder / "shard-00001.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def edited(folder):
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace('"columns:3"', '"columns:1"'))


DAMAGES = {
    "swapped shards": (swapped, "shard-00000.parquet"),
    "a foreign shard": (
        lambda folder: (folder / "shard-00001.parquet").write_bytes(
            (folder.parent / "foreign" / "shard-00001.parquet").read_bytes()
        ),
        "shard-00001.parquet",
    ),
    "one shard twice": (
        lambda folder: (folder / "shard-00001.parquet").write_bytes(
            (folder / "shard-00000.parquet").read_bytes()
        ),
        "shard-00001.parquet",
    ),
    "reordered ballots": (reordered, "shard-00000.parquet"),
    "a flipped bit": (flipped, "shard-00001.parquet"),
    "an edited ablation": (edited, "manifest.json"),
}


@pytest.mark.parametrize(("damage", "file"), DAMAGES.values(), ids=list(DAMAGES))
def test_what_was_not_sealed_is_not_certified(tmp_path, damage, file):
    cc.write_votes(hard_votes(), tmp_path / "votes", shard_size=5)
    cc.write_votes(hard_votes(), tmp_path / "foreign", shard_size=5)
    damage(tmp_path / "votes")
    words = ["certify", str(tmp_path / "votes"), "--patch", "2", "--out", str(tmp_path / "certs")]
    result = invoke(words)
    assert result.exit_code == 2, result.output
    assert f"{file} is not the" in result.stderr
    assert "that was sealed" in result.stderr
    with pytest.raises(cc.CostcertError, match="that was sealed"):
        cc.read_votes(tmp_path / "votes")


def test_certificates_that_were_not_sealed_are_not_read(tmp_path):
    certificates = cc.certify(hard_votes(), 2)
    cc.write_certificates(certificates, tmp_path / "certs")
    path = tmp_path / "certs" / "shard-00000.parquet"
    table = pq.read_table(path)
    better = pa.array(np.ones(len(table), np.int32))
    pq.write_table(table.set_column(table.column_names.index("min_k"), "min_k", better), path)
    with pytest.raises(cc.CostcertError, match=r"shard-00000.parquet is not the file that was sealed"):
        cc.read_certificates(tmp_path / "certs")
