"""Listening: a socket, a server on it, and the address to open."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from costcert.errors import CostcertError

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

PORT = 8710


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
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=3,
            backlog=512,
            # Connections, most of which are idle; work is bounded by the gates.
            limit_concurrency=900,
            ws="none",
            loop="asyncio",
            http="h11",
        )
    )
