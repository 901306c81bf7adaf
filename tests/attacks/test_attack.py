"""Patches of real pixels: they reach the bound where it can be reached, and never go beyond it."""

import json
import os
import signal
import subprocess
import sys
from importlib.resources import files

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import costcert as cc
from command_line import invoke
from costcert.attacks import optimizer
from costcert.attacks.campaign import attack
from costcert.attacks.effort import Effort
from costcert.attacks.evidence import FalseCertificateError
from costcert.attacks.judging import Judge
from costcert.attacks.placements import Placements, Prices, best_placements, prices_of
from costcert.attacks.results import AttackResults
from costcert.attacks.shard import Shard
from costcert.attacks.universal import UniversalPatch
from costcert.datasets.arrays import ArrayDataset
from costcert.errors import CostcertError
from costcert.geometry.touch import touched
from costcert.models import side_by_side
from costcert.models.loading import load_model
from costcert.models.side_by_side import SideBySide
from tiny import Leaky, Tiny, for_masks, greys, pictures
from waiting import HANGS, wait_until

ABLATION = "columns:2"
QUICK = Effort(places=4, restarts=2, steps=10, random=4)
SHARP = cc.Soft(0.05, 2)


class Brightest(nn.Module):
    """Votes for the colour that a strip holds most of.

    Strips of 3 x 2 pixels of at most 40: one pixel of 255 in one colour outshines the five others, so a
    patch of that colour wins every strip it touches. For k = 1 a witness never needs more.
    """

    def __init__(self):
        super().__init__()
        self.contrast = nn.Parameter(torch.tensor(20.0))

    def forward(self, pixels):
        return self.contrast * pixels.sum(dim=(2, 3))


@pytest.fixture
def model():
    return load_model(Brightest(), image_size=(3, 10), mean=0, std=1, hide="zero", ablation=ABLATION)


def dim_pictures(count=24, seed=0):
    """Ten columns, each mainly of one colour, which often is the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    sure = rng.uniform(0.4, 1.0, count)[:, None]
    colours = np.where(rng.random((count, 10)) < sure, labels[:, None], rng.integers(0, 3, (count, 10)))
    images = rng.integers(0, 16, (count, 3, 10, 3), dtype=np.uint8)
    rows, columns = np.indices((count, 10))
    images[rows, :, columns, colours] = rng.integers(25, 41, (count, 10, 3))
    return ArrayDataset("dim", images, labels)


def run(model, folder, data=None, patch="square:2", k=1, **more):
    data = dim_pictures() if data is None else data
    options = {"ablation": ABLATION, "effort": QUICK, **more}
    return attack(model, data, patch, k, folder, **options)


@pytest.mark.parametrize("soft", [None, SHARP], ids=["hard", "soft"])
def test_where_pixels_can_cast_the_ballots_of_the_witness_broken_means_not_certified(model, soft, tmp_path):
    found = run(model, tmp_path, soft=soft)
    right, certified = found.rank == 1, found.min_k == 1
    assert (right & certified).any()
    assert (right & ~certified).any()
    assert ((found.attacked > 1) == ~certified)[right].all()
    assert (found.attacked <= found.min_k).all()


@pytest.mark.parametrize(
    ("patch", "k", "more"),
    [
        ("square:2", 2, {}),
        ("rectangle:1x3", 1, {"defender": "cbn"}),
        ("2*square:1", 1, {}),
        ("shape:10/01", 1, {"soft": SHARP}),
        ("square:1", 1, {"defender": "patchguard"}),
        ("square:1", 2, {"ablation": "columns:2/stride=3"}),
        ("square:1", 1, {"ablation": "columns:2/wrap=no/span=4-6"}),
        ("square:2", 1, {"effort": Effort(places=2, restarts=1, steps=3, random=0, thorough=True)}),
    ],
)
def test_accuracy_under_attack_lies_between_certified_and_clean(model, patch, k, more, tmp_path):
    found = run(model, tmp_path, patch=patch, k=k, **more)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["certified"] <= summary["under_attack"] <= summary["under_random_patches"]
    assert summary["under_random_patches"] <= summary["clean"]
    assert summary["gap"] == pytest.approx(summary["under_attack"] - summary["certified"])
    assert summary["certified_and_broken"] == 0
    assert (found.rank <= found.attacked).all()
    assert (found.attacked <= found.min_k).all()
    assert ((found.won >= 0) & (found.won <= 1)).all()


def test_a_success_is_a_success_when_deployed_and_no_other_pixel_is_changed(model, tmp_path):
    data = dim_pictures()
    found = run(model, tmp_path, data)
    broken = np.flatnonzero((found.rank == 1) & (found.attacked > 1))
    assert len(broken)
    patched = found.patched.reshape(data.images.shape)
    listed = cc.Deployed(model, ABLATION).predict(list(patched[broken]), k=1)
    assert (listed[:, 0] != data.labels[broken]).all()
    for image in range(len(data)):
        changed = (patched[image] != data.images[image]).any(axis=2)
        top, left = found.places[image]
        assert top >= 0 or found.rank[image] > 1
        if top >= 0:
            changed[top : top + 2, left : left + 2] = False
        assert not changed.any()


def brightest(pixels):
    """`Brightest` as a function without gradients."""
    return pixels.astype(np.float32).sum(axis=(1, 2))


def test_random_patches_need_no_gradients(tmp_path):
    found = run(load_model(brightest, image_size=(3, 10)), tmp_path, effort=Effort(steps=0))
    assert (found.attacked == found.random).all()
    assert (found.attacked >= found.rank).all()
    assert (found.attacked > found.rank).any()


@pytest.mark.parametrize("kind", ["fixed", "random"])
def test_one_patch_for_all_images(model, kind, tmp_path):
    data = dim_pictures()
    found = run(model, tmp_path, data, universal=kind, effort=Effort(4, 1, 4, 2))
    shared = UniversalPatch.load(tmp_path)
    assert shared.pixels.shape == (2, 2, 3)
    assert (shared.places is None) == (kind == "random")
    assert ((found.rank == 1) & (found.universal > 1)).any()
    assert (found.universal <= found.min_k).all()
    assert (found.attacked[found.universal > 1] > 1).all()
    if kind == "fixed":
        ((top, left),) = shared.places
        patched = data.images.copy()
        patched[:, top : top + 2, left : left + 2] = shared.pixels
        listed = cc.Deployed(model, ABLATION).predict(list(patched), k=1)[:, 0]
        right = found.rank == 1
        assert ((found.universal > 1) == (listed != data.labels))[right].all()


def falsely(monkeypatch):
    """Certify everything for the top 1."""
    monkeypatch.setattr(Judge, "certified", lambda judge, votes: np.ones(len(votes), dtype=np.int64))


def test_a_false_certificate_is_fatal_and_leaves_its_evidence(model, tmp_path, monkeypatch):
    data = dim_pictures()
    truly = run(model, tmp_path / "truly", data)
    falsely(monkeypatch)
    # Images that are wrong without a patch are left out.
    right = data.images[truly.rank == 1]
    few = ArrayDataset("right", right, data.labels[truly.rank == 1])
    thorough = Effort(places=4, restarts=2, steps=10, random=0, thorough=True)
    with pytest.raises(FalseCertificateError, match=r"is FALSE: .* certified for the top 1 .* to position 2"):
        run(model, tmp_path / "falsely", few, effort=thorough, soft=SHARP)
    folders = sorted((tmp_path / "falsely" / "evidence").iterdir())
    assert folders
    assert not list((tmp_path / "falsely").glob("shard-*"))
    for folder in folders:
        said = json.loads((folder / "evidence.json").read_text())
        votes = np.load(folder / "votes.npz", allow_pickle=False)
        clean, patched = votes["clean"], votes["patched"]
        assert (clean == np.array(Image.open(folder / "clean.png"))).all()
        assert (patched == np.array(Image.open(folder / "patched.png"))).all()
        assert (clean == few.images[few.ids.index(said["image"])]).all()
        ((top, left),) = said["places"]
        outside = np.ones((3, 10), dtype=bool)
        outside[top : top + 2, left : left + 2] = False
        assert (clean[outside] == patched[outside]).all()
        untouched = np.setdiff1d(np.arange(10), said["touched"])
        for name in ("ballots", "labels", "units"):
            assert (votes[f"{name}_before"][untouched] == votes[f"{name}_after"][untouched]).all()
        assert said["certificate"] == {
            "classifier": cc.Deployed(model, ABLATION, soft=SHARP).classifier.to_json(),
            "patch": "square:2",
            "ties": "lowest",
            "min_k": 1,
        }
        assert said["position_before"] == 1 < said["position_after"]
        assert said["run"]["model"]["digest"] == model.metadata()["digest"]
        deployed = cc.Deployed(model, ABLATION, soft=SHARP)
        assert deployed.predict(patched, k=1)[0, 0] != said["truth"]
        after = deployed.votes(patched)
        assert np.bincount(after.labels.ravel(), after.units.ravel(), 3).tolist() == said["scores_after"]


def test_a_model_that_looks_beyond_its_region_is_found_out(tmp_path):
    hard = {"ablation": "columns:1", "effort": Effort(steps=0, random=64)}
    with pytest.raises(FalseCertificateError, match=r"square:4 does not touch them, so no certificate"):
        run(Leaky(), tmp_path, greys(), "square:4", **hard)
    said = [json.loads(path.read_text()) for path in tmp_path.glob("evidence/*/evidence.json")]
    assert any(each["changed_though_untouched"] for each in said)
    # A second run is refused, so that the evidence is not overlooked.
    with pytest.raises(FalseCertificateError, match="please report it; this folder is not continued"):
        run(Leaky(), tmp_path, greys(), "square:4", **hard)


@pytest.fixture
def on_the_command_line(model, tmp_path, monkeypatch):
    """`costcert attack` on the tiny model."""
    data = dim_pictures()
    np.savez(tmp_path / "dim.npz", images=data.images, labels=data.labels)
    monkeypatch.setattr("costcert.models.loading.load_model", lambda *args, **more: model)
    ask = ["attack", "--model", "brightest", "--data", f"npz:{tmp_path / 'dim.npz'}", "--patch", "2"]
    quick = ["--ablation", ABLATION, "--places", "4", "--restarts", "2", "--steps", "10", "--random", "4"]

    def attack_with(*more):
        return invoke([*ask, *quick, "--out", str(tmp_path / "out"), *more])

    return attack_with


def test_the_command_shows_what_is_in_the_summary(on_the_command_line, tmp_path):
    result = on_the_command_line("--limit", "20", "--seed", "3", "--universal", "fixed", "--k", "1")
    assert result.exit_code == 0, result.output
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["images"] == 20
    lines = {
        "images as they are": "clean",
        "random pixels (4 patches per image)": "under_random_patches",
        "one patch for all (fixed place)": "under_universal_patch",
        "under attack, the worst that was found": "under_attack",
        "certified  ": "certified",
    }
    for text, key in lines.items():
        (line,) = [line for line in result.stdout.splitlines() if line.strip().startswith(text.strip())]
        assert f" {100 * summary[key]:.1f} " in line
    assert f"Of the other {summary['open_images']} the attack broke {summary['broken']};" in result.stdout
    assert not list((tmp_path / "out").glob("*evidence*"))


def test_the_command_exits_with_3_where_a_certificate_is_false(on_the_command_line, monkeypatch, tmp_path):
    falsely(monkeypatch)
    result = on_the_command_line("--thorough", "--k", "2", "--patch", "rectangle:3x10")
    assert result.exit_code == 3
    assert "is FALSE" in result.stderr
    assert str(tmp_path / "out" / "evidence") in result.stderr
    assert list((tmp_path / "out" / "evidence").glob("*/evidence.json"))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--k", "3"], "3 classes, so no label can leave the top 3: take a k of at most 2"),
        (["--patch", "sqare:2"], "did you mean 'square'?"),
        (["--patch", "4"], "does not fit a 3x10 image"),
        (["--defender", "costcerd"], "did you mean 'costcert'?"),
        (["--soft", "warm"], "write temperature and labels"),
        (["--universal", "yes"], "a universal patch is fixed or random, got 'yes'"),
        (["--data", "npz:nowhere.npz"], "is not there"),
        (["--limit", "99"], "requested 99 images"),
    ],
)
def test_what_cannot_be_attacked_gets_one_sentence(on_the_command_line, more, says, tmp_path):
    result = on_the_command_line(*more)
    assert result.exit_code == 2, result.output
    assert says in " ".join(result.stderr.split())
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_label_must_mean_the_same_to_model_and_data(tmp_path):
    model, data = Tiny(class_names=("a", "b", "c", "d")), pictures(4, class_names=("a", "b", "d", "c"))
    with pytest.raises(CostcertError, match="class 2 is 'd' in pictures, but 'c' in the model"):
        run(model, tmp_path / "out", data, ablation="columns:3", effort=Effort(steps=0))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["numpy", "function"])
def test_without_gradients_only_random_pixels_can_be_tried(kind, tmp_path):
    if kind == "numpy":
        model, data, ablation = Tiny(), pictures(4), "columns:3"
    else:
        model, data, ablation = load_model(brightest, image_size=(3, 10)), dim_pictures(4), ABLATION
    with pytest.raises(CostcertError, match="has no gradients: pass --steps 0"):
        run(model, tmp_path / "out", data, ablation=ablation)
    assert not (tmp_path / "out").exists()
    found = run(model, tmp_path / "out", data, ablation=ablation, effort=Effort(steps=0))
    assert (found.attacked <= found.min_k).all()


def test_a_stopped_run_continues_and_ends_like_an_undisturbed_one(model, tmp_path, monkeypatch):
    whole = run(model, tmp_path / "whole", shard_size=5)
    attacked, calls = Shard.attacked, []

    def twice(shard, *more):
        calls.append(len(shard.votes))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return attacked(shard, *more)

    monkeypatch.setattr(Shard, "attacked", twice)
    with pytest.raises(KeyboardInterrupt):
        run(model, tmp_path / "parts", shard_size=5)
    assert len(list((tmp_path / "parts").glob("shard-*.parquet"))) == 2
    parts = run(model, tmp_path / "parts", shard_size=5)
    assert calls == [5, 5, 5, 5, 5, 4]
    assert (parts.patched == whole.patched).all()
    assert (parts.attacked == whole.attacked).all()
    assert parts.image_id.tolist() == whole.image_id.tolist()
    with pytest.raises(CostcertError, match=r"holds another run: its k is 1, this run's is 2"):
        run(model, tmp_path / "parts", k=2)
    assert (run(model, tmp_path / "parts").patched == whole.patched).all()
    assert len(calls) == 6


def test_patches_are_the_same_on_any_number_of_cores(model, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(optimizer, "_FEWEST", 1)
    parts = []

    def noted(evaluate, module, batches):
        parts.append(len(batches))
        return SideBySide(evaluate, module, batches)

    monkeypatch.setattr(optimizer, "SideBySide", noted)
    found = []
    for cores in (1, 3):
        monkeypatch.setattr(side_by_side, "cores", lambda cores=cores: cores)
        found.append(run(model, tmp_path / str(cores), shard_size=8))
    assert max(parts) > 1
    assert (found[0].patched == found[1].patched).all()
    assert (found[0].attacked == found[1].attacked).all()


@pytest.mark.slow
def test_a_killed_process_keeps_what_it_finished(tmp_path):
    out = tmp_path / "out"
    ask = [sys.executable, "-m", "costcert", "attack", "--model", str(files("costcert") / "sample" / "model")]
    ask += ["--data", "sample", "--limit", "8", "--patch", "4", "--shard-size", "1", "--out", str(out)]
    ask += ["--places", "2", "--restarts", "1", "--steps", "10", "--random", "2", "--device", "cpu"]
    how = {
        "env": {**os.environ, "OMP_NUM_THREADS": "1"},
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    with subprocess.Popen(ask, **how) as process:
        wait_until((out / "shard-00001.parquet").exists, process)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    done = {path.name: path.stat().st_mtime_ns for path in out.glob("shard-*.parquet")}
    assert 2 <= len(done) < 8
    again = subprocess.run(ask, timeout=HANGS, check=True, **how)
    assert b"8 images" in again.stdout
    now = {path.name: path.stat().st_mtime_ns for path in out.glob("shard-*.parquet")}
    assert len(now) == 8
    assert done.items() <= now.items()
    assert not list(out.glob(".*.tmp"))
    assert all(len(AttackResults.read(out, number, 1)) == 1 for number in range(8))


@pytest.mark.parametrize(
    "ablation", ["columns:3", "columns:3/stride=2", "rows:2/wrap=no", "blocks:3/stride=2", "masks:3/patch=2"]
)
@pytest.mark.parametrize("patch", ["square:2", "rectangle:1x4", "shape:110/011", "2*square:1"])
def test_touched_mutants_agree_with_the_geometry(ablation, patch):
    size = (6, 7)
    kept, wanted = cc.parse_ablation(ablation), cc.parse_patch(patch, size)
    placements, cases = Placements(kept, wanted, size), touched(kept, wanted, size)
    for case, places in zip(cases.sets(), cases.places.tolist(), strict=True):
        assert placements.touched(tuple(map(tuple, places))).tolist() == np.flatnonzero(case).tolist()
    rng = np.random.default_rng(0)
    known = list(cases.sets())
    for _ in range(20):
        places = placements.draw(rng)
        inside = np.zeros(cases.num_mutants, dtype=bool)
        inside[placements.touched(places)] = True
        assert any((inside <= case).all() for case in known)
        assert (
            placements.touched(placements.draw_equivalent(places, rng)).tolist()
            == np.flatnonzero(inside).tolist()
        )
        assert placements.pixels(places).sum() >= 1


@pytest.mark.parametrize("soft", [None, cc.Soft(0.5, 4)], ids=["hard", "soft"])
@pytest.mark.parametrize("k", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_no_certificate_of_masks_is_broken_and_others_are(soft, k, tmp_path):
    """By random pixels, which need no gradients, judged by the prediction of the deployed classifier."""
    found = attack(
        Tiny(),
        for_masks(24),
        "square:2",
        k,
        tmp_path,
        ablation="masks:3/patch=2",
        defender="patchcleanser",
        soft=soft,
        effort=Effort(places=8, restarts=0, steps=0, random=24, thorough=True),
    )
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["classifier"]["defender"] == "patchcleanser"
    assert 0 < summary["certified"] <= summary["under_attack"] <= summary["clean"]
    assert summary["certified_and_broken"] == 0
    assert (found.attacked <= found.min_k).all()
    assert (found.attacked > found.rank).any()


def test_a_model_that_looks_under_masks_is_found_out(tmp_path):
    with pytest.raises(FalseCertificateError, match="changed their ballots although"):
        attack(
            Leaky(),
            greys(),
            "square:2",
            1,
            tmp_path,
            ablation="masks:3/patch=2",
            defender="patchcleanser",
            effort=Effort(places=4, restarts=0, steps=0, random=40, thorough=True),
        )


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_first_placement_on_masks_is_the_witness(k):
    rng = np.random.default_rng(k)
    truth = rng.integers(0, 5, 20)
    units = rng.integers(0, 4, (20, 45, 5))
    units[np.arange(20), :, truth] = 4
    labels = np.broadcast_to(np.arange(5), units.shape)
    world = {"num_classes": 5, "ablation": "masks:3/patch=2", "image_size": 8}
    votes = cc.Votes.soft(labels, units, truth, cap=16, **world)
    placements = Placements(votes.ablation, cc.Square(2), votes.image_size)
    for image in range(20):
        candidates = best_placements(votes, image, placements, k, 6, rng)
        lifted = [prices_of(votes, image, k).lifted(each.touched)[0] for each in candidates]
        assert lifted[0] == max(lifted) == min(k, cc.strongest(votes, image, 2).position - 1)
        assert all(len(each.wanted) == len(each.touched) for each in candidates)
        assert all(truth[image] not in each.wanted for each in candidates)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_the_price_of_the_first_placement_is_the_bound(k):
    """And its ballots, if they were cast, would push the true label as far as the bound allows."""
    rng = np.random.default_rng(k)
    truth = rng.integers(0, 5, 40)
    ballots = np.where(rng.random((40, 12)) < 0.6, truth[:, None], rng.integers(0, 5, (40, 12)))
    votes = cc.Votes(ballots, truth, num_classes=5, ablation="columns:3", image_size=(4, 12))
    placements = Placements(votes.ablation, cc.Square(2), votes.image_size)
    min_k = cc.certify(votes, 2, ["costcert"], ties="lowest").min_k("costcert", 2)
    for image in range(40):
        candidates = best_placements(votes, image, placements, k, 6, rng)
        prices = Prices(votes, image, k)
        bounds = [prices.lifted(placement.touched)[0] for placement in candidates]
        assert bounds[0] == max(bounds) == min(k, min_k[image] - 1)
        cast = ballots[image].copy()
        cast[candidates[0].touched] = candidates[0].wanted
        scores = np.bincount(cast, minlength=5)
        order = np.argsort(-scores, kind="stable").tolist()
        if min_k[image] > k:
            assert order.index(truth[image]) >= k
