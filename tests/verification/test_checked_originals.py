"""Patches on original pictures, derived a second time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import costcert as cc
from command_line import invoke
from costcert.geometry.preparation import FITS, SUPPORTS
from costcert.verification.checker import Question
from mixed_sizes import CLASSES, model_of, pictures, votes_of
from strategies import examples


@pytest.fixture(scope="module")
def votes():
    return votes_of(model_of())


def test_certificates_of_other_sizes_are_detected(votes, tmp_path):
    """What holds for originals of another size is not derived again from these votes."""
    other = cc.certify(votes.replace(originals=votes.originals * 4), "original:1", "costcert")
    cc.write_votes(votes, tmp_path / "votes")
    cc.write_certificates(other, tmp_path / "certs", votes=tmp_path / "votes")
    checked = invoke(["check", tmp_path / "certs", "--votes", tmp_path / "votes", "--all"])
    assert checked.exit_code == 1
    assert "derived rank" in checked.output


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
