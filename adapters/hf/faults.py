"""Asking the Hugging Face Hub with bounded patience, and its refusals in our own words."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, TypeVar

from kitchen.errors import ApiError, BackendError, KitchenError, RunFailed
from kitchen.secrets import mask

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

T = TypeVar("T")

_TRIES = 3  # of what broke off; the client itself resumes within one
_COMMITTING = 6  # times the usual wait: the hub looks through all files of a commit before it answers
_PASSING = (408, 429, 500, 502, 503, 504)
_LIMIT = re.compile(r"\br=0\s*;\s*t=(\d+)")  # of the header "ratelimit": no request is left for t seconds
_TOKEN = re.compile(r"\b(hf|api_org|hf_oauth)_\w+")


class Unreachable(BackendError):
    """No answer came from the hub: no network, a wrong host, a proxy, or it was told not to ask."""


class _Silent(Exception):
    """No answer in time; of no kind that the client would wait longer for."""


@dataclass(frozen=True)
class Question:
    """What is asked of a hub, as the texts of errors name it."""

    what: str  # "model 'owner/name'"
    endpoint: str
    page: str  # where a person sees it, and accepts its licence
    offline: str  # what works without a network
    unknown: type[KitchenError] = BackendError  # of a name, revision or file that is not there
    timeout: float = 10.0  # seconds without an answer, and seconds of answers that it is busy or broken


def ask(question: Question, do: Callable[[], T]) -> T:
    """Run what talks to the hub. What passes is tried again, within the time; the rest is raised as a KitchenError."""
    began = time.monotonic()
    for attempt in range(1, _TRIES + 1):
        try:
            with patience(question.timeout):
                return do()
        except _vendor() as error:
            wait = _wait(error, attempt, question.timeout - (time.monotonic() - began))
            if wait is None or attempt == _TRIES:
                raise translated(error, question) from error
        time.sleep(wait)
    raise AssertionError("the last attempt returns or raises")


def translated(error: BaseException, question: Question) -> KitchenError:
    """A refusal of the hub, or of the way there, as ours: what was asked, what went wrong, what to do."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    cause = _cause(error)
    if isinstance(cause, HfHubHTTPError):
        return _refusal(cause, question)
    if isinstance(cause, OfflineModeIsEnabled):
        return Unreachable(f"{question.what} is not in the cache, and HF_HUB_OFFLINE forbids to ask "
                           f"{question.endpoint}; unset it; {question.offline}")
    if isinstance(cause, _Silent | httpx2.ConnectError | httpx2.TimeoutException | httpx2.ProxyError):
        why = clean(str(cause)) or type(cause).__name__
        return Unreachable(f"{question.endpoint} cannot be reached for {question.what}: {why}; "
                           f"see the network, and HF_ENDPOINT; {question.offline}")
    if isinstance(cause, httpx2.TransportError):
        return BackendError(f"the connection to {question.endpoint} broke off {_TRIES} times over {question.what}: "
                            f"{clean(str(cause))}; nothing half-done is kept; try again")
    if isinstance(cause, OSError) and cause.errno is not None:
        return RunFailed(f"{cause.filename or question.what}: {cause.strerror}; make room there or make it writable, "
                         "or name another cache folder (HF_HOME)")
    return BackendError(f"{question.what}: {clean(str(cause)).splitlines()[0] if str(cause) else type(cause).__name__}")


def clean(text: str) -> str:
    """Without secrets: those of the environment, and what looks like a token of the hub."""
    return _TOKEN.sub("***", mask(text))


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Bound what the client of `huggingface_hub` waits for, which by itself has no time-out for most requests.

    It also sleeps as long as a server says, an hour if need be, five times over; here it gives up when the server has
    been busy or broken for so many seconds, or says that it will be.
    """
    from huggingface_hub import get_session
    from huggingface_hub.errors import HfHubHTTPError

    hooks, tried, answered = get_session().event_hooks, dict[tuple[int, str], float](), set[tuple[int, str]]()

    def key(request: httpx2.Request) -> tuple[int, str]:
        return get_ident(), f"{request.method} {request.url}"  # it is tried again in the thread that tried it first

    def before(request: httpx2.Request) -> None:
        began = tried.setdefault(key(request), time.monotonic())
        if key(request) not in answered and time.monotonic() - began > seconds:
            raise _Silent(f"no answer for {seconds:g} s")
        given = request.extensions.get("timeout", {})
        most = {"connect": seconds, "read": seconds, "write": seconds, "pool": seconds}
        if request.method == "POST":
            most["read"] = _COMMITTING * seconds
        request.extensions = {**request.extensions, "timeout": {
            phase: min(given.get(phase) or most[phase], most[phase]) for phase in most}}

    def after(response: httpx2.Response) -> None:
        if response.status_code not in _PASSING:
            tried.pop(key(response.request), None)
            return
        answered.add(key(response.request))
        began = tried.setdefault(key(response.request), time.monotonic())  # another thread may have begun before us
        if time.monotonic() - began + _told(response) >= seconds:
            response.read()
            said = response.headers.get("X-Error-Message")
            raise HfHubHTTPError("patience has ended", response=response, server_message=said)

    hooks["request"].append(before)
    hooks["response"].append(after)
    try:
        yield
    finally:
        hooks["request"].remove(before)
        hooks["response"].remove(after)


def _wait(error: BaseException, attempt: int, left: float) -> float | None:
    """Seconds until it makes sense to try again; None if it does not."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    cause = _cause(error)
    if isinstance(cause, HfHubHTTPError):
        wait = max(_told(cause.response), 0.25 * 2**attempt)
        return wait if cause.response.status_code in _PASSING and wait < left else None
    if isinstance(cause, httpx2.RemoteProtocolError) and left < 0:  # which the client has resumed from in vain
        return None
    broken = httpx2.ReadError | httpx2.WriteError | httpx2.CloseError | httpx2.RemoteProtocolError
    return 0.5 * attempt if isinstance(cause, broken) else None


def _refusal(error: HfHubHTTPError, question: Question) -> KitchenError:
    from huggingface_hub.errors import GatedRepoError, RemoteEntryNotFoundError, RevisionNotFoundError

    status, said = error.response.status_code, clean(error.server_message or "")
    host, what = question.endpoint, question.what
    if isinstance(error, RevisionNotFoundError | RemoteEntryNotFoundError):
        missing = "revision" if isinstance(error, RevisionNotFoundError) else "file"
        return question.unknown(f"{what}: {host} has no such {missing}; see {question.page}")
    if status == 404:
        return question.unknown(f"there is no {what} at {host}; see how it is spelled")
    if isinstance(error, GatedRepoError):
        text = (f"{what} is gated: accept its licence at {question.page}, and set HF_TOKEN to a token of the account "
                "that did")
    elif status == 401 and "credentials" in said.lower():
        text = f"{host} does not accept the token for {what}; make another at {host}/settings/tokens and set HF_TOKEN"
    elif status == 401:
        text = (f"{host} shows no {what} to strangers: it is misspelled, or private; set HF_TOKEN to a token that may "
                f"read it ({host}/settings/tokens)")
    elif status == 403:
        text = f"the token may not do this with {what}: {said}; set HF_TOKEN to one that may ({host}/settings/tokens)"
    elif status == 429:
        wait = _told(error.response)
        text = (f"{host} has had too many requests, {what} was one (429); try again "
                f"{f'in {wait:.0f} s' if wait else 'in some minutes'}; with HF_TOKEN set it allows more")
    elif status >= 500:
        text = (f"{host} fails with {what} ({status}: {said}), asked again for {question.timeout:g} s; "
                "try again later")
    else:
        text = f"{host} refuses {what} ({status}): {said}"
    return ApiError(text, status=status, body=clean(error.response.text))


def _told(response: httpx2.Response) -> float:
    """Seconds that the server says to wait; 0 if it says nothing."""
    if limit := _LIMIT.search(response.headers.get("ratelimit", "")):
        return float(limit[1])
    after = response.headers.get("Retry-After", "")
    return float(after) if after.isdigit() else 0.0


def _cause(error: BaseException) -> BaseException:
    """What lies behind: the client wraps refusals in errors about its cache, and uploads in RuntimeErrors."""
    import httpx2
    from huggingface_hub.errors import OfflineModeIsEnabled

    link: BaseException | None = error
    while link is not None:
        if isinstance(link, httpx2.HTTPError | OfflineModeIsEnabled | _Silent):
            return link
        link = link.__cause__
    return error


def _vendor() -> tuple[type[Exception], ...]:
    """What `huggingface_hub` raises; evaluated when something is raised, so that the package loads when it is used."""
    import httpx2
    from huggingface_hub.errors import EntryNotFoundError

    return httpx2.HTTPError, EntryNotFoundError, _Silent, OSError, ValueError, RuntimeError
