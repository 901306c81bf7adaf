"""Listening: a socket, a server on it, and the address to open."""

from __future__ import annotations

import math
import socket
import sys

import uvicorn
from fastapi import FastAPI

from costcert.errors import CostcertError
from costcert.explorer.connections import connections
from costcert.explorer.uploads import Limits

PORT = 8710
# Connections that the system keeps until they are accepted.
_QUEUE = 512


def listening(host: str, port: int | None = None) -> socket.socket:
    """A bound socket; without a port the usual one, or any free one where that is taken."""
    wanted = [PORT, 0] if port is None else [port]
    why = ""
    for number in wanted:
        try:
            ((family, kind, _, _, address), *_) = socket.getaddrinfo(
                host, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            continue
        bound = socket.socket(family, kind)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
        except OSError as error:
            bound.close()
            why = (error.strerror or str(error)).lower()
            continue
        return bound
    raise CostcertError(f"cannot listen on {host} port {wanted[-1]} ({why}): choose another --host or --port")


def address(bound: socket.socket, host: str) -> str:
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{bound.getsockname()[1]}/"


def server(app: FastAPI) -> uvicorn.Server:
    """A server of this app, within the limits that the app was made with."""
    limits: Limits = app.state.limits
    most = min(limits.connections, _files() // 2)
    return _Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=math.ceil(limits.idle),
            timeout_graceful_shutdown=3,
            # So many are accepted at a time, and a few times as many before the first of them is read and
            # may make another one leave: few enough that none has to go unread, and files are left to open.
            backlog=max(1, most // 8),
            ws="none",
            loop="asyncio",
            http=connections(limits, most),
        )
    )


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        # The loop takes one number for how many it accepts at a time and how many may queue.
        for each in sockets or ():
            each.listen(_QUEUE)


def _files() -> int:
    """How many files, and so connections, this process may have open."""
    try:
        import resource
    except ImportError:
        # Windows has no such limit.
        return sys.maxsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft
