"""Slow clients: each connection is closed at its deadline, and all of them together do not block others."""

import asyncio
import json
import threading
from contextlib import ExitStack, contextmanager, suppress
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
from costcert.explorer.connections import ConnectionTable
from costcert.explorer.limits import Limits
from costcert.explorer.service import create_app
from costcert.explorer.session import Session
from served import LONG, connect, half_body, head, running, served, wait_until

# More than the buffers between two sockets hold.
LARGE = 32 << 20
JSON = {"content-type": "application/json"}
REQUEST = json.dumps({"image": "2", "patches": ["square:2"]}).encode()


@pytest.fixture(scope="module")
def session():
    rng = np.random.default_rng(0)
    ballots, truth = rng.integers(0, 4, (5, 12)), rng.integers(0, 4, 5)
    ids = [str(number) for number in range(5)]
    return Session(
        cc.Votes(ballots, truth, num_classes=4, ablation="columns:3", image_size=12, image_ids=ids)
    )


def gone(connection):
    """Whether the service has closed it; answers before that are discarded."""
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
    """The same, found out by sending a byte, which must not move the deadline."""
    connection.setblocking(False)
    try:
        connection.send(b"x")
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False


def healthy(where):
    """Whether the service answers; with a short idle time a slow test may lose its own connection."""
    with suppress(httpx.TransportError):
        return httpx.get(f"{where}healthz", timeout=LONG).status_code == 200
    return False


def answering(where, sent):
    """A connection whose answer has begun; again where it was closed before all was sent."""

    def attempt():
        slow = connect(where)
        with suppress(OSError):
            slow.sendall(sent)
            if slow.recv(9) == b"HTTP/1.1 ":
                return slow
        slow.close()
        return None

    return wait_until(attempt)


@contextmanager
def files(wanted):
    """Raise the limit of open files, where the system allows it."""
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
def test_hundreds_of_slow_clients_do_not_block_others(session):
    """No deadline is reached here: the oldest connections are closed for new ones."""
    limits = Limits(idle=10 * LONG, seconds=10 * LONG)
    with files(2500), ExitStack() as stack:
        where = stack.enter_context(served(session, limits=limits))
        slow = []
        for sent in (half_body(where), b"", head(where)):
            for _ in range(320):
                slow.append(stack.enter_context(connect(where)))
                slow[-1].sendall(sent)
        # All are of one client, which may have half of the table.
        stay = limits.connections // 2
        wait_until(lambda: sum(map(gone, slow)) >= len(slow) - stay)
        assert not any(gone(each) for each in slow[-stay:])
        for _ in range(3):
            assert httpx.get(f"{where}healthz", timeout=LONG).status_code == 200
            found = httpx.post(f"{where}certify", content=REQUEST, headers=JSON, timeout=LONG)
            assert found.status_code == 200
        # Each of these requests replaced one connection at most, and all others stayed open.
        assert not any(gone(each) for each in slow[6 - stay :])


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
    ids=["nothing", "head", "body", "body that is not read", "body of a GET", "idle", "second head"],
)
def test_slow_clients_are_disconnected(session, sent):
    with served(session, limits=Limits(idle=0.3, seconds=0.3)) as where, ExitStack() as stack:
        silent, trickling = (stack.enter_context(connect(where)) for _ in range(2))
        for each in (silent, trickling):
            # On a busy machine its deadline may be over by now.
            with suppress(OSError):
                each.sendall(sent(where))
        wait_until(lambda: refuses(trickling))
        wait_until(lambda: gone(silent))
        wait_until(lambda: healthy(where))


def test_a_refused_body_is_read_so_that_its_answer_arrives(session):
    limit = 1000
    with served(session, limits=Limits(bytes=limit)) as where, connect(where) as client:
        client.sendall(
            head(where, "POST /certify", "Content-Type: application/json", "Content-Length: 3000") + b"\r\n"
        )
        answer = client.recv(1 << 16)
        assert answer.startswith(b"HTTP/1.1 413 ")
        while b'{"detail":' not in answer:
            answer += client.recv(1 << 16)
        client.sendall(bytes(3000) + head(where) + b"\r\n")
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_a_refused_body_without_end_is_cut_off(session):
    with served(session, limits=Limits(bytes=1000)) as where, connect(where) as client:
        client.sendall(head(where, "POST /certify", f"Content-Length: {10 * LARGE}") + b"\r\n")
        with pytest.raises(OSError, match=r"reset|pipe|abort"):
            client.sendall(bytes(10 * LARGE))


class Recorder:
    """Middleware that notes when a request begins and ends."""

    def __init__(self, app, begun, ended):
        self.app, self.begun, self.ended = app, begun, ended

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self.begun.set()
        try:
            await self.app(scope, receive, send)
        finally:
            self.ended.set()


def test_a_body_that_broke_off_is_not_logged_as_an_error(session, capsys):
    app, begun, ended = create_app(session), threading.Event(), threading.Event()
    app.add_middleware(Recorder, begun=begun, ended=ended)
    with running(app) as where:
        with connect(where) as leaving:
            leaving.sendall(half_body(where))
            assert begun.wait(LONG)
            assert not ended.is_set()
        assert ended.wait(LONG)
    assert "Exception" not in capsys.readouterr().err


@pytest.fixture
def large():
    """An app with a large answer, and one that waits for another request."""
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
def test_an_answer_that_is_not_fetched_is_dropped(large, field):
    large.state.limits = Limits(idle=0.3, seconds=0.3)
    with running(large) as where, answering(where, head(where, "GET /large", field) + b"\r\n") as slow:
        wait_until(lambda: refuses(slow))


@pytest.mark.slow
def test_a_large_answer_may_be_fetched_slowly(large):
    large.state.limits = Limits(idle=0.3, seconds=10 * LONG)
    with running(large) as where, answering(where, head(where, "GET /large") + b"\r\n") as slow:
        with connect(where) as idle:
            # The idle time of this later connection is over, and so would be that of the one before.
            wait_until(lambda: gone(idle))
        start = b"HTTP/1.1 " + slow.recv(1 << 16)
        length = start.index(b"\r\n\r\n") + 4 + LARGE
        got = len(start)
        while got < length and (part := slow.recv(1 << 20)):
            got += len(part)
        assert got == length


def test_a_busy_connection_is_not_closed_for_a_new_one(large):
    large.state.limits = Limits(connections=8)
    with running(large) as where, ExitStack() as stack:
        working = stack.enter_context(connect(where))
        working.sendall(head(where, "GET /later") + b"\r\n")
        assert large.state.begun.wait(LONG)
        idle = [stack.enter_context(connect(where)) for _ in range(20)]
        wait_until(lambda: sum(map(gone, idle)) == 17)
        assert httpx.get(f"{where}go", timeout=LONG).status_code == 200
        assert working.recv(1 << 16).startswith(b"HTTP/1.1 200")


def test_connections_are_fewer_than_files(session, monkeypatch):
    def limits(soft):
        monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, soft))
        config = serving.server(create_app(session)).config
        assert config.limit_concurrency is None
        return config.http.table.limit, config.backlog

    assert limits(resource.RLIM_INFINITY) == limits(65536) == limits(1024) == (512, 64)
    for soft in (256, 1024):
        connections, at_once = limits(soft)
        assert connections + 4 * at_once < soft


@dataclass(eq=False)
class Entry:
    address: int
    dropped: list

    def drop(self):
        self.dropped.append(self)


EVENTS = st.tuples(st.sampled_from(["add", "add", "mark_busy", "mark_waiting", "remove"]), st.integers(0, 11))


@given(st.lists(EVENTS, max_size=80), st.integers(1, 8))
def test_the_connection_that_waited_longest_is_dropped(events, limit):
    """Against a naive table: since when each connection waits, or None while it is busy."""
    table, dropped = ConnectionTable(limit), []
    entries = [Entry(number % 3, dropped) for number in range(12)]
    since, expected = {}, []
    for now, (method, number) in enumerate(events):
        entry = entries[number]
        if (method == "add") == (entry in since):
            continue
        getattr(table, method)(entry)
        since[entry] = None if method == "mark_busy" else now
        if method == "remove":
            del since[entry]
        elif method == "add":
            own = [each for each in since if each.address == entry.address]
            too_many = own if len(own) > max(1, limit // 2) else list(since) if len(since) > limit else []
            waiting = [each for each in too_many if since[each] is not None]
            if waiting:
                expected.append(min(waiting, key=since.get))
                del since[expected[-1]]
        assert dropped == expected
        assert len(since) <= limit
