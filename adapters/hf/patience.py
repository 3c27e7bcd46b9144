"""How long the client of `huggingface_hub` may wait."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx2

PASSING = (408, 429, 500, 502, 503, 504)
# times the usual wait: the hub looks through all files of a commit before it answers
_COMMITTING = 6
# of the header "ratelimit": no request is left for t seconds
_LIMIT = re.compile(r"\br=0\s*;\s*t=(\d+)")
_AGAIN = re.compile("thrown while requesting|before retry|Retrying in|Trying to resume|Max retries")


class Silent(Exception):
    """No answer in time; of no kind that the client would wait longer for."""


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Bound what the client of `huggingface_hub` waits for, which by itself has no time-out for
    most requests.

    It also sleeps as long as a server says, an hour if need be, five times over; here it gives up
    when the server has been silent, busy or broken for so many seconds, or says that it will be. It
    tells of that by an error alone. While this lasts it holds for whoever uses the client, since it
    works from threads of its own, too.
    """
    from huggingface_hub import get_session

    one, hooks = _Patience(seconds), get_session().event_hooks
    handlers = list(logging.getLogger("huggingface_hub").handlers)
    hooks["request"].append(one.before)
    hooks["response"].append(one.after)
    for handler in handlers:
        handler.addFilter(one.shows)
    try:
        yield
    finally:
        hooks["request"].remove(one.before)
        hooks["response"].remove(one.after)
        for handler in handlers:
            handler.removeFilter(one.shows)


class _Patience:
    """Since when the requests of a call have been tried in vain."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        # by thread, too: a request is tried again where it was tried
        self._since = dict[tuple[int, str], float]()

    def before(self, request: httpx2.Request) -> None:
        key = _key(request)
        self._since.setdefault(key, time.monotonic())
        given = request.extensions.get("timeout", {})
        most = dict.fromkeys(("connect", "read", "write", "pool"), self._seconds)
        if request.method == "POST":
            most["read"] = _COMMITTING * self._seconds
        request.extensions = {
            **request.extensions,
            "trace": partial(self._broken, key),
            "timeout": {phase: min(given.get(phase) or most[phase], most[phase]) for phase in most},
        }

    def after(self, response: httpx2.Response) -> None:
        from huggingface_hub.errors import HfHubHTTPError

        key = _key(response.request)
        if response.status_code not in PASSING:
            self._since.pop(key, None)
        elif self._waited(key) + told_wait(response) >= self._seconds:
            response.read()
            said = response.headers.get("X-Error-Message")
            raise HfHubHTTPError("patience has ended", response=response, server_message=said)

    def shows(self, record: logging.LogRecord) -> bool:
        return _AGAIN.search(record.getMessage()) is None

    def _broken(self, key: tuple[int, str], event: str, about: Mapping[str, Any]) -> None:
        import httpcore2
        import httpx2

        error = about.get("exception")
        if key not in self._since or not isinstance(
            error, httpcore2.NetworkError | httpcore2.TimeoutException
        ):
            return
        if self._waited(key) >= self._seconds:
            raise Silent(f"no answer for {self._seconds:g} s: {error}")
        if isinstance(error, httpcore2.ConnectError):
            # at a ConnectError the client would close its session, and this with it; a time-out it
            # treats alike but so
            raise httpx2.ConnectTimeout(str(error))

    def _waited(self, key: tuple[int, str]) -> float:
        now = time.monotonic()
        return now - self._since.setdefault(key, now)  # another thread may have begun before us


def _key(request: httpx2.Request) -> tuple[int, str]:
    return get_ident(), f"{request.method} {request.url}"


def told_wait(response: httpx2.Response) -> float:
    """Seconds that the server says to wait; 0 if it says nothing."""
    limit, after = (
        _LIMIT.search(response.headers.get("ratelimit", "")),
        response.headers.get("Retry-After", ""),
    )
    return max(float(limit[1]) if limit else 0.0, float(after) if after.isdigit() else 0.0)
