"""Request bodies, read within limits of size and time.

Starlette's RequestBodyLimitMiddleware does not fit: it answers in plain text and sets no time limit.
"""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.requests import ClientDisconnect

from costcert.explorer.limits import Limits
from costcert.explorer.pictures import TooLargeError
from costcert.explorer.queue import BusyError, LateError


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(request: Request, limits: Limits, uploads: asyncio.Semaphore) -> bytes:
    """The complete body; reading stops at the limits, and `uploads` bounds how many are read at once."""
    too_long = TooLargeError(f"a body has at most {limits.bytes:,} bytes: send less")
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > limits.bytes:
        raise too_long

    async def read() -> bytes:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > limits.bytes:
                raise too_long
        return bytes(body)

    if uploads.locked():
        raise BusyError
    async with uploads:
        try:
            return await asyncio.wait_for(read(), limits.seconds)
        except (TimeoutError, ClientDisconnect):
            # The client of a body that broke off is gone, which is not worth a traceback in the log.
            raise LateError from None
