"""Engines: whoever makes the shards, they are there once, whole, and the same to the last byte."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import costcert as cc
from costcert.cli import app
from costcert.engines import Resources, find_engine
from costcert.engines.base import parse_options
from costcert.engines.on_local import place
from costcert.errors import CostcertError
from costcert.store.files import whole_file

SHARDS = 24


@dataclass(frozen=True)
class Writing:
    """Writes a file a shard, and a line about who opened the job."""

    folder: Path
    pause: float = 0.0
    bad: int | None = None

    def open(self):
        (self.folder / f"opened-{os.getpid()}-{time.time_ns()}").touch()
        return self.make

    def make(self, shard):
        time.sleep(self.pause)
        if shard == self.bad:
            raise CostcertError(f"shard {shard} cannot be made")
        with whole_file(self.folder / f"{shard}.txt") as temporary:
            temporary.write_text(str(shard * shard))


def written(folder):
    return {path.name: path.read_text() for path in folder.glob("*.txt")}


WHOLE = {f"{shard}.txt": str(shard * shard) for shard in range(SHARDS)}


@pytest.fixture(params=["local", "ray", "slurm"])
def engine(request, tmp_path, monkeypatch):
    """Each engine, on two workers of this machine."""
    package = {"ray": "ray", "slurm": "submitit"}.get(request.param)
    if package is not None:
        pytest.importorskip(package, reason=f"this engine needs {package}")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    options = {"cluster": "local"} if request.param == "slurm" else {}
    resources = Resources(workers=2, options=options, logs=tmp_path / "jobs")
    return lambda job, shards, tell=lambda shard: None: find_engine(request.param)(
        job, shards, resources, tell
    )


@pytest.mark.filterwarnings("ignore")
def test_every_shard_is_made_and_the_job_opened_once_per_worker(engine, tmp_path):
    told = []
    engine(Writing(tmp_path), range(SHARDS), told.append)
    assert written(tmp_path) == WHOLE
    assert sorted(told) == list(range(SHARDS))
    assert 1 <= len(list(tmp_path.glob("opened-*"))) <= 2


@pytest.mark.filterwarnings("ignore")
def test_a_shard_that_cannot_be_made_is_one_sentence(engine, tmp_path):
    with pytest.raises(CostcertError, match="shard 3 cannot be made"):
        engine(Writing(tmp_path, bad=3), range(6))
    assert "3.txt" not in written(tmp_path)


def test_ranks_share_the_shards(tmp_path, monkeypatch):
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        before = written(tmp_path)
        find_engine("local")(Writing(tmp_path), range(SHARDS), Resources(), lambda shard: None)
        assert len(written(tmp_path)) == len(before) + SHARDS // 3
    assert written(tmp_path) == WHOLE
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(CostcertError, match="RANK is 3, but WORLD_SIZE is 3"):
        place()
    monkeypatch.setenv("RANK", "one")
    with pytest.raises(CostcertError, match="are whole numbers"):
        place()


def test_unknown_engines_and_options():
    with pytest.raises(CostcertError, match="did you mean 'slurm'"):
        find_engine("slum")
    for text in ("partition", "=gpu", "a b=c", "x="):
        with pytest.raises(CostcertError, match="write it like partition=gpu"):
            parse_options([text])
    assert parse_options(["partition=gpu", "mem_gb=8"]) == {"partition": "gpu", "mem_gb": "8"}


CLUSTER = """
import os, sys, time
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
sys.path.insert(0, {tests!r})
from test_engines import SHARDS, Writing, written
from costcert.engines import Resources, find_engine

folder = Path({folder!r})
cluster = Cluster(initialize_head=True, head_node_args={{"num_cpus": 1}})
other = cluster.add_node(num_cpus=1)
ray.init(address=cluster.address, log_to_driver=False, logging_level=40,
         runtime_env={{"env_vars": {{"PYTHONPATH": {tests!r}}}}})
cluster.wait_for_nodes()
done = []

def tell(shard):
    done.append(shard)
    if len(done) == 4 and {kill!r} == "node":
        cluster.remove_node(other, allow_graceful=False)
    if len(done) == 4 and {kill!r} == "worker":
        pid = int(next(folder.glob("opened-*")).name.split("-")[1])
        os.kill(pid, 9)
    if len(done) == 4 and {kill!r} == "driver":
        os.kill(os.getpid(), 9)

missing = [n for n in range(SHARDS) if f"{{n}}.txt" not in written(folder)]
find_engine("ray")(Writing(folder, pause=0.1), missing, Resources(workers=2), tell)
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.parametrize("kill", ["node", "worker", "driver"])
def test_a_cluster_of_two_nodes_survives(tmp_path, kill):
    """A node, a worker or the driver is killed in the middle: in the end every shard is there, whole."""
    pytest.importorskip("ray", reason="this engine needs ray")
    script = CLUSTER.format(tests=str(Path(__file__).parent), folder=str(tmp_path), kill=kill)
    first = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=150)
    if kill == "driver":
        assert first.returncode == -signal.SIGKILL
        assert 4 <= len(written(tmp_path)) < SHARDS
        before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.txt")}
        again = CLUSTER.format(tests=str(Path(__file__).parent), folder=str(tmp_path), kill="nobody")
        first = subprocess.run([sys.executable, "-c", again], capture_output=True, text=True, timeout=150)
        assert all(path.stat().st_mtime_ns == when for path, when in before.items())
    assert first.returncode == 0, first.stderr[-2000:]
    assert written(tmp_path) == WHOLE


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
        result = CliRunner().invoke(app, command)
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
