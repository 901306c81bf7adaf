"""Every refusal is a status and a sentence."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from costcert.errors import CostcertError
from costcert.explorer.pictures import TooLargeError
from costcert.explorer.queue import BusyError, LateError
from costcert.explorer.session import UnknownImageError


def answer_in_sentences(app: FastAPI) -> None:
    """Turn whatever goes wrong into such an answer; a traceback stays on the server."""

    def problem(status: int, detail: str, **headers: str) -> JSONResponse:
        return JSONResponse({"detail": detail}, status, headers=headers)

    @app.exception_handler(CostcertError)
    async def wrong(request: Request, error: Exception) -> Response:
        known = ((UnknownImageError, 404), (TooLargeError, 413))
        return problem(next((status for kind, status in known if isinstance(error, kind)), 422), str(error))

    @app.exception_handler(RequestValidationError)
    async def unreadable(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return problem(422, sentence(error.errors()))

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return problem(error.status_code, str(error.detail), **(error.headers or {}))

    @app.exception_handler(BusyError)
    async def busy(request: Request, error: Exception) -> Response:
        return problem(429, "the service is busy: ask again in a second", **{"Retry-After": "1"})

    @app.exception_handler(LateError)
    async def late(request: Request, error: Exception) -> Response:
        return problem(503, "this took too long: ask for less, or again later", **{"Retry-After": "5"})

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        return problem(500, "the service failed; its log says why")


def sentence(errors: Any) -> str:
    first = errors[0]
    where = ".".join(str(part) for part in first["loc"] if part not in ("query", "path", "body"))
    what = str(first["msg"]).removeprefix("Value error, ")
    return f"{where}: {what}" if where else what
