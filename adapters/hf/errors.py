"""Translation of errors of the Hugging Face Hub into errors of the kitchen."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kitchen.errors import ApiError, BackendError, KitchenError, RunFailed
from kitchen.secrets import mask

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError

ATTEMPTS = 3  # after a broken connection; the client itself resumes within one
_TOKEN = re.compile(r"\b(hf|api_org|hf_oauth)_\w+")
_USER = re.compile(r"(?<=://)[^/\s@]+@")
# of the header "ratelimit": no request is left for t seconds
_RATE_LIMIT = re.compile(r"\br=0\s*;\s*t=(\d+)")


class NoResponse(Exception):
    """No answer in time; the client does not retry after an error of this class."""


class Unreachable(BackendError):
    """The hub did not answer: no network, a wrong host, a proxy, or offline mode."""


@dataclass(frozen=True)
class HubRequest:
    """The subject of a request, for error messages, and how long it may take."""

    subject: str  # "model 'owner/name'"
    endpoint: str
    page: str  # URL of the repository, where its licence is accepted
    offline_hint: str  # what works without a network
    # the error for a name, revision or file that does not exist
    not_found: type[KitchenError] = BackendError
    # seconds without an answer, and seconds of answers that the hub is busy or broken
    timeout: float = 10.0
    publishes: bool = False  # whether the request changes the hub, for which a token is needed


def translate_error(error: BaseException, request: HubRequest) -> KitchenError:
    """Translate an error of the hub, the network or the disk into one of the kitchen.

    It names the subject, what went wrong, and what to do.
    """
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    cause = root_cause(error)
    if isinstance(cause, HfHubHTTPError):
        return _from_status(cause, request)
    if isinstance(cause, OfflineModeIsEnabled):
        return Unreachable(
            f"{request.subject} is not in the cache, and HF_HUB_OFFLINE forbids requests to "
            f"{request.endpoint}; unset it; {request.offline_hint}"
        )
    if is_broken_connection(cause):
        return BackendError(
            f"the connection to {request.endpoint} broke {ATTEMPTS} times for {request.subject}: "
            f"{clean(str(cause))}; no partial files are kept; try again"
        )
    if isinstance(cause, NoResponse | httpx2.TransportError):
        reason = clean(str(cause)) or type(cause).__name__
        return Unreachable(
            f"{request.endpoint} cannot be reached for {request.subject}: {reason}; "
            f"check the network, and HF_ENDPOINT; {request.offline_hint}"
        )
    if isinstance(cause, OSError) and cause.errno is not None:
        return RunFailed(
            f"{cause.filename or request.subject}: {cause.strerror}; free disk space or make it "
            "writable, or choose another cache folder (HF_HOME)"
        )
    text = clean(str(cause)).splitlines()[0] if str(cause) else type(cause).__name__
    return BackendError(f"{request.subject}: {text}")


def clean(text: str) -> str:
    """Remove secrets of the environment and of URLs, and anything like a token of the hub."""
    return _USER.sub("", _TOKEN.sub("***", mask(text)))


def root_cause(error: BaseException) -> BaseException:
    """Return the error of the request itself.

    The client wraps rejections in errors about its cache, and uploads in RuntimeErrors.
    """
    import httpx2
    from huggingface_hub.errors import OfflineModeIsEnabled

    link: BaseException | None = error
    while link is not None:
        if isinstance(link, httpx2.HTTPError | OfflineModeIsEnabled | NoResponse):
            return link
        link = link.__cause__
    return error


def is_broken_connection(error: BaseException) -> bool:
    import httpx2

    return isinstance(
        error, httpx2.ReadError | httpx2.WriteError | httpx2.CloseError | httpx2.RemoteProtocolError
    )


def retry_after(response: httpx2.Response) -> float:
    """Return the seconds that the server asks to wait; 0 if it does not."""
    limit = _RATE_LIMIT.search(response.headers.get("ratelimit", ""))
    header = response.headers.get("Retry-After", "")
    limit_seconds = float(limit[1]) if limit else 0.0
    header_seconds = float(header) if header.isdigit() else 0.0
    return max(limit_seconds, header_seconds)


def _from_status(error: HfHubHTTPError, request: HubRequest) -> KitchenError:
    from huggingface_hub.errors import RemoteEntryNotFoundError, RevisionNotFoundError

    host, subject = request.endpoint, request.subject
    if isinstance(error, RevisionNotFoundError | RemoteEntryNotFoundError):
        missing = "revision" if isinstance(error, RevisionNotFoundError) else "file"
        return request.not_found(f"{subject}: {host} has no such {missing}; see {request.page}")
    status = error.response.status_code
    if status == 404:
        return request.not_found(f"there is no {subject} at {host}; check the spelling")
    return ApiError(_explain(error, request), status=status, body=clean(error.response.text))


def _explain(error: HfHubHTTPError, request: HubRequest) -> str:
    """Return a rejection in plain words, with the remedy."""
    from huggingface_hub.errors import GatedRepoError

    status = error.response.status_code
    message = clean(error.server_message or "")
    host, subject = request.endpoint, request.subject
    if isinstance(error, GatedRepoError):
        return (
            f"{subject} is gated: accept its licence at {request.page}, and set HF_TOKEN to a "
            "token of the account that did"
        )
    if status in (401, 403):
        return _explain_permission(status, message, request)
    if status == 429:
        seconds = retry_after(error.response)
        when = f"in {seconds:.0f} s" if seconds else "in some minutes"
        return (
            f"{host} received too many requests, and rejects the one for {subject} (429); try "
            f"again {when}, or set HF_TOKEN for a higher limit"
        )
    if status >= 500:
        return (
            f"{host} fails for {subject} ({status}: {message}) after retries for "
            f"{request.timeout:g} s; try again later"
        )
    return f"{host} rejects the request for {subject} ({status}): {message}"


def _explain_permission(status: int, message: str, request: HubRequest) -> str:
    """Return in plain words why a token, or the lack of one, is not enough."""
    host, subject = request.endpoint, request.subject
    tokens = f"{host}/settings/tokens"
    if status == 403:
        return (
            f"the token does not permit this for {subject}: {message}; set HF_TOKEN to one that "
            f"does ({tokens})"
        )
    if "credentials" in message.lower():
        return (
            f"{host} does not accept the token for {subject}; create another at {tokens} and set "
            "HF_TOKEN"
        )
    if request.publishes:
        return (
            f"{host} publishes {subject} only with a token: set HF_TOKEN to one that may write "
            f"({tokens})"
        )
    return (
        f"{host} shows no {subject} without a token: it is misspelled, or private; set "
        f"HF_TOKEN to a token that may read it ({tokens})"
    )
