"""Batches beside each other give the logits that one core gives, to the last bit."""

import multiprocessing
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

import costcert as cc
from costcert import compiled
from costcert.models import side_by_side
from costcert.models.architectures import build
from costcert.models.side_by_side import SideBySide, one_thread
from costcert.models.torch_classifier import TorchClassifier
from waiting import HANGS, wait_until

VOTE = """
import hashlib
import costcert as cc
from costcert.datasets.subsets import limited
model = cc.load_model(cc.__path__[0] + "/sample/model", batch_size=64)
data = limited(cc.parse_dataset("sample"), 60)
votes = cc.vote(model, data, model.ablation, soft=cc.Soft(0.25, 4), probe=True)
total = hashlib.sha256()
for array in (votes.ballots, votes.margins, votes.cuts, votes.labels, votes.units):
    total.update(array.tobytes())
print(total.hexdigest(), votes.provenance["probe"])
"""


@pytest.fixture
def three_lanes(monkeypatch):
    """Three lanes on any machine."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(side_by_side, "cores", lambda: 3)
    side_by_side._started.cache_clear()
    yield
    side_by_side._started.cache_clear()


def test_logits_are_the_same_bytes_on_one_lane_and_on_three(three_lanes, monkeypatch):
    data = cc.parse_dataset("sample")
    model = cc.load_model(f"{cc.__path__[0]}/sample/model", batch_size=16)
    images = np.stack([model.prepare(data.image(row)) for row in range(4)])
    regions = model.ablation.regions(model.image_size)
    beside = model.logits(images, regions)
    monkeypatch.setattr(side_by_side, "cores", lambda: 1)
    side_by_side._started.cache_clear()
    assert np.array_equal(beside, model.logits(images, regions))


@pytest.mark.slow
def test_votes_are_the_same_bytes_on_any_number_of_cores():
    outputs = set()
    for lanes in ("1", "2", "5"):
        script = f"from costcert.models import side_by_side\nside_by_side.cores = lambda: {lanes}\n{VOTE}"
        environment = {**os.environ, "OMP_NUM_THREADS": lanes}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1, outputs


class Forgetful(torch.nn.Module):
    """Keeps its input in an attribute while it waits, as networks that record their attention do."""

    def __init__(self, others):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.others = others

    def forward(self, batch):
        self.kept = batch * self.weight
        if self.others is not None:
            self.others.wait(timeout=HANGS)
        return self.kept

    def __deepcopy__(self, memo):
        copy = Forgetful(self.others)
        copy.weight = memo[id(self.weight)]
        return copy


def test_lanes_do_not_overwrite_each_other(three_lanes):
    barrier = threading.Barrier(3)
    batches = [torch.full((4,), float(number)) for number in range(6)]
    results = list(SideBySide(lambda module, batch: module(batch), Forgetful(barrier), batches))
    assert [result[0].item() for result in results] == [0, 1, 2, 3, 4, 5]


def test_evaluations_that_overlap_do_not_overwrite_each_other(three_lanes):
    class Slow(torch.nn.Module):
        def forward(self, batch):
            self.kept = batch
            time.sleep(0.005)
            return self.kept

    network = Slow()
    begun = [SideBySide(lambda module, batch: module(batch), network, [number]) for number in range(20)]
    assert [result for each in begun for result in each] == list(range(20))


def test_what_changes_in_a_module_between_evaluations_changes_in_its_lanes(three_lanes):
    network = torch.nn.Linear(1, 1, bias=False)
    for value in range(5):
        network.weight = torch.nn.Parameter(torch.full((1, 1), float(value)))
        results = list(SideBySide(lambda module, batch: module(batch), network, [torch.ones(1)] * 9))
        assert [result.item() for result in results] == [value] * 9
        assert not side_by_side._Lanes._running


def test_lanes_end_with_the_batches_that_are_cancelled_or_fail(three_lanes):
    def fail(module, batch):
        raise cc.CostcertError("no")

    running = SideBySide(fail, torch.nn.ReLU(), range(50))
    with pytest.raises(cc.CostcertError, match="no"):
        list(running)
    running.cancel()
    wait_until(lambda: not side_by_side._Lanes._running)


def test_a_network_may_evaluate_another_one(three_lanes):
    """More of them at once than there are threads."""
    inner = torch.nn.Linear(2, 2)

    def evaluate(module, batch):
        return sum(SideBySide(lambda network, part: network(part).sum().item(), inner, [batch] * 4))

    batches = [torch.ones(1, 2)] * 9
    results = list(SideBySide(evaluate, torch.nn.ReLU(), batches))
    assert results == [4 * inner(batches[0]).sum().item()] * 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_a_forked_process_evaluates_while_its_parent_does(three_lanes):
    gate, network = threading.Event(), torch.nn.Linear(1, 1)
    running = SideBySide(lambda module, batch: gate.wait(timeout=HANGS), network, range(9))
    process = multiprocessing.get_context("fork").Process(target=_evaluate, args=(network,))
    process.start()
    process.join(timeout=HANGS)
    gate.set()
    assert all(running)
    assert process.exitcode == 0


def _evaluate(network):
    assert len(list(SideBySide(lambda module, batch: module(batch), network, [torch.ones(1)] * 9))) == 9


@pytest.mark.parametrize("kind", ["drop-tokens", "onnx"])
def test_logits_are_the_same_bytes_for_1_2_and_5_lanes(monkeypatch, tmp_path, kind):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = set()
    for count in (1, 2, 5):
        monkeypatch.setattr(side_by_side, "cores", lambda count=count: count)
        side_by_side._started.cache_clear()
        model = _vit() if kind == "drop-tokens" else _onnx(tmp_path)
        images = np.random.default_rng(0).integers(0, 256, (3, *model.image_size, 3), dtype=np.uint8)
        regions = cc.Columns(5, stride=3).regions(model.image_size)
        found.add(model.logits(images, regions).tobytes())
    side_by_side._started.cache_clear()
    assert len(found) == 1


def _vit():
    torch.manual_seed(0)
    built = build("timm:vit_tiny_patch16_224", num_classes=5, hide="drop-tokens", image_size=64)
    return TorchClassifier(built.mutants, built.preprocessing, name="vit", batch_size=4)


def _onnx(folder):
    pytest.importorskip("onnxruntime")
    path = folder / "model.onnx"
    if not path.exists():
        onnx_files = pytest.importorskip("onnx_files", reason="needs the package onnx")
        onnx_files.onnx_file(path, ["n", 3, 40, 30])
    return cc.load_model(f"onnx:{path}", mean=0.5, std=0.5, batch_size=4)


def test_copies_share_the_weights_of_the_moment(three_lanes):
    network = torch.nn.Linear(2, 2)
    copies = side_by_side._copies(network, 3)
    assert [copy.weight is network.weight for copy in copies] == [True] * 3
    with torch.no_grad():
        network.weight.zero_()
    assert all((copy.weight == 0).all() for copy in copies)


class Single(torch.nn.Module):
    """Cannot be copied."""

    running = 0
    most = 0

    def __deepcopy__(self, memo):
        raise TypeError("one of a kind")

    def forward(self, batch):
        self.running += 1
        self.most = max(self.most, self.running)
        result = batch + 1
        self.running -= 1
        return result


def test_a_module_that_cannot_be_copied_has_one_lane(three_lanes):
    network = Single()
    results = list(SideBySide(lambda module, batch: module(batch), network, [torch.zeros(3)] * 20))
    assert len(results) == 20
    assert network.most == 1


def test_each_batch_has_one_thread_and_other_threads_keep_theirs(three_lanes):
    given = torch.get_num_threads()
    torch.set_num_threads(before := 4)
    try:
        _check_number_of_threads(before)
    finally:
        torch.set_num_threads(given)


def _check_number_of_threads(before):
    counts = list(SideBySide(lambda module, batch: torch.get_num_threads(), torch.nn.ReLU(), range(9)))
    assert counts == [1] * 9
    found = []
    other = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    other.start()
    other.join()
    assert found == [before] == [torch.get_num_threads()]
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_batches_that_have_not_begun_are_cancelled(three_lanes):
    gate, begun = threading.Event(), []

    def evaluate(module, batch):
        begun.append(batch)
        gate.wait(timeout=HANGS)

    running = SideBySide(evaluate, torch.nn.ReLU(), range(50))
    running.cancel()
    gate.set()
    assert len(begun) <= 3


def test_an_error_in_a_lane_reaches_the_caller(three_lanes):
    def evaluate(module, batch):
        if batch == 3:
            raise cc.CostcertError("batch 3 fails")
        return batch

    with pytest.raises(cc.CostcertError, match="batch 3 fails"):
        list(SideBySide(evaluate, torch.nn.ReLU(), range(9)))


@pytest.mark.parametrize("text", ["2", "1", "64", "", "0", "-1", "many", "2,1"])
def test_lanes_are_at_least_one_and_at_most_the_cores(monkeypatch, text):
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    expected = min(int(text), compiled.cores()) if text in ("1", "2", "64") else compiled.cores()
    assert side_by_side.lanes() == expected


def test_functions_are_called_one_at_a_time_unless_they_allow_more(three_lanes):
    class Function:
        def __init__(self, allows):
            self.side_by_side, self.inside, self.most = allows, 0, 0
            self.meeting = threading.Barrier(2) if allows else None

        def __call__(self, images):
            self.inside += 1
            self.most = max(self.most, self.inside)
            if self.meeting is not None and len(images) == 8:
                self.meeting.wait(timeout=HANGS)
            self.inside -= 1
            return images.reshape(len(images), -1)[:, :5].astype(float)

    images = np.random.default_rng(0).integers(0, 256, (4, 6, 8, 3), dtype=np.uint8)
    regions = cc.Columns(2).regions((6, 8))[:4]
    results = []
    for allows in (False, True):
        function = Function(allows)
        model = cc.load_model(function, image_size=(6, 8), batch_size=8)
        function.most = 0
        results.append(model.logits(images, regions))
        assert function.most == (2 if allows else 1)
    assert np.array_equal(*results)
