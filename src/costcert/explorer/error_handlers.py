"""Error handlers: every refusal is a status and a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from costcert.errors import CostcertError
from costcert.explorer.pictures import TooLargeError
from costcert.explorer.session import UnknownImageError


def add_error_handlers(app: FastAPI) -> None:
    """Answer errors with `{"detail": "..."}`; tracebacks stay in the log of the server."""

    @app.exception_handler(CostcertError)
    async def refused(request: Request, error: Exception) -> Response:
        statuses = ((UnknownImageError, 404), (TooLargeError, 413))
        status = next((status for kind, status in statuses if isinstance(error, kind)), 422)
        return JSONResponse({"detail": str(error)}, status)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return JSONResponse({"detail": sentence(error.errors())}, 422)

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        return JSONResponse({"detail": "the service failed: see its log"}, 500)


def sentence(errors: Sequence[Any]) -> str:
    """The first of pydantic's errors, with the field it is about."""
    first = errors[0]
    field = ".".join(str(part) for part in first["loc"] if part not in ("query", "path", "body"))
    message = str(first["msg"]).removeprefix("Value error, ")
    return f"{field}: {message}" if field else message
