"""A run is reopened in one place: certificates are shown only with the votes they came from."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import costcert as cc
from command_line import invoke
from costcert.cli.explore import ExploreOptions, opened
from costcert.errors import CostcertError
from costcert.store.runs import open_run
from costcert.votes.voting import vote
from tiny import Tiny, pictures

SAMPLE = Path(cc.__file__).parent / "sample" / "model"


def costcert(*args):
    return invoke([str(arg) for arg in args])


@pytest.fixture
def two_runs(tmp_path):
    """Two models on the same images: same ids, same sizes, other votes."""
    for name, seed in (("a", 0), ("b", 1)):
        folder = tmp_path / name
        vote(Tiny(seed), pictures(20), "columns:3", out=folder / "votes")
        made = costcert("certify", folder / "votes", "-p", "2", "-o", folder / "certs")
        assert made.exit_code == 0, made.output
    return tmp_path / "a", tmp_path / "b"


def test_certificates_of_one_model_over_votes_of_another(two_runs, tmp_path):
    a, b = two_runs
    assert open_run(a / "certs").votes.digest() == open_run(a / "votes").votes.digest()
    with pytest.raises(CostcertError, match="their digests differ"):
        open_run(a / "certs", b / "votes")
    pytest.importorskip("fastapi", reason="the page needs costcert[explore]")
    assert opened(ExploreOptions(source=a / "certs"))
    with pytest.raises(CostcertError, match="their digests differ"):
        opened(ExploreOptions(source=a / "certs", votes=b / "votes"))
    # A folder called votes next to the certificates is checked as well.
    (b / "certs").rename(b / "own")
    (a / "certs").rename(b / "certs")
    with pytest.raises(CostcertError, match="their digests differ"):
        opened(ExploreOptions(source=b / "certs"))
    pytest.importorskip("jinja2", reason="the page needs costcert[report]")
    good = costcert("report", b / "own", "--votes", b / "votes", "--out", tmp_path / "r.md")
    assert good.exit_code == 0, good.output
    bad = costcert("report", b / "certs", "--votes", b / "votes", "--out", tmp_path / "bad.md")
    assert (bad.exit_code, "their digests differ" in " ".join(bad.stderr.split())) == (2, True)
    assert not (tmp_path / "bad.md").exists()


def test_votes_are_found_next_to_their_certificates_under_any_name(two_runs):
    a, b = two_runs
    (b / "certs").rename(a / "certs-b")
    with pytest.raises(CostcertError, match="their digests differ"):
        open_run(a / "certs-b")
    (b / "votes").rename(a / "votes-b")
    assert open_run(a / "certs-b").votes.path == a / "votes-b"
    assert open_run(a / "certs").votes.path == a / "votes"
    (a / "votes-b" / "shard-00000.parquet").unlink()
    with pytest.raises(CostcertError, match="their digests differ"):
        open_run(a / "certs-b")


def test_certificates_without_a_digest_of_their_votes(tmp_path):
    votes = vote(Tiny(), pictures(5), "columns:3")
    cc.write_votes(votes, tmp_path / "votes")
    cc.write_certificates(cc.certify(votes, 2), tmp_path / "certs", votes=votes)
    with pytest.raises(CostcertError, match="does not record the digest of its votes"):
        open_run(tmp_path / "certs")
    cc.write_certificates(cc.certify(votes, 2), tmp_path / "noted", votes=tmp_path / "votes")
    assert open_run(tmp_path / "noted", tmp_path / "votes").classifier.ablation == cc.Columns(3)
    with pytest.raises(CostcertError, match="votes of 5 images, but these are certificates of 2"):
        cc.write_certificates(cc.certify(votes.take([0, 1]), 2), tmp_path / "few", votes=tmp_path / "votes")


def as_first_version(folder, soft):
    """The same votes in the format of 0.1.0: the classifier in several places, another name for the mask."""
    manifest = json.loads((folder / "manifest.json").read_text())
    classifier = manifest.pop("classifier")
    for key in ("shard_digests", "manifest_digest"):
        manifest.pop(key)
    manifest |= {"version": 1, "margins": True, "ablation": classifier["ablation"]}
    manifest["soft"] = soft and {"labels": classifier["soft"]["best"], "cap": classifier["soft"]["cap"]}
    manifest["made"]["soft"] = classifier["soft"]
    manifest["made"]["model"]["hide"] = classifier["hide"]
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2, ensure_ascii=False) + "\n")
    for shard in folder.glob("shard-*"):
        table = pq.read_table(shard)
        pq.write_table(table.drop_columns(["cuts"]) if soft else table, shard)


@pytest.mark.parametrize("soft", [None, cc.Soft(0.3, 2)], ids=["hard", "soft"])
def test_votes_of_the_first_version_are_still_read(tmp_path, soft):
    new = vote(Tiny(), pictures(20), "columns:3", soft=soft, out=tmp_path / "new", shard_size=7)
    vote(Tiny(), pictures(20), "columns:3", soft=soft, out=tmp_path / "votes", shard_size=7)
    as_first_version(tmp_path / "votes", soft)
    old = cc.read_votes(tmp_path / "votes")
    assert old.classifier == new.classifier
    assert np.array_equal(old.ballots, cc.read_votes(tmp_path / "new").ballots)
    made = costcert("certify", tmp_path / "votes", "-p", "2", "-o", tmp_path / "certs")
    assert made.exit_code == 0, made.output
    result = costcert("check", tmp_path / "certs", "--votes", tmp_path / "votes", "--all")
    assert (result.exit_code, "all alike" in result.stdout) == (0, True), result.output
    assert cc.Deployed.from_run(tmp_path / "certs", Tiny()).classifier.soft == soft
    refused = costcert("certify", tmp_path / "votes", "-p", "2", "--epsilon", "0.1")
    assert (refused.exit_code, "vote again with this version" in refused.stderr) == (
        (2, True) if soft else (0, False)
    )
    # An unfinished run is not continued: the two formats describe votes differently.
    with pytest.raises(CostcertError, match=r"format version 1, this costcert reads 2: make .* again"):
        vote(Tiny(), pictures(20), "columns:3", soft=soft, out=tmp_path / "votes", shard_size=7)


def test_certificates_of_the_first_version_are_refused_in_one_sentence(two_runs):
    folder, _ = two_runs
    path = folder / "certs" / "manifest.json"
    content = {key: value for key, value in json.loads(path.read_text()).items() if "digest" not in key}
    path.write_text(json.dumps({**content, "version": 1}))
    with pytest.raises(CostcertError, match=r"format version 1, this costcert reads 2: make .* again"):
        cc.read_certificates(folder / "certs")
    result = costcert("check", folder / "certs", "--votes", folder / "votes")
    assert (result.exit_code, "make it again with this version" in result.stderr) == (2, True)


def test_a_run_is_attacked_as_it_was_certified(tmp_path):
    pytest.importorskip("torch", reason="the sample's network needs costcert[models]")
    ask = ["--model", SAMPLE, "--data", "sample", "--limit", 3]
    assert costcert("vote", *ask, "--soft", "0.25,4", "--out", tmp_path / "votes").exit_code == 0
    wanted = ["--ablation", "columns:4/stride=2", "--ties", "lowest", "-o", tmp_path / "certs"]
    assert costcert("certify", tmp_path / "votes", "-p", "2", *wanted).exit_code == 0
    little = ["--patch", "2", "--steps", 0, "--random", 2, "--out", tmp_path / "attack"]
    refused = costcert("attack", *ask, *little, "--run", tmp_path / "certs", "--soft", "0.5,4")
    assert (refused.exit_code, "leave --soft out" in refused.stderr) == (2, True)
    made = costcert("attack", *ask, *little, "--run", tmp_path / "certs")
    assert made.exit_code == 0, made.output
    manifest = json.loads((tmp_path / "attack" / "manifest.json").read_text())
    assert manifest["classifier"] == {
        **json.loads((tmp_path / "certs" / "manifest.json").read_text())["classifier"],
        "defender": "costcert",
    }


def test_a_shipped_model_is_found_to_be_the_one_that_voted(tmp_path):
    pytest.importorskip("torch", reason="the network needs costcert[models]")
    pytest.importorskip("fastapi", reason="the page needs costcert[explore]")
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "signs.npz", images=images, labels=[0, 1, 2, 42])
    ask = ["--model", "shipped:gtsrb", "--data", f"npz:{tmp_path}/signs.npz"]
    assert costcert("vote", *ask, "--out", tmp_path / "votes").exit_code == 0
    _, deployed = opened(ExploreOptions(source=tmp_path / "votes", models=["shipped:gtsrb"]))
    assert deployed.classifier == open_run(tmp_path / "votes").classifier_by("costcert")
    listed = deployed.predict(list(images), k=43)
    votes = cc.read_votes(tmp_path / "votes")
    rank = cc.certify(votes, 2, "costcert").rank("costcert", 2)
    assert (np.argmax(listed == votes.truth[:, None], axis=1) + 1 == rank).all()


def test_an_onnx_model_is_checked_with_the_recorded_mean_and_std(tmp_path):
    onnx_file = pytest.importorskip("onnx_files", reason="ONNX needs costcert[models,onnx]").onnx_file
    onnx_file(tmp_path / "net.onnx", ["n", 3, 32, 32])
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", images=images, labels=[0, 1, 2, 0])
    data = ["--model", f"onnx:{tmp_path}/net.onnx", "--data", f"npz:{tmp_path}/data.npz"]
    how = ["--mean", "0.4,0.5,0.6", "--std", "0.2,0.3,0.25", "--ablation", "columns:8/stride=8"]
    made = costcert("vote", *data, *how, "--hide", "zero", "--out", tmp_path / "votes")
    assert made.exit_code == 0, made.output
    assert costcert("certify", tmp_path / "votes", "-p", "2", "-o", tmp_path / "certs").exit_code == 0
    result = costcert("check", tmp_path / "certs", "--votes", tmp_path / "votes", *data, "--replay", 4)
    assert (result.exit_code, "has those that voted" in result.stdout) == (0, True), result.output
