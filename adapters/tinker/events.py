"""Each request of the SDK, told to the log and the trace of the run that made it."""

from __future__ import annotations

import time
from typing import Any

import structlog
from opentelemetry import trace

log = structlog.get_logger("kitchen.tinker")
_BEGAN = "kitchen.began"  # of a request, among its extensions
# what the SDK asks on its own account
_QUIET = ("session_heartbeat", "telemetry", "dynamic_config")


def listen() -> None:
    """From now on, of every client of the SDK in this process.

    A request is made in the context of the call that asked for it, so what is told goes to that
    call's run alone. The SDK calls `_prepare_request` before each one, and leaves it empty for
    those who want to see them.
    """
    from tinker import _client

    if getattr(_client.AsyncTinker, "_kitchen_listens", False):
        return

    async def prepare(self: Any, request: Any) -> None:
        request.extensions[_BEGAN] = time.perf_counter()
        if _told not in self._client.event_hooks["response"]:
            hooks = self._client.event_hooks
            self._client.event_hooks = {**hooks, "response": [*hooks["response"], _told]}

    setattr(_client.AsyncTinker, "_prepare_request", prepare)  # noqa: B010 mypy knows it as a method
    setattr(_client.AsyncTinker, "_kitchen_listens", True)  # noqa: B010


async def _told(response: Any) -> None:
    request = response.request
    path = request.url.path.rsplit("/api/v1/", 1)[-1]
    if path.rsplit("/", 1)[-1] in _QUIET or _BEGAN not in request.extensions:
        return
    told = {
        "path": path,
        "status": response.status_code,
        "seconds": round(time.perf_counter() - request.extensions[_BEGAN], 6),
        "retries": int(request.headers.get("x-stainless-retry-count", 0)),
        "client": request.headers.get("x-sdk-method", "").partition(".")[0] or "SDK",
    }
    log.debug("request", **told)
    trace.get_current_span().add_event("tinker.request", told)
