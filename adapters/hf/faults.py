"""Asking the Hugging Face Hub, and its refusals in our own words."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from adapters.hf.patience import PASSING, Silent, patience, told_wait
from kitchen.errors import ApiError, BackendError, KitchenError, RunFailed
from kitchen.secrets import mask

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

T = TypeVar("T")

_TRIES = 3  # of what broke off; the client itself resumes within one
_TOKEN = re.compile(r"\b(hf|api_org|hf_oauth)_\w+")
_USER = re.compile(r"(?<=://)[^/\s@]+@")


class Unreachable(BackendError):
    """No answer came from the hub: no network, a wrong host, a proxy, or it was told not to ask."""


@dataclass(frozen=True)
class Question:
    """What is asked of a hub, as the texts of errors name it."""

    what: str  # "model 'owner/name'"
    endpoint: str
    page: str  # where a person sees it, and accepts its licence
    offline: str  # what works without a network
    unknown: type[KitchenError] = BackendError  # of a name, revision or file that is not there
    # seconds without an answer, and seconds of answers that it is busy or broken
    timeout: float = 10.0


def ask(question: Question, do: Callable[[], T]) -> T:
    """Run what talks to the hub. What passes is tried again, within the time; the rest is raised as
    a KitchenError.
    """
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
    """A refusal of the hub, or of the way there, as ours: what was asked, what went wrong, what to
    do.
    """
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    cause = _cause(error)
    if isinstance(cause, HfHubHTTPError):
        return _refusal(cause, question)
    if isinstance(cause, OfflineModeIsEnabled):
        return Unreachable(
            f"{question.what} is not in the cache, and HF_HUB_OFFLINE forbids to ask "
            f"{question.endpoint}; unset it; {question.offline}"
        )
    if _is_broken(cause):
        return BackendError(
            f"the connection to {question.endpoint} broke off {_TRIES} times over {question.what}: "
            f"{clean(str(cause))}; nothing half-done is kept; try again"
        )
    if isinstance(cause, Silent | httpx2.TransportError):
        why = clean(str(cause)) or type(cause).__name__
        return Unreachable(
            f"{question.endpoint} cannot be reached for {question.what}: {why}; "
            f"see the network, and HF_ENDPOINT; {question.offline}"
        )
    if isinstance(cause, OSError) and cause.errno is not None:
        return RunFailed(
            f"{cause.filename or question.what}: {cause.strerror}; make room there or make it "
            "writable, "
            "or name another cache folder (HF_HOME)"
        )
    return BackendError(
        f"{question.what}: "
        f"{clean(str(cause)).splitlines()[0] if str(cause) else type(cause).__name__}"
    )


def clean(text: str) -> str:
    """Without secrets: those of the environment and of URLs, and what looks like a token of the
    hub.
    """
    return _USER.sub("", _TOKEN.sub("***", mask(text)))


def _wait(error: BaseException, attempt: int, left: float) -> float | None:
    """Seconds until it makes sense to try again; None if it does not."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

    cause = _cause(error)
    if isinstance(cause, HfHubHTTPError):
        wait = max(told_wait(cause.response), 0.25 * 2**attempt)
        return wait if cause.response.status_code in PASSING and wait < left else None
    # which the client has resumed from in vain
    if isinstance(cause, httpx2.RemoteProtocolError) and left < 0:
        return None
    return 0.5 * attempt if _is_broken(cause) else None


def _is_broken(error: BaseException) -> bool:
    import httpx2

    return isinstance(
        error, httpx2.ReadError | httpx2.WriteError | httpx2.CloseError | httpx2.RemoteProtocolError
    )


def _refusal(error: HfHubHTTPError, question: Question) -> KitchenError:
    from huggingface_hub.errors import (
        GatedRepoError,
        RemoteEntryNotFoundError,
        RevisionNotFoundError,
    )

    status, said = error.response.status_code, clean(error.server_message or "")
    host, what = question.endpoint, question.what
    if isinstance(error, RevisionNotFoundError | RemoteEntryNotFoundError):
        missing = "revision" if isinstance(error, RevisionNotFoundError) else "file"
        return question.unknown(f"{what}: {host} has no such {missing}; see {question.page}")
    if status == 404:
        return question.unknown(f"there is no {what} at {host}; see how it is spelled")
    if isinstance(error, GatedRepoError):
        text = (
            f"{what} is gated: accept its licence at {question.page}, and set HF_TOKEN to a token "
            "of the account "
            "that did"
        )
    elif status == 401 and "credentials" in said.lower():
        text = f"{host} does not accept the token for {what}; make another at {host}/settings/tokens and set HF_TOKEN"
    elif status == 401:
        text = (
            f"{host} shows no {what} to strangers: it is misspelled, or private; set HF_TOKEN to a "
            "token that may "
            f"read it ({host}/settings/tokens)"
        )
    elif status == 403:
        text = f"the token may not do this with {what}: {said}; set HF_TOKEN to one that may ({host}/settings/tokens)"
    elif status == 429:
        wait = told_wait(error.response)
        text = (
            f"{host} has had too many requests, {what} was one (429); try again "
            f"{f'in {wait:.0f} s' if wait else 'in some minutes'}; with HF_TOKEN set it allows more"
        )
    elif status >= 500:
        text = (
            f"{host} fails with {what} ({status}: {said}), asked again for {question.timeout:g} s; "
            "try again later"
        )
    else:
        text = f"{host} refuses {what} ({status}): {said}"
    return ApiError(text, status=status, body=clean(error.response.text))


def _cause(error: BaseException) -> BaseException:
    """What lies behind: the client wraps refusals in errors about its cache, and uploads in
    RuntimeErrors.
    """
    import httpx2
    from huggingface_hub.errors import OfflineModeIsEnabled

    link: BaseException | None = error
    while link is not None:
        if isinstance(link, httpx2.HTTPError | OfflineModeIsEnabled | Silent):
            return link
        link = link.__cause__
    return error


def _vendor() -> tuple[type[Exception], ...]:
    """What `huggingface_hub` raises; evaluated when something is raised, so that the package loads
    when it is used.
    """
    import httpx2
    from huggingface_hub.errors import EntryNotFoundError

    return httpx2.HTTPError, EntryNotFoundError, Silent, OSError, ValueError, RuntimeError
