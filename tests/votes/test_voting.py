"""Voting: every mutant is evaluated once, whatever interrupts the run, and every image is counted."""

import json
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from PIL import Image

import costcert as cc
from command_line import invoke, parsed
from costcert import progress
from costcert.cli import vote as command
from costcert.datasets.parse import parse_dataset
from costcert.datasets.subsets import limited
from costcert.errors import CostcertError
from costcert.models.classifier import Soft, ballots_of
from costcert.store import files
from costcert.store.votes import VotesFolder
from costcert.votes import collector
from costcert.votes.voting import vote
from places import TESTS
from tiny import Tiny, pictures
from waiting import wait_until

ABLATION = "columns:3+rows:2"
SOFT = Soft(0.5, 2, cap=1000)


def one_by_one(model, data, soft=None):
    """The slow twin: every mutant of every image on its own."""
    regions = cc.parse_ablation(ABLATION).regions(model.image_size)
    return [
        [
            ballots_of(model.logits(model.prepare(data.image(n))[None], [region])[0, 0], soft)
            for region in regions
        ]
        for n in range(len(data))
    ]


def shards(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.glob("shard-*.parquet"))}


@pytest.mark.parametrize("at_once", [1, 5, 20, 4096])
@pytest.mark.parametrize("soft", [None, SOFT])
def test_votes_are_those_of_each_mutant_evaluated_alone(monkeypatch, at_once, soft):
    monkeypatch.setattr(collector, "_MUTANTS_AT_ONCE", at_once)
    data = pictures()
    votes = vote(Tiny(), data, ABLATION, soft=soft)
    expected = one_by_one(Tiny(), data, soft)
    assert votes.ballots.tolist() == [[each.labels for each in row] for row in expected]
    assert np.allclose(votes.margins, [[each.margins for each in row] for row in expected])
    assert votes.truth.tolist() == data.labels.tolist()
    assert votes.image_ids.tolist() == data.ids
    assert votes.is_soft == (soft is not None)
    if soft is not None:
        assert votes.cap == soft.cap
        for name, found in (("soft_labels", votes.labels), ("soft_units", votes.units)):
            assert np.array_equal(found, [[getattr(each, name) for each in row] for row in expected])


def test_an_image_of_many_mutants_is_evaluated_in_parts(monkeypatch):
    monkeypatch.setattr(collector, "_MUTANTS_AT_ONCE", 5)
    monkeypatch.setattr(collector, "refuse_batch_dependence", lambda *asked: None)
    model = Tiny()
    vote(model, pictures(2), ABLATION)
    assert set(model.evaluated) == {(1, 5), (1, 4)}


@pytest.mark.parametrize("soft", [None, SOFT])
@pytest.mark.parametrize("size", [1, 4, 10, 99])
def test_a_folder_holds_the_same_votes_and_the_same_bytes_again(tmp_path, size, soft):
    data = pictures()
    source = vote(Tiny(), data, ABLATION, soft=soft, out=tmp_path / "a", shard_size=size)
    assert (source.num_images, source.num_shards, source.missing()) == (10, -(-10 // size), [])
    back, votes = cc.read_votes(tmp_path / "a"), vote(Tiny(), data, ABLATION, soft=soft)
    for name in ("ballots", "truth", "margins", "image_ids", "labels", "units", "cap"):
        assert np.array_equal(getattr(back, name), getattr(votes, name)), name
    vote(Tiny(), data, ABLATION, soft=soft, out=tmp_path / "b", shard_size=size)
    assert shards(tmp_path / "a") == shards(tmp_path / "b")
    assert (tmp_path / "a" / "manifest.json").read_bytes() == (tmp_path / "b" / "manifest.json").read_bytes()


def test_the_manifest_holds_the_provenance_of_the_votes(tmp_path):
    data = pictures(class_names=list("abcd"))
    manifest = vote(Tiny(), data, ABLATION, soft=SOFT, out=tmp_path).manifest
    assert manifest["class_names"] == list("abcd")
    made = manifest["made"]
    # `hide` is stored once, with the classifier.
    assert {**made["model"], "hide": manifest["classifier"]["hide"]} == Tiny().metadata()
    assert made["data"] == {"name": "pictures", "split": None, "images": 10, "digest": data.digest()}
    assert manifest["classifier"]["soft"] == {"temperature": 0.5, "best": 2, "cap": 1000}
    assert manifest["classifier"]["ablation"] == ABLATION
    assert {"costcert", "numpy", "pillow"} <= set(made["versions"])
    assert made["probe"] is None


def test_a_second_run_does_only_what_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(collector, "refuse_batch_dependence", lambda *asked: None)
    data, reported = pictures(), []
    vote(Tiny(), data, ABLATION, out=tmp_path, shard_size=3)
    complete = shards(tmp_path)
    (tmp_path / "shard-00001.parquet").unlink()
    kept = (tmp_path / "shard-00002.parquet").stat().st_mtime_ns
    model = Tiny()
    vote(model, data, ABLATION, out=tmp_path, progress=lambda *done: reported.append(done))
    assert shards(tmp_path) == complete
    assert (tmp_path / "shard-00002.parquet").stat().st_mtime_ns == kept
    assert sum(images for images, _ in model.evaluated) == 3
    assert reported == [(7, 10), (10, 10)]
    model = Tiny()
    vote(model, data, ABLATION, out=tmp_path)
    assert model.evaluated == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": Tiny(seed=5)}, 'its made.model.digest is "seed 0", this run\'s is "seed 5"'),
        ({"data": pictures(seed=9)}, "its made.data.digest is"),
        ({"data": pictures(11)}, "its images is 10, this run's is 11"),
        (
            {"ablation": "columns:3"},
            'its classifier.ablation is "columns:3.rows:2", this run\'s is "columns:3"',
        ),
        ({"soft": SOFT}, "its classifier.soft is null"),
        ({"shard_size": 5}, "its shard_size is 3, this run's is 5"),
    ],
)
def test_another_run_into_the_same_folder_is_refused(tmp_path, change, says):
    ask = {"model": Tiny(), "data": pictures(), "ablation": ABLATION}
    vote(**ask, out=tmp_path, shard_size=3)
    before = shards(tmp_path)
    with pytest.raises(CostcertError, match=f"holds another run: {says}"):
        vote(**{**ask, **change}, out=tmp_path)
    assert shards(tmp_path) == before


RUN = """
    import sys
    sys.path.insert(0, {tests!r})
    from tiny import Tiny, pictures
    from costcert.votes.voting import vote
    vote(Tiny(pause=0.02), pictures(60), "columns:3", out={out!r}, shard_size=4)
"""


def test_a_killed_run_resumes(tmp_path):
    out = tmp_path / "votes"
    script = textwrap.dedent(RUN).format(tests=str(TESTS), out=str(out))
    with subprocess.Popen([sys.executable, "-c", script]) as running:
        wait_until(lambda: len(shards(out)) >= 3, running)
        running.send_signal(signal.SIGKILL)
    assert running.returncode == -signal.SIGKILL
    done = {path: path.stat().st_mtime_ns for path in out.glob("shard-*.parquet")}
    assert 3 <= len(done) < 15
    # The file of a writer that was killed in the middle of a shard.
    (out / f".shard-00014.parquet.{files._host()}.{running.pid}.tmp").write_bytes(b"PAR1 half a shard")
    vote(Tiny(), pictures(60), "columns:3", out=out)
    assert all(path.stat().st_mtime_ns == when for path, when in done.items())
    assert not list(out.glob(".*"))
    vote(Tiny(), pictures(60), "columns:3", out=tmp_path / "whole", shard_size=4)
    assert shards(out) == shards(tmp_path / "whole")


def test_a_full_disk_keeps_what_was_finished(tmp_path, monkeypatch):
    import costcert.store.parquet as store

    write = store.pq.write_table

    def fail(table, path, **options):
        if "00002" in path.name:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        write(table, path, **options)

    monkeypatch.setattr(store.pq, "write_table", fail)
    with pytest.raises(CostcertError, match=r"the disk is full: .*shard-00002\.parquet was not written"):
        vote(Tiny(), pictures(), ABLATION, out=tmp_path, shard_size=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "manifest.json",
        "shard-00000.parquet",
        "shard-00001.parquet",
    ]


@pytest.fixture
def photos(tmp_path):
    """Twelve images in four classes, of which two cannot be read."""
    rng = np.random.default_rng(2)
    for label in "abcd":
        (tmp_path / "photos" / label).mkdir(parents=True)
        for n in range(3):
            Image.fromarray(rng.integers(0, 256, (6, 8), dtype=np.uint8)).save(
                tmp_path / "photos" / label / f"{n}.png"
            )
    bad = [tmp_path / "photos" / name for name in ("b/1.png", "d/2.png")]
    bad[0].write_bytes(bad[0].read_bytes()[:60])
    bad[1].write_text("not an image")
    return parse_dataset(f"folder:{tmp_path / 'photos'}")


def test_a_corrupt_image_stops_the_run_by_name_and_keeps_finished_shards(tmp_path, photos):
    with pytest.raises(CostcertError, match=r"b/1\.png cannot be read as an image .*or pass --skip-corrupt"):
        vote(Tiny(), photos, ABLATION, out=tmp_path / "votes", shard_size=2)
    assert sorted(shards(tmp_path / "votes")) == ["shard-00000.parquet", "shard-00001.parquet"]


@pytest.mark.parametrize("soft", [None, SOFT])
def test_images_that_cannot_be_read_are_listed_and_count_as_wrong(tmp_path, photos, soft):
    out = tmp_path / "votes"
    with pytest.raises(CostcertError):
        vote(Tiny(), photos, ABLATION, soft=soft, out=out, shard_size=2)
    # The same run can be resumed with skip_corrupt.
    source = vote(Tiny(), photos, ABLATION, soft=soft, out=out, skip_corrupt=True)
    assert source.unread() == ["b/1.png", "d/2.png"]
    votes = cc.read_votes(out)
    assert votes.image_ids[votes.unread].tolist() == ["b/1.png", "d/2.png"]
    # Code that ignores `unread` finds wrong ballots.
    assert (votes.ballots != votes.truth[:, None])[votes.unread].all()
    in_memory = vote(Tiny(), photos, ABLATION, soft=soft, skip_corrupt=True)
    assert np.array_equal(in_memory.unread, votes.unread)
    certificates = cc.certify(votes, [1, 2])
    assert len(certificates) == 12
    readable = cc.certify(votes.take(~votes.unread), [1, 2])
    for key in certificates.keys:
        for each in (certificates.rank, certificates.min_k):
            assert (each(*key)[votes.unread] == 4).all()
        assert np.array_equal(certificates.min_k(*key)[~votes.unread], readable.min_k(*key))
    ours, theirs = certificates.accuracy([1, 3]), readable.accuracy([1, 3])
    for column in ("clean", "certified"):
        assert np.allclose(ours[column] * 12, theirs[column] * 10)


def test_nothing_is_promised_about_an_image_that_was_not_read(photos):
    votes = vote(Tiny(), photos, "columns:3", skip_corrupt=True)
    assert not cc.exclusion(votes, 1, list(range(4)), 1)[votes.unread].any()
    assert (cc.stability(votes, 1, 2)[votes.unread] == 0).all()
    assert votes.take(~votes.unread).unread is None
    assert votes.hard().select("columns:3/stride=2").unread.sum() == 2


@pytest.mark.parametrize(
    ("model", "data", "says"),
    [
        (Tiny(), pictures(class_names=list("abcde")), "pictures has 5 classes, but the model has 4:"),
        (Tiny(), pictures(class_names=list("abcdefgh")), "has 8 classes"),
        (
            Tiny(class_names=tuple("abdc")),
            pictures(class_names=list("abcd")),
            "class 2 is 'c' in pictures, but 'd' in the model",
        ),
    ],
)
def test_a_model_of_other_classes_is_refused(tmp_path, model, data, says):
    with pytest.raises(CostcertError, match=says):
        vote(model, data, ABLATION, out=tmp_path / "votes")
    assert not (tmp_path / "votes").exists()


def test_the_model_names_the_classes_where_the_data_do_not():
    assert vote(Tiny(class_names=tuple("abcd")), pictures(), ABLATION).class_names == tuple("abcd")


def test_invalid_pixels_and_logits_are_refused():
    class Short(Tiny):
        def logits(self, images, regions):
            return super().logits(images, regions)[:, :, :3]

    class Broken(Tiny):
        def logits(self, images, regions):
            return super().logits(images, regions) * np.float32(np.nan)

    class Large(Tiny):
        def prepare(self, image):
            return np.zeros((7, 8, 1), np.uint8)

    for model, says in ((Short(), "logits of shape"), (Broken(), "NaN"), (Large(), "pixels of shape")):
        with pytest.raises(CostcertError, match=says):
            vote(model, pictures(), ABLATION)
    with pytest.raises(CostcertError, match="columns:9 does not fit"):
        vote(Tiny(), pictures(), "columns:9")


def test_a_probe_is_measured_once_and_kept(tmp_path):
    ask = {"model": Tiny(drift=1e-6), "data": pictures(), "ablation": ABLATION, "out": tmp_path}
    assert vote(**ask).manifest["made"]["probe"] is None
    first = vote(**ask, probe=True).manifest["made"]["probe"]
    assert first["epsilon"] > 0
    manifest = (tmp_path / "manifest.json").read_bytes()
    ask["model"].evaluated.clear()
    assert vote(**ask, probe=True).manifest["made"]["probe"] == first
    vote(**ask)
    assert ask["model"].evaluated == []
    assert (tmp_path / "manifest.json").read_bytes() == manifest
    assert vote(Tiny(), pictures(), ABLATION, probe=True).provenance["probe"]["epsilon"] == 0


def request(tmp_path, **more):
    words = ["vote"]
    for name, value in {"model": "tiny", "data": "sample", "out": tmp_path / "votes", **more}.items():
        option = f"--{name.replace('_', '-')}"
        words += [option] if value is True else [option, value]
    return parsed(words)


@pytest.fixture
def asked(monkeypatch):
    """What the command asks of `load_model`, which gives a tiny model of ten classes."""
    asked = {}

    class Ten(Tiny):
        num_classes = 10

    def load_model(model, **options):
        asked.update(options, model=model)
        return Ten(class_names=options["class_names"])

    monkeypatch.setattr("costcert.models.loading.load_model", load_model)
    return asked


def test_the_command_votes_and_says_what_to_do_next(tmp_path, asked, capsys):
    command.run(request(tmp_path, ablation="columns:3", limit=20, soft="0.35,4", probe=True, device="cpu"))
    assert (asked["model"], asked["num_classes"], asked["device"]) == ("tiny", 10, "cpu")
    said = capsys.readouterr().out
    assert "20 images of sample (limit 20, seed 0), 8 mutants each (columns:3)" in said
    assert "Probe: " in said
    assert "Next: costcert certify" in said
    assert "--epsilon probe" in said
    votes = cc.read_votes(tmp_path / "votes")
    assert votes.image_ids.tolist() == limited(parse_dataset("sample"), 20).ids
    assert votes.labels.shape == (20, 8, 4)


def test_the_command_lists_what_it_could_not_read(tmp_path, photos, monkeypatch, capsys):
    monkeypatch.setattr("costcert.models.loading.load_model", lambda *_, **__: Tiny())
    command.run(
        request(tmp_path, data=f"folder:{tmp_path / 'photos'}", ablation="columns:3", skip_corrupt=True)
    )
    said = capsys.readouterr().out
    assert "2 images could not be read, and count as wrong:\n  b/1.png\n  d/2.png\n" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "tiny does not record what mutants keep: pass --ablation"),
        ({"ablation": "colums:3"}, "did you mean 'columns'"),
        ({"soft": "0.35"}, "cannot read soft ballots '0.35'"),
        ({"soft": "0,4"}, "the temperature must be above 0"),
        ({"limit": 3, "ids": "ids.txt"}, "--limit and --ids both choose"),
        ({"split": "train"}, "the sample has only the split test"),
        ({"data": "npz:d.npz", "split": "train"}, "npz:d.npz has no splits, but --split is 'train'"),
        ({"mean": "a,b"}, "cannot read --mean 'a,b'"),
    ],
)
def test_requests_that_cannot_be_met(tmp_path, asked, monkeypatch, options, says):
    monkeypatch.chdir(tmp_path)
    np.savez("d.npz", images=np.zeros((2, 3, 3), np.uint8), labels=[0, 1])
    with pytest.raises(CostcertError, match=says):
        command.run(request(tmp_path, **options))
    assert not (tmp_path / "votes").exists()


def test_data_without_class_names_leave_the_number_of_classes_to_the_model(tmp_path, asked):
    np.savez(tmp_path / "d.npz", images=np.zeros((2, 3, 3), np.uint8), labels=[0, 1])
    ask = {"data": f"npz:{tmp_path / 'd.npz'}", "ablation": "columns:3"}
    command.run(request(tmp_path, **ask))
    assert asked["num_classes"] is None
    command.run(request(tmp_path, **ask, classes=10))
    assert asked["num_classes"] == 10


def test_a_trained_model_brings_its_ablation(tmp_path, monkeypatch):
    model = Tiny()
    model.ablation = cc.Columns(5)
    monkeypatch.setattr("costcert.models.loading.load_model", lambda *_, **__: model)
    np.savez(tmp_path / "d.npz", images=np.zeros((2, 3, 3), np.uint8), labels=[0, 1])
    command.run(request(tmp_path, data=f"npz:{tmp_path / 'd.npz'}"))
    assert (
        json.loads((tmp_path / "votes" / "manifest.json").read_text())["classifier"]["ablation"]
        == "columns:5"
    )
    assert VotesFolder(tmp_path / "votes").num_mutants == 8


def test_a_log_gets_a_line_now_and_then(monkeypatch, capsys):
    clock = iter([0.0, 0.0, 10.0, 70.0, 80.0, 140.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.bar("voting") as tell:
        for done in (400, 410, 470, 480, 540):
            tell(done, 1000)
    assert capsys.readouterr().err.splitlines() == [
        "voting: 470 of 1,000 images, 1.0 images/s, 0:08:50 left",
        "voting: 540 of 1,000 images, 1.0 images/s, 0:07:40 left",
    ]


@pytest.mark.parametrize("soft", [[], ["--soft", "0.5,2"]])
def test_certify_takes_what_the_probe_measured(tmp_path, monkeypatch, soft):
    model = Tiny(drift=5e-4, precision="bfloat16")
    monkeypatch.setattr("costcert.models.loading.load_model", lambda *_, **__: model)
    monkeypatch.chdir(tmp_path)
    data = pictures(40)
    np.savez("d.npz", images=data.images, labels=data.labels)
    ask = [
        "vote",
        "--model",
        "tiny",
        "--data",
        "npz:d.npz",
        "--ablation",
        "columns:3",
        "--out",
        "votes",
        *soft,
    ]
    certify = ["certify", "votes", "--patch", "2", "--epsilon", "probe"]
    assert invoke(ask).exit_code == 0
    refused = invoke(certify)
    assert refused.exit_code == 2
    assert "votes holds no probe: add one by voting once more with --probe" in refused.stderr
    assert invoke([*ask, "--probe"]).exit_code == 0
    result = invoke([*certify, "--out", "certs"])
    assert result.exit_code == 0, result.stderr
    votes, probe = cc.read_votes("votes"), VotesFolder("votes").manifest["made"]["probe"]
    uncertainty = {"epsilon": probe["epsilon"], **({"tau": probe["tau"]} if soft else {})}
    careful, careless = cc.certify(votes, [2], **uncertainty), cc.certify(votes, [2])
    assert cc.read_certificates("certs").to_pandas().equals(careful.to_pandas())
    assert not careful.to_pandas().equals(careless.to_pandas())
    wrong = invoke([*certify[:-1], "much"])
    assert "cannot read epsilon 'much': write a number, or probe" in wrong.stderr


def test_certify_says_how_many_images_were_not_read(tmp_path, photos):
    vote(Tiny(), photos, ABLATION, out=tmp_path / "votes", skip_corrupt=True)
    result = invoke(["certify", str(tmp_path / "votes"), "--patch", "2"])
    assert "in % of 12 images" in result.stdout
    said = " ".join(result.stdout.split())
    assert "2 of these images could not be read when they voted, and count as wrong: b/1.png, d/2.png" in said


def test_a_trained_folder_votes_on_the_sample(tmp_path):
    """End to end with a real network, whose card holds ablation, hide and size."""
    torch = pytest.importorskip("torch")
    from costcert.models.architectures import build
    from costcert.models.preprocessing import Preprocessing
    from costcert.models.saved import ModelCard, save_model

    torch.manual_seed(0)
    settings = Preprocessing((28, 28), channels=1, mean=(0.5,), std=(0.5,))
    built = build("strip:small", num_classes=10, ablation="columns:4", preprocessing=settings)
    card = ModelCard("strip:small", 10, settings, "columns:4", "crop")
    save_model(tmp_path / "model", built.mutants.network, card)
    ask = ["vote", "--model", str(tmp_path / "model"), "--data", "sample", "--limit", "30", "--probe"]
    result = invoke([*ask, "--out", str(tmp_path / "votes"), "--device", "cpu"])
    assert result.exit_code == 0, result.stderr
    votes = cc.read_votes(tmp_path / "votes")
    assert (len(votes), votes.num_mutants, str(votes.ablation)) == (30, 28, "columns:4")
    assert votes.class_names[9] == "Ankle boot"
    assert 0 <= votes.provenance["probe"]["epsilon"] < 0.01
    assert cc.certify(votes, "2%").min_k("costcert", "2%").shape == (30,)
