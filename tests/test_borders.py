"""Whatever is passed to a public name, a mistake is a sentence: no raw error of Python or of a library."""

import warnings
from contextlib import suppress
from functools import partial

import numpy as np
import pytest

import costcert as cc
from tiny import Tiny, pictures

RNG = np.random.default_rng(0)
WRONG = [
    None,
    "nonsense",
    4.5,
    -1,
    10**30,
    float("nan"),
    True,
    b"bytes",
    [],
    [1.5],
    ["x"],
    [[1], [1, 2]],
    {},
    object(),
    dict,
    np.array([[0.5]]),
    np.array("x"),
    np.array(3),
    np.zeros((2, 2, 2), bool),
]
VOTES = cc.Votes(
    RNG.integers(0, 4, (3, 8)), [0, 1, 2], num_classes=4, ablation="columns:3", image_size=(6, 8)
)
SOFT = cc.Votes.from_logits(
    RNG.normal(size=(3, 8, 4)), [0, 1, 2], ablation="columns:3", image_size=(6, 8), soft=cc.Soft(0.5, 2)
)
CERTIFICATES = cc.certify(VOTES, "2")
DEPLOYED = cc.Deployed(Tiny(), "columns:3")
MODEL = Tiny()
TIES = {"ties": "against"}
GEOMETRY = {"ablation": "columns:3", "image_size": (6, 8)}
PIXELS = RNG.integers(0, 256, (3, 6, 8), dtype=np.uint8)

# Arguments that are right, one of which is replaced by something wrong at a time.
RIGHT = {
    "AreaShare": ((2,), {}),
    "Blocks": ((3,), {"stride": 1, "wrap": True, "span": None}),
    "Bounds": None,
    "Certificates": None,
    "Classifier": None,
    "Columns": ((3,), {"stride": 1, "wrap": True, "span": None}),
    "Masks": ((3,), {"patch": 2}),
    "CostcertError": None,
    "Defence": (
        (cc.Columns(3),),
        {"hide": None, "soft": None, "defender": "costcert", "mask": None, "ties": "against"},
    ),
    "Deployed": ((MODEL, "columns:3"), {"defender": "costcert", "patch": None, "soft": None, **TIES}),
    "Original": ((cc.Square(2),), {}),
    "Pooled": ((cc.Columns(3),), {}),
    "Rectangle": ((1, 2), {}),
    "Rows": ((3,), {"stride": 1, "wrap": True, "span": None}),
    "Scaled": ((2, 32), {}),
    "Several": ((cc.Square(1), 2), {}),
    "Shape": (([[1]],), {}),
    "Soft": ((0.5, 2), {"cap": 100}),
    "Square": ((2,), {}),
    "Votes": (
        (VOTES.ballots, VOTES.truth),
        {
            **GEOMETRY,
            "num_classes": 4,
            "image_ids": None,
            "class_names": None,
            "margins": None,
            "cuts": None,
            "unread": None,
            "known": None,
            "originals": None,
            "tau": 0,
            "provenance": None,
            "recipe": None,
            "labels": None,
            "units": None,
        },
    ),
    "Witness": None,
    "bounds": ((VOTES, "2"), {"known": None, **TIES}),
    "certified_accuracy": (
        (MODEL, pictures(3), "columns:3", "2"),
        {
            "k": 1,
            "defenders": "costcert",
            "soft": None,
            "ties": "against",
            "confidence": 0.95,
            "hide": None,
            "device": None,
            "batch_size": None,
        },
    ),
    "certify": (
        (VOTES, "2"),
        {"defenders": "all", "ties": "against", "uncertain": None, "epsilon": None, "tau": 0, "mask": None},
    ),
    "exclusion": ((VOTES, "2", 1, 1), TIES),
    "load_model": (
        ("nonsense",),
        {"hide": None, "image_size": None, "mean": None, "std": None, "precision": "int8"},
    ),
    "min_k_all": ((VOTES, "2", [[0], [1], [2]]), TIES),
    "min_k_any": ((VOTES, "2", [[0], [1], [2]]), TIES),
    "parse_ablation": (("columns:3",), {}),
    "parse_dataset": (("sample",), {"split": "test"}),
    "parse_patch": (("2",), {"image_size": None}),
    "read_certificates": (("nowhere",), {}),
    "read_votes": (("nowhere",), {}),
    "stability": ((VOTES, "2", 2), TIES),
    "strongest": ((VOTES, 0, "2"), TIES),
    "tune": ((VOTES, "2"), {"k": 1, "defenders": None, "most_passes": None, "temperature": None}),
    "vote": ((MODEL, pictures(3), "columns:3"), {"soft": None, "out": None, "until": None, "progress": None}),
    "witness": ((VOTES, 0, "2", 1), TIES),
    "write_certificates": ((CERTIFICATES, "certificates"), {"votes": None}),
    "write_votes": ((VOTES, "votes"), {"shard_size": None}),
}
# Public names that print unless they are told not to.
PUBLIC = {"certified_accuracy": partial(cc.certified_accuracy, progress=False)}
METHODS = {
    "Votes.soft": (
        cc.Votes.soft,
        (VOTES.ballots[..., None], np.ones((3, 8, 1), int), VOTES.truth),
        {**GEOMETRY, "num_classes": 4, "cap": 5, "temperature": None, "ballots": None},
    ),
    "Votes.from_logits": (
        cc.Votes.from_logits,
        (RNG.normal(size=(3, 8, 4)), VOTES.truth),
        {**GEOMETRY, "soft": None},
    ),
    "Votes.take": (VOTES.take, (slice(0, 2),), {}),
    "Votes.select": (VOTES.select, ("columns:3",), {}),
    "Votes.tempered": (SOFT.tempered, (2.0,), {}),
    "Votes.under": (VOTES.under, (VOTES.classifier,), {}),
    "Votes.joined": (cc.Votes.joined, ([VOTES, VOTES.replace(image_ids=["a", "b", "c"])],), {}),
    "Certificates.min_k": (CERTIFICATES.min_k, ("costcert", "2"), {}),
    "Certificates.rank": (CERTIFICATES.rank, ("costcert", "2"), {}),
    "Certificates.accuracy": (CERTIFICATES.accuracy, (1,), {"confidence": 0.95}),
    "Certificates.select": (CERTIFICATES.select, (slice(0, 2),), {"patches": None}),
    "Certificates.joined": (cc.Certificates.joined, ([CERTIFICATES],), {}),
    "Deployed.predict": (DEPLOYED.predict, (PIXELS, 2), {}),
    "Deployed.certify": (DEPLOYED.certify, (PIXELS, [0, 1, 2], "2"), {}),
    "Deployed.certify_votes": (DEPLOYED.certify_votes, (VOTES, "2"), {}),
    "Deployed.of": (cc.Deployed.of, (MODEL, DEPLOYED.classifier), {}),
    "Deployed.from_run": (cc.Deployed.from_run, ("nowhere", MODEL), {}),
}
CALLS = METHODS | {
    name: (PUBLIC.get(name) or getattr(cc, name), *call) for name, call in RIGHT.items() if call is not None
}


def test_every_public_name_is_tried():
    assert sorted(RIGHT) == cc.__all__


@pytest.mark.parametrize("name", CALLS)
def test_a_mistake_is_a_sentence(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, positional, named = CALLS[name]
    raw = []
    for slot in [*range(len(positional)), *named]:
        for wrong in WRONG:
            arguments, options = list(positional), dict(named)
            if isinstance(slot, int):
                arguments[slot] = wrong
            else:
                options[slot] = wrong
            try:
                with suppress(cc.CostcertError), warnings.catch_warnings(action="error"):
                    function(*arguments, **options)
            except Exception as error:
                raw.append(f"{name}({slot}={wrong!r}): {error!r}")
    assert not raw, "\n".join(raw)


def test_certificates_are_selected_by_images_and_by_any_spelling_of_a_patch():
    both = cc.certify(VOTES, ["2", "3"])
    part = both.select([2, 0], patches="2")
    assert (part.image_ids.tolist(), part.patches) == (VOTES.image_ids[[2, 0]].tolist(), [cc.Square(2)])
    assert part.min_k("costcert", 2).tolist() == both.min_k("costcert", 2)[[2, 0]].tolist()
    assert len(both.select(np.array([True, False, True])).image_ids) == 2
    with pytest.raises(
        cc.CostcertError, match=r"nothing was certified against square:4: .* against square:2, s"
    ):
        both.select(patches=["2", "4"])
    with pytest.raises(cc.CostcertError, match="numbers below 3, or true and false for each, got 3"):
        both.select(3)


def test_a_list_of_all_classes_holds_every_label():
    assert CERTIFICATES.accuracy()["k"].unique().tolist() == [1, 2, 3, 4]
    table = CERTIFICATES.accuracy([1, 4, 5])
    assert (table[table.k >= 4].certified == 1).all()
    assert (table[table.k == 1].certified < 1).any()


def test_nothing_is_certified_for_labels_that_nobody_named():
    with pytest.raises(cc.CostcertError, match=r"labels must be one label per image, got None: .*predict"):
        DEPLOYED.certify(PIXELS, None, "2")
