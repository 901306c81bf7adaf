"""Engines: each makes all shards, once, and with the same bytes."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
from functools import cached_property
from importlib.resources import files

import numpy as np
import pytest

import costcert as cc
from command_line import invoke
from costcert.attacks.campaign import Campaign
from costcert.attacks.effort import Effort
from costcert.cli import engine_options, vote
from costcert.cli.attack import AttackJob
from costcert.cli.engine_options import EngineOptions
from costcert.engines import Resources, find_engine, on_slurm
from costcert.engines.base import parse_options
from costcert.engines.on_local import rank_and_world_size
from costcert.errors import CostcertError, VotesError
from tiny import Leaky, greys
from writing import COMPLETE, LONGEST_WAIT, SHARDS, WritingJob, modified, notes, run, written


@pytest.mark.filterwarnings("ignore")
def test_every_shard_is_made_and_the_job_opened_once_per_worker(engine, tmp_path):
    done = []
    run(engine, WritingJob(tmp_path), on_done=done.append)
    assert written(tmp_path) == COMPLETE
    assert sorted(done) == list(range(SHARDS))
    assert 1 <= len(notes(tmp_path)) <= 2


@pytest.mark.filterwarnings("ignore")
def test_a_shard_that_cannot_be_made_is_one_sentence(engine, tmp_path):
    # The command line derives its exit code from the class.
    with pytest.raises(VotesError) as error:
        run(engine, WritingJob(tmp_path, bad=3), range(6))
    assert str(error.value) == "shard 3 cannot be made"
    assert "3.txt" not in written(tmp_path)


def test_ranks_share_the_shards(tmp_path, monkeypatch):
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        before = written(tmp_path)
        run("local", WritingJob(tmp_path))
        assert len(written(tmp_path)) == len(before) + SHARDS // 3
    assert written(tmp_path) == COMPLETE
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(CostcertError, match="RANK is 3, but WORLD_SIZE is 3"):
        rank_and_world_size()
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(CostcertError, match="must be integers, got 'one' and '3'"):
        rank_and_world_size()


def test_a_rank_loads_the_model_once_and_only_the_request_is_pickled(tmp_path, monkeypatch):
    loads, jobs = [], []
    load_inputs, spread = vote.load_inputs, vote.spread
    monkeypatch.setattr(vote, "load_inputs", lambda *options: loads.append(options) or load_inputs(*options))
    monkeypatch.setattr(
        vote,
        "spread",
        lambda engine, job, doing, begin: jobs.append(job) or spread(engine, job, doing, begin=begin),
    )
    command = ["vote", "--model", "shipped:fashion", "--data", "sample", "--limit", "4", "--shard-size", "1"]
    monkeypatch.setenv("WORLD_SIZE", "2")
    # Rank 0 waits for the shards of rank 1.
    for rank in (1, 0):
        monkeypatch.setenv("RANK", str(rank))
        result = invoke([*command, "--out", str(tmp_path / "votes")])
        assert result.exit_code == 0, result.output
    assert len(loads) == 2
    assert len(cc.read_votes(tmp_path / "votes")) == 4
    job = jobs[0]
    assert job.collector is job.collector
    copy = pickle.loads(pickle.dumps(job))
    assert copy == job
    assert vars(copy) == {"request": job.request}


def test_unknown_engines_and_options():
    with pytest.raises(CostcertError, match="did you mean 'slurm'"):
        find_engine("slum")
    for text in ("partition", "=gpu", "a b=c", "x="):
        with pytest.raises(CostcertError, match="write it like partition=gpu"):
            parse_options([text])
    assert parse_options(["partition=gpu", "mem_gb=8"]) == {"partition": "gpu", "mem_gb": "8"}


# Models and data that do not exist: options are refused before anything is loaded.
ARGUMENTS = {
    "certify": ["missing-votes", "--patch", "2"],
    "vote": ["--model", "missing-model", "--data", "missing-data"],
    "attack": ["--model", "missing-model", "--data", "missing-data", "--patch", "2"],
}


def refused(command, out, *options):
    result = invoke([command, *ARGUMENTS[command], "--out", str(out), *options])
    assert result.exit_code == 2, result.output
    assert not out.exists()
    (sentence,) = result.stderr.splitlines()
    return sentence.removeprefix("costcert: ")


@pytest.mark.parametrize("command", ARGUMENTS)
def test_the_local_engine_refuses_options_that_it_would_ignore(command, tmp_path):
    out = tmp_path / "out"
    # Also the values that are the defaults of other engines.
    for option in (
        ["--workers", "1"],
        ["--cpus", "1"],
        ["--gpus", "0"],
        ["--engine-option", "partition=gpu"],
    ):
        assert refused(command, out, *option).startswith(f"{option[0]} is for --engine ray or slurm: ")
        assert refused(command, out, "--engine", "local", *option).startswith(f"{option[0]} is for --engine ")
    assert refused(command, out, "--gpus", "1", "--workers", "2") == (
        "--workers and --gpus are for --engine ray or slurm: name one of these, or leave them out, because "
        "the local engine is this one process"
    )


@pytest.mark.slow
@pytest.mark.parametrize("command", ARGUMENTS)
@pytest.mark.parametrize(
    ("engine", "gpus"),
    [("slurm", "0.5"), ("slurm", "1.5"), ("slurm", "inf"), ("ray", "1.5"), ("ray", "inf")],
)
def test_gpus_that_an_engine_cannot_allocate_are_refused(command, engine, gpus, tmp_path):
    sentence = refused(command, tmp_path / "out", "--engine", engine, "--gpus", gpus)
    share = " or a share of one" if engine == "ray" else ""
    assert f"allocates entire GPUs{share}, got {gpus} per worker: " in sentence


def test_engines_get_the_requested_resources_and_one_core_by_default(tmp_path, monkeypatch):
    received = []
    monkeypatch.setattr(
        engine_options, "find_engine", lambda name: lambda job, shards, given, on_done: received.append(given)
    )
    monkeypatch.setattr(engine_options, "wait_until", lambda done: None)

    class EmptyFolder:
        folder, num_images = tmp_path / "votes", 0
        missing = seal = lambda *_: []
        shard_length = lambda *_: 1  # noqa: E731

    def resources(engine="local", workers=None, cpus=None, gpus=None):
        requested = EngineOptions(engine=engine, workers=workers, cpus=cpus, gpus=gpus)
        engine_options.spread(requested, None, "voting", begin=EmptyFolder)
        return (received[-1].workers, received[-1].cpus, received[-1].gpus)

    assert resources() == resources("ray") == resources("slurm") == (None, 1, 0)
    assert resources("ray", 3, 2, 0.5) == (3, 2, 0.5)
    assert resources("slurm", 3, 2, 4) == (3, 2, 4)


def test_the_slurm_engine_refuses_a_share_of_a_gpu(tmp_path):
    for gpus in (0.5, 2.5):
        with pytest.raises(CostcertError, match=f"SLURM allocates entire GPUs, got {gpus} per worker"):
            find_engine("slurm")(WritingJob(tmp_path), [0], Resources(gpus=gpus, logs=tmp_path), print)
    assert not written(tmp_path)


@pytest.mark.slow
def test_a_cluster_survives_the_death_of_a_worker_and_of_a_node(cluster, worker_modules, tmp_path):
    (node,) = cluster.worker_nodes
    (raylet,) = node.all_processes["raylet"]

    def on_done(shard):
        """After two shards both workers wait at the gate: one is killed, the other one loses its node."""
        done.append(shard)
        if len(done) == 2:
            (on_head,) = [note for note in notes(tmp_path) if note["parent"] != raylet.process.pid]
            os.kill(on_head["process"], signal.SIGKILL)
            cluster.remove_node(node, allow_graceful=False)
            (tmp_path / "gate").touch()

    done = []
    try:
        run("ray", WritingJob(tmp_path, gate=2, opened_first=2), on_done=on_done)
    finally:
        cluster.add_node(num_cpus=1)
    assert written(tmp_path) == COMPLETE
    assert sorted(done) == list(range(SHARDS))
    assert 3 <= len(notes(tmp_path)) <= 4


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["slurm"], indirect=True)
def test_a_job_that_dies_is_replaced_for_its_missing_shards(engine, tmp_path):
    def on_done(shard):
        """After two shards both jobs wait at the gate: one loses its worker, the other one is killed."""
        done.append(shard)
        if len(done) == 2:
            first, second = notes(tmp_path)
            os.kill(first["process"], signal.SIGKILL)
            os.kill(second["parent"], signal.SIGKILL)
            before.update(modified(tmp_path))
            (tmp_path / "gate").touch()

    done, before = [], {}
    run(engine, WritingJob(tmp_path, gate=2), on_done=on_done)
    assert written(tmp_path) == COMPLETE
    assert sorted(done) == list(range(SHARDS))
    assert before.items() <= modified(tmp_path).items()
    assert 3 <= len(notes(tmp_path)) <= 4


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ray", "slurm"], indirect=True)
def test_a_shard_that_kills_every_worker_ends_the_run(engine, tmp_path, monkeypatch):
    monkeypatch.setattr(f"costcert.engines.on_{engine}.MAX_ATTEMPTS", 2)
    monkeypatch.setattr(on_slurm, "_RESULT_SECONDS", 0)
    with pytest.raises(
        CostcertError, match=r"lost the (worker|job) of shard 1 2 times, at last because \w.+: check"
    ):
        run(engine, WritingJob(tmp_path, deadly=1), range(3), workers=1)
    assert written(tmp_path) == {"0.txt": "0"}
    assert len(notes(tmp_path)) == 2


DRIVER = """
import os, signal, sys
from pathlib import Path
from writing import WritingJob, run

done = []

def on_done(shard):
    done.append(shard)
    if len(done) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    run(sys.argv[1], WritingJob(Path(sys.argv[2]), gate=2), on_done=on_done)
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ray", "slurm"], indirect=True)
def test_a_killed_driver_can_be_started_again(engine, tmp_path):
    """The driver starts its own cluster; the second run completes its shards and leaves them as they were."""
    script = [sys.executable, "-c", DRIVER, engine, str(tmp_path)]
    # Output to a file: jobs that outlive the driver would keep a pipe open.
    with (tmp_path / "output").open("wb") as output:
        ended = subprocess.run(script, stdout=output, stderr=output, timeout=LONGEST_WAIT).returncode
    assert ended == -signal.SIGKILL, (tmp_path / "output").read_text()
    before = modified(tmp_path)
    assert set(before) == {"0.txt", "1.txt"}
    # Jobs of the killed driver continue beside the second run; both make the same shards.
    (tmp_path / "gate").touch()
    run(engine, WritingJob(tmp_path), [n for n in range(SHARDS) if f"{n}.txt" not in before])
    assert written(tmp_path) == COMPLETE
    assert before.items() <= modified(tmp_path).items()


@pytest.mark.slow
def test_certificates_are_the_same_with_every_engine(tmp_path):
    rng = np.random.default_rng(0)
    votes = cc.Votes(
        rng.integers(0, 5, (60, 12)),
        rng.integers(0, 5, 60),
        num_classes=5,
        ablation="columns:3",
        image_size=12,
    )
    cc.write_votes(votes, tmp_path / "votes", shard_size=8)

    def certified(name, *options):
        out = tmp_path / name
        command = ["certify", str(tmp_path / "votes"), "--patch", "2,4", "--out", str(out), *options]
        result = invoke(command)
        assert result.exit_code == 0, result.output
        return {path.name: path.read_bytes() for path in out.iterdir()}

    local = certified("local")
    assert len(local) == 9
    pytest.importorskip("submitit", reason="the slurm engine needs submitit")
    jobs = ("--engine", "slurm", "--engine-option", "cluster=local", "--workers", "2")
    assert certified("slurm", *jobs) == local
    # Started by one engine, completed by another.
    for number in (1, 4):
        (tmp_path / "slurm" / f"shard-{number:05d}.parquet").unlink()
    assert certified("slurm") == local


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


SLURM = ["--engine", "slurm", "--engine-option", "cluster=local", "--workers", "2"]


def attack_command(out, *options):
    """A short attack on three images in three shards, with a universal patch."""
    command = ["attack", "--model", str(files("costcert") / "sample" / "model"), "--data", "sample"]
    command += [
        "--limit",
        "3",
        "--shard-size",
        "1",
        "--patch",
        "4",
        "--universal",
        "fixed",
        "--device",
        "cpu",
    ]
    command += ["--places", "2", "--restarts", "1", "--steps", "2", "--random", "2"]
    return [*command, "--out", str(out), *options]


def attacked(out, *options):
    result = invoke(attack_command(out, *options))
    assert result.exit_code == 0, result.output
    return contents(out)


@pytest.fixture(scope="module")
def attacked_here(tmp_path_factory):
    torch = pytest.importorskip("torch", reason="attacks by gradients need torch")
    threads, folder = torch.get_num_threads(), tmp_path_factory.mktemp("attack") / "here"
    # More than the workers have, which must not matter.
    torch.set_num_threads(3)
    assert len(attacked(folder)) == 6
    yield folder
    torch.set_num_threads(threads)


@pytest.mark.slow
def test_ranks_attack_like_one_process(attacked_here, tmp_path):
    ranks = []
    for rank in (1, 0):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "costcert", *attack_command(tmp_path / "out")]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
        ranks.append(subprocess.Popen(command, **options))
    (output_1, errors_1), (output_0, errors_0) = [rank.communicate(timeout=LONGEST_WAIT) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors_1 + errors_0
    assert output_1 == ""
    assert "none of these was broken" in output_0
    assert contents(tmp_path / "out") == contents(attacked_here)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ray", "slurm"], indirect=True)
@pytest.mark.filterwarnings("ignore")
def test_an_attack_is_the_same_with_every_engine(engine, attacked_here, tmp_path):
    """Also when it is started by one engine and completed by another."""
    here, out = contents(attacked_here), tmp_path / "out"
    if engine == "slurm":
        assert attacked(out, *SLURM) == here
        (out / "shard-00001.parquet").unlink()
        assert attacked(out) == here
    else:
        shutil.copytree(attacked_here, out)
        for name in ("shard-00000.parquet", "shard-00002.parquet", "summary.json"):
            (out / name).unlink()
        assert attacked(out, "--engine", "ray", "--workers", "1") == here


class LeakyJob(AttackJob):
    """An attack on a model that sees hidden pixels, which makes its certificates false."""

    @cached_property
    def campaign(self):
        options = {"classifier": cc.Deployed(Leaky(), "columns:1").classifier}
        options |= {"effort": Effort(steps=0, random=64), "universal": None, "seed": 0}
        return Campaign(Leaky(), greys(), "square:4", 1, self.request.out, **options)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_false_certificate_ends_every_engine_with_3(tmp_path, worker_modules, monkeypatch):
    monkeypatch.setattr("costcert.cli.attack.AttackJob", LeakyJob)

    def errors(name, *options):
        result = invoke(attack_command(tmp_path / name, "--shard-size", "3", *options))
        assert list((tmp_path / name / "evidence").glob("*/evidence.json"))
        assert result.exit_code == 3, result.output
        return result.stderr

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert "so no certificate of this model holds" in errors("ranks")
    # Rank 0 reports what rank 1 found.
    monkeypatch.setenv("RANK", "0")
    assert "the evidence is in" in errors("ranks")
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.delenv("RANK")
    pytest.importorskip("submitit", reason="this engine needs submitit")
    assert "so no certificate of this model holds" in errors("slurm", *SLURM, "--workers", "1")
