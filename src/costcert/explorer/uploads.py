"""Request bodies, read within limits of size and time.

Starlette's RequestBodyLimitMiddleware does not fit: it answers in plain text and sets no time limit.
"""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.requests import ClientDisconnect

from costcert.explorer.limits import Limits
from costcert.explorer.pictures import TAKEN, TooLargeError
from costcert.explorer.queue import BusyError, LateError


def media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


# What people call files of these kinds; the first that matches.
_KINDS = {
    "image/": "a picture of another kind",
    "text/": "a text file",
    "application/pdf": "a PDF document",
    "application/zip": "a ZIP archive",
    "video/": "a video",
    "audio/": "a sound file",
    "": "a file of another kind",
}


def not_a_picture(media_type: str) -> str:
    """What kind of file came instead of a picture, and which are taken."""
    if not media_type:
        return (
            "the request does not say what kind of file it sends: its Content-Type must be image/png, "
            "image/jpeg or image/webp"
        )
    kind = next(name for start, name in _KINDS.items() if media_type.startswith(start))
    return f"this is {kind} ({media_type[:60]}), which cannot be read: choose a {TAKEN} file"


async def read_body(request: Request, limits: Limits, uploads: asyncio.Semaphore) -> bytes:
    """The complete body; reading stops at the limits, and `uploads` bounds how many are read at once."""
    too_long = TooLargeError(
        f"this is larger than the {limits.bytes / 1e6:g} MB that costcert explore takes: choose a smaller "
        "file, or restart it with a larger --megabytes"
    )
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
