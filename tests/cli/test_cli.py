"""The command line, as a user meets it: in a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import costcert as cc
from costcert.cli import app

NPZ = ["--ablation", "columns:3", "--classes", "5", "--image-size", "4x12"]


def costcert(*args, cwd=None, timeout=300, **environment):
    return subprocess.run(
        [sys.executable, "-m", "costcert", *map(str, args)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "COLUMNS": "80", **environment},
        check=False,
    )


@pytest.fixture
def npz(tmp_path):
    rng = np.random.default_rng(3)
    path = tmp_path / "votes.npz"
    truth = rng.integers(0, 5, 30)
    ballots = np.where(rng.random((30, 12)) < 0.8, truth[:, None], rng.integers(0, 5, (30, 12)))
    np.savez(path, ballots=ballots, truth=truth)
    return path


@pytest.fixture
def votes(npz):
    arrays = np.load(npz)
    return cc.Votes(
        arrays["ballots"], arrays["truth"], num_classes=5, ablation="columns:3", image_size=(4, 12)
    )


def test_help_names_the_commands_and_loads_nothing_heavy():
    heavy = ["numba", "pandas", "pyarrow", "numpy", "torch"]
    script = (
        "import sys\n"
        "from costcert.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        f"print('LOADED', [m for m in {heavy!r} if m in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "certify" in result.stdout
    assert "LOADED []" in result.stdout


def test_certifying_imports_no_deep_learning_library(npz):
    script = (
        "import sys\nfrom costcert.cli import app\n"
        f"try:\n    app(['certify', {str(npz)!r}, '--patch', '2', *{NPZ!r}])\nexcept SystemExit:\n    pass\n"
        "print('LOADED', [m for m in ('torch', 'torchvision', 'timm') if m in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "certified" in result.stdout
    assert "LOADED []" in result.stdout


def test_version():
    assert costcert("--version").stdout.strip() == f"costcert {cc.__version__}"


def test_the_table_shows_what_the_library_says_and_fits_80_columns(npz, votes):
    result = costcert("certify", npz, *NPZ, "--patch", "1,2", "--defender", "costcert,drs")
    assert result.returncode == 0, result.stderr
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    assert "square:1: touches at most 3 of 12 mutants" in result.stdout
    accuracy = cc.certify(votes, [1, 2], ["costcert", "drs"]).accuracy()
    for patch, rows in accuracy.groupby("patch"):
        block = result.stdout.split(f"{patch}: touches")[1]
        for title, name in (("CostCert", "costcert"), ("DRS", "drs")):
            cells = rows[rows["defender"] == name]
            shown = re.search(rf"{title} +(.*)", block)[1].split()
            assert shown == [
                f"{100 * clean:.1f}/{100 * certified:.1f}"
                for clean, certified in zip(cells["clean"], cells["certified"], strict=True)
            ]


def test_seven_sizes_and_all_defenders_fit_80_columns(npz):
    result = costcert("certify", npz, *NPZ, "--patch", "1,2,3,4,rectangle:1x3,2*square:1,2%", "-k", "1-5")
    assert result.returncode == 0, result.stderr
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


@pytest.mark.parametrize("ending", ["csv", "json", "parquet", "folder"])
def test_certificates_are_written_as_asked(npz, votes, tmp_path, ending):
    out = tmp_path / "out" / ("certs" if ending == "folder" else f"certs.{ending}")
    result = costcert("certify", npz, *NPZ, "--patch", "1,2", "--ties", "lowest", "--out", out)
    assert result.returncode == 0, result.stderr
    expected = cc.certify(votes, [1, 2], ties="lowest")
    rows = expected.to_pandas().rename(columns={"image": "image_id"})
    if ending == "csv":
        found = pd.read_csv(out, dtype={"image_id": str})
    elif ending == "parquet":
        found = pd.read_parquet(out)
    elif ending == "json":
        content = json.loads(out.read_text())
        found = pd.DataFrame(content["certificates"])
        assert content["manifest"]["classifier"]["ties"] == "lowest"
        assert content["accuracy"] == expected.accuracy().to_dict(orient="records")
    else:
        assert sorted(path.name for path in out.iterdir()) == ["manifest.json", "shard-00000.parquet"]
        found = cc.read_certificates(out).to_pandas().rename(columns={"image": "image_id"})
    for column in rows.columns:
        assert found[column].astype(str).tolist() == rows[column].astype(str).tolist(), column
    assert [path.name for path in out.parent.iterdir()] == [out.name]


def test_a_folder_of_votes_is_certified_by_shards(votes, tmp_path):
    cc.write_votes(votes, tmp_path / "votes", shard_size=7)
    result = costcert("certify", tmp_path / "votes", "--patch", "2", "--out", tmp_path / "certs")
    assert result.returncode == 0, result.stderr
    assert len(list((tmp_path / "certs").glob("shard-*.parquet"))) == 5
    assert cc.read_certificates(tmp_path / "certs").to_pandas().equals(cc.certify(votes, [2]).to_pandas())


def test_a_subset_of_the_mutants_is_certified_without_voting_again(votes, tmp_path):
    cc.write_votes(votes, tmp_path / "votes")
    result = costcert(
        "certify",
        tmp_path / "votes",
        "--patch",
        "2",
        "--ablation",
        "columns:3/stride=2",
        "-o",
        tmp_path / "c",
    )
    assert result.returncode == 0, result.stderr
    expected = cc.certify(votes.select("columns:3/stride=2"), [2])
    assert cc.read_certificates(tmp_path / "c").to_pandas().equals(expected.to_pandas())


@pytest.mark.slow
def test_soft_votes_and_their_hard_ballots(tmp_path):
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 5, (8, 12, 2))
    votes = cc.Votes.soft(
        labels, np.full_like(labels, 3), rng.integers(0, 5, 8), cap=8,
        num_classes=5, ablation="columns:3", image_size=(4, 12),
    )  # fmt: skip
    cc.write_votes(votes, tmp_path / "votes")
    for option, expected in (([], cc.certify(votes, [1])), (["--hard"], cc.certify(votes.hard(), [1]))):
        out = tmp_path / f"certs{len(option)}"
        result = costcert("certify", tmp_path / "votes", "--patch", "1", *option, "--out", out)
        assert result.returncode == 0, result.stderr
        assert cc.read_certificates(out).to_pandas().equals(expected.to_pandas())


@pytest.mark.slow
def test_a_begun_folder_is_continued_and_another_request_refused(votes, tmp_path):
    cc.write_votes(votes, tmp_path / "votes", shard_size=7)
    ask = ["certify", tmp_path / "votes", "--patch", "2", "--out", tmp_path / "certs"]
    assert costcert(*ask).returncode == 0
    whole = cc.read_certificates(tmp_path / "certs").to_pandas()
    (tmp_path / "certs" / "shard-00003.parquet").unlink()
    kept = (tmp_path / "certs" / "shard-00001.parquet").stat().st_mtime_ns
    again = costcert(*ask)
    assert again.returncode == 0
    assert cc.read_certificates(tmp_path / "certs").to_pandas().equals(whole)
    assert (tmp_path / "certs" / "shard-00001.parquet").stat().st_mtime_ns == kept
    other = costcert("certify", tmp_path / "votes", "--patch", "1", "--out", tmp_path / "certs")
    assert other.returncode == 2
    assert 'its patches is ["square:2"], this run\'s is ["square:1"]' in other.stderr


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_goes_on_where_it_was(tmp_path, stop):
    rng = np.random.default_rng(11)
    ballots = rng.integers(0, 40, (6000, 60))
    votes = cc.Votes(ballots, ballots[:, 0], num_classes=50, ablation="columns:5", image_size=(60, 60))
    cc.write_votes(votes, tmp_path / "votes", shard_size=200)
    ask = [
        sys.executable, "-m", "costcert", "certify", str(tmp_path / "votes"),
        "--patch", "5,10,2*square:5", "--out", str(tmp_path / "certs"),
    ]  # fmt: skip
    with subprocess.Popen(ask, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        deadline = time.monotonic() + 120
        while len(list((tmp_path / "certs").glob("shard-*.parquet"))) < 2 and running.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        running.send_signal(stop)
        _, said = running.communicate(timeout=120)
    done = {path: path.stat().st_mtime_ns for path in (tmp_path / "certs").glob("shard-*.parquet")}
    assert done
    if stop == signal.SIGINT and running.returncode != 0:
        assert running.returncode == 130
        assert "what was finished is kept" in said
        assert "Traceback" not in said
    subprocess.run(ask, check=True, capture_output=True)
    assert all(path.stat().st_mtime_ns == when for path, when in done.items())
    assert not list((tmp_path / "certs").glob(".*"))
    expected = cc.certify(votes, [5, 10, "2*square:5"])
    assert cc.read_certificates(tmp_path / "certs").to_pandas().equals(expected.to_pandas())


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["missing.npz", *NPZ, "--patch", "2"], "missing.npz is not there"),
        (["votes.npz", "--patch", "2"], "pass --ablation, --classes, --image-size"),
        (["votes.npz", *NPZ, "--patch", "5"], "square:5 does not fit a 4x12 image"),
        (["votes.npz", *NPZ, "--patch", "rectangle:9x1"], "does not fit"),
        (["votes.npz", *NPZ, "--patch", ","], "no patch is named"),
        (["votes.npz", *NPZ, "--patch", "2x2"], "cannot read the patch '2x2'"),
        (["votes.npz", *NPZ, "--patch", "2", "--defender", "patchgard"], "did you mean 'patchguard'?"),
        (["votes.npz", *NPZ, "--patch", "2", "--ties", "up"], "ties are 'against' or 'lowest'"),
        (["votes.npz", *NPZ, "--patch", "2", "-k", "5-1"], "cannot read k '5-1'"),
        (["votes.npz", *NPZ, "--patch", "2", "--epsilon", "0.1"], "hold no margins"),
        (["votes.npz", *NPZ, "--patch", "2", "--tau", "3"], "these votes are hard"),
        (
            ["votes.npz", *NPZ[:2], "--classes", "2", *NPZ[4:], "--patch", "2"],
            "2 classes are labelled 0 to 1",
        ),
        (["votes.npz", *NPZ[:4], "--image-size", "4x13", "--patch", "2"], "got 12 ballots per image"),
        (["votes.npz", *NPZ[:4], "--image-size", "big", "--patch", "2"], "cannot read the image size 'big'"),
        (["votes.npz", "--ablation", "columns:13", *NPZ[2:], "--patch", "2"], "columns:13 does not fit"),
        (["votes.npz", "--ablation", "colums:3", *NPZ[2:], "--patch", "2"], "did you mean 'columns'?"),
        ([".", "--patch", "2"], "holds no manifest.json"),
        (["text.npz", *NPZ, "--patch", "2"], "cannot be read as .npz"),
    ],
)
def test_bad_input_gets_one_sentence_exit_2_and_writes_nothing(npz, tmp_path, monkeypatch, args, says):
    (tmp_path / "text.npz").write_text("not an archive")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["certify", *args, "--out", "certs"])
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert result.stderr.startswith("costcert: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert not (tmp_path / "certs").exists()


def test_out_that_is_a_file_or_cannot_be_written(npz, tmp_path):
    (tmp_path / "certs").write_text("mine")
    result = costcert("certify", npz, *NPZ, "--patch", "2", "--out", tmp_path / "certs")
    assert result.returncode == 2
    assert "is a file" in result.stderr
    assert (tmp_path / "certs").read_text() == "mine"
    result = costcert("certify", npz, *NPZ, "--patch", "2", "--out", tmp_path / "certs" / "in.csv")
    assert result.returncode == 2
    assert "cannot write" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_first_call_says_that_it_compiles(npz, tmp_path):
    cache = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    first = costcert("certify", npz, *NPZ, "--patch", "2", "--defender", "cbn", **cache)
    second = costcert("certify", npz, *NPZ, "--patch", "2", "--defender", "cbn", **cache)
    assert "costcert: compiling its kernels" in first.stderr
    assert "compiling" not in second.stderr
    assert first.stdout == second.stdout
