"""The metric counts images: parts, in one process or in several, give the value of the whole."""

import json
import subprocess
import sys
import textwrap
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest

import costcert as cc
from costcert.certification.certify import certify

# Not imported here: costcert.metrics repairs a torchvision that torchmetrics could not import.
if find_spec("torchmetrics") is None:
    pytest.skip("torchmetrics is not installed", allow_module_level=True)

import torch

from costcert.metrics import CertifiedAccuracy

OPTIONS = {
    "ablation": "columns:2",
    "image_size": (6, 8),
    "num_classes": 5,
    "patches": ["1", "2"],
    "k": [1, 3],
}


def world(images=24):
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 5, images)
    logits = rng.normal(size=(images, 8, 5)) + 5 * rng.random((images, 1, 1)) * np.eye(5)[truth][:, None]
    return torch.tensor(logits, dtype=torch.float32), torch.tensor(truth)


@pytest.mark.parametrize("soft", [None, cc.Soft(0.5, 3)])
@pytest.mark.parametrize("defender", ["costcert", "drs"])
def test_it_has_the_values_of_the_table(defender, soft):
    logits, truth = world()
    metric = CertifiedAccuracy(**OPTIONS, defender=defender, soft=soft)
    for part in (slice(0, 5), slice(5, 5), slice(5, 24)):
        metric.update(logits[part], truth[part])
    votes = cc.Votes.from_logits(logits, truth, ablation="columns:2", image_size=(6, 8), soft=soft)
    table = certify(votes, ["1", "2"], defender).accuracy([1, 3])
    found = metric.compute()
    assert len(found) == 6
    for row in table.itertuples():
        assert found[f"certified@{row.k}/{row.patch}"] == pytest.approx(row.certified)
        assert found[f"clean@{row.k}"] == pytest.approx(row.clean)
    assert 0 < found["certified@1/square:2"] < found["clean@1"] <= 1


def test_a_masking_defender_is_clean_per_patch():
    metric = CertifiedAccuracy(**OPTIONS, defender="patchguard")
    metric.update(*world())
    assert {"clean@1/square:1", "clean@1/square:2", "certified@3/square:2"} <= set(metric.compute())


def test_states_of_two_processes_add_up():
    logits, truth = world()
    whole, *halves = (CertifiedAccuracy(**OPTIONS) for _ in range(3))
    whole.update(logits, truth)
    for half, part in zip(halves, (slice(0, 7), slice(7, 24)), strict=True):
        half.update(logits[part], truth[part])
    merged = CertifiedAccuracy(**OPTIONS)
    for name, reduce in merged._reductions.items():
        setattr(merged, name, reduce(torch.stack([getattr(half, name) for half in halves])))
    merged._update_count = 1
    assert merged.compute() == whole.compute()


def test_forward_reset_and_clone():
    logits, truth = world()
    metric = CertifiedAccuracy(**OPTIONS)
    first = metric(logits[:6], truth[:6])
    metric(logits[6:], truth[6:])
    alone, whole = CertifiedAccuracy(**OPTIONS), CertifiedAccuracy(**OPTIONS)
    alone.update(logits[:6], truth[:6])
    whole.update(logits, truth)
    assert first == alone.compute()
    assert metric.compute() == whole.compute() == metric.clone().compute()
    metric.reset()
    assert int(metric.images) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ablation": "columns:9"}, "does not fit"),
        ({"patches": 4.5}, "a patch must be a value like"),
        ({"patches": "9"}, "does not fit"),
        ({"k": 0}, "k must be at least 1"),
        ({"defender": "costcerd"}, "did you mean 'costcert'"),
        ({"num_classes": 0}, "classes"),
        ({"soft": 3}, "soft must be a value like"),
    ],
)
def test_metrics_that_cannot_be(change, message):
    with pytest.raises(cc.CostcertError, match=message):
        CertifiedAccuracy(**{**OPTIONS, **change})


def test_updates_that_are_refused():
    logits, truth = world()
    metric = CertifiedAccuracy(**OPTIONS)
    for given, target, message in (
        (logits[..., :4], truth, "got logits of 4 classes, but the metric is for 5"),
        (logits[:, :7], truth, "got 7 ballots per image"),
        (logits[0], truth, r"the shape \[images, mutants, classes\]"),
        (logits * torch.nan, truth, "is nan, but logits must be finite"),
        (logits, truth + 5, "classes are labelled"),
    ):
        with pytest.raises(cc.CostcertError, match=message):
            metric.update(given, target)
    assert int(metric.images) == 0


@pytest.mark.filterwarnings("ignore:The ``compute`` method")
def test_no_image_has_no_accuracy():
    with pytest.raises(cc.CostcertError, match="needs at least one image: call update first"):
        CertifiedAccuracy(**OPTIONS).compute()


def test_without_torchmetrics(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchmetrics", None)
    monkeypatch.delitem(sys.modules, "costcert.metrics")
    with pytest.raises(cc.CostcertError, match=r"torchmetrics: pip install 'costcert\[metrics\]'"):
        import_module("costcert.metrics")


@pytest.mark.slow
def test_two_processes_that_reduce(tmp_path):
    """Two processes of torch.distributed on this machine, of which each sees some of the images."""
    script = tmp_path / "worker.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import datetime, json, sys
            sys.path.insert(0, {str(__file__.rpartition("/")[0])!r})
            import torch
            from costcert.metrics import CertifiedAccuracy
            from test_metrics import OPTIONS, world

            rank = int(sys.argv[1])
            torch.distributed.init_process_group(
                "gloo", init_method=f"file://{tmp_path}/meet", rank=rank, world_size=2,
                timeout=datetime.timedelta(seconds=120),
            )
            logits, truth = world()
            part = (slice(0, 9), slice(9, 24))[rank]
            metric = CertifiedAccuracy(**OPTIONS)
            metric.update(logits[part], truth[part])
            print(json.dumps({{name: float(value) for name, value in metric.compute().items()}}))
            torch.distributed.destroy_process_group()
            """
        )
    )
    workers = [
        subprocess.Popen([sys.executable, script, str(rank)], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [worker.communicate(timeout=180)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0]
    whole = CertifiedAccuracy(**OPTIONS)
    whole.update(*world())
    expected = {name: float(value) for name, value in whole.compute().items()}
    assert [json.loads(output.splitlines()[-1]) for output in outputs] == [expected, expected]


def test_it_says_what_it_measures():
    metric = CertifiedAccuracy(**OPTIONS)
    metric.update(*world())
    assert repr(metric) == (
        "CertifiedAccuracy(columns:2 by costcert; patches square:1, square:2; k 1, 3; 24 images)"
    )
