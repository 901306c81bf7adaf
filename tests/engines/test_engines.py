"""Engines: whoever makes the shards, they are there once, whole, and the same to the last byte."""

import gc
import os
import pickle
import shutil
import signal
import subprocess
import sys
import warnings
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
from costcert.engines.base import Losses, parse_options, threads_of_numpy
from costcert.engines.on_local import rank_and_world_size
from costcert.errors import CostcertError, VotesError
from places import TESTS
from tiny import Leaky, greys
from writing import SHARDS, WHOLE, Writing, opened, run, when, written

# Where a worker finds what this file defines, and what that imports.
MODULES = os.pathsep.join(map(str, (TESTS / "engines", TESTS)))
PACKAGES = {"ray": "ray", "slurm": "submitit"}


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    """submitit does not wait for the processes it starts: Python would complain in whichever test is next."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one core each, started once: that takes longer than all that is tried on them."""
    ray = pytest.importorskip("ray", reason="this engine needs ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", MODULES, prepend=os.pathsep)
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        nodes.add_node(num_cpus=1)
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        yield nodes
        ray.shutdown()
        nodes.shutdown()


@pytest.fixture(params=["local", "ray", "slurm"])
def engine(request, monkeypatch):
    if request.param in PACKAGES:
        pytest.importorskip(PACKAGES[request.param], reason=f"this engine needs {request.param}")
    if request.param == "ray":
        request.getfixturevalue("cluster")
    monkeypatch.setenv("PYTHONPATH", MODULES, prepend=os.pathsep)
    return request.param


@pytest.mark.filterwarnings("ignore")
def test_every_shard_is_made_and_the_job_opened_once_per_worker(engine, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("MKL_NUM_THREADS", "2")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    told = []
    run(engine, Writing(tmp_path), tell=told.append)
    assert written(tmp_path) == WHOLE
    assert sorted(told) == list(range(SHARDS))
    assert 1 <= len(opened(tmp_path)) <= 2
    threads = {"OMP_NUM_THREADS": "3", "OPENBLAS_NUM_THREADS": "3", "MKL_NUM_THREADS": "2"}
    assert threads_of_numpy() == threads
    assert "OPENBLAS_NUM_THREADS" not in os.environ
    if engine != "local":
        assert all(threads.items() <= note.items() for note in opened(tmp_path))


@pytest.mark.filterwarnings("ignore")
def test_a_shard_that_cannot_be_made_is_one_sentence(engine, tmp_path):
    # Its class tells the command line how to end.
    with pytest.raises(VotesError) as error:
        run(engine, Writing(tmp_path, bad=3), range(6))
    assert str(error.value) == "shard 3 cannot be made"
    assert "3.txt" not in written(tmp_path)


def test_ranks_share_the_shards(tmp_path, monkeypatch):
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        before = written(tmp_path)
        run("local", Writing(tmp_path))
        assert len(written(tmp_path)) == len(before) + SHARDS // 3
    assert written(tmp_path) == WHOLE
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(CostcertError, match="RANK is 3, but WORLD_SIZE is 3"):
        rank_and_world_size()
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(CostcertError, match="are whole numbers"):
        rank_and_world_size()


def test_a_rank_loads_the_model_once_and_hands_on_only_what_was_asked(tmp_path, monkeypatch):
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
    # The first rank waits for the shards of the other.
    for rank in (1, 0):
        monkeypatch.setenv("RANK", str(rank))
        result = invoke([*command, "--out", str(tmp_path / "votes")])
        assert result.exit_code == 0, result.output
    assert len(loads) == 2
    assert len(cc.read_votes(tmp_path / "votes")) == 4
    job = jobs[0]
    assert job.collector is job.collector
    told = pickle.loads(pickle.dumps(job))
    assert told == job
    assert vars(told) == {"request": job.request}


def test_unknown_engines_and_options():
    with pytest.raises(CostcertError, match="did you mean 'slurm'"):
        find_engine("slum")
    for text in ("partition", "=gpu", "a b=c", "x="):
        with pytest.raises(CostcertError, match="write it like partition=gpu"):
            parse_options([text])
    assert parse_options(["partition=gpu", "mem_gb=8"]) == {"partition": "gpu", "mem_gb": "8"}


# Of what is not there: what is refused at once is refused before that is found out.
WORDS = {
    "certify": ["nowhere", "--patch", "2"],
    "vote": ["--model", "nobody", "--data", "nothing"],
    "attack": ["--model", "nobody", "--data", "nothing", "--patch", "2"],
}


def refused(command, out, *words):
    result = invoke([command, *WORDS[command], "--out", str(out), *words])
    assert result.exit_code == 2, result.output
    assert not out.exists()
    (said,) = result.stderr.splitlines()
    return said.removeprefix("costcert: ")


@pytest.mark.parametrize("command", WORDS)
def test_what_the_local_engine_would_not_heed_is_refused(command, tmp_path):
    out = tmp_path / "out"
    # The numbers that other engines take by default are no less in vain.
    for words in (["--workers", "1"], ["--cpus", "1"], ["--gpus", "0"], ["--engine-option", "partition=gpu"]):
        assert refused(command, out, *words).startswith(f"{words[0]} is for --engine ray or slurm: ")
        assert refused(command, out, "--engine", "local", *words).startswith(f"{words[0]} is for --engine ")
    assert refused(command, out, "--gpus", "1", "--workers", "2") == (
        "--workers and --gpus are for --engine ray or slurm: name one of these, or leave them out, because "
        "the local engine is this one process"
    )


@pytest.mark.parametrize("command", WORDS)
@pytest.mark.parametrize(
    ("engine", "gpus"),
    [("slurm", "0.5"), ("slurm", "1.5"), ("slurm", "inf"), ("ray", "1.5"), ("ray", "inf")],
)
def test_a_part_of_a_gpu_is_refused_where_there_is_none(command, engine, gpus, tmp_path):
    said = refused(command, tmp_path / "out", "--engine", engine, "--gpus", gpus)
    assert f"gives whole GPUs{' or a part of one' * (engine == 'ray')}, and not {gpus} of them: " in said


def test_engines_get_what_was_asked_and_one_core_otherwise(tmp_path, monkeypatch):
    heard = []
    monkeypatch.setattr(
        engine_options, "find_engine", lambda name: lambda job, shards, how, tell: heard.append(how)
    )
    monkeypatch.setattr(engine_options, "wait_until", lambda done: None)

    class Nothing:
        folder, num_images = tmp_path / "votes", 0
        missing = seal = lambda *_: []

    def resources(engine="local", workers=None, cpus=None, gpus=None):
        requested = EngineOptions(engine=engine, workers=workers, cpus=cpus, gpus=gpus)
        engine_options.spread(requested, None, "voting", begin=Nothing)
        return (heard[-1].workers, heard[-1].cpus, heard[-1].gpus)

    assert resources() == resources("ray") == resources("slurm") == (None, 1, 0)
    assert resources("ray", 3, 2, 0.5) == (3, 2, 0.5)
    assert resources("slurm", 3, 2, 4) == (3, 2, 4)


def test_slurm_itself_takes_no_part_of_a_gpu(tmp_path):
    for gpus in (0.5, 2.5):
        with pytest.raises(CostcertError, match=f"SLURM gives whole GPUs, and not {gpus} of them"):
            find_engine("slurm")(Writing(tmp_path), [0], Resources(gpus=gpus, logs=tmp_path), print)
    assert not written(tmp_path)


def test_a_cluster_survives_the_death_of_a_worker_and_of_a_node(cluster, tmp_path):
    (node,) = cluster.worker_nodes
    (raylet,) = node.all_processes["raylet"]

    def tell(shard):
        """After two shards both workers stand before the gate: one is killed, one goes with its node."""
        told.append(shard)
        if len(told) == 2:
            (alone,) = [note for note in opened(tmp_path) if note["parent"] != raylet.process.pid]
            os.kill(alone["process"], signal.SIGKILL)
            cluster.remove_node(node, allow_graceful=False)
            (tmp_path / "gate").touch()

    told = []
    run("ray", Writing(tmp_path, gate=2, crowd=2), tell=tell)
    assert written(tmp_path) == WHOLE
    assert sorted(told) == list(range(SHARDS))


def test_a_job_that_dies_is_replaced_for_what_it_did_not_make(tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="this engine needs submitit")
    monkeypatch.setenv("PYTHONPATH", MODULES, prepend=os.pathsep)

    def tell(shard):
        """After two shards both jobs stand before the gate: one loses its worker, one dies as a whole."""
        told.append(shard)
        if len(told) == 2:
            one, other = opened(tmp_path)
            os.kill(one["process"], signal.SIGKILL)
            os.kill(other["parent"], signal.SIGKILL)
            made.update(when(tmp_path))
            (tmp_path / "gate").touch()

    told, made = [], {}
    run("slurm", Writing(tmp_path, gate=2), tell=tell)
    assert written(tmp_path) == WHOLE
    assert sorted(told) == list(range(SHARDS))
    assert made.items() <= when(tmp_path).items()
    assert 3 <= len(opened(tmp_path)) <= 4


def test_a_shard_that_kills_every_job_ends_the_run(tmp_path, monkeypatch):
    pytest.importorskip("submitit", reason="this engine needs submitit")
    monkeypatch.setenv("PYTHONPATH", MODULES, prepend=os.pathsep)
    monkeypatch.setattr(Losses, "most_tries", 2)
    monkeypatch.setattr(on_slurm, "_GRACE", 0)
    with pytest.raises(CostcertError, match="SLURM lost shard 1 and the workers that made it again"):
        run("slurm", Writing(tmp_path, deadly=1), range(3), workers=1)
    assert written(tmp_path) == {"0.txt": "0"}
    assert len(opened(tmp_path)) == 2


def test_losses_are_borne_up_to_a_bound():
    losses = Losses("Ray", 2)
    for shard in range(8 * Losses.most_tries):
        losses.add(shard % 10, "a node is gone")
    with pytest.raises(CostcertError, match="Ray lost workers again and again: no room"):
        losses.add(None, "no room")
    losses = Losses("Ray", 2)
    for _ in range(Losses.most_tries - 1):
        losses.add(7, "a node is gone")
    with pytest.raises(CostcertError, match="lost shard 7 and the workers that made it again and again"):
        losses.add(7, "a node is gone")


DRIVER = """
import os, signal, sys
from pathlib import Path
from writing import Writing, run

told = []

def tell(shard):
    told.append(shard)
    if len(told) == 2:
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    run(sys.argv[1], Writing(Path(sys.argv[2]), gate=2), tell=tell)
"""


@pytest.mark.parametrize("engine", ["ray", "slurm"], indirect=True)
def test_a_driver_that_is_killed_is_started_again(engine, tmp_path):
    """On a cluster of its own; in the end every shard is there, and those it left are as they were."""
    script = [sys.executable, "-c", DRIVER, engine, str(tmp_path)]
    # To a file: jobs that outlive the driver would keep a pipe open.
    with (tmp_path / "said").open("wb") as said:
        ended = subprocess.run(script, stdout=said, stderr=said, timeout=300).returncode
    assert ended == -signal.SIGKILL, (tmp_path / "said").read_text()
    before = when(tmp_path)
    assert set(before) == {"0.txt", "1.txt"}
    # Jobs that the driver left behind go on; what they make as well is the same.
    (tmp_path / "gate").touch()
    run(engine, Writing(tmp_path), [n for n in range(SHARDS) if f"{n}.txt" not in before])
    assert written(tmp_path) == WHOLE
    assert before.items() <= when(tmp_path).items()


def test_certificates_are_the_same_by_every_engine(tmp_path):
    rng = np.random.default_rng(0)
    votes = cc.Votes(
        rng.integers(0, 5, (60, 12)),
        rng.integers(0, 5, 60),
        num_classes=5,
        ablation="columns:3",
        image_size=12,
    )
    cc.write_votes(votes, tmp_path / "votes", shard_size=8)

    def certified(name, *words):
        out = tmp_path / name
        command = ["certify", str(tmp_path / "votes"), "--patch", "2,4", "--out", str(out), *words]
        result = invoke(command)
        assert result.exit_code == 0, result.output
        return {path.name: path.read_bytes() for path in out.iterdir()}

    local = certified("local")
    assert len(local) == 9
    pytest.importorskip("submitit", reason="the slurm engine needs submitit")
    jobs = ("--engine", "slurm", "--engine-option", "cluster=local", "--workers", "2")
    assert certified("slurm", *jobs) == local
    # Begun by one engine, completed by another.
    for number in (1, 4):
        (tmp_path / "slurm" / f"shard-{number:05d}.parquet").unlink()
    assert certified("slurm") == local


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


SLURM = ["--engine", "slurm", "--engine-option", "cluster=local", "--workers", "2"]


def attacking(out, *more):
    """A short attack on three images in three shards, with a patch that they share."""
    words = ["attack", "--model", str(files("costcert") / "sample" / "model"), "--data", "sample"]
    words += ["--limit", "3", "--shard-size", "1", "--patch", "4", "--universal", "fixed", "--device", "cpu"]
    words += ["--places", "2", "--restarts", "1", "--steps", "2", "--random", "2"]
    return [*words, "--out", str(out), *more]


def attacked(out, *more):
    result = invoke(attacking(out, *more))
    assert result.exit_code == 0, result.output
    return contents(out)


@pytest.fixture(scope="module")
def attacked_here(tmp_path_factory):
    torch = pytest.importorskip("torch", reason="attacks by gradients need torch")
    threads, folder = torch.get_num_threads(), tmp_path_factory.mktemp("attack") / "here"
    # Fewer than there are cores: workers have to be told.
    torch.set_num_threads(1)
    assert len(attacked(folder)) == 6
    yield folder
    torch.set_num_threads(threads)


def test_ranks_attack_as_one_process_does(attacked_here, tmp_path):
    ranks = []
    for rank in (1, 0):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "costcert", *attacking(tmp_path / "out")]
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
        ranks.append(subprocess.Popen(words, **how))
    (silent, complaint), (said, other) = [rank.communicate(timeout=300) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], complaint + other
    assert silent == ""
    assert "none of these was broken" in said
    assert contents(tmp_path / "out") == contents(attacked_here)


@pytest.mark.parametrize("engine", ["ray", "slurm"], indirect=True)
@pytest.mark.filterwarnings("ignore")
def test_an_attack_is_the_same_by_every_engine(engine, attacked_here, tmp_path):
    """Begun here and gone on with elsewhere, or the other way round."""
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
    """On a model that breaks the rule, and so its certificates."""

    @cached_property
    def campaign(self):
        about = {"classifier": cc.Deployed(Leaky(), "columns:1").classifier}
        about |= {"effort": Effort(steps=0, random=64), "universal": None, "seed": 0}
        return Campaign(Leaky(), greys(), "square:4", 1, self.request.out, **about)


@pytest.mark.filterwarnings("ignore")
def test_a_false_certificate_ends_every_engine_with_3(tmp_path, monkeypatch):
    monkeypatch.setattr("costcert.cli.attack.AttackJob", LeakyJob)

    def falsely(name, *more):
        result = invoke(attacking(tmp_path / name, "--shard-size", "3", *more))
        assert list((tmp_path / name / "evidence").glob("*/evidence.json"))
        assert result.exit_code == 3, result.output
        return result.stderr

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert "so no certificate of this model holds" in falsely("ranks")
    # What one of them found the first one hears of.
    monkeypatch.setenv("RANK", "0")
    assert "the evidence is in" in falsely("ranks")
    monkeypatch.delenv("WORLD_SIZE")
    monkeypatch.delenv("RANK")
    pytest.importorskip("submitit", reason="this engine needs submitit")
    monkeypatch.setenv("PYTHONPATH", MODULES, prepend=os.pathsep)
    assert "so no certificate of this model holds" in falsely("slurm", *SLURM, "--workers", "1")
