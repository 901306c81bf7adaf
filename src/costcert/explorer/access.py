"""Access control: pages of other sites are refused, and requests without the token where one is set.

Also the headers that make a browser load nothing from elsewhere. Starlette's TrustedHostMiddleware checks the
Host header; it has no middleware for the Origin header or for a token.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")
WILDCARDS = ("0.0.0.0", "::")  # noqa: S104
# Paths that need no token: the page without its data, and the health check.
OPEN_PATHS = ("/", "/healthz")
OPEN_PREFIX = "/page/"

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Access:
    """Where the service listens, and the token that it requires.

    Args:
        host: the address it is bound to.
        token: required in every request, if given.
    """

    host: str = "127.0.0.1"
    token: str | None = None

    @property
    def allowed_hosts(self) -> list[str]:
        """Host names that requests may use.

        A page of another site whose name resolves to this machine (DNS rebinding) sends its own name. On a
        wildcard address any name is allowed, and only the token protects the service.
        """
        if self.host in WILDCARDS:
            return ["*"]
        names = LOOPBACK if self.host in LOOPBACK else (self.host,)
        return [f"[{name}]" if ":" in name else name for name in names]


class AccessMiddleware:
    """Checks the origin and the token of every request, and adds security headers to every response."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            # No route uses WebSocket.
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(HTTPConnection(scope))
        await (refusal or self.app)(scope, receive, send_with_headers)

    def _refusal(self, request: HTTPConnection) -> JSONResponse | None:
        headers = request.headers
        host, origin = headers.get("host", ""), headers.get("origin")
        foreign = origin is not None and origin.partition("://")[2] != host
        embedded = headers.get("sec-fetch-mode") != "navigate"
        if foreign or (embedded and headers.get("sec-fetch-site") in ("cross-site", "same-site")):
            return JSONResponse({"detail": "pages of other sites may not use this service"}, 403)
        path = request.scope["path"]
        if self.token is None or path in OPEN_PATHS or path.startswith(OPEN_PREFIX):
            return None
        given = (_bearer(headers.get("authorization", "")), request.cookies.get(cookie_name(host), ""))
        if any(hmac.compare_digest(each.encode(), self.token.encode()) for each in given):
            return None
        return JSONResponse(
            {"detail": "this service requires its token: send it as 'Authorization: Bearer TOKEN'"},
            401,
            headers={"www-authenticate": "Bearer"},
        )


def _bearer(header: str) -> str:
    kind, _, token = header.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def cookie_name(host: str) -> str:
    """One name per port: browsers keep cookies by host only, but two services on one host have two tokens."""
    return f"costcert-{host.rpartition(':')[2] if host[-1:].isdecimal() else ''}"
