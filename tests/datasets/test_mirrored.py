"""Training images together with mirror images."""

from __future__ import annotations

import numpy as np
import pytest

from command_line import invoke
from costcert.datasets.arrays import ArrayDataset
from costcert.datasets.mirrored import WithMirrorImages, parse_mirrored, spelled
from costcert.errors import CostcertError, SpellingError

PIXELS = np.random.default_rng(0).integers(0, 256, size=(5, 4, 6, 3), dtype=np.uint8)


def test_mirror_images_follow_with_the_classes_of_what_they_show():
    data = ArrayDataset("signs", PIXELS, [0, 1, 2, 3, 1])
    both = WithMirrorImages(data, {1: 2, 2: 1, 3: 3})
    assert both.ids == [
        *data.ids,
        "00001 (mirrored)",
        "00002 (mirrored)",
        "00003 (mirrored)",
        "00004 (mirrored)",
    ]
    assert both.labels.tolist() == [0, 1, 2, 3, 1, 2, 1, 3, 2]
    assert both.num_classes == 4
    assert both.name == "signs (mirrored 1:2,3)"
    for index, pixels in enumerate(PIXELS):
        assert np.array_equal(np.asarray(both.image(index)), pixels)
        assert both.fingerprint(index) == data.fingerprint(index)
    for index, source in enumerate((1, 2, 3, 4), start=5):
        assert np.array_equal(np.asarray(both.image(index)), PIXELS[source][:, ::-1])
    assert len({both.fingerprint(index) for index in range(9)}) == 9
    assert both.digest() != WithMirrorImages(data, {1: 1, 2: 2, 3: 3}).digest()


def test_no_image_of_a_mirrored_class_adds_nothing():
    data = ArrayDataset("signs", PIXELS, [0, 0, 0, 0, 4])
    assert WithMirrorImages(data, {1: 2, 2: 1}).ids == data.ids


@pytest.mark.parametrize("text", ["11", "11,12", "19:20", "11,12,19:20", "3:4,7"])
def test_the_spelling_and_back(text):
    assert spelled(parse_mirrored(text)) == text


def test_both_directions():
    assert parse_mirrored(" 2:1 ,5") == {2: 1, 1: 2, 5: 5}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "cannot read classes ''"),
        ("left:right", "cannot read classes 'left:right': write 11,12 or 19:20"),
        ("1:2:3", "cannot read classes"),
        ("-1", "cannot read classes"),
        ("1,2,1", "class 1 is named twice in '1,2,1'"),
        ("19:20,20", "class 20 is named twice"),
    ],
)
def test_spellings_that_are_refused(text, said):
    with pytest.raises(SpellingError, match=said):
        parse_mirrored(text)


def test_an_unknown_class_is_refused():
    with pytest.raises(CostcertError, match=r"signs has no class 5 to mirror: its classes are 0 to 4"):
        WithMirrorImages(ArrayDataset("signs", PIXELS, range(5)), {3: 5, 5: 3})


def test_train_mirrors_the_training_images_alone(tmp_path):
    np.savez(tmp_path / "signs.npz", images=np.tile(PIXELS, (4, 1, 1, 1)), labels=np.tile(np.arange(5), 4))
    train = ["train", "--model", "strip:small", "--data", f"npz:{tmp_path / 'signs.npz'}", "--ablation"]
    train += ["columns:2", "--epochs", "1", "--holdout", "0.25", "--out", str(tmp_path / "model")]
    result = invoke([*train, "--mirror", "1,2:3"])
    assert result.exit_code == 0
    assert "(mirrored 1,2:3)" in result.output
    assert "Validating on 5 images" in result.output
    for more, said in (
        (["--mirror", "1", "--flip"], "--flip mirrors every class already: leave out --mirror"),
        (["--mirror", "1;2"], "cannot read classes '1;2'"),
    ):
        refused = invoke([*train, *more])
        assert refused.exit_code == 2
        assert said in refused.stderr
