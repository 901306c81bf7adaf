"""Training on mutants: it learns, goes on where it was stopped, and writes what voting reads."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs costcert[models]")

import torch
from typer.testing import CliRunner

from costcert.cli import app
from costcert.datasets.arrays import ArrayDataset
from costcert.errors import CostcertError
from costcert.geometry.ablations import parse_ablation
from costcert.models.architectures import build
from costcert.models.loading import load_model
from costcert.recipes import PRESETS, Recipe, find_recipe
from costcert.training import CHECKPOINT, Trainer, augmented, draw
from costcert.voting import vote

# Tests run side by side; networks this small gain nothing from a second thread.
torch.set_num_threads(1)

ABLATION = parse_ablation("columns:3")


def stripes(count=96, seed=0):
    """Images of two kinds that every strip can tell apart: bright above, or bright below."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    images = rng.integers(0, 60, (count, 8, 8), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[4 * label : 4 * label + 4] += 150
    return ArrayDataset(
        "stripes", images, labels, ids=[str(n) for n in range(count)], class_names=["up", "down"]
    )


def trainer(folder, recipe):
    torch.manual_seed(recipe.seed)
    built = build("strip:small", num_classes=2, ablation=ABLATION, image_size=8, channels=1)
    return Trainer(
        built.mutants,
        built.preprocessing,
        ABLATION.regions((8, 8)),
        recipe,
        folder,
        identity={"recipe": recipe.to_json()},
    )


QUICK = find_recipe("default", epochs=3, batch_size=16, seed=4)


def test_it_learns_and_validates_every_epoch(tmp_path):
    epochs = []
    recipe = find_recipe("default", epochs=12, batch_size=16, seed=4)
    trainer(tmp_path, recipe).fit(stripes(), stripes(40, seed=9), after_epoch=epochs.append)
    assert [epoch.number for epoch in epochs] == list(range(1, 13))
    assert epochs[-1].validation > 0.95
    assert epochs[-1].loss < epochs[0].loss


def test_a_resumed_run_ends_like_one_that_was_never_stopped(tmp_path):
    whole = trainer(tmp_path / "whole", QUICK).fit(stripes(), None)

    class Stopped(Exception):  # noqa: N818
        pass

    def stop(epoch):
        if epoch.number == 2:
            raise Stopped

    with pytest.raises(Stopped):
        trainer(tmp_path / "parts", QUICK).fit(stripes(), None, after_epoch=stop)
    assert (tmp_path / "parts" / CHECKPOINT).exists()
    seen = []
    resumed = trainer(tmp_path / "parts", QUICK).fit(stripes(), None, after_epoch=seen.append)
    assert [epoch.number for epoch in seen] == [3]
    for name, weights in whole.state_dict().items():
        assert torch.equal(weights, resumed.state_dict()[name]), name


def test_another_recipe_into_the_same_folder_is_refused(tmp_path):
    trainer(tmp_path, QUICK)
    with pytest.raises(CostcertError, match=r"its recipe\.seed is 4, this run's is 5"):
        trainer(tmp_path, find_recipe("default", epochs=3, batch_size=16, seed=5))


def test_a_damaged_checkpoint_is_said_so(tmp_path):
    first = trainer(tmp_path, QUICK)
    (tmp_path / CHECKPOINT).write_bytes(b"not weights")
    with pytest.raises(CostcertError, match="is damaged or of another network"):
        first.fit(stripes(), None)


def test_shared_regions_are_the_papers_way():
    rng = np.random.default_rng(0)
    regions = ABLATION.regions((8, 8))
    _, shared = draw(20, regions, PRESETS["paper-small"], rng)
    images, own = draw(20, regions, Recipe(mutants=3), rng)
    assert len(set(shared)) == 1
    assert len(own) == len(images) == 60
    assert len(set(own)) > 1


def test_augmentation_leaves_the_batch_alone_and_mirrors_only_where_asked():
    pixels = torch.arange(64.0).reshape(1, 1, 8, 8).repeat(50, 1, 1, 1)
    before = pixels.clone()
    still = augmented(pixels, Recipe(shift=0, light=0), np.random.default_rng(0))
    flipped = augmented(pixels, Recipe(shift=0, light=0, flip=True), np.random.default_rng(0))
    assert torch.equal(pixels, before)
    assert torch.equal(still, before)
    mirrored = [bool(torch.equal(image, before[0].flip(-1))) for image in flipped]
    assert 10 < sum(mirrored) < 40


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"rate": 0.0}, "rate must be above 0"),
        ({"rate": float("nan")}, "rate must be above 0"),
        ({"smoothing": 1.0}, "smoothing"),
        ({"optimizer": "adam"}, "did you mean 'adamw'?"),
    ],
)
def test_bad_recipes_get_one_sentence(change, says):
    with pytest.raises(CostcertError) as caught:
        find_recipe("default", **change)
    assert says in str(caught.value)


def test_train_then_vote_with_nothing_said_twice(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = stripes()
    np.savez("d.npz", images=data.images, labels=data.labels)
    ask = [
        "train",
        "--model",
        "strip:small",
        "--data",
        "npz:d.npz",
        "--ablation",
        "columns:3",
        "--out",
        "model",
    ]
    result = CliRunner().invoke(app, [*ask, "--epochs", "12", "--batch-size", "16"])
    assert result.exit_code == 0, result.output
    assert "epoch 12 of 12" in result.stdout
    model = load_model("model")
    votes = vote(model, data, model.ablation)
    assert (votes.ballots == votes.truth[:, None]).mean() > 0.9
    again = CliRunner().invoke(app, [*ask, "--epochs", "12", "--batch-size", "16"])
    assert "is trained already" in again.stdout
    other = CliRunner().invoke(app, [*ask, "--epochs", "3", "--batch-size", "16"])
    assert other.exit_code == 2
    assert "holds another run: its recipe.epochs is 12" in other.stderr


def test_gtsrb_is_not_mirrored_unless_asked():
    from costcert.commands.train import Request, _recipe

    data = stripes()
    data.name = "torchvision:GTSRB"
    request = {
        "model": "strip:small",
        "data": "",
        "ablation": "columns:3",
        "out": None,
        "preset": "paper-small",
    }
    assert PRESETS["paper-small"].flip
    assert not _recipe(Request(**request), data).flip
    assert _recipe(Request(**request, settings={"flip": True}), data).flip


def test_the_demo_shows_what_the_library_says():
    result = CliRunner().invoke(app, ["demo", "--limit", "40"])
    assert result.exit_code == 0, result.output
    assert "in % of 40 images" in result.stdout
    assert "What this means." in result.stdout
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


TRAIN = """
import sys
import torch
torch.set_num_threads(1)
from costcert.cli import app
app(sys.argv[1:])
"""


def test_a_killed_training_goes_on_and_ends_with_the_same_weights(tmp_path):
    """kill -9 after the first checkpoint: the second run begins there, and nobody can tell afterwards."""
    np.savez(tmp_path / "stripes.npz", images=stripes().images, labels=stripes().labels)

    def command(out):
        words = (
            f"train --model strip:small --data npz:{tmp_path}/stripes.npz --ablation columns:3 --epochs 30"
        )
        return [sys.executable, "-c", TRAIN, *words.split(), "--batch-size", "16", "--out", str(out)]

    killed = tmp_path / "killed"
    with subprocess.Popen(command(killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        deadline = time.monotonic() + 120
        while not (killed / CHECKPOINT).exists():
            assert time.monotonic() < deadline
            assert running.poll() is None
            time.sleep(0.002)
        running.send_signal(signal.SIGKILL)
    assert running.returncode == -signal.SIGKILL
    assert not (killed / "model.json").exists()
    again = subprocess.run(command(killed), capture_output=True, text=True, check=True)
    assert "epoch 1 of 12" not in again.stdout
    assert "epoch 12 of 12" in again.stdout
    subprocess.run(command(tmp_path / "whole"), capture_output=True, check=True)
    weights = "model.safetensors"
    assert (killed / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()
