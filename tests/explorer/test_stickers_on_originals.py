"""Patches on originals in the service of `costcert explore`: its answers equal those of the library."""

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the service needs costcert[explore]")
pytest.importorskip("uvicorn", reason="the service needs costcert[explore]")
pytest.importorskip("httpx", reason="tests of the service need httpx")
pytest.importorskip("PIL", reason="pictures need Pillow")

import httpx
from PIL import Image

import costcert as cc
from costcert.explorer import limits
from costcert.explorer.session import Session
from costcert.geometry.footprints import footprint
from mixed_sizes import pictures
from resized import Resized
from served import LONG, PNG, picture, served

SIZES = [(5, 6), (9, 12), (5, 6), (14, 20), (9, 12), (5, 6)]


@pytest.fixture(scope="module")
def model():
    return Resized()


@pytest.fixture(scope="module")
def votes(model):
    """Of pictures of three sizes, in mixed order."""
    return cc.vote(model, (pictures(SIZES), [0, 1, 2, 0, 1, 2]), "columns:3", soft=cc.Soft(0.2, 2))


@pytest.fixture(scope="module")
def client(votes, model):
    deployed = cc.Deployed(model, "columns:3", soft=cc.Soft(0.2, 2))
    with (
        served(Session(votes), deployed=deployed) as where,
        httpx.Client(base_url=where, timeout=LONG) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("soft", "original:2"),
        ("hard", "original:2x4"),
        pytest.param("soft", "original:5%", marks=pytest.mark.slow),
    ],
)
def test_certificates_of_originals_of_several_sizes(client, votes, kind, patch):
    chosen = votes if kind == "soft" else votes.hard()
    certs = cc.certify(chosen, patch)
    found = client.get("/certificates", params={"patch": patch, "ballots": kind}).json()
    assert found["patch"] == patch
    assert set(found["defenders"]) == set(certs.defenders)
    for name in certs.defenders:
        assert found["defenders"][name]["min_k"] == certs.min_k(name, patch).tolist()
        assert found["defenders"][name]["rank"] == certs.rank(name, patch).tolist()
    accuracy = client.get("/accuracy", params={"patch": patch, "ballots": kind}).json()
    table = certs.accuracy(accuracy["k"])
    for name in certs.defenders:
        shares = table[table.defender == name].certified.tolist()
        assert accuracy["defenders"][name]["certified"] == shares
    budgets = []
    for row, image in enumerate(votes.image_ids):
        height, width = SIZES[row]
        reach = client.get("/footprint", params={"patch": patch, "original": f"{height}x{width}"}).json()
        budgets.append(reach["budget"])
        for label in range(4):
            request = {"image": str(image), "label": label, "patches": [patch], "view": kind}
            (answer,) = client.post("/certify", json=request).json()["certificates"]
            one = cc.certify(chosen.take([row]).replace(truth=[label]), patch)
            assert answer["budget"] == reach["budget"]
            assert {name: found["min_k"] for name, found in answer["defenders"].items()} == {
                name: one.min_k(name, patch)[0] for name in one.defenders
            }
    assert found["budget"] == max(budgets)


@pytest.mark.parametrize("soft", [False, True])
def test_ballots_of_the_request_have_an_original(client, votes, soft):
    cast = votes if soft else votes.hard()
    ballots = (
        {"labels": cast.labels[3].tolist(), "units": cast.units[3].tolist(), "cap": cast.cap}
        if soft
        else {"ballots": cast.ballots[3].tolist()}
    )
    request = {**ballots, "label": 1, "patches": ["original:2"], "attack": True}
    (row,) = client.post("/certify", json={**request, "original": [14, 20]}).json()["certificates"]
    own = cast.take([3]).replace(truth=[1])
    certs = cc.certify(own, "original:2")
    assert {name: found["min_k"] for name, found in row["defenders"].items()} == {
        name: certs.min_k(name, "original:2")[0] for name in certs.defenders
    }
    attack = cc.strongest(own, 0, "original:2")
    assert row["attack"]["position"] == attack.position
    assert (row["attack"]["top"], row["attack"]["left"]) == attack.places[0]
    refused = client.post("/certify", json=request)
    assert refused.status_code == 422
    assert "do not record how large the originals were" in refused.json()["detail"]


def test_an_uploaded_picture_has_its_own_size(client, model):
    pixels, content = picture(size=(17, 11))
    deployed = cc.Deployed(model, "columns:3", soft=cc.Soft(0.2, 2))
    found = client.post("/predict", content=content, headers=PNG).json()
    assert found["ranked_by"] == "votes"
    assert [each["original"] for each in found["votes"].values()] == [[11, 17]] * 2
    answer = client.post("/certify", params={"patch": "original:3"}, content=content, headers=PNG).json()
    certs = deployed.certify(Image.fromarray(pixels), [answer["label"]], "original:3")
    (row,) = answer["certificates"]
    assert row["defenders"]["costcert"]["min_k"] == certs.min_k("costcert", "original:3")[0]


@pytest.mark.parametrize("original", [(5, 6), (9, 12), (14, 20), (40, 23)])
@pytest.mark.parametrize("patch", ["original:2", "original:1x3"])
@pytest.mark.parametrize("interpolation", ["nearest", "bicubic"])
def test_footprints_are_those_of_the_library(original, patch, interpolation):
    model = Resized(interpolation=interpolation, fit="center", part=0.875)
    votes = cc.vote(model, (pictures([(5, 6)]), [0]), "columns:3")
    found = Session(votes).footprint(patch, original)
    expected = footprint(cc.parse_patch(patch), original, model.preprocessing.geometry)
    assert len(found["rows"]), len(found["columns"]) == (len(expected.rows), len(expected.columns))
    for top, rows in enumerate(found["rows"]):
        for left, columns in enumerate(found["columns"]):
            pixels = np.zeros((9, 12), bool)
            for first, tall in rows:
                for start, wide in columns:
                    pixels[first : first + tall, start : start + wide] = True
            assert (pixels == expected.pixels(top, left)).all()
    assert found["resized"] == list(expected.preparation.scaled(original))


def test_masks_take_patches_on_originals(model):
    nearest = Resized(interpolation="nearest")
    votes = cc.vote(nearest, (pictures([(5, 6), (9, 12)]), [0, 1]), "masks:3/patch=3")
    session = Session(votes)
    certs = cc.certify(votes, "original:1", "patchcleanser")
    found = session.certificates_of("original:1")["defenders"]["patchcleanser"]
    assert found["min_k"] == certs.min_k("patchcleanser", "original:1").tolist()
    # Two pixels of a picture of 5 x 6 change four of the input.
    assert session.summary()["original"]["longest"] == [1, 1]
    with pytest.raises(cc.CostcertError, match="but original:3 of 5x6 changes up to 5x6 pixels"):
        session.certificates_of("original:3")
    spread = cc.vote(model, (pictures([(5, 6)]), [0]), "masks:3/patch=3")
    assert Session(spread).summary()["original"] is None


def test_masks_rank_uploads_by_scores():
    model = Resized(interpolation="nearest")
    votes = cc.vote(model, (pictures([(5, 6)]), [0]), "masks:3/patch=3")
    deployed = cc.Deployed(model, "masks:3/patch=3", defender="patchcleanser")
    with (
        served(Session(votes), deployed=deployed) as where,
        httpx.Client(base_url=where, timeout=LONG) as client,
    ):
        pixels, content = picture(size=(12, 9))
        found = client.post("/predict?k=4", content=content, headers=PNG).json()
        cast = deployed.votes(pixels)
        assert found["ranked_by"] == "score"
        assert [each["label"] for each in found["top"]] == deployed.predict(pixels, 4)[0].tolist()
        scores = deployed.scores(cast)[0] / cast.cap
        assert [each["votes"] for each in found["top"]] == [scores[each["label"]] for each in found["top"]]


def test_runs_certified_against_patches_on_originals(votes):
    both = Session(votes, certificates=cc.certify(votes, ["original:1", "3"]))
    assert both.summary()["sides"] == [3]
    assert both.summary()["original"] == {"longest": [5, 6], "sides": [1], "start": [1, 1], "only": False}
    only = Session(votes, certificates=cc.certify(votes, "original:2x4", ["costcert", "drs"]))
    offered = only.summary()["original"]
    assert (offered["start"], offered["only"]) == ([2, 4], True)
    found = only.certificates_of("original:2x4")["defenders"]
    assert set(found) == {"costcert", "drs"}
    share = Session(votes, certificates=cc.certify(votes, ["original:5%", "2*square:1"]))
    assert share.not_on_the_page == ["original:5%", "2*square:1"]


def test_certificates_are_shown_whatever_the_number_of_sizes(votes, monkeypatch):
    monkeypatch.setattr(limits, "MAX_SIZES", 2)
    certs = cc.certify(votes, "original:2")
    session = Session(votes, certificates=certs)
    found = session.certificates_of("original:2")
    assert found["budget"] is None
    assert found["defenders"]["drs"]["min_k"] == certs.min_k("drs", "original:2").tolist()
    with pytest.raises(cc.CostcertError, match="3 sizes, too many for the service to follow original:1 in"):
        session.certificates_of("original:1")


def test_refusals(client, votes, monkeypatch):
    def refusal(path, **params):
        answer = client.get(path, params=params)
        assert answer.status_code == 422
        return answer.json()["detail"]

    assert "does not fit an original of 5x6 pixels" in refusal("/certificates", patch="original:6")
    assert "is on the model's input" in refusal("/footprint", patch="2", original="5x6")
    assert "original" in refusal("/footprint", patch="original:2", original="0x6")
    assert "is too large to be followed" in refusal("/footprint", patch="original:2", original="99999x6")
    for replaced, words in (
        ({"originals": None}, "do not record how large the originals were: vote again"),
        ({"provenance": {}}, "how pictures became these inputs is not recorded"),
        ({"originals": votes.originals * 0}, "without pixels"),
    ):
        session = Session(votes.replace(**replaced))
        assert session.summary()["original"] is None
        with pytest.raises(cc.CostcertError, match=words):
            session.certificates_of("original:2")
    monkeypatch.setattr(limits, "MAX_PAIRS", 50)
    with pytest.raises(cc.CostcertError, match="too large for the service to follow a patch on it"):
        Session(votes).certificates_of("original:2")
    monkeypatch.undo()
    monkeypatch.setattr(limits, "MAX_TOUCH_COST", 500)
    with pytest.raises(cc.CostcertError, match="too many for the service"):
        Session(votes).certificates_of("original:2")


def test_unread_images_are_certified_for_nothing(votes):
    unread = np.array([True, False, False, True, False, False])
    some = votes.replace(unread=unread, originals=np.where(unread[:, None], 0, votes.originals))
    session = Session(some)
    certs = cc.certify(some, "original:2")
    found = session.certificates_of("original:2")["defenders"]
    assert {name: each["min_k"] for name, each in found.items()} == {
        name: certs.min_k(name, "original:2").tolist() for name in certs.defenders
    }
    assert session.ballots("0")["original"] is None
    with pytest.raises(cc.CostcertError, match="could not be read when the votes were cast"):
        session.labelled("0", None, None)
    none = votes.replace(unread=np.ones(6, bool), originals=votes.originals * 0)
    assert Session(none).certificates_of("original:2")["defenders"]["costcert"]["min_k"] == [4] * 6
    assert Session(none).summary()["original"] is None
