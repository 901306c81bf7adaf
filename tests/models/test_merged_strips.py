"""tools/merge_strips.py: strip networks of several families, joined into one."""

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="networks need costcert[models]")

import torch

import costcert as cc
from costcert.models.architectures import build
from costcert.models.saved import ModelCard, save_model

TOOL = Path(__file__).parents[2] / "tools" / "merge_strips.py"


def saved(folder, ablation, seed, num_classes=3):
    torch.manual_seed(seed)
    built = build("strip:tall", num_classes=num_classes, ablation=ablation, image_size=(12, 12))
    for buffer in built.mutants.network.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    card = ModelCard("strip:tall", num_classes, built.preprocessing, ablation, "crop")
    save_model(folder, built.mutants.network, card)


def merge(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", [str(TOOL), *map(str, words)])
    runpy.run_path(str(TOOL), run_name="__main__")


@pytest.mark.parametrize("second", ["rows:2", "columns:3+rows:3"])
def test_merged_networks_say_what_their_parts_say(tmp_path, monkeypatch, second):
    parts = {"columns:2/span=0-8": "first", second: "second"}
    for seed, (ablation, name) in enumerate(parts.items()):
        saved(tmp_path / name, ablation, seed)
    merge(monkeypatch, *(tmp_path / name for name in parts.values()), "--out", tmp_path / "merged")
    merged = cc.load_model(tmp_path / "merged")
    assert str(merged.ablation) == "+".join(parts)
    images = np.random.default_rng(0).integers(0, 256, (2, 12, 12, 3), dtype=np.uint8)
    for ablation, name in parts.items():
        regions = cc.parse_ablation(ablation).regions((12, 12))
        own = cc.load_model(tmp_path / name).logits(images, regions)
        assert np.ptp(own) > 0.01
        np.testing.assert_allclose(merged.logits(images, regions), own, atol=1e-6)


def test_networks_that_do_not_fit_together_are_refused(tmp_path, monkeypatch):
    for name, ablation, classes in (
        ("a", "columns:2", 3),
        ("b", "rows:2", 4),
        ("c", "columns:2/span=1-5", 3),
    ):
        saved(tmp_path / name, ablation, 0, classes)
    for others, says in ((["b"], "differs from .* in its num_classes"), (["c"], "strips of one shape")):
        with pytest.raises(SystemExit, match=says):
            merge(monkeypatch, tmp_path / "a", *(tmp_path / name for name in others), "--out", tmp_path / "m")
    saved(tmp_path / "d", "columns:2+rows:3", 0)
    with pytest.raises(SystemExit, match="two of these models have strips of 12x2 pixels"):
        merge(monkeypatch, tmp_path / "a", tmp_path / "d", "--out", tmp_path / "m")
    assert not (tmp_path / "m").exists()
