"""`costcert certify` against patches on originals of several sizes."""

import pytest

import costcert as cc
from command_line import invoke
from costcert.geometry.touch import touched
from costcert.progress import bar
from costcert.votes.originals import on_input
from mixed_sizes import model_of, votes_of


@pytest.fixture(scope="module")
def votes():
    return votes_of(model_of())


def test_certificates_go_through_the_command_line(votes, tmp_path):
    """certify, check and report take them, from a folder and from a file."""
    cc.write_votes(votes, tmp_path / "votes")
    cc.write_votes(votes, tmp_path / "votes.npz")
    for source, name in (("votes", "certs"), ("votes.npz", "certs.csv")):
        made = invoke(["certify", tmp_path / source, "-p", "original:1,3", "-o", tmp_path / name])
        assert made.exit_code == 0, made.output
        assert "3 sizes, changes up to" in " ".join(made.stdout.split())
        checked = invoke(["check", tmp_path / name, "--votes", tmp_path / source, "--all"])
        assert checked.exit_code == 0, checked.output
        assert "all alike" in checked.stdout


def test_certify_says_what_resizing_makes_of_a_scaled_size(votes, tmp_path):
    cc.write_votes(votes, tmp_path / "votes")
    made = invoke(["certify", tmp_path / "votes", "-p", "2/6"])
    assert "resizing (bicubic) spreads these to up to" in " ".join(made.stdout.split())


def test_a_picture_that_a_patch_does_not_fit_is_named_before_anything_is_written(votes, tmp_path):
    """Of all shards."""
    cc.write_votes(votes.replace(originals=[[9, 12]] * 4 + [[3, 3]] * 2), tmp_path / "votes", shard_size=2)
    made = invoke(["certify", tmp_path / "votes", "-p", "original:4", "-o", tmp_path / "certs"])
    assert made.exit_code == 2
    said = " ".join(made.output.split())
    assert "image 4 and 1 more of 6: original:4 does not fit an original of 3x3" in said
    assert not (tmp_path / "certs").exists()


def test_headings_are_found_while_images_are_certified(votes, tmp_path, monkeypatch):
    """A second run has certificates already, and follows the patch once more, with the same heading."""
    cc.write_votes(votes, tmp_path / "votes", shard_size=2)
    shown = []
    monkeypatch.setattr("costcert.cli.certify.bar", lambda *said: shown.append(said[0]) or bar(*said))
    command = ["certify", tmp_path / "votes", "-p", "original:1,3", "-o", tmp_path / "certs"]
    first = invoke(command).stdout
    assert shown == ["certifying"]
    again = invoke(command).stdout
    assert shown == ["certifying", "certifying", "following original:1"]
    assert " ".join(again.split()).startswith(" ".join(first.split("Certificates:")[0].split()))
    deltas = {
        touched(votes.ablation, on_input(votes.take([image]), cc.parse_patch("original:1")), (9, 12)).delta
        for image in range(len(votes))
    }
    assert len(deltas) > 1
    assert f"touches at most {max(deltas)} of 12 mutants" in " ".join(first.split())


def test_images_of_a_shard_are_certified_size_by_size(votes, tmp_path, monkeypatch):
    """As many at once as for other patches, and in the order of the votes."""
    monkeypatch.setattr("costcert.cli.certify._STEP", 2)
    cc.write_votes(votes, tmp_path / "votes")
    made = invoke(["certify", tmp_path / "votes", "-p", "original:1", "-o", tmp_path / "certs"])
    assert made.exit_code == 0
    found, expected = cc.read_certificates(tmp_path / "certs"), cc.certify(votes, "original:1")
    assert found.image_ids.tolist() == expected.image_ids.tolist()
    for defender in expected.defenders:
        kept = found.min_k(defender, "original:1")
        assert kept.tolist() == expected.min_k(defender, "original:1").tolist()


@pytest.mark.parametrize("prepared", [{"resize": "bicubic"}, "bicubic", None])
def test_advice_never_stops_a_run(votes, tmp_path, prepared):
    """Nothing is said where the manifest does not say how pictures were prepared, or they are too large."""
    model = {**votes.provenance["model"], "preprocessing": prepared}
    cc.write_votes(votes.replace(provenance={**votes.provenance, "model": model}), tmp_path / "other")
    cc.write_votes(votes, tmp_path / "votes")
    for folder, patch in (("other", "2/6"), ("votes", "20000/70000")):
        made = invoke(["certify", tmp_path / folder, "-p", patch])
        assert made.exit_code == 0, made.output
        assert "resizing" not in made.stdout
