"""The service behind the page: its answers equal those of the library, and hostile requests do no harm."""

import asyncio
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="the service needs costcert[explore]")
pytest.importorskip("uvicorn", reason="the service needs costcert[explore]")
pytest.importorskip("httpx", reason="tests of the service need httpx")
pytest.importorskip("PIL", reason="pictures need Pillow")

import httpx
from PIL import Image

import costcert as cc
from command_line import invoke
from costcert.cli.explore import ExploreOptions, opened
from costcert.errors import CostcertError
from costcert.explorer.access import Access
from costcert.explorer.image import Terms
from costcert.explorer.limits import Limits
from costcert.explorer.pictures import Pictures
from costcert.explorer.queue import BusyError, LateError, WorkQueue
from costcert.explorer.service import create_app
from costcert.explorer.session import Session
from costcert.votes.adaptive import StoppingRule
from places import ROOT, TESTS
from served import LONG, PNG, connect, half_body, imagenet_votes, picture, served, wait_until
from strategies import examples
from tiny import Tiny, pictures

SOFT = cc.Soft(0.2, 2)


class Waiting(Tiny):
    """Blocks until `go` is set."""

    def __init__(self):
        super().__init__()
        self.go = threading.Event()

    def logits(self, images, regions):
        assert self.go.wait(LONG)
        return super().logits(images, regions)


@pytest.fixture(scope="module")
def votes():
    return cc.vote(Tiny(), pictures(30), "columns:3", soft=SOFT)


@pytest.fixture(scope="module")
def session(votes):
    return Session(votes, pictures=Pictures(pictures(30), Tiny().prepare))


@pytest.fixture(scope="module")
def client(session):
    deployed = cc.Deployed(Tiny(), "columns:3", soft=SOFT)
    with served(session, deployed=deployed) as where, httpx.Client(base_url=where, timeout=LONG) as client:
        yield client


# Answers


def test_it_is_alive(client):
    assert client.get("/healthz").json() == {
        "status": "ok",
        "version": cc.__version__,
        "images": 30,
        "model": True,
    }


@pytest.mark.parametrize("soft", [None, pytest.param(SOFT, marks=pytest.mark.slow)], ids=["hard", "soft"])
def test_partial_votes_are_answered_as_the_library_answers(soft):
    """Mutants that adaptive voting did not evaluate are the attacker's, for the true label and any other."""
    rule = StoppingRule.parse([2], [1], Tiny.image_size)
    partial = cc.vote(Tiny(), pictures(30), "columns:3", soft=soft, until=rule)
    assert partial.known is not None
    session, kind = Session(partial), "soft" if soft else "hard"
    with served(session) as where, httpx.Client(base_url=where, timeout=LONG) as client:
        expected = cc.certify(partial, 2)
        table = client.get("/certificates", params={"patch": "2", "ballots": kind}).json()["defenders"]
        assert set(table) == {"costcert", "cbn", "drs"}
        for name, found in table.items():
            assert found["rank"] == expected.rank(name, 2).tolist()
            assert found["min_k"] == expected.min_k(name, 2).tolist()
        accuracy = client.get("/accuracy", params={"patch": "2", "ballots": kind}).json()["defenders"]
        top = expected.accuracy(1).set_index("defender")
        assert {name: found["certified"][0] for name, found in accuracy.items()} == top.certified.to_dict()
        for row in range(30):
            image = partial.image_ids[row]
            shown = client.get(f"/votes/{image}", params={"ballots": kind}).json()
            assert shown["unknown"] == np.flatnonzero(~partial.known[row]).tolist()
            assert [shown["ballots"][mutant] for mutant in shown["unknown"]] == [-1] * len(shown["unknown"])
            for label in range(4):
                request = {"image": image, "label": label, "patches": ["2"], "view": kind}
                (answer,) = client.post("/certify", json=request).json()["certificates"]
                one = cc.certify(partial.take([row]).replace(truth=[label]), 2)
                assert {name: found["min_k"] for name, found in answer["defenders"].items()} == {
                    name: one.min_k(name, 2)[0] for name in one.defenders
                }


def test_votes_are_those_of_the_image(client, votes):
    for row in (0, 17):
        image = votes.image_ids[row]
        hard = client.get(f"/votes/{image}", params={"ballots": "hard"}).json()
        assert hard["ballots"] == votes.ballots[row].tolist()
        assert (hard["labels"], hard["cap"]) == (None, 1)
        # As they were cast, unless the request says otherwise.
        soft = client.get(f"/votes/{image}").json()
        assert soft == client.get(f"/votes/{image}", params={"ballots": "soft"}).json()
        assert soft["labels"] == votes.labels[row].tolist()
        assert soft["units"] == votes.units[row].tolist()
        assert soft["truth"] == votes.truth[row]


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_certificates_of_all_images(client, votes, kind):
    chosen = votes if kind == "soft" else votes.hard()
    certs = cc.certify(chosen, cc.Rectangle(2, 3))
    found = client.get("/certificates", params={"patch": "rectangle:2x3", "ballots": kind}).json()
    assert set(found["defenders"]) == set(certs.defenders)
    for name in certs.defenders:
        assert found["defenders"][name]["min_k"] == certs.min_k(name, "rectangle:2x3").tolist()
        assert found["defenders"][name]["rank"] == certs.rank(name, "rectangle:2x3").tolist()
    accuracy = client.get("/accuracy", params={"patch": "rectangle:2x3", "ballots": kind}).json()
    table = certs.accuracy(accuracy["k"])
    for name in certs.defenders:
        rows, curve = table[table.defender == name], accuracy["defenders"][name]
        assert curve["certified"] == rows.certified.tolist()
        assert curve["certified_percent"] == [f"{100 * share:.1f}" for share in rows.certified]
        assert curve["clean_percent"] == [f"{100 * share:.1f}" for share in rows.clean]


@pytest.mark.parametrize("kind", ["hard", "soft", None])
def test_certify_an_image_that_is_shown(client, votes, kind):
    cast = votes if kind != "hard" else votes.hard()
    request = {
        "view": kind,
        "image": str(votes.image_ids[3]),
        "patches": ["2", "rectangle:1x4"],
        "attack": True,
    }
    found = client.post("/certify", json=request).json()
    assert found["label"] == votes.truth[3]
    certs = cc.certify(cast, ["2", "rectangle:1x4"])
    for row, patch in zip(found["certificates"], certs.patches, strict=True):
        assert row["patch"] == str(patch)
        for name in certs.defenders:
            assert row["defenders"][name]["min_k"] == certs.min_k(name, patch)[3]
        attack = cc.strongest(cast, 3, patch)
        assert row["attack"]["position"] == attack.position
        assert (row["attack"]["top"], row["attack"]["left"]) == attack.places[0]


def test_certify_ballots_of_the_request(client):
    """The theory's known answer: 4 dogs, 9 pandas, 4 cats, and ties counted against."""
    ballots = [0] * 4 + [1] * 9 + [2] * 4
    request = {
        "ballots": ballots,
        "label": 1,
        "patches": ["square:1"],
        "ablation": "columns:3",
        "image_size": [17, 17],
        "num_classes": 3,
    }
    (row,) = client.post("/certify", json=request).json()["certificates"]
    own = cc.Votes([ballots], [1], num_classes=3, ablation="columns:3", image_size=17)
    certs = cc.certify(own, 1)
    assert {name: found["min_k"] for name, found in row["defenders"].items()} == {
        name: certs.min_k(name, 1)[0] for name in certs.defenders
    }
    assert row["budget"] == 3
    soft = {**request, "labels": [[y, 0] for y in ballots], "units": [[6, 1]] * 17, "cap": 8}
    del soft["ballots"]
    (row,) = client.post("/certify", json=soft).json()["certificates"]
    own = cc.Votes.soft(
        [soft["labels"]], [soft["units"]], [1], cap=8, num_classes=3, ablation="columns:3", image_size=17
    )
    certs = cc.certify(own, 1)
    assert {name: found["min_k"] for name, found in row["defenders"].items()} == {
        name: certs.min_k(name, 1)[0] for name in certs.defenders
    }


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_predict_and_certify_a_picture(client, kind):
    _, content = picture(kind)
    headers = {"content-type": f"image/{kind.lower()}"}
    deployed = cc.Deployed(Tiny(), "columns:3", soft=SOFT)
    seen = Image.open(io.BytesIO(content))
    top = deployed.predict(seen, k=3)[0].tolist()
    found = client.post("/predict?k=3", content=content, headers=headers).json()
    assert [row["label"] for row in found["top"]] == top
    assert found["votes"]["hard"]["ballots"] == deployed.votes(seen).ballots[0].tolist()
    assert found["picture"].startswith("data:image/png;base64,")
    for label in (None, 2):
        params = {"patch": ["1", "2"], **({} if label is None else {"label": label})}
        answer = client.post("/certify", params=params, content=content, headers=headers).json()
        assert answer["label"] == (top[0] if label is None else label)
        certs = deployed.certify(seen, [answer["label"]], ["1", "2"])
        for row, patch in zip(answer["certificates"], certs.patches, strict=True):
            assert row["defenders"]["costcert"]["min_k"] == certs.min_k("costcert", patch)[0]


def test_the_page_and_pictures_come_from_here(client, votes):
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for part in re.findall(r'(?:src|href)="(/[^"]+)"', page.text):
        assert client.get(part).status_code == 200
    assert not re.search(r"https?://", page.text)
    shown = client.get(f"/pictures/{votes.image_ids[2]}")
    pixels = np.asarray(Image.open(io.BytesIO(shown.content)))
    assert (pixels == pictures(30).images[2]).all()


# Access


def test_other_names_of_this_host_are_refused(client):
    """DNS rebinding: a foreign page whose name points here."""
    assert client.get("/about", headers={"host": "evil.example:80"}).status_code == 400
    for name in ("localhost:9", "127.0.0.1", "[::1]:8"):
        assert client.get("/about", headers={"host": name}).status_code == 200
    for name in ("", "localhost.evil.example", "evil.example@127.0.0.1", "[::1]evil.example", "127.0.0.1:x"):
        assert client.get("/about", headers={"host": name}).status_code == 400


@pytest.mark.parametrize(
    ("host", "name", "status"),
    [
        ("0.0.0.0", "any.name:8", 200),
        ("::", "[fe80::1]:8", 200),
        ("192.0.2.7", "192.0.2.7:8", 200),
        ("192.0.2.7", "localhost", 400),
        ("2001:db8::7", "[2001:db8::7]:8", 200),
        ("2001:db8::7", "[2001:db8::8]:8", 400),
        ("Host.Example", "host.example", 200),
    ],
)
def test_with_another_host_its_own_name_is_allowed(session, host, name, status):
    with served(session, access=Access(host)) as where:
        assert httpx.get(f"{where}about", headers={"host": name}, timeout=LONG).status_code == status


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}],
)
def test_pages_of_other_sites_are_refused(client, headers):
    assert client.get("/about", headers=headers).status_code == 403
    answer = client.post("/certify", headers={**headers, **PNG}, content=b"")
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


def test_the_token(session, votes):
    with (
        served(session, access=Access(token="a long secret")) as where,
        httpx.Client(base_url=where, timeout=LONG) as client,
    ):
        wanted = f"/votes/{votes.image_ids[0]}"
        assert client.get("/healthz").status_code == 200
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "a long secret"}):
            refused = client.get(wanted, headers=headers)
            assert refused.status_code == 401
            assert "secret" not in refused.text
        right = {"authorization": "Bearer a long secret"}
        assert client.get(wanted, headers=right).status_code == 200
        assert client.get("/about").status_code == 401
        cookie = client.post("/session", headers=right).headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "samesite=strict" in cookie.lower()
        assert client.get(wanted).status_code == 200


def test_other_hosts_always_have_a_token(monkeypatch):
    passed = {}
    monkeypatch.setattr("costcert.cli.explore.opened", lambda request: (_Stub(), None))
    monkeypatch.setattr("costcert.explorer.service.create_app", lambda *a, **options: passed.update(options))
    monkeypatch.setattr("costcert.explorer.serving.server", lambda app: _Stub())
    result = invoke(["explore", "--demo", "--host", "0.0.0.0", "--port", "0"])
    assert result.exit_code == 0, result.output
    assert len(passed["access"].token) >= 20
    assert passed["access"].token in result.output
    refused = invoke(["explore", "--demo", "--token", "short"])
    assert refused.exit_code == 2
    assert "at least 8" in refused.output


class _Stub:
    """In place of a session and of a server."""

    name, votes, not_on_the_page = "nothing", (), ()

    def run(self, sockets):
        for each in sockets:
            each.close()


# Hostile requests


@pytest.mark.parametrize(
    "image",
    ["nobody", "../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd", "..%2f..%2fetc%2fpasswd", "\x00", "a" * 3000],
)
def test_ids_never_become_paths(client, image):
    for where in ("votes", "pictures"):
        answer = client.get(
            httpx.URL(str(client.base_url))
            .join(f"/{where}/")
            .copy_with(raw_path=f"/{where}/{image}".replace("\x00", "%00").encode())
        )
        assert answer.status_code == 404
        assert "root:" not in answer.text
    assert client.get("/page/../service.py").status_code == 404
    assert client.get("/page/%2e%2e%2fservice.py").status_code == 404


def bomb():
    """A PNG of a few hundred bytes whose header claims ten thousand million pixels."""

    def chunk(kind, data):
        crc = zlib.crc32(kind + data)
        return len(data).to_bytes(4, "big") + kind + data + crc.to_bytes(4, "big")

    header = (100_000).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(10_000)))


def large_but_flat():
    """Decodes to 49 million pixels out of a few kilobytes; below Pillow's own limit, above ours."""
    file = io.BytesIO()
    Image.new("L", (7000, 7000)).save(file, "PNG")
    return file.getvalue()


def gif():
    file = io.BytesIO()
    Image.new("L", (4, 4)).save(file, "GIF")
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (lambda: b"", 422),
        (lambda: b"hello", 422),
        (lambda: picture("PNG", (64, 64))[1][:500], 422),
        (lambda: picture("JPEG", (64, 64))[1][:900], 422),
        (lambda: b"<svg xmlns='http://www.w3.org/2000/svg'/>", 422),
        (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n(/etc/passwd) run", 422),
        (gif, 422),
        (lambda: b"PK\x03\x04" + bytes(100), 422),
        (lambda: np.random.default_rng(0).bytes(5000), 422),
        (bomb, 413),
        (large_but_flat, 413),
        (lambda: b"\x89PNG\r\n\x1a\n" + bytes(11_000_000), 413),
    ],
    ids=["empty", "text", "cut png", "cut jpeg", "svg", "eps", "gif", "zip", "noise", "bomb", "flat", "long"],
)
def test_hostile_pictures(client, content, status):
    for path in ("/predict", "/certify?patch=2"):
        answer = client.post(path, content=content(), headers=PNG)
        assert answer.status_code == status, answer.text
        assert set(answer.json()) == {"detail"}
        assert "Traceback" not in answer.text
        assert str(ROOT) not in answer.text


def test_a_body_without_a_length_is_cut_off(client):
    sent = 0

    def endless():
        nonlocal sent
        for _ in range(100_000):
            sent += 10_000
            yield bytes(10_000)

    try:
        status = client.post("/predict", content=endless(), headers=PNG).status_code
    except httpx.TransportError:
        # The service answered and disconnected while the client was still sending.
        status = 413
    assert status == 413
    assert sent < 200_000_000


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "JSON"),
        ("[" * 100_000, "JSON"),
        ("{}", "patches"),
        ('{"patches": ["2"]}', "one of"),
        ('{"ballots": [0], "label": 0, "patches": ["2"]}', "got 1 ballots per image"),
        ('{"ballots": [9, 0, 0, 0, 0, 0, 0, 0], "label": 0, "patches": ["2"]}', "ballots[0, 0] is 9"),
        ('{"ballots": [1e30], "label": 0, "patches": ["2"]}', "ballots"),
        ('{"image": "00001", "patches": ["7"]}', "does not fit"),
        ('{"image": "00001", "patches": ["shape:11/10"]}', "squares and rectangles"),
        ('{"image": "00001", "patches": ["9*square:1"]}', "squares and rectangles"),
        ('{"image": "00001", "patches": ["2"], "label": 4}', "truth"),
        ('{"image": "00001", "patches": ["2"], "defenders": ["nobody"]}', "unknown defender"),
        ('{"image": "00001", "patches": ["1", "1", "1", "1", "1", "1", "1", "1", "1"]}', "patches"),
        ('{"ballots": [0], "label": 0, "patches": ["2"], "image_size": [16384, 16384]}', "image_size"),
        (
            '{"ballots": [0], "label": 0, "patches": ["2"], "ablation": "blocks:1", '
            '"image_size": [1024, 1024]}',
            "1048576",
        ),
        ('{"labels": [[0], [0, 1]], "units": [[1], [1, 1]], "label": 0, "patches": ["2"]}', "rectangular"),
        ('{"unheard": 1, "image": "00001", "patches": ["2"]}', "unheard"),
    ],
)
def test_bad_requests_are_answered_in_a_sentence(client, body, message):
    answer = client.post("/certify", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422
    assert message.lower() in answer.json()["detail"].lower()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            "text/plain; charset=utf-8",
            "this is a text file (text/plain), which cannot be read: choose a PNG,",
        ),
        ("image/gif", "this is a picture of another kind (image/gif)"),
        ("application/pdf", "this is a PDF document (application/pdf)"),
        ("application/octet-stream", "this is a file of another kind (application/octet-stream)"),
        ("x" * 5000, "a file of another kind (" + "x" * 60 + ")"),
        (None, "its Content-Type must be image/png, image/jpeg or image/webp"),
    ],
)
def test_other_media_are_refused_by_their_name(client, kind, words):
    for path in ("/predict", "/certify"):
        headers = {} if kind is None else {"content-type": kind}
        answer = client.post(path, content=b"x", headers=headers)
        assert answer.status_code == 415
        assert words in answer.json()["detail"]


def predict(where, seed=0):
    return httpx.post(f"{where}predict", content=picture(seed=seed)[1], headers=PNG, timeout=LONG)


def test_without_a_model_there_is_no_prediction(session):
    with served(session) as where:
        answer = predict(where)
        assert answer.status_code == 409
        assert "--model" in answer.json()["detail"]


# Back-pressure


def test_a_full_queue_refuses_and_empties(session):
    model = Waiting()
    limits = Limits(waiting=8, seconds=LONG)
    with served(session, deployed=cc.Deployed(model, "columns:3"), limits=limits) as where:
        with ThreadPoolExecutor(8) as clients:
            sent = [clients.submit(predict, where, seed) for seed in range(8)]
            # One runs and two wait; five are refused at once, while the others still wait.
            wait_until(lambda: sum(each.done() for each in sent) >= 5)
            refused = [each.result() for each in sent if each.done()]
            assert [answer.status_code for answer in refused] == [429] * 5
            assert all(answer.headers["retry-after"] == "1" for answer in refused)
            # Requests that do not need the model are still answered.
            assert httpx.get(f"{where}healthz", timeout=LONG).status_code == 200
            model.go.set()
            assert sorted(each.result().status_code for each in sent) == [200] * 3 + [429] * 5
        assert predict(where, 9).status_code == 200


def test_late_answers_are_given_up(session):
    model = Waiting()
    limits = Limits(waiting=4, seconds=1)
    with served(session, deployed=cc.Deployed(model, "columns:3"), limits=limits) as where:
        late = predict(where)
        assert late.status_code == 503
        assert late.headers["retry-after"] == "5"
        model.go.set()
        wait_until(lambda: predict(where).status_code == 200)


def test_a_late_job_keeps_its_place_until_it_ends():
    """A thread cannot be stopped, so later jobs must not pile up behind it."""

    async def scenario():
        queue, go = WorkQueue(1, 1, 0.1), threading.Event()
        with pytest.raises(LateError):
            await queue.run(go.wait)
        assert queue.pending == 1
        waiting = asyncio.create_task(queue.run(go.wait))
        await asyncio.sleep(0)
        with pytest.raises(BusyError):
            await queue.run(int)
        # A job that only waited is late too, and frees its place.
        with pytest.raises(LateError):
            await waiting
        while queue.pending != 1:
            await asyncio.sleep(0.01)
        go.set()
        while queue.pending:
            await asyncio.sleep(0.01)
        queue.seconds = LONG
        assert await queue.run(int, "7") == 7

    asyncio.run(asyncio.wait_for(scenario(), LONG))


def test_a_body_that_never_arrives_is_not_waited_for(session):
    limits = Limits(seconds=0.5)
    with (
        served(session, deployed=cc.Deployed(Tiny(), "columns:3"), limits=limits) as where,
        connect(where) as slow,
    ):
        slow.sendall(half_body(where, "POST /predict", "image/png"))
        assert slow.recv(100).startswith(b"HTTP/1.1 503")


def test_bodies_that_are_arriving_are_limited(session):
    """Each may take megabytes: with many slow senders, further requests get a 429."""
    limits = Limits(waiting=4, seconds=LONG)
    with served(session, deployed=cc.Deployed(Tiny(), "columns:3"), limits=limits) as where:
        with ExitStack() as senders:
            for _ in range(2):
                slow = senders.enter_context(connect(where))
                slow.sendall(half_body(where, "POST /predict", "image/png"))
            refused = wait_until(lambda: None if (answer := predict(where)).is_success else answer)
            assert refused.status_code == 429
        wait_until(lambda: predict(where).is_success)


def test_the_error_of_a_broken_picture_names_no_file(tmp_path, votes):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "broken.png").write_bytes(b"not a picture")
    (tmp_path / "a" / "fine.png").write_bytes(picture()[1])
    data = cc.parse_dataset(f"folder:{tmp_path}")
    two = cc.Votes(
        votes.ballots[:2],
        [0, 0],
        num_classes=4,
        ablation="columns:3",
        image_size=(6, 8),
        image_ids=["a/broken.png", "a/fine.png"],
    )
    with served(Session(two, pictures=Pictures(data, Tiny().prepare))) as where:
        answer = httpx.get(f"{where}pictures/a/broken.png", timeout=LONG)
        assert answer.status_code == 422
        assert str(tmp_path) not in answer.text
        assert httpx.get(f"{where}pictures/a/fine.png", timeout=LONG).status_code == 200


def test_an_internal_error_shows_no_traceback(session):
    class Broken(Tiny):
        def logits(self, images, regions):
            raise RuntimeError("secret inner working")

    with served(session, deployed=cc.Deployed(Broken(), "columns:3")) as where:
        answer = predict(where)
    assert answer.status_code == 500
    assert answer.json() == {"detail": "the service failed: see its log"}


# OpenAPI


def test_the_schema_lists_all_routes(client):
    schema = client.get("/openapi.json").json()
    assert {"/predict", "/certify", "/votes/{image}", "/healthz"} <= set(schema["paths"])
    body = schema["paths"]["/certify"]["post"]["requestBody"]["content"]
    assert {"application/json", "image/png"} <= set(body)
    assert "ballots" in body["application/json"]["schema"]["properties"]
    assert all("429" in each["responses"] for path in schema["paths"].values() for each in path.values())


@pytest.mark.slow
def test_answers_fit_the_schema(session):
    """Schemathesis generates requests, valid and invalid, and compares the answers with the schema."""
    schemathesis = pytest.importorskip("schemathesis", reason="needs schemathesis")
    from hypothesis import HealthCheck, given, settings
    from schemathesis.specs.openapi.checks import positive_data_acceptance

    app = create_app(session, deployed=cc.Deployed(Tiny(), "columns:3", soft=SOFT))
    schema = schemathesis.openapi.from_asgi("/openapi.json", app, headers={"host": "localhost"})
    tried = []
    for result in schema.get_all_operations():
        operation = result.ok()

        @given(case=operation.as_strategy())
        @settings(max_examples=examples(40), suppress_health_check=list(HealthCheck))
        def check(case):
            case.headers = {**(case.headers or {}), "host": "localhost"}
            answer = case.call()
            assert answer.status_code < 500, answer.text
            # Whether a patch fits depends on the image, which is not in the schema.
            case.validate_response(answer, excluded_checks=[positive_data_acceptance])
            tried.append((case.operation.label, answer.status_code))

        check()
    assert len({name for name, _ in tried}) >= 10
    assert {200, 422} <= {status for _, status in tried}


# The command, and many clients at once


def test_what_to_show(tmp_path, votes):
    cc.write_votes(votes, tmp_path / "votes")
    hard = cc.certify(votes.hard(), [2], ties="lowest")
    cc.write_certificates(hard, tmp_path / "certs", votes=tmp_path / "votes")
    session, deployed = opened(ExploreOptions(source=tmp_path / "votes"))
    assert (list(session.views), deployed, session.pictures) == (["soft", "hard"], None, None)
    session, _ = opened(ExploreOptions(source=tmp_path / "certs"))
    assert list(session.views) == ["hard"]
    assert session.terms == Terms("lowest")
    assert session.certificates_of("2")["defenders"]["drs"]["min_k"] == hard.min_k("drs", 2).tolist()
    session, _ = opened(ExploreOptions(source=tmp_path / "certs", limit=7))
    assert session.images()["ids"] == votes.image_ids[:7].tolist()
    np.savez(tmp_path / "images.npz", images=pictures(30).images, labels=votes.truth)
    session, _ = opened(ExploreOptions(source=tmp_path / "votes", data=f"npz:{tmp_path}/images.npz"))
    assert session.pictures is not None
    other = cc.Votes(
        votes.ballots[:5], votes.truth[:5], num_classes=4, ablation="columns:3", image_size=(6, 8)
    )
    cc.write_votes(other, tmp_path / "other")
    for request, message in (
        (ExploreOptions(), "pass what to show"),
        (ExploreOptions(source=tmp_path, demo=True), "pass what to show"),
        (ExploreOptions(source=tmp_path / "certs", votes=tmp_path / "other"), "does not hold the votes"),
        (ExploreOptions(source=tmp_path / "certs", votes=tmp_path / "nowhere"), "nowhere is not there"),
        (ExploreOptions(source=tmp_path / "nowhere"), "nowhere"),
    ):
        with pytest.raises(CostcertError, match=message):
            opened(request)


def npz_votes(path, votes, **arrays):
    np.savez(path, ballots=votes.ballots, truth=votes.truth, **arrays)
    return {"source": path, "ablation": "columns:3", "classes": 4, "image_size": "6x8"}


def test_npz_votes_are_shown_with_their_images(tmp_path, votes):
    """The images are in the same file, or in another one in the same order."""
    images = pictures(30).images
    seen = Tiny().prepare(Image.fromarray(images[7]))
    np.savez(tmp_path / "images.npz", images=images, labels=votes.truth)
    named = np.array([f"image {n}" for n in range(30)])
    apart = npz_votes(tmp_path / "plain.npz", votes)
    for options, image in (
        (npz_votes(tmp_path / "own.npz", votes, images=images), "7"),
        (npz_votes(tmp_path / "named.npz", votes, images=images[..., None], image_ids=named), "image 7"),
        ({**apart, "data": f"npz:{tmp_path}/images.npz"}, "7"),
        ({**apart, "data": f"npz:{tmp_path}/images.npz", "limit": 9}, "7"),
    ):
        session, deployed = opened(ExploreOptions(**options))
        assert deployed is None
        assert session.votes.num_classes == 4
        assert len(session.votes) == options.get("limit", 30)
        shown = Image.open(io.BytesIO(session.pictures.file(image).content)).convert("L")
        assert (np.asarray(shown) == seen[..., 0]).all()
        expected = cc.certify(session.votes, 2)
        found = session.certificates_of("2")["defenders"]["costcert"]
        assert found["min_k"] == expected.min_k("costcert", 2).tolist()
    assert opened(ExploreOptions(**apart))[0].pictures is None


def test_npz_votes_with_other_images_are_refused(tmp_path, votes):
    plain = npz_votes(tmp_path / "plain.npz", votes)
    images = pictures(30).images
    np.savez(tmp_path / "fewer.npz", images=images[:29], labels=votes.truth[:29])
    np.savez(tmp_path / "shuffled.npz", images=images[::-1], labels=votes.truth[::-1])
    named = npz_votes(tmp_path / "named.npz", votes, image_ids=np.array([f"image {n}" for n in range(30)]))
    few = npz_votes(tmp_path / "few.npz", votes, images=images[:5])
    floats = npz_votes(tmp_path / "floats.npz", votes, images=images / 255)
    for options, message in (
        ({**plain, "classes": None, "ablation": None}, "pass --ablation, --classes"),
        ({**plain, "data": f"npz:{tmp_path}/fewer.npz"}, "has 29 images, but 30 voted and have no ids"),
        ({**plain, "data": f"npz:{tmp_path}/shuffled.npz"}, "labels of npz:shuffled.npz are not those"),
        ({**named, "data": f"npz:{tmp_path}/fewer.npz"}, "has none of the images that voted"),
        (few, "images in few.npz has 5 images, but 30 ids"),
        (floats, r"images must be 0 to 255 \(uint8\)"),
        ({"source": tmp_path / "nowhere.npz", "classes": 4}, "nowhere.npz"),
    ):
        with pytest.raises(CostcertError, match=message):
            opened(ExploreOptions(**options))


def test_the_demo_and_its_model(tmp_path):
    pytest.importorskip("torch", reason="the demo's model needs torch")
    session, deployed = opened(ExploreOptions(demo=True, limit=12))
    assert len(session.votes) == 12
    image = str(session.votes.image_ids[5])
    clothes = cc.parse_dataset("sample")
    again = deployed.votes(clothes.image(clothes.ids.index(image)))
    assert (again.ballots[0] == session.votes.ballots[5]).all()
    cc.write_votes(session.views["soft"].votes, tmp_path / "votes")
    model = ROOT / "src" / "costcert" / "sample" / "model"
    shown, deployed = opened(ExploreOptions(source=tmp_path / "votes", models=[str(model)]))
    assert deployed.classifier.soft == cc.Soft(0.7, 10)
    # The pictures are found by themselves, because the data are the sample.
    assert shown.pictures.file(image).media_type == "image/png"
    manifest = json.loads((tmp_path / "votes" / "manifest.json").read_text())
    manifest["made"]["model"]["digest"] = "sha256:0"
    cc.write_votes(
        session.votes.replace(provenance=manifest["made"]),
        tmp_path / "of another",
    )
    with pytest.raises(CostcertError, match="not the model that cast these votes"):
        opened(ExploreOptions(source=tmp_path / "of another", models=[str(model)], data="sample"))


def test_the_client_of_the_examples(session, votes, tmp_path):
    (tmp_path / "mine.png").write_bytes(picture()[1])
    deployed = cc.Deployed(Tiny(), "columns:3", soft=SOFT)
    with served(session, deployed=deployed, access=Access(token="a long secret")) as where:
        output = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "client.py"), where, str(tmp_path / "mine.png")],
            env={**os.environ, "COSTCERT_TOKEN": "a long secret"},
            capture_output=True,
            text=True,
            timeout=LONG,
            check=True,
        ).stdout
    top = int(deployed.predict(Image.open(tmp_path / "mine.png"), k=1)[0, 0])
    assert output.startswith(f"{votes.image_ids[0]}: class {votes.truth[0]}, 8 ballots\n")
    side = int(re.search(r"square:(\d+)", output)[1])
    min_k = cc.certify(votes.hard(), side).min_k("costcert", side)[0]
    assert f"costcert: {promised(min_k)} under" in output
    assert f"mine.png: class {top}," in output
    min_k = deployed.certify(Image.open(tmp_path / "mine.png"), [top], side).min_k("costcert", side)[0]
    assert f"class {top} (predicted) {promised(min_k)} under" in output


def promised(min_k):
    return f"stays in the top {min_k}" if min_k < 4 else "may end last: nothing is promised"


def test_a_port_that_is_taken():
    from costcert.explorer.serving import listening

    with listening("127.0.0.1", 0) as first:
        first.listen()
        with pytest.raises(CostcertError, match="choose another --host or --port"):
            listening("127.0.0.1", first.getsockname()[1])
    with pytest.raises(CostcertError, match=r"cannot listen on no\.such\.host"):
        listening("no.such.host.invalid")


@contextmanager
def command(*words):
    """`costcert explore` in a process of its own: its address, and its memory in megabytes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "costcert", "explore", *map(str, words), "--no-browser", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"},
    )
    try:
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, f"{line} {process.stderr.read() if process.poll() is not None else ''}"

        def memory():
            status = Path(f"/proc/{process.pid}/status")
            if not status.exists():
                pytest.skip("memory is read from /proc, which this system does not have")
            return int(re.search(r"VmRSS:\s+(\d+)", status.read_text())[1]) / 1024

        yield found[0], memory
    finally:
        process.terminate()
        _, errors = process.communicate(timeout=LONG)
        assert "Traceback" not in errors, errors


STOPPED = "costcert: stopped; the page no longer answers, and no file was changed\n"


@pytest.mark.parametrize("during", ["costcert.cli.explore.opened", "costcert.explorer.serving.server"])
def test_ctrl_c_says_that_the_page_is_closed(monkeypatch, tmp_path, votes, during):
    """While the votes are read, and later."""

    def interrupt(*_):
        raise KeyboardInterrupt

    cc.write_votes(votes, tmp_path / "votes")
    monkeypatch.setattr(during, interrupt)
    result = invoke(["explore", str(tmp_path / "votes"), "--no-browser", "--port", "0"])
    assert result.exit_code == 130
    assert result.output.endswith(STOPPED)


@pytest.mark.slow
def test_ctrl_c_closes_the_page(tmp_path, votes):
    cc.write_votes(votes, tmp_path / "votes")
    process = subprocess.Popen(
        [sys.executable, "-m", "costcert", "explore", str(tmp_path / "votes"), "--no-browser", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    where = re.search(r"http://\S+", process.stdout.readline())[0]
    # Only a server that runs handles the signal.
    wait_until(lambda: _answers(f"{where}healthz"))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LONG)
    assert errors == STOPPED
    assert process.returncode == 130


def _answers(where):
    try:
        return httpx.get(where, timeout=LONG).is_success
    except httpx.TransportError:
        return False


@pytest.fixture
def large(tmp_path):
    cc.write_votes(imagenet_votes(200), tmp_path / "votes")
    return tmp_path / "votes"


def crowd(where, clients, seconds):
    """How often the service answered with each status."""
    run = subprocess.run(
        [sys.executable, str(TESTS / "crowd.py"), where, str(clients), str(seconds)],
        capture_output=True,
        text=True,
        timeout=LONG + seconds,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


@pytest.mark.slow
def test_a_load_of_clients(large):
    """200 clients at once: every answer is right or a 429, and memory stays flat.

    Five seconds by default; COSTCERT_LOAD_SECONDS=30 for longer.
    """
    seconds = float(os.environ.get("COSTCERT_LOAD_SECONDS", "5"))
    with command(large, "--seconds", LONG) as (where, memory):
        crowd(where, 200, seconds / 2)
        before = memory()
        found = crowd(where, 200, seconds)
        after = memory()
        print(f"\n{seconds:g} s, 200 clients: {found}, memory {before:.0f} MB before, {after:.0f} MB after")
        assert set(found) <= {"200", "429"}, found
        assert found["200"] > 0
        assert after < before + 25
        assert httpx.get(f"{where}healthz", timeout=LONG).status_code == 200
