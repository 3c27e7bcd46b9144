"""Log and trace every request of the SDK in the run that caused it."""

from __future__ import annotations

import logging
import time
from typing import Any

import structlog
from opentelemetry import trace

from adapters.tinker.slow_retries import SlowRetries
from kitchen.backend.port_call import current_call

log = structlog.get_logger("kitchen.tinker")
_RETRIES = "tinker.lib.retry_handler"  # a logger of the SDK
_STARTED = "kitchen.started"  # key among the extensions of a request
# requests that the SDK makes on its own
_BACKGROUND = ("session_heartbeat", "telemetry", "dynamic_config")


def install() -> None:
    """Log the requests of every SDK client in this process from now on.

    A request is made in the context of the call that caused it, so it is logged in that call's run
    only. The SDK calls `_prepare_request` before each request, and leaves it empty for subclasses.
    """
    from tinker import _client

    if getattr(_client.AsyncTinker, "_kitchen_logs_requests", False):
        return

    slow_retries = SlowRetries()

    async def log_response(response: Any) -> None:
        _log_response(response, slow_retries)

    async def prepare(self: Any, request: Any) -> None:
        request.extensions[_STARTED] = time.perf_counter()
        if log_response not in self._client.event_hooks["response"]:
            hooks = self._client.event_hooks
            self._client.event_hooks = {**hooks, "response": [*hooks["response"], log_response]}

    logging.getLogger(_RETRIES).addFilter(_is_not_raised)
    setattr(_client.AsyncTinker, "_prepare_request", prepare)  # noqa: B010 mypy knows it as a method
    setattr(_client.AsyncTinker, "_kitchen_logs_requests", True)  # noqa: B010


def _is_not_raised(record: logging.LogRecord) -> bool:
    """Return whether a message of the SDK is news; the adapter raises errors of requests itself."""
    text = record.getMessage()
    if not text.startswith("Request failed with non-retryable error"):
        return True
    log.debug("a request failed", why=text)
    return False


def _log_response(response: Any, slow_retries: SlowRetries) -> None:
    request = response.request
    path = request.url.path.rsplit("/api/v1/", 1)[-1]
    if path.rsplit("/", 1)[-1] in _BACKGROUND or _STARTED not in request.extensions:
        return
    fields = {
        "path": path,
        "status": response.status_code,
        "seconds": round(time.perf_counter() - request.extensions[_STARTED], 6),
        "retries": int(request.headers.get("x-stainless-retry-count", 0)),
        "client": request.headers.get("x-sdk-method", "").partition(".")[0] or "SDK",
    }
    log.debug("request", **fields)
    server = str(request.url).partition("/api/v1/")[0]
    slow_retries.add(server, path, response.status_code)
    if call := current_call():
        call.add_response(response.status_code, retried=fields["retries"] > 0)
    trace.get_current_span().add_event("tinker.request", fields)
