"""Data, models and tables at URLs: the same bytes as on a disk, atomic writes, one sentence per failure.

The store is a local S3 server of moto; tests that do not need a server use fsspec's memory.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import textwrap
import urllib.request
from importlib.resources import files
from importlib.util import find_spec
from operator import methodcaller
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from PIL import Image

import costcert as cc
from command_line import invoke
from costcert.errors import CostcertError
from costcert.store.files import join_manifest
from costcert.store.locations import Url, fetched, locate
from costcert.store.vote_files import VotesFile
from costcert.store.votes import VotesFolder
from costcert.votes.voting import vote
from places import TESTS
from tiny import Tiny, pictures
from waiting import wait_until

fsspec = pytest.importorskip("fsspec", reason="URLs need fsspec")
HERE = TESTS


@pytest.fixture(autouse=True)
def scratch(tmp_path_factory, monkeypatch):
    """The folder for temporary copies; none may be left in it."""
    folder = tmp_path_factory.mktemp("scratch")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.glob("costcert-*")) == []


@pytest.fixture
def memory():
    """A folder in fsspec's memory."""
    store = fsspec.filesystem("memory")
    yield locate("memory://bucket")
    store.store.clear()
    store.pseudo_dirs[:] = [""]


def forget_stores():
    """Clear fsspec's cache: stores read the environment only when they are created."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.fixture(scope="module")
def server():
    """The address of an S3 server with an empty bucket."""
    for package in ("s3fs", "moto", "flask", "flask_cors"):
        pytest.importorskip(package, reason=f"a store to test with needs {package}")
    from moto.server import ThreadedMotoServer

    there = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    there.start()
    address = "http://{}:{}".format(*there.get_host_and_port())
    with pytest.MonkeyPatch.context() as patch:
        environment = {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "NO_PROXY": "127.0.0.1",
        }
        for name, value in environment.items():
            patch.setenv(name, value)
        forget_stores()
        # What moto keeps outlives its server, and xdist may come back to this module in the same process.
        urllib.request.urlopen(urllib.request.Request(f"{address}/moto-api/reset", method="POST")).close()
        fsspec.filesystem("s3").mkdir("bucket")
        yield address
    forget_stores()
    there.stop()


@pytest.fixture
def s3(server, request):
    """A folder of its own for each test."""
    return locate(f"s3://bucket/{request.node.name}")


def upload(folder, url):
    for path in folder.rglob("*"):
        if path.is_file():
            (url / path.relative_to(folder).as_posix()).put(path)


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def costcert(*words):
    result = invoke(list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words):
    result = invoke(list(map(str, words)))
    assert result.exit_code == 2, result.output
    lines = result.output.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("costcert: ")
    return lines[0]


def some_votes(count=10, classes=5, soft=False, **more):
    rng = np.random.default_rng(7)
    how = {"num_classes": classes, "ablation": "columns:3", "image_size": (4, 12), **more}
    truth = rng.integers(0, classes, count)
    if soft:
        labels, units = rng.integers(0, classes, (count, 12, 3)), rng.integers(0, 4, (count, 12, 3))
        return cc.Votes.soft(labels, units, truth, cap=9, **how)
    ballots = np.where(rng.random((count, 12)) < 0.7, truth[:, None], rng.integers(0, classes, (count, 12)))
    return cc.Votes(ballots, truth, **how)


@pytest.fixture
def photos(tmp_path):
    """Classes with nested folders, hidden files and files that are not images."""
    root, rng = tmp_path / "photos", np.random.default_rng(0)
    names = [
        "cat/2.png",
        "cat/10.png",
        "cat/a/0.png",
        "cat/a.png",
        "dog/z.PNG",
        "dog/.hidden.png",
        "beside.png",
    ]
    for name in (*names, ".git/x/1.png", "dog/.old/1.png", "emu/1.png", "fox/1.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (6, 8), dtype=np.uint8)).save(root / name)
    (root / "dog" / "notes.txt").write_text("no image")
    return root


@pytest.fixture(scope="module")
def clothes(tmp_path_factory):
    """A few images of the demo, for its model."""
    with np.load(str(files("costcert") / "sample" / "fashion_mnist.npz")) as arrays:
        some = {name: arrays[name][:10] for name in ("images", "labels", "ids")}
        path = tmp_path_factory.mktemp("clothes") / "clothes.npz"
        np.savez(path, **some, class_names=arrays["class_names"])
    return path


class TestSpelling:
    def test_what_is_no_url_is_a_path(self):
        for text in ("votes", "/a/b.npz", "timm:vit", "C:\\votes", "a:b/c"):
            assert locate(text) == Path(text)
        assert locate(Path("votes")) == Path("votes")
        assert locate("file:///tmp/votes") == Path("/tmp/votes")

    def test_parts_of_a_url(self):
        url = locate("S3://bucket/a/votes.npz/")
        assert url == Url("s3", PurePosixPath("bucket/a/votes.npz"))
        assert (str(url), url.name, url.stem, url.suffix) == (
            "s3://bucket/a/votes.npz",
            "votes.npz",
            "votes",
            ".npz",
        )
        assert str(url.with_name("tuned.json")) == "s3://bucket/a/tuned.json"
        assert [str(parent) for parent in url.parents] == ["s3://bucket/a", "s3://bucket"]
        assert pickle.loads(pickle.dumps(url.resolve())) == url
        assert locate("abfs://container@account.dfs.core.windows.net/x").name == "x"
        with pytest.raises(CostcertError, match="s3://bucket is a bucket and has no parent folder"):
            _ = locate("s3://bucket").parent

    @pytest.mark.parametrize(
        "text",
        [
            "s3://key:hunter2@bucket/votes",
            "https://hunter2@host/votes.npz",
            "https://host/votes.npz?sig=hunter2",
            "abfs://container:hunter2@account.dfs.core.windows.net/x",
        ],
    )
    def test_a_url_with_a_secret_is_refused_and_not_repeated(self, text, tmp_path):
        for words in (
            ["certify", text, "--patch", "2"],
            ["vote", "--model", "shipped:fashion", "--data", f"npz:{text}", "--out", tmp_path / "votes"],
            ["vote", "--model", "shipped:fashion", "--data", text, "--out", tmp_path / "votes"],
            ["vote", "--model", text, "--data", "sample", "--out", tmp_path / "votes"],
        ):
            said = refused(*words)
            assert "a name, a password or a query" in said
            assert "hunter2" not in said
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        "text", ["s3://", "s3:///", "s3://bucket/../other", "simplecache::s3://bucket/x"]
    )
    def test_what_cannot_be_read_as_a_url(self, text):
        with pytest.raises(CostcertError, match="cannot read"):
            locate(text)


class TestInMemory:
    """Everything the library reads and writes, on disk and at a URL."""

    @pytest.mark.parametrize("soft", [False, True], ids=["hard", "soft"])
    def test_votes_come_back_and_are_the_same_bytes(self, memory, tmp_path, soft):
        votes = some_votes(soft=soft)
        for folder in (str(memory / "votes"), tmp_path / "votes"):
            cc.write_votes(votes, folder, shard_size=4)
        assert content(memory / "votes") == content(tmp_path / "votes")
        back = cc.read_votes("memory://bucket/votes")
        assert np.array_equal(back.ballots, votes.ballots)
        assert back.is_soft == soft

    def test_certificates_come_back_and_are_the_same_bytes(self, memory, tmp_path):
        certificates = cc.certify(some_votes(), [1, "2*square:1"])
        for folder in (str(memory / "certs"), tmp_path / "certs"):
            cc.write_certificates(certificates, folder)
        assert content(memory / "certs") == content(tmp_path / "certs")
        assert cc.read_certificates("memory://bucket/certs").to_pandas().equals(certificates.to_pandas())

    def test_a_second_run_writes_what_is_missing_and_another_is_refused(self, memory, monkeypatch):
        cc.write_votes(some_votes(), memory / "votes", shard_size=3)
        before = content(memory / "votes")
        (memory / "votes" / "shard-00002.parquet").unlink()
        written, put = [], Url.put
        monkeypatch.setattr(Url, "put", lambda url, *a, **k: (written.append(url.name), put(url, *a, **k)))
        cc.write_votes(some_votes(), memory / "votes", shard_size=3)
        assert written == ["shard-00002.parquet"]
        assert content(memory / "votes") == before
        with pytest.raises(CostcertError, match="holds another run: its made"):
            cc.write_votes(some_votes(provenance={"model": "x"}), memory / "votes", shard_size=3)

    def test_reading_a_shard_opens_that_shard_alone(self, memory, monkeypatch):
        cc.write_votes(some_votes(), memory / "votes", shard_size=3)
        read, read_bytes = [], Url.read_bytes
        monkeypatch.setattr(Url, "read_bytes", lambda url: (read.append(url.name), read_bytes(url))[1])
        source = VotesFolder(memory / "votes")
        assert len(source.shard(1)) == 3
        assert read == ["manifest.json", "shard-00001.parquet"]
        assert source.unread() == []

    def test_a_failed_write_leaves_nothing(self, memory):
        from costcert.store.files import atomic_write

        def fail():
            with atomic_write(memory / "table") as temporary:
                temporary.write_text("half")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fail()
        assert not (memory / "table").exists()

    def test_folders_of_images_are_the_same_data(self, memory, photos, monkeypatch):
        upload(photos, memory / "photos")
        listed, below = [], Url.files
        monkeypatch.setattr(Url, "files", lambda url: (listed.append(url.name), below(url))[1])
        here = cc.parse_dataset(f"folder:{photos}")
        there = cc.parse_dataset("folder:memory://bucket/photos")
        cats = ["cat/10.png", "cat/2.png", "cat/a.png", "cat/a/0.png"]
        assert there.ids == here.ids == [*cats, "dog/z.PNG", "emu/1.png", "fox/1.png"]
        assert there.metadata() == here.metadata()
        assert all(np.array_equal(here.image(row), there.image(row)) for row in range(len(here)))
        assert listed == ["photos"]
        # If the folders are splits, the requested one is read.
        upload(photos, memory / "parts" / "val")
        part = cc.parse_dataset("folder:memory://bucket/parts", "val")
        assert (part.ids, part.split) == (here.ids, "val")

    def test_a_store_that_loses_an_image_does_not_make_it_a_wrong_one(self, memory, photos):
        """Corrupt images may be counted as wrong; an image that was not downloaded is not a corrupt image."""
        upload(photos, memory / "photos")
        data = cc.parse_dataset("folder:memory://bucket/photos")
        (memory / "photos" / "cat" / "2.png").unlink()
        with pytest.raises(CostcertError, match=r"cannot read memory://bucket/photos/cat/2\.png"):
            vote(Tiny(), data, "columns:3", skip_corrupt=True)

    def test_imagenet(self, memory, tmp_path):
        if find_spec("timm") is None:
            pytest.skip("timm lists the classes")
        for name in ("val/n01440764/a.png", "val/n01443537/b.png"):
            (tmp_path / name).parent.mkdir(parents=True)
            Image.new("L", (4, 4)).save(tmp_path / name)
        upload(tmp_path, memory / "imagenet")
        (tmp_path / "flat" / "a.png").parent.mkdir()
        Image.new("L", (4, 4)).save(tmp_path / "flat" / "a.png")
        (tmp_path / "LOC_val_solution.csv").write_text("ImageId,PredictionString\na,n01443537 1 2 3 4\n")
        upload(tmp_path, memory / "kaggle")
        for below in ("imagenet", "kaggle/flat"):
            here = cc.parse_dataset(f"imagenet:{tmp_path / ('' if below == 'imagenet' else 'flat')}", "val")
            there = cc.parse_dataset(f"imagenet:memory://bucket/{below}", "val")
            assert (there.ids, there.labels.tolist(), there.split) == (
                here.ids,
                here.labels.tolist(),
                here.split,
            )

    def test_arrays_of_images(self, memory, tmp_path):
        images, labels = np.arange(4 * 9, dtype=np.uint8).reshape(4, 3, 3), np.arange(4, dtype=np.uint8)
        np.savez(tmp_path / "x.npz", images=images, labels=labels)
        for name, array in (("t10k-images-idx3-ubyte", images), ("t10k-labels-idx1-ubyte", labels)):
            sizes = b"".join(side.to_bytes(4, "big") for side in array.shape)
            (tmp_path / name).write_bytes(bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes())
        upload(tmp_path, memory / "data")
        here, there = (
            cc.parse_dataset(f"npz:{tmp_path / 'x.npz'}"),
            cc.parse_dataset("npz:memory://bucket/data/x.npz"),
        )
        assert here.metadata() == there.metadata()
        assert np.array_equal(cc.parse_dataset("idx:memory://bucket/data").images, images)
        with pytest.raises(CostcertError, match=r"did you mean 'npz:memory://bucket/data/x\.npz'"):
            cc.parse_dataset("memory://bucket/data/x.npz")
        with pytest.raises(CostcertError, match="reads local folders only"):
            cc.parse_dataset("torchvision:MNIST@memory://bucket/data")
        with pytest.raises(CostcertError, match="is not there"):
            cc.parse_dataset("npz:memory://bucket/data/y.npz")

    def test_an_archive_of_ballots_and_every_export(self, memory, tmp_path):
        votes = some_votes()
        np.savez(tmp_path / "v.npz", ballots=votes.ballots, truth=votes.truth)
        (memory / "v.npz").put(tmp_path / "v.npz")
        how = {"ablation": "columns:3", "num_classes": 5, "image_size": (4, 12)}
        here, there = (VotesFile(folder / "v.npz", **how) for folder in (tmp_path, memory))
        assert there.digest() == here.digest()
        words = ["--patch", "1,2", "--ablation", "columns:3", "--classes", "5", "--image-size", "4x12"]
        for name in ("certs", "certs.csv", "certs.json", "certs.parquet"):
            for folder in (tmp_path, memory):
                costcert("certify", folder / "v.npz", *words, "--out", folder / name)
            whole = content if name == "certs" else methodcaller("read_bytes")
            assert whole(memory / name) == whole(tmp_path / name)
        said = costcert("check", memory / "certs", "--votes", memory / "v.npz", "--all", *words[2:])
        assert "all alike" in said

    def test_tuning(self, memory, tmp_path):
        cc.write_votes(some_votes(20, soft=True, temperature=1.0), memory / "votes")
        costcert("tune", memory / "votes", "--patch", "1", "--k", "1")
        assert (memory / "tuned.json").is_file()
        costcert("tune", memory / "votes", "--patch", "1", "--k", "1", "--out", memory / "choice")
        assert (memory / "choice" / "tuned.json").read_bytes() == (memory / "tuned.json").read_bytes()
        # With the temperature of the ballots, the chosen mutants are certified as they were cast.
        chosen = json.loads((memory / "tuned.json").read_text("utf-8"))
        (tmp_path / "t.json").write_text(json.dumps({**chosen, "soft": {"temperature": 1.0, "best": 3}}))
        (memory / "t.json").put(tmp_path / "t.json")
        # The cap of these ballots is not the default, so tuned ballots are never the same.
        refused = invoke(["certify", str(memory / "votes"), "-p", "1", "--tuned", str(memory / "t.json")])
        assert (refused.exit_code, "vote again" in refused.stderr) == (2, True)

    def test_reports_and_figures(self, memory, tmp_path):
        votes = some_votes(40)
        for folder in (tmp_path, memory):
            cc.write_votes(votes, folder / "votes")
            cc.write_certificates(cc.certify(votes, [1, 2]), folder / "certs", votes=folder / "votes")
            for name in ("report.md", "report.json"):
                costcert("report", folder / "certs", "--votes", folder / "votes", "--out", folder / name)
        for name in ("report.md", "report.json"):
            assert (memory / name).read_bytes() == (tmp_path / name).read_bytes()
        costcert("report", memory / "report.json", "--out", memory / "again.csv")
        assert (memory / "again.csv").read_bytes().startswith(b"run,")

    def test_the_explorer_reads_certificates_and_finds_their_votes(self, memory):
        pytest.importorskip("fastapi", reason="the page needs costcert[explore]")
        from costcert.cli.explore import ExploreOptions, opened

        votes = some_votes()
        cc.write_votes(votes, memory / "votes")
        cc.write_certificates(cc.certify(votes, [1]), memory / "certs", votes=memory / "votes")
        session, _ = opened(ExploreOptions(source=memory / "certs"))
        assert len(session.votes) == 10

    def test_attacks(self, memory, tmp_path):
        pytest.importorskip("torch", reason="attacks need costcert[models]")
        from costcert.attacks.campaign import attack
        from costcert.attacks.effort import Effort

        effort = Effort(places=2, restarts=0, steps=0, random=2)
        for folder in (memory, tmp_path):
            found = attack(
                Tiny(),
                pictures(6),
                "square:2",
                1,
                folder / "attack",
                ablation="columns:3",
                effort=effort,
                shard_size=3,
            )
            assert len(found) == 6
        assert sorted(content(memory / "attack")) == sorted(content(tmp_path / "attack"))
        again = attack(
            Tiny(), pictures(6), "square:2", 1, "memory://bucket/attack", ablation="columns:3", effort=effort
        )
        assert np.array_equal(again.patched, found.patched)

    def test_training_and_the_model_it_makes(self, memory, tmp_path):
        pytest.importorskip("torch", reason="training needs costcert[models]")
        rng = np.random.default_rng(0)
        np.savez(
            tmp_path / "data.npz",
            images=rng.integers(0, 256, (20, 8, 8), dtype=np.uint8),
            labels=np.arange(20) % 2,
        )
        (memory / "data.npz").put(tmp_path / "data.npz")
        words = [
            "--model",
            "strip:small",
            "--data",
            "npz:memory://bucket/data.npz",
            "--ablation",
            "columns:3",
        ]
        words += ["--epochs", "1", "--batch-size", "10", "--out", "memory://bucket/model"]
        costcert("train", *words)
        assert "is trained already" in costcert("train", *words)
        (tmp_path / "model").mkdir()
        for name, whole in content(memory / "model").items():
            (tmp_path / "model" / name).write_bytes(whole)
        here, there = cc.load_model(tmp_path / "model"), cc.load_model("memory://bucket/model/")
        assert here.metadata() == there.metadata()
        with pytest.raises(
            CostcertError, match=r"the checkpoint memory://bucket/w\.safetensors is not there"
        ):
            cc.load_model(
                "strip:small", checkpoint="memory://bucket/w.safetensors", ablation="columns:3", image_size=8
            )

    def test_a_file_is_fetched_for_as_long_as_it_is_needed(self, memory, tmp_path, scratch):
        (tmp_path / "m.onnx").write_text("content")
        (memory / "m.onnx").put(tmp_path / "m.onnx")
        with fetched(memory / "m.onnx") as copy:
            assert copy.read_text() == "content"
            assert copy.is_relative_to(scratch)
        assert not copy.exists()
        with fetched(tmp_path / "m.onnx") as same:
            assert same == tmp_path / "m.onnx"


@pytest.mark.slow
class TestInAStore:
    """The command line with S3."""

    def test_from_images_to_a_report(self, s3, clothes, tmp_path):
        pytest.importorskip("torch", reason="voting needs costcert[models]")
        (s3 / "clothes.npz").put(clothes)
        upload(Path(str(files("costcert") / "sample" / "model")), s3 / "model")
        for folder, data, model in (
            (tmp_path, f"npz:{clothes}", "shipped:fashion"),
            (s3, f"npz:{s3}/clothes.npz", f"{s3}/model/"),
        ):
            said = costcert(
                "vote", "--model", model, "--data", data, "--out", folder / "votes", "--shard-size", "4"
            )
            assert f"Next: costcert certify {folder}/votes" in said
            costcert("certify", folder / "votes", "--patch", "2,4", "--out", folder / "certs")
            costcert("report", folder / "certs", "--votes", folder / "votes", "--out", folder / "report.csv")
        assert len(content(s3 / "certs")) == 4
        for name in ("votes", "certs"):
            assert content(s3 / name) == content(tmp_path / name)
        assert (s3 / "report.csv").read_bytes() == (tmp_path / "report.csv").read_bytes()
        said = costcert("check", s3 / "certs", "--votes", s3 / "votes", "--model", f"{s3}/model")
        assert "is as it was written, 3 shards" in said
        assert "all alike" in said
        # A changed byte is detected there, too.
        (s3 / "certs" / "shard-00001.parquet").put(clothes)
        result = invoke(["check", f"{s3}/certs"])
        assert result.exit_code == 1
        assert "shard-00001.parquet is not the file that was written" in result.output

    def test_a_folder_of_images(self, s3, photos):
        upload(photos, s3 / "photos")
        here, there = cc.parse_dataset(f"folder:{photos}"), cc.parse_dataset(f"folder:{s3}/photos")
        assert there.metadata() == here.metadata()
        votes = [vote(Tiny(), data, "columns:3").ballots for data in (here, there)]
        assert np.array_equal(*votes)

    def test_a_run_that_is_killed_goes_on(self, s3, tmp_path):
        script = f"""
            import sys
            sys.path.insert(0, {str(HERE)!r})
            from tiny import Tiny, pictures
            from costcert.votes.voting import vote
            vote(Tiny(pause=0.05), pictures(30), "columns:3", out=sys.argv[1], shard_size=3)
        """
        out = s3 / "votes"
        command = [sys.executable, "-c", textwrap.dedent(script), str(out)]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as running:
            wait_until(lambda: out.exists() and list(out.glob("shard-*")), running)
            running.send_signal(signal.SIGKILL)
        finished = content(out)
        assert 0 < len(VotesFolder(out).missing()) < 10
        with pytest.raises(CostcertError, match="shards are missing"):
            cc.read_votes(out)
        for folder in (out, tmp_path / "whole"):
            vote(Tiny(), pictures(30), "columns:3", out=folder, shard_size=3)
        whole = content(tmp_path / "whole")
        assert content(out) == whole
        finished.pop("manifest.json")
        assert finished.items() <= whole.items()
        with pytest.raises(CostcertError, match="holds another run"):
            vote(Tiny(seed=1), pictures(30), "columns:3", out=out, shard_size=3)

    def test_two_ranks_share_the_shards(self, s3, tmp_path, monkeypatch):
        for folder in (s3, tmp_path):
            cc.write_votes(some_votes(30), folder / "votes", shard_size=5)
        costcert("certify", tmp_path / "votes", "--patch", "1,2", "--out", tmp_path / "certs")
        words = ["certify", f"{s3}/votes", "--patch", "1,2", "--out", f"{s3}/certs"]
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", "1")
        with subprocess.Popen([sys.executable, "-m", "costcert", *words], stdout=subprocess.PIPE) as other:
            monkeypatch.setenv("RANK", "0")
            assert f"{s3}/certs" in costcert(*words)
            assert other.communicate()[0] == b""
        assert other.returncode == 0
        assert content(s3 / "certs") == content(tmp_path / "certs")

    @pytest.mark.parametrize("where", ["s3", "memory"])
    def test_of_two_that_begin_at_once_the_first_one_stays(self, where, request, monkeypatch):
        folder = request.getfixturevalue(where) / "votes"
        manifest = {"format": "costcert votes", "version": 1, "images": 1}
        join_manifest(folder, manifest, "votes", 1)
        first = content(folder)
        # Both saw an empty folder.
        monkeypatch.setattr(Url, "_listed", lambda url: [])
        join_manifest(folder, manifest, "votes", 1)
        with pytest.raises(CostcertError, match="holds another run: its images is 1"):
            join_manifest(folder, {**manifest, "images": 2}, "votes", 1)
        monkeypatch.undo()
        assert content(folder) == first


@pytest.mark.slow
class TestTrouble:
    """Each is one sentence, and exit code 2."""

    @pytest.fixture(autouse=True)
    def nothing_left(self, server, tmp_path):
        yield
        forget_stores()
        assert list(tmp_path.iterdir()) == []

    def ask(self, url):
        return refused("certify", url, "--patch", "2")

    def test_nothing_there(self):
        assert "s3://bucket/nothing is not there" in self.ask("s3://bucket/nothing")
        assert "s3://no-bucket/votes is not there" in self.ask("s3://no-bucket/votes")

    def test_no_such_bucket_to_write_to(self):
        with pytest.raises(
            CostcertError, match=r"cannot write s3://no-bucket/votes/manifest\.json: .*bucket"
        ):
            cc.write_votes(some_votes(), "s3://no-bucket/votes")

    def test_unknown_scheme(self):
        assert "cannot read s4://bucket/votes: protocol not known: s4" in self.ask("s4://bucket/votes")

    def test_a_package_that_is_not_installed(self, monkeypatch):
        with monkeypatch.context() as patch:
            patch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
            patch.setitem(sys.modules, "s3fs", None)
            assert "needs s3fs: pip install 'costcert[s3]'" in self.ask("s3://bucket/votes")

    def test_a_server_that_does_not_answer(self, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        forget_stores()
        assert "could not connect to the endpoint" in self.ask("s3://bucket/votes")

    def test_no_credentials(self, monkeypatch):
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        forget_stores()
        assert "cannot read s3://bucket/votes: unable to locate credentials" in self.ask("s3://bucket/votes")

    def test_wrong_credentials(self, server):
        def demand(actions):
            """Let this many requests pass without credentials; all later ones need them."""
            urllib.request.urlopen(
                urllib.request.Request(
                    f"{server}/moto-api/reset-auth",
                    data=actions,
                    headers={"Content-Type": "text/plain"},
                    method="POST",
                )
            ).close()

        demand(b"0")
        try:
            assert "cannot read s3://bucket/votes: forbidden" in self.ask("s3://bucket/votes")
        finally:
            demand(b"inf")

    def test_where_files_could_be_seen_half_written(self):
        url = locate("ftp://127.0.0.1/votes")
        with pytest.raises(CostcertError, match="a file can be seen half-written; write to a store"):
            url.put(Path(__file__))
