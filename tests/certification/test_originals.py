"""Patches on original pictures: certified, checked, deployed and attacked with pixels."""

import re
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import costcert as cc
from command_line import invoke
from costcert.geometry.footprints import footprint
from costcert.geometry.preparation import FITS, SUPPORTS, Preparation
from costcert.models.preprocessing import Preprocessing
from costcert.reports.resizing import undone_by_resizing
from costcert.verification.checker import Question
from costcert.votes.adaptive import StoppingRule
from strategies import examples

CLASSES = 3
DEFENDERS = ("costcert", "cbn", "drs", "patchguard", "costcert-masks")


def model_of(size=(9, 12), *, fit="squash", part=1.0, interpolation="bicubic", seed=0):
    """A network that counts how bright parts of the picture are."""
    torch.manual_seed(seed)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * size[0] * size[1], CLASSES),
    )
    preprocessing = Preprocessing(
        size, (0.5,), (0.25,), channels=1, crop_pct=part, crop_mode=fit, interpolation=interpolation
    )
    return cc.load_model(network, preprocessing=preprocessing)


def brightness(fit, interpolation):
    """A model whose strips vote by how bright they are, so that most of them agree."""
    network = torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(1, CLASSES)
    )
    with torch.no_grad():
        network[2].weight[:] = torch.tensor([[-9.0], [0.0], [9.0]])
        network[2].bias[:] = torch.tensor([0.0, 0.1, 0.0])
    preprocessing = Preprocessing(
        (8, 24), (0.5,), (0.25,), channels=1, crop_mode=fit, interpolation=interpolation
    )
    return cc.load_model(network, preprocessing=preprocessing)


def pictures(sizes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, size, dtype=np.uint8) for size in sizes]


@pytest.fixture(scope="module")
def model():
    return model_of()


@pytest.fixture(scope="module")
def votes(model):
    """Of pictures of three sizes, in mixed order."""
    shown = pictures([(5, 6), (9, 12), (5, 6), (14, 20), (9, 12), (5, 6)])
    return cc.vote(model, (shown, [0, 1, 2, 0, 1, 2]), "columns:3")


def test_votes_record_the_sizes_of_originals(votes, tmp_path):
    assert votes.originals.tolist() == [[5, 6], [9, 12], [5, 6], [14, 20], [9, 12], [5, 6]]
    for name in ("folder", "one.npz", "one.parquet", "one.json"):
        cc.write_votes(votes, tmp_path / name)
        np.testing.assert_array_equal(cc.read_votes(tmp_path / name).originals, votes.originals)


@pytest.mark.parametrize("defender", DEFENDERS)
def test_images_are_certified_by_the_size_of_their_original(votes, defender):
    """All together give what each gives alone, and what its own footprint touches."""
    together = cc.certify(votes, ["original:2", "square:3"], defender)
    for image in range(len(votes)):
        alone = cc.certify(votes.take([image]), ["original:2", "square:3"], defender)
        for patch in ("original:2", "square:3"):
            assert together.min_k(defender, patch)[image] == alone.min_k(defender, patch)[0]
            assert together.rank(defender, patch)[image] == alone.rank(defender, patch)[0]
    assert list(map(str, together.patches)) == ["original:2", "square:3"]


def test_a_picture_at_input_size_is_the_original(model):
    """Nothing is resized, so that a patch on the original is a patch on the input."""
    votes = cc.vote(model, (np.stack(pictures([(9, 12)] * 8)), [0, 1, 2, 0, 1, 2, 0, 1]), "blocks:4")
    certs = cc.certify(votes, ["original:2", "2", "original:2x4", "rectangle:2x4"])
    for defender in certs.defenders:
        np.testing.assert_array_equal(certs.min_k(defender, "original:2"), certs.min_k(defender, "2"))
        np.testing.assert_array_equal(
            certs.min_k(defender, "original:2x4"), certs.min_k(defender, "rectangle:2x4")
        )


@settings(max_examples=examples(40))
@given(st.data())
def test_certificates_agree_with_the_second_derivation(data):
    """The checker finds its own footprints, from the kernels' values."""
    model = model_of(
        data.draw(st.sampled_from([(6, 7), (8, 8)])),
        fit=data.draw(st.sampled_from(FITS)),
        part=data.draw(st.sampled_from([1.0, 0.9, 0.6])),
        interpolation=data.draw(st.sampled_from(tuple(SUPPORTS))),
        seed=data.draw(st.integers(0, 5)),
    )
    side = st.integers(3, 15)
    sizes = data.draw(st.lists(st.tuples(side, side), min_size=1, max_size=3))
    ablation = data.draw(st.sampled_from(["columns:2", "rows:3/stride=2", "blocks:3/wrap=no", "columns:1"]))
    patch = data.draw(st.sampled_from(["original:1", "original:2", "original:3x2", "original:5%"]))
    votes = cc.vote(model, (pictures(sizes), [0] * len(sizes)), ablation)
    certs = cc.certify(votes, patch)
    manifest = {
        "classifier": certs.classifier.to_json(),
        "defenders": certs.defenders,
        "patches": [patch],
        "tau": 0,
        "epsilon": None,
    }
    of_votes = {
        "version": 2,
        "classifier": votes.classifier.to_json(),
        "image_size": list(votes.image_size),
        "num_classes": CLASSES,
        "made": dict(votes.provenance),
    }
    question = Question(manifest, of_votes)
    for image, (height, width) in enumerate(sizes):
        row = {
            "truth": 0,
            "ballots": votes.ballots[image].tolist(),
            "original_height": height,
            "original_width": width,
        }
        for defender in certs.defenders:
            expected = (certs.rank(defender, patch)[image], certs.min_k(defender, patch)[image])
            assert question.answer(row, defender, patch) == expected


@pytest.mark.parametrize("defender", ["costcert", "patchguard"])
@pytest.mark.parametrize(
    ("original", "fit", "interpolation"),
    [((6, 18), "squash", "bicubic"), ((5, 12), "center", "nearest"), ((14, 40), "border", "lanczos")],
)
def test_rewritten_originals_never_break_a_deployed_certificate(defender, original, fit, interpolation):
    """Pixels of originals are rewritten at every place, and the deployed classifier predicts them."""
    model = brightness(fit, interpolation)
    deployed = cc.Deployed(model, "columns:2", defender=defender, patch="original:1")
    rng = np.random.default_rng(4)
    # Brighter to the right, so that the attacker has a rival to lift.
    slope = np.linspace(60, 190, original[1])
    shown = [
        np.clip(slope + rng.normal(shift, 20, original), 0, 255).astype(np.uint8) for shift in (-45, 0, 45)
    ]
    labels = deployed.predict(shown, 1)[:, 0]
    min_k = deployed.certify(shown, labels, "original:1").min_k(defender, "original:1")
    assert min_k.min() < CLASSES
    for picture, label, k in zip(shown, labels, min_k, strict=True):
        attacked = []
        for top, left in product(range(original[0]), range(original[1])):
            for value in (0, 255, rng.integers(0, 256)):
                attacked.append(picture.copy())
                attacked[-1][top, left] = value
        assert (deployed.predict(attacked, int(k)) == label).any(axis=1).all()


def test_certificates_go_through_the_command_line(votes, tmp_path):
    """certify, check and report take them, from a folder and from a file."""
    cc.write_votes(votes, tmp_path / "votes")
    cc.write_votes(votes, tmp_path / "votes.npz")
    for source, name in (("votes", "certs"), ("votes.npz", "certs.csv")):
        made = invoke(["certify", tmp_path / source, "-p", "original:1,3", "-o", tmp_path / name])
        assert made.exit_code == 0, made.output
        assert "3 sizes, changes up to" in " ".join(made.stdout.split())
        checked = invoke(["check", tmp_path / name, "--votes", tmp_path / source, "--all"])
        assert checked.exit_code == 0, checked.output
        assert "all alike" in checked.stdout


def test_certificates_of_other_sizes_are_detected(votes, tmp_path):
    """What holds for originals of another size is not derived again from these votes."""
    other = cc.certify(votes.replace(originals=votes.originals * 4), "original:1", "costcert")
    cc.write_votes(votes, tmp_path / "votes")
    cc.write_certificates(other, tmp_path / "certs", votes=tmp_path / "votes")
    checked = invoke(["check", tmp_path / "certs", "--votes", tmp_path / "votes", "--all"])
    assert checked.exit_code == 1
    assert "derived rank" in checked.output


def test_unread_pictures_count_as_wrong(model, tmp_path):
    folder = tmp_path / "data"
    for label, name in enumerate("abc"):
        (folder / name).mkdir(parents=True)
        for number, picture in enumerate(pictures([(5, 6), (8, 9)], seed=label)):
            Image.fromarray(picture).save(folder / name / f"{number}.png")
    (folder / "b" / "0.png").write_bytes(b"no picture")
    votes = cc.vote(model, f"folder:{folder}", "columns:3", skip_corrupt=True)
    certs = cc.certify(votes, "original:1")
    assert votes.originals[votes.unread].tolist() == [[0, 0]]
    assert (certs.min_k("costcert", "original:1")[votes.unread] == CLASSES).all()
    alone = cc.certify(votes.take(np.flatnonzero(votes.unread)), "original:1")
    assert alone.min_k("costcert", "original:1").tolist() == [CLASSES]


def test_masks_cover_a_footprint_or_are_refused(model):
    shown = (pictures([(5, 6)] * 2), [0, 1])
    votes = cc.vote(model, shown, "masks:2/patch=2")
    with pytest.raises(cc.CostcertError, match=r"up to 2x2 pixels, but original:1 of 5x6 changes up to 7x8 "):
        cc.certify(votes, "original:1", "patchcleanser")
    wide = cc.vote(model_of(interpolation="nearest"), shown, "masks:3/patch=2")
    certs = cc.certify(wide, "original:1", "patchcleanser")
    assert certs.min_k("patchcleanser", "original:1").shape == (2,)


def test_refusals(votes, model):
    with pytest.raises(cc.CostcertError, match="do not record how large the originals were: vote again"):
        cc.certify(votes.replace(originals=None), "original:2")
    with pytest.raises(cc.CostcertError, match="how pictures became these inputs is not recorded"):
        cc.certify(votes.replace(provenance={}), "original:2")
    with pytest.raises(cc.CostcertError, match="original:6 does not fit an original of 5x6 pixels"):
        cc.certify(votes, "original:6")
    with pytest.raises(cc.CostcertError, match="without pixels"):
        cc.certify(votes.replace(originals=votes.originals * 0), "original:2")
    with pytest.raises(cc.CostcertError, match="these images have 3 sizes: take images of one size"):
        cc.exclusion(votes, "original:2", 1, k=1)
    floats = np.random.default_rng(0).normal(size=(2, 1, 9, 12)).astype(np.float32)
    with pytest.raises(cc.CostcertError, match="vote on pictures instead of normalised floats"):
        cc.certify(cc.vote(model, (floats, [0, 1]), "columns:3"), "original:2")
    shown = (pictures([(5, 6)]), [0])
    with pytest.raises(cc.CostcertError, match="how pictures became these inputs is not recorded"):
        cc.vote(model, shown, "columns:3", until=StoppingRule((cc.Original(cc.Square(1)),), (1,)))
    for refused in (
        lambda: cc.tune(votes.take([*range(6)] * 2).replace(image_ids=None), "original:2"),
        lambda: StoppingRule.parse("original:2", 1, (9, 12)),
        lambda: cc.certified_accuracy(model, shown, ablation="columns:3", patches="original:2"),
    ):
        with pytest.raises(cc.CostcertError, match="original:2 is a patch on the original picture"):
            refused()


def test_other_guarantees_of_one_size(votes):
    some = votes.take([0, 2, 5])
    assert cc.exclusion(some, "original:1", 1, k=1).shape == (3,)
    assert cc.stability(some, "original:1", k=2).shape == (3,)


@pytest.mark.parametrize("interpolation", ["bicubic", "nearest"])
def test_witnesses_are_what_is_not_certified(interpolation):
    """An attack exists exactly where there is no certificate, and it touches what its footprint does."""
    model = model_of(interpolation=interpolation, seed=2)
    shown = pictures([(5, 6), (9, 12), (14, 20), (5, 6)])
    votes = cc.vote(model, (shown, [0, 1, 2, 1]), "columns:2")
    min_k = cc.certify(votes, "original:1", "costcert").min_k("costcert", "original:1")
    for image, k in product(range(len(votes)), range(1, CLASSES)):
        found = cc.witness(votes, image, "original:1", k)
        assert (found is None) == (min_k[image] <= k)
        if found is None:
            continue
        original = tuple(votes.originals[image].tolist())
        ((top, left),) = found.places
        reach = footprint(found.patch, original, model.preprocessing.geometry).pixels(top, left)
        kept = [region.pixels(votes.image_size) for region in votes.ablation.regions(votes.image_size)]
        assert found.touched.tolist() == [n for n, pixels in enumerate(kept) if (pixels & reach).any()]
        drawn = np.zeros(votes.image_size, bool)
        for piece in found.rectangles():
            drawn[piece.top : piece.top + piece.height, piece.left : piece.left + piece.width] = True
        np.testing.assert_array_equal(drawn, reach)
        assert "original:1 at" in found._repr_html_()


def test_bounds_of_partly_known_votes_hold():
    votes = cc.vote(model_of(), (pictures([(5, 6)] * 3), [0, 1, 2]), "columns:3")
    known = np.random.default_rng(0).random(votes.ballots.shape) < 0.8
    found = cc.bounds(votes, "original:1", known)
    min_k = cc.certify(votes, "original:1", "costcert").min_k("costcert", "original:1")
    assert (found.min_k_low <= min_k).all()
    assert (min_k <= found.min_k_high).all()


@pytest.mark.parametrize(
    ("patch", "interpolation", "expected"),
    [
        (
            cc.Square(14),
            "bicubic",
            r"2x2 px .* up to 34x34 px: it covers no sticker on the original at all; original:2",
        ),
        (cc.Square(35), "bicubic", r"5x5 px .* 55x55 px: it covers only stickers of up to 2x2 .* 84 % less"),
        (cc.Square(35), "bilinear", r"41x41 px: it covers only stickers of up to 4x4 .* 36 % less"),
    ],
)
def test_what_resizing_undoes(patch, interpolation, expected):
    prepared = Preparation((224, 224), interpolation=interpolation)
    assert re.search(expected, undone_by_resizing(patch, (32, 32), prepared))


def test_nothing_is_undone_where_pixels_are_repeated_or_kept():
    assert (
        undone_by_resizing(cc.Square(14), (32, 32), Preparation((224, 224), interpolation="nearest")) is None
    )
    assert undone_by_resizing(cc.Square(3), (32, 32), Preparation((32, 32))) is None


@pytest.mark.parametrize("ending", ["html", "md", "tex", "csv", "json"])
def test_reports_name_the_original(votes, tmp_path, ending):
    """Beside every size at the input stands what resizing makes of it."""
    cc.write_votes(votes, tmp_path / "votes")
    made = invoke(["certify", tmp_path / "votes", "-p", "original:1,original:2,3", "-o", tmp_path / "certs"])
    assert made.exit_code == 0, made.output
    report = tmp_path / f"report.{ending}"
    written = invoke(["report", tmp_path / "certs", "--votes", tmp_path / "votes", "-o", report])
    assert written.exit_code == 0, written.output
    text = report.read_text()
    assert "original:2" in text
    if ending in ("html", "md", "tex"):
        plain = " ".join(re.sub(r"<[^>]*>|\\\\", " ", text).split())
        assert "of originals of 5x6, the most frequent of 3 sizes" in plain
        assert "spreads these to up to" in plain
    if ending == "html":
        assert "2\u00a0×\u00a02\u00a0px of the original" in text


def test_certify_says_what_resizing_makes_of_a_scaled_size(votes, tmp_path):
    cc.write_votes(votes, tmp_path / "votes")
    made = invoke(["certify", tmp_path / "votes", "-p", "2/6"])
    assert "resizing (bicubic) spreads these to up to" in " ".join(made.stdout.split())


def test_joined_votes_know_their_originals_only_if_all_parts_do(votes):
    first, second = votes.take([0, 1]), votes.take([2, 3])
    assert cc.Votes.joined([first, second]).originals.tolist() == votes.originals[:4].tolist()
    other = {"model": {"preprocessing": {**votes.provenance["model"]["preprocessing"], "crop_pct": 0.5}}}
    for part in (second.replace(originals=None), second.replace(provenance=other)):
        joined = cc.Votes.joined([first, part])
        assert joined.originals is None
        with pytest.raises(cc.CostcertError, match="do not record how large the originals were"):
            cc.certify(joined, "original:1")
