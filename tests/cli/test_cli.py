"""The command line, as a user meets it: most of it in this process, the essence in a process of its own."""

import json
import os
import pickle
import re
import shlex
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

import costcert as cc
from command_line import invoke, parsed
from costcert.cli import app
from costcert.cli.commands import COMMANDS

NPZ = ["--ablation", "columns:3", "--classes", "5", "--image-size", "4x12"]


def costcert(*args, cwd=None, timeout=300, **environment):
    return subprocess.run(
        [sys.executable, "-m", "costcert", *map(str, args)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.fixture(autouse=True)
def width(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


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


HELP = """
import sys
from costcert.cli import main
for command in sys.argv[1:]:
    try:
        main([*command.split(), "--help"])
    except SystemExit:
        pass
    print("LOADED", sorted({"numba", "pandas", "pyarrow", "numpy", "torch"} & sys.modules.keys()))
"""


def test_help_loads_nothing_heavy():
    ask = [sys.executable, "-c", HELP, "", *COMMANDS]
    said = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
    *shown, rest = said.split("LOADED []\n")
    assert rest == ""
    for command, text in zip(["COMMAND", *COMMANDS], shown, strict=True):
        assert f"Usage: costcert {command}" in text


def test_help_names_the_commands():
    shown = invoke(["--help"]).stdout
    assert re.findall(r"^  ([a-z]+) ", shown, re.MULTILINE) == list(COMMANDS)
    assert invoke([]).stdout == invoke(["-h"]).stdout == shown


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_is_grouped_and_fits_80_columns(command):
    shown = invoke([command, "--help"])
    assert shown.exit_code == 0, shown.stderr
    assert "\x1b" not in shown.stdout
    assert max(len(line) for line in shown.stdout.splitlines()) <= 80
    # No description is cut, and none is empty.
    options = re.findall(r"^  (-.*|[A-Z]+)$|^  (?:-.*?|[A-Z]+)  +(.*)", shown.stdout, re.MULTILINE)
    assert all(name or text for name, text in options)
    assert "\nOutput\n" in shown.stdout or command in ("check", "explore")
    assert shown.stdout.rstrip().endswith(COMMANDS[command].EXAMPLES[1].splitlines()[-1].strip())


@pytest.mark.parametrize(
    "example",
    [pytest.param(example, id=example) for command in COMMANDS.values() for example in command.EXAMPLES],
)
def test_examples_of_the_help_parse(example):
    first, *words = shlex.split(example.replace("\\\n", " "))
    assert first == "costcert"
    options = parsed(words)
    for patch in (getattr(options, "patches", None) or getattr(options, "patch", None) or "2").split(","):
        assert cc.parse_patch(patch)


def test_each_command_has_two_examples():
    for name, command in COMMANDS.items():
        assert len(command.EXAMPLES) == 2
        assert all(example.startswith(f"costcert {name}") for example in command.EXAMPLES)


def test_help_shows_the_value_of_each_preset():
    shown = " ".join(invoke(["train", "--help"]).stdout.split())
    assert "Number of epochs. [default: 10; paper-imagenet, paper-small: 30]" in shown
    assert "[default: 128; paper-imagenet: 256]" in shown
    assert "[default: no; paper-imagenet, paper-small: yes]" in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_help_and_a_group(command):
    for argument in app[command].assemble_argument_collection(parse_docstring=False):
        if not argument.children:
            assert argument.parameter.help, argument.name
            assert [group.name for group in argument.parameter.group] not in ([], ["Parameters"]), (
                argument.name
            )


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("vote", "--data is missing (see costcert vote --help)"),
        ("vote --data d --model m", "--out is missing (see costcert vote --help)"),
        ("vote --data d --model m --out", "--out needs a value (see costcert vote --help)"),
        (
            "certify votes --pach 2",
            "unknown option --pach (did you mean '--patch'?) (see costcert certify --help)",
        ),
        ("certify --patch 2", "VOTES is missing (see costcert certify --help)"),
        ("report", "RUNS is missing (see costcert report --help)"),
        ("explore one two", "unexpected argument 'two' (see costcert explore --help)"),
        ("demo --limt 3", "unknown option --limt (did you mean '--limit'?) (see costcert demo --help)"),
        ("demo --limt=3", "unknown option --limt (did you mean '--limit'?) (see costcert demo --help)"),
        ("demo --no-limit", "unknown option --no-limit (did you mean '--limit'?) (see costcert demo --help)"),
        ("demo --limit 0", "--limit must be >= 1, got 0 (see costcert demo --help)"),
        ("demo --limit few", "cannot read --limit 'few': expected a whole number (see costcert demo --help)"),
        ("certify v -p 2 --tau -1", "--tau must be >= 0, got -1 (see costcert certify --help)"),
        (
            "certify v -p 2 --gpus x",
            "cannot read --gpus 'x': expected a number (see costcert certify --help)",
        ),
        ("explore --port 70000", "--port must be <= 65535, got 70000 (see costcert explore --help)"),
        ("check certs --all --sample 3", "--all and --sample both choose images: pass one of them"),
        ("--verison", "unknown option --verison (did you mean '--version'?) (see costcert --help)"),
        (
            "vot",
            "unknown command 'vot' (did you mean 'vote'?): use one of demo, train, vote, tune, certify, "
            "report, attack, check, explore (see costcert --help)",
        ),
    ],
)
def test_words_that_cannot_be_read_get_one_sentence_and_exit_2(line, sentence):
    result = invoke(line.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"costcert: {sentence}\n"


def test_the_last_of_several_values_counts_and_lists_are_collected():
    options = parsed(["vote", "-m", "m", "--data", "d", "-oa", "--out=b", "--limit", "3", "--limit", "4"])
    assert (str(options.out), options.images.limit) == ("b", 4)
    options = parsed(["report", "a", "--name", "x", "b", "--name", "y", "--votes", "v", "--votes", "w"])
    assert [str(path) for path in options.runs] == ["a", "b"]
    assert options.names == ("x", "y")
    assert [str(path) for path in options.votes] == ["v", "w"]


def test_a_token_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("COSTCERT_TOKEN", "a long secret")
    assert parsed(["explore", "--demo"]).token == "a long secret"
    assert parsed(["explore", "--demo", "--token", "another one"]).token == "another one"


@pytest.mark.parametrize("command", COMMANDS)
def test_options_can_be_sent_to_another_process(command):
    example = shlex.split(COMMANDS[command].EXAMPLES[1].replace("\\\n", " "))[1:]
    options = parsed(example)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize("out", [[], ["--out", "certs.csv"]])
def test_an_engine_without_a_folder_is_refused(npz, tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    result = invoke(["certify", npz, *NPZ, "--patch", "2", "--engine", "ray", *out])
    assert result.exit_code == 2
    assert result.stderr == (
        "costcert: --engine ray makes the shards of a folder: pass one with --out, or leave --engine out\n"
    )
    assert not (tmp_path / "certs.csv").exists()


def test_certifying_imports_no_deep_learning_library(npz):
    script = (
        "import sys\nfrom costcert.cli import main\n"
        f"try:\n    main(['certify', {str(npz)!r}, '--patch', '2', *{NPZ!r}])\nexcept SystemExit:\n    pass\n"
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
    result = invoke(["certify", npz, *NPZ, "--patch", "1,2,3,4,rectangle:1x3,2*square:1,2%", "-k", "1-5"])
    assert result.exit_code == 0, result.stderr
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_no_number_is_cut_at_any_width(npz, votes, monkeypatch):
    accuracy = cc.certify(votes, [1, 2]).accuracy()
    pairs = sorted(f"{100 * row.clean:.1f}/{100 * row.certified:.1f}" for row in accuracy.itertuples())
    for columns in ("40", ""):
        # Without a width, as redirected, no line is broken.
        monkeypatch.setenv("COLUMNS", columns)
        result = invoke(["certify", npz, *NPZ, "--patch", "1,2"])
        assert sorted(re.findall(r"\d+\.\d/\d+\.\d", result.stdout)) == pairs
        assert result.stdout.count("defender") == (2 if not columns else 6)


def test_a_patch_is_called_as_it_was_requested(npz):
    shown = invoke(["certify", npz, *NPZ, "--patch", "8%,3,3/12,2*8%,2/4"]).stdout
    headings = [line.partition(": touches")[0] for line in shown.splitlines() if ": touches" in line]
    assert headings == [
        "8% (square:2)",
        "square:3",
        "3/12 (rectangle:1x3)",
        "2*8% (2*square:2)",
        "2/4 (rectangle:2x6)",
    ]
    both = invoke(["certify", npz, *NPZ, "--patch", "8%,2, 8 %,square:2"]).stdout
    assert [line for line in both.splitlines() if ": touches" in line] == [
        "8% and square:2: touches at most 4 of 12 mutants"
    ]


def test_k_beyond_the_classes_is_refused_and_all_classes_are_no_promise(npz, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(["certify", npz, *NPZ, "--patch", "2", "-k", "1,6", "--out", "certs"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        "costcert: got k 6, but there are 5 classes, and the top 5 already lists every label: pass k below "
        "5\n"
    )
    assert not (tmp_path / "certs").exists()
    promise = "The top 5 of 5 classes is no promise: every label is always in it."
    assert promise in invoke(["certify", npz, *NPZ, "--patch", "2", "-k", "1,5"]).stdout
    assert promise not in invoke(["certify", npz, *NPZ, "--patch", "2", "-k", "1,4"]).stdout
    # The default ends with the classes.
    arrays = np.load(npz)
    np.savez(tmp_path / "few.npz", ballots=arrays["ballots"] % 3, truth=arrays["truth"] % 3)
    few = invoke(["certify", "few.npz", *NPZ[:2], "--classes", "3", *NPZ[4:], "--patch", "2"])
    assert re.findall(r"top-\d", few.stdout) == ["top-1", "top-2", "top-3"]


@pytest.mark.parametrize("name", ["x.xlsx", "x.CSV", "deep/x.tsv", "x.npz"])
def test_the_ending_of_another_file_is_refused(npz, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    result = invoke(["certify", npz, *NPZ, "--patch", "2", "--out", name])
    assert result.exit_code == 2
    assert result.stderr == (
        f"costcert: {name} ends in {name[name.index('.') :]}: certificates are written to a file that ends "
        "in .parquet, .csv or .json, or to a folder\n"
    )
    assert list(tmp_path.iterdir()) == [npz]


@pytest.mark.parametrize("name", ["run.v2", "run.hard", "2026.11.18"])
def test_other_names_with_a_dot_are_folders(npz, tmp_path, name):
    assert invoke(["certify", npz, *NPZ, "--patch", "2", "--out", tmp_path / name]).exit_code == 0
    assert len(cc.read_certificates(tmp_path / name)) == 30


def test_it_says_which_ballots_were_certified_and_which_defenders_left_out(votes, npz, tmp_path):
    soft = cc.Votes.soft(
        votes.ballots[..., None], np.full((30, 12, 1), 3), votes.truth, cap=4,
        temperature=0.25, num_classes=5, ablation="columns:3", image_size=(4, 12),
    )  # fmt: skip
    cc.write_votes(soft, tmp_path / "soft")
    shown = " ".join(invoke(["certify", tmp_path / "soft", "--patch", "2"]).stdout.split())
    assert "Certified: columns:3, soft ballots of 1 labels at temperature 0.25." in shown
    assert "Left out" not in shown
    assert "PatchGuard" in shown
    hard = invoke(["certify", tmp_path / "soft", "--patch", "2", "--hard"]).stdout
    assert "Certified: columns:3, hard ballots." in hard
    assert "Left out" not in hard
    assert "PatchGuard" in hard
    named = invoke(["certify", tmp_path / "soft", "--patch", "2", "--defender", "drs"]).stdout
    assert "Left out" not in named

    known = np.ones((30, 12), bool)
    known[3, 4] = False
    cc.write_votes(votes.replace(known=known), tmp_path / "partial")
    partial = " ".join(invoke(["certify", tmp_path / "partial", "--patch", "2"]).stdout.split())
    assert "Left out: patchguard needs the ballots of all mutants, but some were not evaluated." in partial


def test_it_says_what_an_earlier_run_had_done(votes, tmp_path):
    cc.write_votes(votes, tmp_path / "votes", shard_size=7)
    words = ["certify", tmp_path / "votes", "--patch", "2", "--out", tmp_path / "certs"]
    assert "there already" not in invoke(words).stdout
    (tmp_path / "certs" / "shard-00003.parquet").unlink()
    (tmp_path / "certs" / "shard-00001.parquet").unlink()
    assert "3 of 5 shards were there already, from an earlier run." in invoke(words).stdout
    assert "5 of 5 shards were there already, from an earlier run." in invoke(words).stdout


@pytest.mark.parametrize(
    "encoding",
    [
        "ascii",
        pytest.param("cp1252", marks=pytest.mark.slow),
        pytest.param("latin-1", marks=pytest.mark.slow),
    ],
)
def test_output_in_an_encoding_that_lacks_characters_is_spelled_in_ascii(npz, encoding):
    result = costcert("certify", npz, *NPZ, "--patch", "1,2", PYTHONIOENCODING=encoding, PYTHONUTF8="0")
    assert result.returncode == 0, result.stderr
    assert result.stdout.isascii()
    assert result.stdout.count("PG-spade/CBN ") == 2
    assert "-----+-----" in result.stdout


# Commands one after the other in one process, which imports torch once; after each, its exit code.
ONE_BY_ONE = """
import json, sys
from costcert.cli import main
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as exited:
        sys.stderr.flush()
        print("ENDED", exited.code or 0, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_every_command_prints_in_every_encoding(tmp_path, encoding):
    """From training to the page, in a folder whose name the encoding lacks."""
    here = tmp_path / "Zahlen-♠-ω"
    here.mkdir()
    images = ["--data", "sample", "--limit", "10"]
    model = ["--model", "shipped:fashion"]
    lines = [
        ("--help",),
        ("demo --limit 5 --out", here / "demo"),
        (
            "train --data sample --split test --limit 60 --model strip:small --ablation columns:4 --epochs 1",
            *("--out", here / "model"),
        ),
        ("vote --soft 0.25,4 --probe", *images, *model, "--out", here / "votes"),
        ("tune --patch 2 -k 1", here / "votes", "--out", here / "tuned.json"),
        ("certify --patch 2", here / "votes", "--out", here / "certs"),
        ("report", here / "certs", "--out", here / "report.md"),
        ("check", here / "certs", "--votes", here / "votes"),
        (
            "attack --patch 2 -k 3 --places 1 --restarts 1 --steps 1 --run",
            here / "certs",
            *(*images, *model, "--out", here / "attack"),
        ),
        ("certify --patch 2", here / "nothing"),
    ]
    asked = [[*line.split(), *map(str, words)] for line, *words in lines]
    done = subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, json.dumps(asked)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
        timeout=600,
        check=False,
    )
    whole = done.stdout.decode(encoding)
    assert done.returncode == 0, whole
    assert "Traceback" not in whole, whole
    *parts, rest = re.split(r"ENDED (\d+)\r?\n", whole)
    assert rest == ""
    for (_, *words), said, code in zip(lines, parts[::2], parts[1::2], strict=True):
        assert code == ("2" if words == [here / "nothing"] else "0"), said
        assert not words or r"Zahlen-\u2660" in said or "Zahlen--spade" in said


@pytest.mark.parametrize("ending", ["csv", "json", "parquet", "folder"])
def test_certificates_are_written_as_asked(npz, votes, tmp_path, ending):
    out = tmp_path / "out" / ("certs" if ending == "folder" else f"certs.{ending}")
    result = invoke(["certify", npz, *NPZ, "--patch", "1,2", "--ties", "lowest", "--out", out])
    assert result.exit_code == 0, result.stderr
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
    manifest = ["certs.csv.manifest.json"] if ending == "csv" else []
    assert sorted(path.name for path in out.parent.iterdir()) == [out.name, *manifest]


def test_a_folder_of_votes_is_certified_by_shards(votes, tmp_path):
    cc.write_votes(votes, tmp_path / "votes", shard_size=7)
    result = invoke(["certify", tmp_path / "votes", "--patch", "2", "--out", tmp_path / "certs"])
    assert result.exit_code == 0, result.stderr
    assert len(list((tmp_path / "certs").glob("shard-*.parquet"))) == 5
    assert cc.read_certificates(tmp_path / "certs").to_pandas().equals(cc.certify(votes, [2]).to_pandas())


def test_a_subset_of_the_mutants_is_certified_without_voting_again(votes, tmp_path):
    cc.write_votes(votes, tmp_path / "votes")
    ask = ["certify", tmp_path / "votes", "--patch", "2", "--ablation", "columns:3/stride=2"]
    result = invoke([*ask, "-o", tmp_path / "c"])
    assert result.exit_code == 0, result.stderr
    expected = cc.certify(votes.select("columns:3/stride=2"), [2])
    assert cc.read_certificates(tmp_path / "c").to_pandas().equals(expected.to_pandas())


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
        result = invoke(["certify", tmp_path / "votes", "--patch", "1", *option, "--out", out])
        assert result.exit_code == 0, result.stderr
        assert cc.read_certificates(out).to_pandas().equals(expected.to_pandas())


def test_a_begun_folder_is_continued_and_another_request_refused(votes, tmp_path):
    cc.write_votes(votes, tmp_path / "votes", shard_size=7)
    ask = ["certify", tmp_path / "votes", "--patch", "2", "--out", tmp_path / "certs"]
    assert invoke(ask).exit_code == 0
    whole = cc.read_certificates(tmp_path / "certs").to_pandas()
    (tmp_path / "certs" / "shard-00003.parquet").unlink()
    kept = (tmp_path / "certs" / "shard-00001.parquet").stat().st_mtime_ns
    again = invoke(ask)
    assert again.exit_code == 0
    assert cc.read_certificates(tmp_path / "certs").to_pandas().equals(whole)
    assert (tmp_path / "certs" / "shard-00001.parquet").stat().st_mtime_ns == kept
    other = invoke(["certify", tmp_path / "votes", "--patch", "1", "--out", tmp_path / "certs"])
    assert other.exit_code == 2
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
        assert "finished work is kept" in said
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
    result = invoke(["certify", *args, "--out", "certs"])
    assert result.exit_code == 2, result.output
    assert says in result.stderr
    assert result.stderr.startswith("costcert: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""
    assert not (tmp_path / "certs").exists()


def test_out_that_is_a_file_or_cannot_be_written(npz, tmp_path):
    (tmp_path / "certs").write_text("mine")
    result = invoke(["certify", npz, *NPZ, "--patch", "2", "--out", tmp_path / "certs"])
    assert result.exit_code == 2
    assert "is a file" in result.stderr
    assert (tmp_path / "certs").read_text() == "mine"
    result = invoke(["certify", npz, *NPZ, "--patch", "2", "--out", tmp_path / "certs" / "in.csv"])
    assert result.exit_code == 2
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
