"""Errors in the form of the OpenAI API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any

import structlog
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from adapters.server.error_texts import public_text, short_text
from adapters.server.futures import Gone, QueueFull
from adapters.server.rejections import RequestRejected
from kitchen.errors import CorruptCheckpoint, KitchenError, RunFailed

log = structlog.get_logger("kitchen.serve")
PREFIXES = ("/v1", "/oai/api/v1")  # the hosted Tinker service uses the second one
CLIENT_CLOSED_REQUEST = 499
# type and code of errors by status; others are of the first type, without a code
KINDS: Mapping[int, tuple[str, str | None]] = {
    400: ("invalid_request_error", None),
    401: ("invalid_request_error", "invalid_api_key"),
    404: ("invalid_request_error", None),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    500: ("server_error", None),
    503: ("server_error", None),
}
STATUSES: Mapping[type[Exception], int] = {
    CorruptCheckpoint: 500,
    RunFailed: 503,
    QueueFull: 429,
    Gone: 404,
    KitchenError: 400,
    ValueError: 400,
}
Handler = Callable[[Request], Awaitable[Response]]


class OpenAIError(Exception):
    """A request that the OpenAI API refuses, with the field at fault.

    The message is sent as it is, with the paths in it: those of a request are the client's own.
    """

    def __init__(
        self, message: str, *, param: str | None = None, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code


def is_openai_path(path: str) -> bool:
    return path.startswith(tuple(f"{prefix}/" for prefix in PREFIXES))


def error_body(error: Exception) -> tuple[int, Mapping[str, Any]]:
    """Return the status and body of an error; a fault of the server is logged, and not shown."""
    if isinstance(error, OpenAIError | RequestRejected):
        return error.status, _body(error.status, error)
    kinds = [STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES]
    if kinds:
        return kinds[0], _body(kinds[0], error)
    log.error("a request failed", exc_info=error)
    fault = OpenAIError("the server failed; its log has the reason", status=500)
    return fault.status, _body(fault.status, fault)


def error_response(status: int, error: Exception) -> JSONResponse:
    """Return an error with a status that is already known."""
    return JSONResponse(_body(status, error), status)


def with_openai_errors(handler: Handler) -> Handler:
    """Return a handler that answers with the error of a request."""

    @wraps(handler)
    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        except Exception as error:  # noqa: BLE001 faults of the server are logged
            status, body = error_body(error)
            return JSONResponse(body, status)

    return handle


def _body(status: int, error: Exception) -> Mapping[str, Any]:
    kind, code = KINDS.get(status, KINDS[400])
    text = short_text if isinstance(error, OpenAIError) else public_text
    return {
        "error": {
            "message": text(str(error)),
            "type": kind,
            "param": getattr(error, "param", None),
            "code": getattr(error, "code", None) or code,
        }
    }
