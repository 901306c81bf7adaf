"""Training on mutants: it learns, resumes from its checkpoint, and writes a model that voting reads."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("torch", reason="training needs costcert[models]")

import torch

import costcert as cc
from command_line import invoke, parsed
from costcert.datasets.arrays import ArrayDataset
from costcert.datasets.base import ImageError
from costcert.errors import CostcertError
from costcert.geometry.ablations import parse_ablation
from costcert.models.architectures import build
from costcert.models.loading import load_model
from costcert.models.preprocessing import Preprocessing
from costcert.models.strips import StripNet, _interpolation
from costcert.training.augmentation import augment, draw_mutants
from costcert.training.losses import TrainingLoss, certificate_loss, teacher_loss, vote_loss
from costcert.training.prepared_images import PreparedImages
from costcert.training.recipes import PRESETS, Recipe, find_recipe
from costcert.training.trainer import CHECKPOINT, Trainer
from costcert.votes.voting import vote

# Tests run side by side; networks this small gain nothing from a second thread.
torch.set_num_threads(1)

ABLATION = parse_ablation("columns:3")


def stripes(count=96, seed=0):
    """Images of two classes that every strip distinguishes: bright above, or bright below."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    images = rng.integers(0, 60, (count, 8, 8), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[4 * label : 4 * label + 4] += 150
    return ArrayDataset(
        "stripes", images, labels, ids=[str(n) for n in range(count)], class_names=["up", "down"]
    )


def trainer(folder, recipe, **options):
    torch.manual_seed(recipe.seed)
    built = build("strip:small", num_classes=2, ablation=ABLATION, image_size=8, channels=1)
    return Trainer(
        built.mutants,
        built.preprocessing,
        ABLATION,
        recipe,
        folder,
        identity={"recipe": recipe.to_json()},
        **options,
    )


QUICK = find_recipe("default", epochs=3, batch_size=16, seed=4)


@pytest.mark.slow
def test_it_learns_and_validates_every_epoch(tmp_path):
    epochs = []
    recipe = find_recipe("default", epochs=12, batch_size=16, seed=4)
    trainer(tmp_path, recipe).fit(stripes(), stripes(40, seed=9), after_epoch=epochs.append)
    assert [epoch.number for epoch in epochs] == list(range(1, 13))
    assert epochs[-1].validation > 0.95
    assert epochs[-1].loss < epochs[0].loss


def test_a_resumed_run_ends_like_one_that_was_never_stopped(tmp_path):
    complete = trainer(tmp_path / "complete", QUICK).fit(stripes(), None)

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
    for name, weights in complete.state_dict().items():
        assert torch.equal(weights, resumed.state_dict()[name]), name


class Counted(ArrayDataset):
    """Records every image that is read, in any process."""

    def __init__(self, path, data, damaged=None):
        super().__init__("counted", data.images, data.labels, class_names=data.class_names)
        self.path, self.damaged = path, damaged

    def image(self, index):
        with self.path.open("a") as notes:
            notes.write(f"{index}\n")
        if index == self.damaged:
            raise ImageError(f"{self.ids[index]} cannot be read")
        return super().image(index)

    def read(self):
        return sorted(map(int, self.path.read_text().split()))


# Warnings on machines with one core, and about forks beside the threads of other tests.
with_workers = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:.*multi-threaded, use of fork"
)


@pytest.mark.slow
@with_workers
def test_every_image_is_prepared_once_with_and_without_workers(tmp_path, monkeypatch):
    weights = {}
    for workers in (0, 2):
        shown = Counted(tmp_path / f"train {workers}", stripes(90))
        checked = Counted(tmp_path / f"validation {workers}", stripes(40, seed=9))
        weights[workers] = trainer(tmp_path / str(workers), QUICK, workers=workers).fit(shown, checked)
        assert len(shown.read()) == len(set(shown.read())) > 80
        assert checked.read() == list(range(40))
    # A dataset that does not fit in memory is prepared in every epoch, with the same result.
    monkeypatch.setattr("costcert.training.prepared_images._MAX_CACHE_BYTES", 90 * 8 * 8 - 1)
    large = Counted(tmp_path / "large", stripes(90))
    weights["large"] = trainer(tmp_path / "anew", QUICK, workers=2).fit(large, stripes(40, seed=9))
    assert len(large.read()) == 3 * 80
    for name, expected in weights.pop(0).state_dict().items():
        assert all(torch.equal(each.state_dict()[name], expected) for each in weights.values()), name


@with_workers
def test_workers_prepare_the_same_pixels():
    data, preprocessing = stripes(50), Preprocessing((5, 6), mean=(0.5,), std=(0.5,), channels=1)
    order = np.random.default_rng(0).permutation(50).tolist()
    prepared = PreparedImages(data, preprocessing, order=order, workers=2)
    # Read in another order than announced, and one image twice.
    for indices in ([0, 1, 2], [*range(3, 50), 7], [7, 3]):
        pixels, labels = prepared.__getitems__(indices)
        expected = np.stack([preprocessing.prepare(data.image(index)) for index in indices])
        assert np.array_equal(pixels.numpy(), expected)
        assert labels.tolist() == [data.label(index) for index in indices]


@pytest.mark.slow
@with_workers
def test_an_unreadable_image_is_one_sentence_with_and_without_workers(tmp_path):
    for workers in (0, 2):
        data = Counted(tmp_path / f"notes {workers}", stripes(), damaged=20)
        with pytest.raises(ImageError, match=r"\A00020 cannot be read\Z"):
            trainer(tmp_path / str(workers), QUICK, workers=workers).fit(data, None)


@pytest.mark.slow
def test_the_data_of_a_training_are_hashed_once(tmp_path, monkeypatch):
    hashed = []
    monkeypatch.setattr(
        "costcert.datasets.base.Dataset.digest", lambda data: (hashed.append(data.name), "d")[1]
    )
    np.savez(tmp_path / "d.npz", images=stripes().images, labels=stripes().labels)
    command = [
        "train",
        "--model",
        "strip:small",
        "--data",
        f"npz:{tmp_path / 'd.npz'}",
        "--ablation",
        "columns:3",
    ]
    result = invoke([*command, "--epochs", "1", "--out", str(tmp_path / "model")])
    assert result.exit_code == 0, result.output
    assert hashed == ["npz:d.npz (without 10 held out, seed 0)", "npz:d.npz (limit 10, seed 0)"]


def test_another_recipe_into_the_same_folder_is_refused(tmp_path):
    trainer(tmp_path, QUICK)
    with pytest.raises(CostcertError, match=r"its recipe\.seed is 4, this run's is 5"):
        trainer(tmp_path, find_recipe("default", epochs=3, batch_size=16, seed=5))


def test_a_damaged_checkpoint_is_one_sentence(tmp_path):
    first = trainer(tmp_path, QUICK)
    (tmp_path / CHECKPOINT).write_bytes(b"not weights")
    with pytest.raises(CostcertError, match="is damaged or of another network"):
        first.fit(stripes(), None)


def test_a_checkpoint_is_not_read_by_a_torch_with_an_unsafe_loader(tmp_path, monkeypatch):
    first = trainer(tmp_path, QUICK)
    (tmp_path / CHECKPOINT).write_bytes(b"not weights")
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)("2.9.1"))
    with pytest.raises(CostcertError, match="upgrade torch"):
        first.fit(stripes(), None)


def test_strips_side_by_side_do_not_see_each_other():
    torch.manual_seed(0)
    network = StripNet(3, 32, 4, 5, "tall").eval()
    strips = torch.rand(24, 4, 32, 4)
    with torch.inference_mode():
        together = network(strips)
        alone = torch.cat([network(strip[None]) for strip in strips])
        others = strips.clone()
        others[1:] = torch.rand(23, 4, 32, 4)
        beside_others = network(others)
    assert torch.allclose(together, alone, atol=1e-5)
    assert torch.equal(beside_others[0], together[0])
    assert not torch.equal(beside_others[1], together[1])


@pytest.mark.parametrize(
    "ablation", ["columns:4", "rows:3", "blocks:6", "columns:3+columns:5", "columns:3+rows:3"]
)
def test_tall_networks_learn_from_strips_of_any_shape(ablation):
    regions = parse_ablation(ablation).regions((16, 16))
    built = build("strip:tall", num_classes=4, ablation=parse_ablation(ablation), image_size=16)
    wanted = torch.arange(8) % 4
    logits = built.mutants(torch.rand(8, 3, 16, 16), regions[:: len(regions) // 8][:8])
    torch.nn.functional.cross_entropy(logits, wanted).backward()
    assert all(parameter.grad is not None for parameter in built.mutants.parameters())


def test_the_position_of_a_strip_is_interpolated():
    near = _interpolation(torch.tensor([[-1.0], [1.0], [1 / 15], [0.0]]))
    assert near[0].argmax() == 0
    assert near[1].argmax() == 15
    assert near[2].argmax() == 8
    assert torch.allclose(near[3, 7:9], torch.tensor([0.5, 0.5]))
    assert torch.allclose(near.sum(dim=1), torch.ones(4))


def test_regions_are_shared_in_the_papers_recipe():
    rng = np.random.default_rng(0)
    shared = draw_mutants(20, 8, PRESETS["paper-small"], rng)
    own = draw_mutants(20, 8, Recipe(mutants=3), rng)
    assert shared.shape == (1, 20)
    assert len(set(shared[0])) == 1
    assert own.shape == (3, 20)
    assert len(set(own.ravel())) > 1


def test_augmentation_copies_the_batch_and_mirrors_only_if_requested():
    pixels = torch.arange(64.0).reshape(1, 1, 8, 8).repeat(50, 1, 1, 1)
    before = pixels.clone()
    still = augment(pixels, Recipe(shift=0, brightness_contrast=0), np.random.default_rng(0))
    flipped = augment(pixels, Recipe(shift=0, brightness_contrast=0, flip=True), np.random.default_rng(0))
    assert torch.equal(pixels, before)
    assert torch.equal(still, before)
    mirrored = [bool(torch.equal(image, before[0].flip(-1))) for image in flipped]
    assert 10 < sum(mirrored) < 40


def test_warping_changes_all_but_uniform_images():
    rng = np.random.default_rng(0)
    pixels = torch.rand(20, 3, 8, 8)
    pixels[0] = 0.5
    warped = augment(pixels, Recipe(shift=0, brightness_contrast=0, warp=0.2), rng)
    assert warped.shape == pixels.shape
    assert torch.allclose(warped[0], pixels[0])
    assert all((warped[n] - pixels[n]).abs().max() > 0.01 for n in range(1, 20))
    assert warped.min() >= 0
    assert warped.max() <= 1


def test_colour_changes_per_channel_and_not_in_uniform_images():
    pixels = torch.rand(20, 3, 8, 8)
    pixels[0] = 0.5
    tinted = augment(pixels, Recipe(shift=0, brightness_contrast=0, colour=0.3), np.random.default_rng(0))
    assert torch.allclose(tinted[0], pixels[0])
    moved = (tinted - pixels).mean(dim=(2, 3))[1:]
    assert (moved.std(dim=1) > 0.003).all()
    assert moved.abs().max() < 0.3


def test_mutants_of_a_vote_are_evenly_spaced():
    for weights in ({"vote_loss_weight": 0.5}, {"certificate_loss_weight": 0.5, "certified_patches": ("2",)}):
        drawn = draw_mutants(50, 16, Recipe(mutants=4, **weights), np.random.default_rng(0))
        assert drawn.shape == (4, 50)
        assert (np.diff(drawn, axis=0) == 4).all()
        assert set(drawn[0]) == {0, 1, 2, 3}


def one_hot_ballots(*labels, num_classes=3):
    """Soft ballots [B, 1, L] of one image, each with all its weight on one label."""
    return torch.nn.functional.one_hot(torch.tensor(labels), num_classes).float()[:, None]


def test_the_vote_loss_falls_with_the_lead():
    truth = torch.tensor([0])
    losses = [
        float(vote_loss(one_hot_ballots(*labels), truth, margin=0.4))
        for labels in ((0,) * 4, (0, 0, 0, 1), (0, 0, 1, 1), (1,) * 4)
    ]
    assert losses == sorted(losses)
    assert len(set(losses)) == 4
    # Two ballots for one rival bring it nearer than one for each of two.
    assert vote_loss(one_hot_ballots(0, 0, 1, 1), truth, margin=0.4) > vote_loss(
        one_hot_ballots(0, 0, 1, 2), truth, margin=0.4
    )


def test_the_vote_loss_equals_its_definition():
    rng = np.random.default_rng(5)
    ballots = torch.softmax(torch.from_numpy(rng.normal(size=(6, 4, 5))), dim=2)
    truth = [0, 4, 2, 2]
    losses = []
    for image, label in enumerate(truth):
        share = ballots[:, image].mean(dim=0).numpy()
        losses.append(
            np.log(sum(np.exp(10 * (share[y] - share[label] + 0.3 * (y != label))) for y in range(5)))
        )
    assert float(vote_loss(ballots, torch.tensor(truth), margin=0.3)) == pytest.approx(0.4 * np.mean(losses))


def naive_certificate_loss(ballots, truth, clean, ks):
    """By its definition, image by image and position by position."""
    losses = []
    for table in clean:
        for k in ks:
            for n, label in enumerate(truth):
                beyond = []
                for position in table:
                    budget = sum(1 - position[b][n] for b in range(len(ballots)))
                    votes = [
                        sum(position[b][n] * ballots[b][n][y] for b in range(len(ballots)))
                        for y in range(len(ballots[0][n]))
                    ]
                    gaps = sorted(votes[label] - v for y, v in enumerate(votes) if y != label)
                    beyond.append((sum(gaps[:k]) - budget) / len(ballots))
                losses.append(np.log1p(np.exp(-10 / np.sqrt(k) * min(beyond))))
    return 0.4 * np.mean(losses)


def test_the_certificate_loss_equals_its_definition():
    rng = np.random.default_rng(5)
    ballots = torch.softmax(torch.from_numpy(rng.normal(size=(6, 4, 5))), dim=2)
    truth, ks = [0, 4, 2, 2], (1, 3)
    clean = [torch.from_numpy((rng.random((positions, 6, 4)) < 0.7).astype(float)) for positions in (3, 7)]
    found = certificate_loss(ballots, torch.tensor(truth), clean, ks)
    expected = naive_certificate_loss(ballots.tolist(), truth, [table.tolist() for table in clean], ks)
    assert float(found) == pytest.approx(expected)


def test_the_certificate_loss_is_small_where_costcert_certifies():
    """Six mutants, of which a patch touches two: five votes of six are enough for top-1, four are not."""
    truth = torch.tensor([0])
    touched = torch.zeros(5, 6, 1)
    for position in range(5):
        touched[position, position : position + 2] = 1
    losses = []
    for right in range(7):
        labels = [0] * right + [1] * (6 - right)
        votes = cc.Votes([labels], [0], num_classes=3, ablation="rows:1", image_size=(6, 6))
        ballots = one_hot_ballots(*labels)
        losses.append(float(certificate_loss(ballots, truth, [1 - touched], [1])))
        certified = cc.certify(votes, 2).min_k("costcert", 2)[0] == 1
        # What is left of the votes must exceed the budget: the loss at that point is that of zero beyond it.
        assert (losses[-1] < 0.4 * np.log(2)) == certified
    assert losses == sorted(losses, reverse=True)


def test_a_teacher_is_followed():
    logits, taught = torch.randn(6, 5), torch.randn(6, 5)
    assert float(teacher_loss(taught, taught, 3.0)) == pytest.approx(0, abs=1e-6)
    share, own = (np.exp(each.numpy() / 2) for each in (taught, logits))
    share, own = (each / each.sum(axis=1, keepdims=True) for each in (share, own))
    expected = 4 * (share * np.log(share / own)).sum(axis=1).mean()
    assert float(teacher_loss(logits, taught, 2.0)) == pytest.approx(expected, rel=1e-4)


def loss_of(recipe, logits, truth, taught=None):
    drawn = np.broadcast_to(np.arange(recipe.mutants)[:, None], (recipe.mutants, len(truth)))
    of_batch = TrainingLoss(recipe, ABLATION, (8, 8))
    return of_batch(logits, truth, drawn, np.random.default_rng(0), taught)


def test_each_part_of_the_loss_has_its_weight():
    logits, truth, taught = torch.randn(12, 5), torch.tensor([1, 4, 0]), torch.randn(3, 5)
    ballots = logits.softmax(dim=1).reshape(4, 3, 5)
    alone = torch.nn.functional.cross_entropy(logits, truth.repeat(4), label_smoothing=0.1)
    assert torch.equal(loss_of(Recipe(mutants=4), logits, truth), alone)
    of_votes = vote_loss(ballots, truth, 0.4)
    # Columns of three pixels: number i sees those from i on, and a patch of two hides i - 2 to i + 1.
    clean = torch.ones(7, 4, 3)
    for left in range(7):
        clean[left, [i for i in range(4) if any(x in (left, left + 1) for x in range(i, i + 3))]] = 0
    of_certificates = certificate_loss(ballots, truth, [clean], (1, 2))
    of_teacher = teacher_loss(logits, taught.repeat(4, 1), 3.0)
    recipe = Recipe(
        mutants=4,
        vote_loss_weight=0.3,
        certificate_loss_weight=0.2,
        certified_patches=("2",),
        certified_ks=(1, 2),
        teacher_weight=0.6,
    )
    expected = 0.5 * (0.4 * alone + 0.6 * of_teacher) + 0.3 * of_votes + 0.2 * of_certificates
    assert float(loss_of(recipe, logits, truth, taught)) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.slow
def test_training_with_the_vote_loss_learns(tmp_path):
    epochs = []
    recipe = find_recipe(
        "default", epochs=8, batch_size=16, mutants=4, vote_loss_weight=0.5, warp=0.02, seed=4
    )
    trainer(tmp_path, recipe).fit(stripes(), stripes(40, seed=9), after_epoch=epochs.append)
    assert epochs[-1].validation > 0.95


def test_the_backbone_learns_at_its_own_rate(tmp_path):
    """In one step of AdamW a weight changes by about the learning rate."""
    moved = {}
    for scale in (1.0, 0.01):
        recipe = find_recipe(
            "default", epochs=1, batch_size=96, seed=4, warmup=0, backbone_lr_scale=scale, average=0
        )
        one = trainer(tmp_path / str(scale), recipe)
        network = one._mutants.network
        before = {name: value.detach().clone() for name, value in network.named_parameters()}
        one.fit(stripes(), None)
        moved[scale] = {
            name: float((value.detach() - before[name]).abs().max())
            for name, value in network.named_parameters()
        }
    for name, distance in moved[1.0].items():
        assert distance > 0.5 * recipe.lr, name
        expected = distance if name.startswith("head.") else 0.01 * distance
        assert moved[0.01][name] == pytest.approx(expected, rel=0.2), name


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"vote_loss_weight": 1.0}, "vote_loss_weight"),
        ({"certificate_loss_weight": 0.5, "mutants": 4}, "pass them with --patch"),
        ({"certificate_loss_weight": 0.5, "certified_patches": ("2",), "mutants": 1}, "pass --mutants 4"),
        ({"certificate_loss_weight": 0.5, "vote_loss_weight": 0.5}, "together they must be below 1"),
        ({"certified_ks": (0,)}, "k must be at least 1"),
        ({"teacher_temperature": 0.0}, "teacher_temperature must be above 0"),
        ({"teacher_weight": 1.0}, "teacher_weight must be at least 0 and below 1"),
        ({"margin": -0.1}, "margin must be at least 0 and below 1"),
        ({"warp": 1.5}, "warp must be at least 0 and below 1, got 1.5"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"lr": float("nan")}, "lr must be above 0"),
        ({"backbone_lr_scale": 0.0}, "backbone_lr_scale must be above 0 and at most 1, got 0.0"),
        ({"backbone_lr_scale": 1.5}, "backbone_lr_scale must be above 0 and at most 1, got 1.5"),
        ({"smoothing": 1.0}, "smoothing"),
        ({"optimizer": "adam"}, "did you mean 'adamw'?"),
    ],
)
def test_bad_recipes_get_one_sentence(change, says):
    with pytest.raises(CostcertError) as caught:
        find_recipe("default", **change)
    assert says in str(caught.value)


def test_resizing_options_are_part_of_the_model():
    from costcert.cli.train import TrainOptions, _with_requested_resizing
    from costcert.models.preprocessing import Preprocessing

    own = Preprocessing((4, 4), crop_pct=0.9, crop_mode="center")
    request = {"model": "strip:small", "data": "d", "ablation": "columns:3", "out": "o"}
    assert _with_requested_resizing(TrainOptions(**request), own) == own
    requested = _with_requested_resizing(TrainOptions(**request, fit="squash", interpolation="nearest"), own)
    assert (requested.crop_mode, requested.crop_pct, requested.interpolation) == ("squash", 1.0, "nearest")
    # The entire image, every second column.
    wide = np.arange(4 * 8 * 3, dtype=np.uint8).reshape(4, 8, 3)
    assert (requested.prepare(Image.fromarray(wide)) == wide[:, 1::2]).all()
    for change in ({"fit": "squish"}, {"interpolation": "biliner"}):
        with pytest.raises(CostcertError, match="did you mean"):
            _with_requested_resizing(TrainOptions(**request, **change), own)


def test_train_then_vote_without_repeating_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = stripes()
    np.savez("d.npz", images=data.images, labels=data.labels)
    command = [
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
    result = invoke([*command, "--epochs", "12", "--batch-size", "16"])
    assert result.exit_code == 0, result.output
    assert "epoch 12 of 12" in result.stdout
    model = load_model("model")
    votes = vote(model, data, model.ablation)
    assert (votes.ballots == votes.truth[:, None]).mean() > 0.9
    again = invoke([*command, "--epochs", "12", "--batch-size", "16"])
    assert "is trained already" in again.stdout
    other = invoke([*command, "--epochs", "3", "--batch-size", "16"])
    assert other.exit_code == 2
    assert "holds another run: its recipe.epochs is 12" in other.stderr


def test_gtsrb_is_not_mirrored_unless_requested():
    from costcert.cli.train import RecipeOptions, TrainOptions, _recipe

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
    assert not _recipe(TrainOptions(**request), data).flip
    assert _recipe(TrainOptions(**request, recipe=RecipeOptions(flip=True)), data).flip


KILLED = """
import os, signal, sys
import torch
torch.set_num_threads(1)
from costcert.cli import main
from costcert.training import trainer

loss, steps = trainer.TrainingLoss.__call__, 0

def killed_in_step_13(*inputs):
    global steps
    steps += 1
    if steps == 13:
        os.kill(os.getpid(), signal.SIGKILL)
    return loss(*inputs)

trainer.TrainingLoss.__call__ = killed_in_step_13
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_killed_training_resumes_and_ends_with_the_same_weights(tmp_path):
    """SIGKILL in the third epoch: the second run starts from the checkpoint of the second epoch."""
    np.savez(tmp_path / "stripes.npz", images=stripes().images, labels=stripes().labels)
    words = f"train --model strip:small --data npz:{tmp_path}/stripes.npz --ablation columns:3 --epochs 8"
    # 86 images are 5 steps per epoch.
    command = [*words.split(), "--batch-size", "16", "--out"]
    out = tmp_path / "killed"
    killed = subprocess.run([sys.executable, "-c", KILLED, *command, str(out)], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert (out / CHECKPOINT).exists()
    assert not (out / "model.json").exists()
    resumed = invoke([*command, str(out)])
    assert resumed.exit_code == 0, resumed.output
    assert "2 of 8 epochs were there already: continuing from their checkpoint" in resumed.stderr
    assert "epoch 2 of 8" not in resumed.stdout
    assert "epoch 3 of 8" in resumed.stdout
    assert "epoch 8 of 8" in resumed.stdout
    complete = invoke([*command, str(tmp_path / "complete")])
    assert complete.exit_code == 0, complete.output
    weights = "model.safetensors"
    assert (out / weights).read_bytes() == (tmp_path / "complete" / weights).read_bytes()


def test_options_are_still_taken_by_their_first_names():
    """The names of 0.1.0: --rate, --body, --light, --lead and --vote; the help does not list them."""
    words = ["train", "--model", "strip:small", "--data", "sample", "--ablation", "columns:4", "--out", "m"]
    old = ["--rate", "0.1", "--body=0.2", "--light", "0.3", "--lead", "0.4", "--vote", "0.5"]
    assert parsed([*words, *old]).recipe.given() == {
        "lr": 0.1,
        "backbone_lr_scale": 0.2,
        "brightness_contrast": 0.3,
        "margin": 0.4,
        "vote_loss_weight": 0.5,
    }
    assert "--rate" not in invoke(["train", "--help"]).output


def test_a_checkpoint_of_another_format_is_refused(tmp_path):
    """The order of parameters changed: the optimizer's state would go to the wrong ones."""
    trainer(tmp_path, QUICK).fit(stripes(), None)
    path = tmp_path / CHECKPOINT
    torch.save({**torch.load(path, weights_only=True), "format": 1}, path)
    with pytest.raises(CostcertError, match="was written by another version of costcert: remove it"):
        trainer(tmp_path, QUICK).fit(stripes(), None)


def photos(folder, splits=("train", "val", "test"), count=6, unread=()):
    """Images of two classes in folders; those listed as unread hold no image."""
    data = stripes(40, seed=1)
    for split in splits:
        for label, name in enumerate(data.class_names):
            (folder / split / name).mkdir(parents=True)
            for index in np.flatnonzero(data.labels == label)[:count]:
                Image.fromarray(data.images[index]).save(folder / split / name / f"{index}.png")
    for path in unread:
        (folder / path).write_bytes(b"not an image")


def train_on(folder, *more):
    words = ["train", "--model", "strip:small", "--data", f"folder:{folder}", "--ablation", "columns:3"]
    return invoke([*words, "--epochs", "1", "--batch-size", "8", "--device", "cpu", *more])


@pytest.mark.parametrize(
    ("splits", "more", "used"),
    [
        (("train", "val", "test"), [], "val"),
        (("train", "validation", "test"), [], "validation"),
        (("train", "test"), [], "test"),
        (("train", "val", "test"), ["--validation-split", "test"], "test"),
    ],
)
def test_the_split_for_validation_is_taken_and_named(tmp_path, splits, more, used):
    data = tmp_path / "photos"
    photos(data, splits)
    result = train_on(data, "--validation", f"folder:{data}", *more, "--out", tmp_path / "m")
    assert result.exit_code == 0, result.output
    assert f"Validating on 12 images of folder:photos, split '{used}'\n" in result.stdout
    card = json.loads((tmp_path / "m" / "model.json").read_text())
    assert card["training"]["validation_data"]["split"] == used


def test_a_split_for_validation_that_is_not_there_is_refused(tmp_path):
    photos(tmp_path / "photos", ("train", "test"))
    np.savez(tmp_path / "d.npz", images=stripes().images, labels=stripes().labels)
    validation = ["--validation", f"folder:{tmp_path}/photos", "--out", tmp_path / "m"]
    for more, says in (
        (["--validation-split", "val", *validation], "holds test, train, but not 'val'"),
        (["--validation-split", "val", *validation[2:]], "--validation-split val is a part of --validation"),
        (
            ["--validation-split", "val", "--validation", f"npz:{tmp_path}/d.npz", *validation[2:]],
            "d.npz has no splits, but --validation-split is 'val'",
        ),
        (["--validation", "folder:nowhere", *validation[2:]], "nowhere"),
        (["--validation", "floder:photos", *validation[2:]], "did you mean 'folder'?"),
    ):
        result = train_on(tmp_path / "photos", *more)
        assert result.exit_code == 2, result.output
        assert says in result.stderr
    assert not (tmp_path / "m").exists()


def test_unread_images_are_left_out_of_training_and_wrong_in_validation(tmp_path):
    data = tmp_path / "photos"
    photos(data, count=3, unread=["train/up/extra.png", "val/down/one.png", "val/down/two.png"])
    words = ["--validation", f"folder:{data}", "--out", tmp_path / "m"]
    refused = train_on(data, *words)
    assert refused.exit_code == 2
    assert "extra.png cannot be read" in refused.stderr
    assert "or pass --skip-corrupt, which leaves it out" in refused.stderr
    result = train_on(data, *words[:-1], tmp_path / "n", "--skip-corrupt")
    assert result.exit_code == 0, result.output
    assert (
        "Left out of training, because they cannot be read: 1 of the images\n  up/extra.png\n"
        in result.stdout
    )
    assert "Counted as wrong in validation" in result.stdout
    assert "  down/one.png\n  down/two.png\n" in result.stdout
    assert "on 6 images of folder:photos (without 1 unread)" in result.stdout
    training = json.loads((tmp_path / "n" / "model.json").read_text())["training"]
    assert training["unread"] == {
        "training": ["up/extra.png"],
        "validation": ["down/one.png", "down/two.png"],
    }
    # Six images can be read: shares are of eight.
    assert 8 * training["validation"] == round(8 * training["validation"]) <= 6


def test_validation_counts_unread_images_as_wrong(tmp_path):
    def validated(folder, unread):
        epochs = []
        recipe = find_recipe("default", epochs=1, batch_size=16, seed=4)
        trainer(tmp_path / folder, recipe).fit(
            stripes(), stripes(40, seed=9), unread=unread, after_epoch=epochs.append
        )
        return [epoch.validation for epoch in epochs]

    assert validated("some", 10) == pytest.approx([share * 40 / 50 for share in validated("none", 0)])


@pytest.mark.parametrize("device", ["gpu", "cuda:77"])
def test_train_refuses_the_devices_that_vote_refuses(tmp_path, device):
    np.savez(tmp_path / "d.npz", images=stripes().images, labels=stripes().labels)
    of_data = ["--data", f"npz:{tmp_path}/d.npz", "--ablation", "columns:3", "--device", device]
    trained = invoke(["train", "--model", "strip:small", *of_data, "--out", tmp_path / "m"])
    voted = invoke(
        ["vote", "--model", "shipped:fashion", *of_data[2:], "--data", "sample", "--out", tmp_path / "v"]
    )
    assert trained.exit_code == voted.exit_code == 2
    assert trained.stderr == voted.stderr
    assert device in trained.stderr
    assert not (tmp_path / "m").exists()


def test_the_default_device_is_the_same_for_all_commands():
    of_data = ["--model", "strip:small", "--data", "sample", "--ablation", "columns:4", "--out", "m"]
    assert parsed(["train", *of_data]).device == "auto"
    assert parsed(["vote", *of_data]).network.device == "auto"
    assert parsed(["attack", *of_data, "--patch", "2"]).network.device == "auto"
