"""Engines on this machine: a Ray cluster of two nodes, submitit without SLURM."""

import gc
import os
import warnings

import pytest

from places import TESTS

# Where a worker finds the modules of these tests.
MODULES = os.pathsep.join(map(str, (TESTS / "engines", TESTS)))
PACKAGES = {"ray": "ray", "slurm": "submitit"}


@pytest.fixture(autouse=True)
def no_unfinished_processes():
    """submitit does not wait for its processes: without this, Python's warning would fail a later test."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def cluster():
    """Two nodes of one core each. They take longer to start than most tests take on them."""
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


@pytest.fixture
def worker_modules(monkeypatch):
    """Workers that are started by this process find the modules of these tests."""
    monkeypatch.setenv("PYTHONPATH", MODULES, prepend=os.pathsep)


@pytest.fixture(params=["local", *(pytest.param(name, marks=pytest.mark.slow) for name in PACKAGES)])
def engine(request, worker_modules):
    """The name of an engine that is ready to run."""
    if request.param in PACKAGES:
        pytest.importorskip(PACKAGES[request.param], reason=f"this engine needs {request.param}")
    if request.param == "ray":
        request.getfixturevalue("cluster")
    return request.param
