"""Retries of requests to the hub, and limits on how long its client may wait."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, TypeVar

from adapters.hf.errors import (
    ATTEMPTS,
    HubRequest,
    NoResponse,
    is_broken_connection,
    retry_after,
    root_cause,
    translate_error,
)
from kitchen.backend.port_call import current_call

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

TRANSIENT_STATUSES = (408, 429, 500, 502, 503, 504)
# times the usual timeout: the hub checks all files of a commit before it answers
_POST_FACTOR = 6
_RETRY_MESSAGES = re.compile(
    "thrown while requesting|before retry|Retrying in|Trying to resume|Max retries"
)


def call_hub(request: HubRequest, call: Callable[[], T]) -> T:
    """Run a call to the hub; retry transient failures in time, and raise others as KitchenError."""
    start = time.monotonic()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            with limited_waiting(request.timeout):
                return call()
        except _client_errors() as error:
            time_left = request.timeout - (time.monotonic() - start)
            delay = _retry_delay(error, attempt, time_left)
            if delay is None or attempt == ATTEMPTS:
                raise translate_error(error, request) from error
        if port_call := current_call():
            port_call.retries += 1
        time.sleep(delay)
    raise AssertionError("the last attempt returns or raises")


@contextmanager
def limited_waiting(seconds: float) -> Iterator[None]:
    """Limit how long the client of `huggingface_hub` waits; most of its requests have no timeout.

    By default, the client sleeps for as long as a server asks, up to an hour, five times in a row.
    Within this block, it gives up once the server has been unresponsive or failing for `seconds`,
    or has asked to wait longer, and then raises an error without logging. The limit applies to all
    users of the client, on all threads.
    """
    from huggingface_hub import get_session

    limit = _WaitLimit(seconds)
    hooks = get_session().event_hooks
    handlers = list(logging.getLogger("huggingface_hub").handlers)
    hooks["request"].append(limit.on_request)
    hooks["response"].append(limit.on_response)
    for handler in handlers:
        handler.addFilter(limit.keeps_record)
    try:
        yield
    finally:
        hooks["request"].remove(limit.on_request)
        hooks["response"].remove(limit.on_response)
        for handler in handlers:
            handler.removeFilter(limit.keeps_record)


class _WaitLimit:
    """Tracks how long each request of a call has been failing."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # start by thread and request: a request is retried on the thread that made it
        self._started = dict[tuple[int, str], float]()

    def on_request(self, request: httpx2.Request) -> None:
        key = _key(request)
        self._started.setdefault(key, time.monotonic())
        requested = request.extensions.get("timeout", {})
        limits = dict.fromkeys(("connect", "read", "write", "pool"), self._seconds)
        if request.method == "POST":
            limits["read"] = _POST_FACTOR * self._seconds
        timeout = {
            phase: min(requested.get(phase) or limit, limit) for phase, limit in limits.items()
        }
        request.extensions = {
            **request.extensions,
            "trace": partial(self._on_trace, key),
            "timeout": timeout,
        }

    def on_response(self, response: httpx2.Response) -> None:
        from huggingface_hub.errors import HfHubHTTPError

        key = _key(response.request)
        if response.status_code not in TRANSIENT_STATUSES:
            self._started.pop(key, None)
        elif self._waited(key) + retry_after(response) >= self._seconds:
            response.read()
            message = response.headers.get("X-Error-Message")
            raise HfHubHTTPError(
                "retry time limit reached", response=response, server_message=message
            )

    def keeps_record(self, record: logging.LogRecord) -> bool:
        """Filter out the client's log records about its retries."""
        return _RETRY_MESSAGES.search(record.getMessage()) is None

    def _on_trace(self, key: tuple[int, str], event: str, info: Mapping[str, Any]) -> None:
        import httpcore2
        import httpx2

        error = info.get("exception")
        if key not in self._started or not isinstance(
            error, httpcore2.NetworkError | httpcore2.TimeoutException
        ):
            return
        if self._waited(key) >= self._seconds:
            raise NoResponse(f"no answer for {self._seconds:g} s: {error}")
        if isinstance(error, httpcore2.ConnectError):
            # after a ConnectError the client would close its session, and this limit with it;
            # otherwise it treats a timeout alike
            raise httpx2.ConnectTimeout(str(error))

    def _waited(self, key: tuple[int, str]) -> float:
        now = time.monotonic()
        return now - self._started.setdefault(key, now)  # absent if another thread started earlier


def _key(request: httpx2.Request) -> tuple[int, str]:
    return get_ident(), f"{request.method} {request.url}"


def _retry_delay(error: BaseException, attempt: int, time_left: float) -> float | None:
    """Return the seconds until it makes sense to try again; None if it does not."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    cause = root_cause(error)
    if isinstance(cause, HfHubHTTPError):
        delay = max(retry_after(cause.response), 0.25 * 2**attempt)
        is_transient = cause.response.status_code in TRANSIENT_STATUSES
        return delay if is_transient and delay < time_left else None
    # the client has already tried to resume and failed
    if isinstance(cause, httpx2.RemoteProtocolError) and time_left < 0:
        return None
    return 0.5 * attempt if is_broken_connection(cause) else None


def _client_errors() -> tuple[type[Exception], ...]:
    """Return the errors that `huggingface_hub` raises; a function, so that it is imported late."""
    import httpx2
    from huggingface_hub.errors import EntryNotFoundError

    return httpx2.HTTPError, EntryNotFoundError, NoResponse, OSError, ValueError, RuntimeError
