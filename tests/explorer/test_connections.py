"""Connections that dawdle: each is closed in time, and all of them together keep nobody out."""

import asyncio
import json
import re
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("fastapi", reason="the service needs costcert[explore]")
pytest.importorskip("uvicorn", reason="the service needs costcert[explore]")
pytest.importorskip("httpx", reason="tests of the service need httpx")
pytest.importorskip("resource", reason="this system does not limit open files")

import resource

import httpx
from fastapi import FastAPI, Response

import costcert as cc
from costcert.explorer import serving
from costcert.explorer.connections import Table
from costcert.explorer.service import create_app
from costcert.explorer.session import Session
from costcert.explorer.uploads import Limits
from served import running, served

# Seconds, far beyond what anything here takes: whatever is not there by then never comes.
LONG = 60.0
# More than the buffers between two sockets hold.
LARGE = 32 << 20
JSON = {"content-type": "application/json"}
QUESTION = json.dumps({"image": "2", "patches": ["square:2"]}).encode()


@pytest.fixture(scope="module")
def session():
    rng = np.random.default_rng(0)
    ballots, truth = rng.integers(0, 4, (5, 12)), rng.integers(0, 4, 5)
    ids = [str(number) for number in range(5)]
    return Session(
        cc.Votes(ballots, truth, num_classes=4, ablation="columns:3", image_size=12, image_ids=ids)
    )


def connect(where):
    return socket.create_connection(("127.0.0.1", httpx.URL(where).port), timeout=LONG)


def head(where, line="GET /healthz", *fields):
    """All of a request's head but its end."""
    lines = (f"{line} HTTP/1.1", f"Host: {httpx.URL(where).netloc.decode()}", *fields)
    return "".join(f"{each}\r\n" for each in lines).encode()


def half_body(where, line="POST /certify"):
    return head(where, line, "Content-Type: application/json", "Content-Length: 50000") + b"\r\n{"


def gone(connection):
    """Whether the service has closed it; what it said before is read and forgotten."""
    connection.setblocking(False)
    try:
        while connection.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def refuses(connection):
    """The same, found out by sending a byte: one now and then is no progress, and moves no deadline."""
    connection.setblocking(False)
    try:
        connection.send(b"x")
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False


def wait_until(done):
    end = time.monotonic() + LONG
    while not done():
        assert time.monotonic() < end, "this never came about"
        time.sleep(0.01)


@contextmanager
def files(wanted):
    """As many open files as this needs, where the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this needs {wanted} open files, and the system allows {hard}")
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
def test_hundreds_that_dawdle_keep_nobody_out(session):
    """None of them reaches its deadline here: room is made by those that came first."""
    limits = Limits(idle=10 * LONG, seconds=10 * LONG)
    with files(2500), ExitStack() as stack:
        where = stack.enter_context(served(session, limits=limits))
        dawdlers = []
        for sent in (half_body(where), b"", head(where)):
            for _ in range(320):
                dawdlers.append(stack.enter_context(connect(where)))
                dawdlers[-1].sendall(sent)
        # All are of one client, which may have half of the table.
        stay = limits.connections // 2
        wait_until(lambda: sum(map(gone, dawdlers)) >= len(dawdlers) - stay)
        assert not any(gone(each) for each in dawdlers[-stay:])
        for _ in range(3):
            assert httpx.get(f"{where}healthz", timeout=LONG).status_code == 200
            found = httpx.post(f"{where}certify", content=QUESTION, headers=JSON, timeout=LONG)
            assert found.status_code == 200
        # Each of those took the place of one at most, and all others were there all the while.
        assert not any(gone(each) for each in dawdlers[6 - stay :])


@pytest.mark.parametrize(
    "sent",
    [
        lambda where: b"",
        head,
        half_body,
        lambda where: half_body(where, "POST /session"),
        lambda where: half_body(where, "GET /healthz"),
        lambda where: head(where) + b"\r\n",
        lambda where: head(where) + b"\r\n" + head(where),
    ],
    ids=["nothing", "head", "body", "body nobody reads", "body of a GET", "idle", "second head"],
)
def test_whoever_comes_to_no_end_is_let_go_of(session, sent):
    with served(session, limits=Limits(idle=0.3, seconds=0.3)) as where, ExitStack() as stack:
        silent, trickling = (stack.enter_context(connect(where)) for _ in range(2))
        for each in (silent, trickling):
            each.sendall(sent(where))
        wait_until(lambda: refuses(trickling))
        wait_until(lambda: gone(silent))
        assert httpx.get(f"{where}healthz").status_code == 200


def test_a_body_that_broke_off_is_no_fault_of_ours(session, capsys):
    with served(session) as where:
        with connect(where) as leaving:
            leaving.sendall(half_body(where))
            wait_until(lambda: under_way(where) == 2)
        wait_until(lambda: under_way(where) == 1)
    assert "Exception" not in capsys.readouterr().err


def under_way(where):
    """Requests that the service is at, this one among them."""
    return int(re.search(r"\ncostcert_requests_under_way (\d+)\n", httpx.get(f"{where}metrics").text)[1])


@pytest.fixture
def large():
    """An app that has a large answer, and one that it keeps back until told."""
    app = FastAPI()
    app.state.begun, app.state.go = threading.Event(), asyncio.Event()

    @app.get("/large")
    async def large() -> Response:
        return Response(bytes(LARGE))

    @app.get("/later")
    async def later() -> Response:
        app.state.begun.set()
        await app.state.go.wait()
        return Response(b"now")

    @app.get("/go")
    async def go() -> Response:
        app.state.go.set()
        return Response(b"")

    return app


@pytest.mark.slow
@pytest.mark.parametrize("field", ["Accept: */*", "Connection: close"])
def test_an_answer_that_nobody_fetches_is_not_kept(large, field):
    large.state.limits = Limits(idle=0.3, seconds=0.3)
    with running(large) as where, connect(where) as slow:
        slow.sendall(head(where, "GET /large", field) + b"\r\n")
        assert slow.recv(9) == b"HTTP/1.1 "
        wait_until(lambda: refuses(slow))


@pytest.mark.slow
def test_a_large_answer_may_be_fetched_slowly(large):
    large.state.limits = Limits(idle=0.1, seconds=10 * LONG)
    with running(large) as where, connect(where) as slow:
        slow.sendall(head(where, "GET /large") + b"\r\n")
        said = slow.recv(1 << 16)
        # Idle time would be over long before the rest is fetched.
        time.sleep(1)
        length = said.index(b"\r\n\r\n") + 4 + LARGE
        got = len(said)
        while got < length and (part := slow.recv(1 << 20)):
            got += len(part)
        assert got == length


def test_work_under_way_is_not_given_up_for_newcomers(large):
    large.state.limits = Limits(connections=8)
    with running(large) as where, ExitStack() as stack:
        working = stack.enter_context(connect(where))
        working.sendall(head(where, "GET /later") + b"\r\n")
        assert large.state.begun.wait(LONG)
        dawdlers = [stack.enter_context(connect(where)) for _ in range(20)]
        wait_until(lambda: sum(map(gone, dawdlers)) == 17)
        assert httpx.get(f"{where}go").status_code == 200
        assert working.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_connections_are_fewer_than_files(session, monkeypatch):
    def most(soft):
        monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, soft))
        config = serving.server(create_app(session)).config
        assert config.limit_concurrency is None
        return config.http.table.most, config.backlog

    assert most(resource.RLIM_INFINITY) == most(65536) == most(1024) == (512, 64)
    for soft in (256, 1024):
        connections, at_once = most(soft)
        assert connections + 4 * at_once < soft


@dataclass(eq=False)
class Someone:
    address: int
    dropped: list

    def drop(self):
        self.dropped.append(self)


EVENTS = st.tuples(st.sampled_from(["enter", "enter", "work", "dawdle", "leave"]), st.integers(0, 11))


@given(st.lists(EVENTS, max_size=80), st.integers(1, 8))
def test_whoever_dawdles_longest_makes_room(events, most):
    """Against a table that is looked through anew each time: since when each has waited, if it does."""
    table, dropped = Table(most), []
    everybody = [Someone(number % 3, dropped) for number in range(12)]
    since, expected = {}, []
    for now, (what, number) in enumerate(events):
        who = everybody[number]
        if (what == "enter") == (who in since):
            continue
        getattr(table, what)(who)
        since[who] = None if what == "work" else now
        if what == "leave":
            del since[who]
        elif what == "enter":
            own = [each for each in since if each.address == who.address]
            too_many = own if len(own) > max(1, most // 2) else list(since) if len(since) > most else []
            waiting = [each for each in too_many if since[each] is not None]
            if waiting:
                expected.append(min(waiting, key=since.get))
                del since[expected[-1]]
        assert dropped == expected
        assert len(since) <= most
