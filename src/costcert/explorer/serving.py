"""Listening: a socket, a server on it, and the address to open."""

from __future__ import annotations

import math
import socket
import sys

import uvicorn
from fastapi import FastAPI

from costcert.errors import CostcertError
from costcert.explorer.connections import connection_class
from costcert.explorer.limits import Limits

PORT = 8710
# Connections that the system queues until they are accepted.
_QUEUE = 512


def listening(host: str, port: int | None = None) -> socket.socket:
    """A bound socket; without a port the default one, or any free one where that is taken.

    Uvicorn's `Config.bind_socket` exits the process where the port is taken.
    """
    candidates = [PORT, 0] if port is None else [port]
    reason = ""
    for number in candidates:
        bound = None
        try:
            ((family, kind, _, _, address), *_) = socket.getaddrinfo(
                host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            bound = socket.socket(family, kind)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            if bound is not None:
                bound.close()
        else:
            return bound
    raise CostcertError(
        f"cannot listen on {host} port {candidates[-1]} ({reason}): choose another --host or --port"
    )


def address(bound: socket.socket, host: str) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{bound.getsockname()[1]}/"


def server(app: FastAPI) -> uvicorn.Server:
    """A server for this app, with the limits that the app was created with."""
    limits: Limits = app.state.limits
    connections = min(limits.connections, _max_open_files() // 2)
    return _Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=math.ceil(limits.idle),
            timeout_graceful_shutdown=3,
            # The loop accepts this many connections at a time, and a few times as many before it reads from
            # the first of them and the table may close another: few enough to leave files to open.
            backlog=max(1, connections // 8),
            ws="none",
            # There is nothing to start or stop, and a second Ctrl-C would print the traceback of waiting.
            lifespan="off",
            loop="asyncio",
            http=connection_class(limits, connections),
        )
    )


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # The loop uses `backlog` both for how many it accepts at a time and for how many may queue.
        for each in sockets or ():
            each.listen(_QUEUE)


def _max_open_files() -> int:
    """How many files, and so connections, this process may open."""
    try:
        import resource
    except ImportError:
        # Windows has no such limit.
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
