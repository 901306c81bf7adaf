"""What arrives: not more, and not more slowly, than the service takes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fastapi import Request
from starlette.requests import ClientDisconnect

from costcert.explorer.pictures import MOST_PIXELS, TooLargeError
from costcert.explorer.queue import LateError, Room


@dataclass(frozen=True)
class Limits:
    """What one request may cost, and what it costs to be connected.

    Args:
        bytes: of a body.
        pixels: of a picture.
        seconds: for an answer, and for a body to arrive.
        waiting: pieces of work that may queue; whoever comes after is told to come back (429).
        idle: seconds until the head of a request is there, from when the connection was opened or had its
            last answer.
        connections: open at once, of one client half as many; beyond these the one that dawdles longest goes.
    """

    bytes: int = 10_000_000
    pixels: int = MOST_PIXELS
    seconds: float = 30.0
    waiting: int = 32
    idle: float = 10.0
    connections: int = 512


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def body_of(request: Request, limits: Limits, arriving: Room) -> bytes:
    """The whole body; one that is too long or too slow is not waited for."""
    too_long = TooLargeError(f"a body has at most {limits.bytes:,} bytes: send less")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > limits.bytes:
        raise too_long

    async def arrive() -> bytes:
        parts = bytearray()
        async for part in request.stream():
            parts += part
            if len(parts) > limits.bytes:
                raise too_long
        return bytes(parts)

    with arriving:
        try:
            return await asyncio.wait_for(arrive(), limits.seconds)
        except (TimeoutError, ClientDisconnect):
            # Nobody hears the answer to a body that broke off, and it is no fault to write a log about.
            raise LateError from None
