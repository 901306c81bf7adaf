"""Who may ask: the right host name, no foreign page, and the token where there is one.

Also the headers that keep the page to itself: a browser that obeys them loads nothing from elsewhere.
"""

from __future__ import annotations

import hmac
import json
import time
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from costcert.explorer.counters import Counters

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
WILDCARDS = ("0.0.0.0", "::")  # noqa: S104
# What needs no token: the empty page, and whether the service is alive.
OPEN = ("/", "/healthz")
OPEN_BELOW = "/page/"

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


@dataclass(frozen=True)
class Access:
    """Where the service listens and what it asks for.

    Args:
        host: the address it is bound to.
        token: what every request must bring, if anything.
    """

    host: str = "127.0.0.1"
    token: str | None = None

    @property
    def host_names(self) -> tuple[str, ...] | None:
        """Names a request may call this host by: a page elsewhere that makes its own name point here (DNS
        rebinding) is refused. None where the token alone guards."""
        if self.host in WILDCARDS:
            return None
        return (*LOOPBACK, self.host) if self.host in LOOPBACK else (self.host,)


class AccessMiddleware:
    """Stands before the application and answers for it where it must not be asked; counts all answers."""

    def __init__(self, app: ASGIApp, access: Access, counters: Counters) -> None:
        self.app, self.access, self.counters = app, access, counters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            # No route here speaks WebSocket.
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 500
        self.counters.under_way += 1

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = [(name, value) for name, value in message.get("headers", [])]
                given = {name.lower() for name, _ in headers}
                extra = {**HEADERS, "cache-control": "no-store"}
                if status >= 400 and scope["method"] == "POST":
                    # What is refused may still be arriving: nobody reads it to its end.
                    extra["connection"] = "close"
                headers += [
                    (name.encode(), value.encode())
                    for name, value in extra.items()
                    if name.encode() not in given
                ]
                message = {**message, "headers": headers}
            await send(message)

        try:
            refusal = self._refusal(scope)
            if refusal is None:
                await self.app(scope, receive, answer)
            else:
                await _refuse(answer, *refusal)
        finally:
            self.counters.under_way -= 1
            route = scope.get("route")
            self.counters.count(getattr(route, "path", "other"), status, time.monotonic() - began)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        allowed = self.access.host_names
        host = headers.get("host", "")
        if allowed is not None and _name(host) not in allowed:
            return 400, f"this service is not called {host[:80]!r}: use {allowed[0]}"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return 403, "pages of other sites may not ask this service"
        foreign = headers.get("sec-fetch-site") in ("cross-site", "same-site")
        if foreign and headers.get("sec-fetch-mode") != "navigate":
            return 403, "pages of other sites may not ask this service"
        path = scope["path"]
        if self.access.token is None or path in OPEN or path.startswith(OPEN_BELOW):
            return None
        brought = (_bearer(headers.get("authorization", "")), _cookie(headers.get("cookie", ""), host))
        if any(hmac.compare_digest(each.encode(), self.access.token.encode()) for each in brought):
            return None
        return 401, "this service wants its token: send it as 'Authorization: Bearer TOKEN'"


async def _refuse(send: Send, status: int, why: str) -> None:
    body = json.dumps({"detail": why}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _bearer(header: str) -> str:
    kind, _, token = header.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def cookie_name(host: str) -> str:
    """Browsers keep cookies by host alone, but two services on one machine have two tokens."""
    return f"costcert-{host.rpartition(':')[2] if host[-1:].isdecimal() else ''}"


def _cookie(header: str, host: str) -> str:
    try:
        found = SimpleCookie(header).get(cookie_name(host))
    except CookieError:
        return ""
    return found.value if found else ""
