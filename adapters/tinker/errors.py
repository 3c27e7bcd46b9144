"""Translation of the SDK's errors into errors of the kitchen, which name the server."""

from __future__ import annotations

import concurrent.futures
import re
import traceback

import tinker

from kitchen import errors
from kitchen.errors import (
    ApiError,
    BackendError,
    ConfigError,
    DataError,
    KitchenError,
    RunFailed,
    SessionLost,
)
from kitchen.secrets import mask

_REQUEST_FAILED = re.compile(r"Request failed: (.*?)(?: for self\.request_id=.*)?$", re.DOTALL)
_KIND_AND_MESSAGE = re.compile(r"(\w+): (.*)", re.DOTALL)
_STATUS = re.compile(r"(?:with |\()status (\d+)")
# the SDK's description of a request, and pydantic's of its documentation
_DETAILS = re.compile(r" for self\.request_id=.*|For further information visit \S+", re.DOTALL)
# phrases in the SDK's errors about clients that no longer work
_CLOSED_CLIENT = ("poisoned", "holder is closed", "ServiceClient is closed")
NOT_FOUND, METHOD_NOT_ALLOWED, GONE, NOT_IMPLEMENTED = 404, 405, 410, 501
NOT_FOUND_STATUSES = (NOT_FOUND, GONE)  # for something that the server does not know any more
# for a part of the API that it does not have; other messages come with 404, too
MISSING_STATUSES = (NOT_FOUND, METHOD_NOT_ALLOWED, NOT_IMPLEMENTED)
INVALID_STATUSES = (400, 422)  # for a request that the server refuses for its content
# the details with which web frameworks and our own server answer a path that they do not serve
_NO_SUCH_PATH = re.compile(r"not found\.?|.* is not served here", re.IGNORECASE)


def translate_error(error: BaseException, server: str = "the server") -> BaseException:
    """Return an error of the SDK as one of the kitchen's; `server` is the address in its text.

    SessionLost means that opening the session again may help.
    """
    if isinstance(error, KitchenError):
        return error
    if isinstance(error, concurrent.futures.CancelledError):
        return SessionLost(f"the session was dropped before {server} answered")
    text = mask(str(error) or type(error).__name__)
    if isinstance(error, tinker.RequestFailedError):
        return _from_failed_request(error, text, server)
    if isinstance(error, tinker.APIStatusError):
        return _from_status_error(error, text, server)
    if isinstance(error, tinker.APIConnectionError | TimeoutError | ConnectionError):
        return SessionLost(f"{server} cannot be reached: {text}")
    is_closed = any(phrase in text for phrase in _CLOSED_CLIENT)
    if is_closed or type(error).__name__ == "RetryableException":
        return SessionLost(f"the session on {server} is lost: {text}")
    text = " ".join(_DETAILS.sub("", text).split())
    if (match := _STATUS.search(text)) is not None:
        return _from_status(int(match[1]), text, server)
    return _from_sdk(error, text, server)


def is_missing_endpoint(error: BaseException) -> bool:
    """Return whether the server reports that it does not have this part of the API."""
    if not isinstance(error, tinker.APIStatusError):
        return False
    if error.status_code in (METHOD_NOT_ALLOWED, NOT_IMPLEMENTED):
        return True
    if error.status_code != NOT_FOUND:
        return False
    detail = _detail(error)
    return detail is None or bool(_NO_SUCH_PATH.fullmatch(detail))


def says_unsupported(error: BaseException) -> bool:
    """Return whether an error means that the server lacks what a request tried.

    It does if the server has no such endpoint, refuses the request as invalid, or gives an answer
    that cannot be used. A fault, a rate limit or a lack of rights says nothing about the feature.
    """
    if isinstance(error, tinker.RequestFailedError):
        # `kitchen serve` also counts full memory and the like as errors that its user can fix
        is_about_input = isinstance(translate_error(error), DataError | ConfigError)
        return _is_refusal(error) and is_about_input
    if isinstance(error, tinker.APIStatusError):
        return is_missing_endpoint(error) or error.status_code in INVALID_STATUSES
    translated = translate_error(error)
    if isinstance(translated, ApiError):
        return translated.status in (*MISSING_STATUSES, *INVALID_STATUSES)
    is_about_answer = isinstance(translated, BackendError | DataError | ConfigError)
    return is_about_answer and not isinstance(translated, SessionLost)


def is_not_found(error: BaseException) -> bool:
    """Return whether the server reports that it does not have the thing that was named."""
    status = getattr(error, "status_code", 0)
    return status in NOT_FOUND_STATUSES and not is_missing_endpoint(error)


def request_error(error: BaseException) -> str:
    """Return the server's own message in an error about a request."""
    if isinstance(error, tinker.APIStatusError):
        return _detail(error) or str(error)
    return _without_request(str(error))


def _without_request(text: str) -> str:
    """Return the message of a failed request without the SDK's description of it."""
    failed = _REQUEST_FAILED.match(text)
    return failed[1] if failed else text


def _is_refusal(error: tinker.RequestFailedError) -> bool:
    return error.category == tinker.types.RequestErrorCategory.User


def _from_failed_request(error: tinker.RequestFailedError, text: str, server: str) -> KitchenError:
    """Translate an error that the server reports as the result of a request.

    A `kitchen serve` puts the name of one of our error classes before the message.
    """
    message = _without_request(text)
    if (match := _KIND_AND_MESSAGE.match(message)) is not None:
        kind = getattr(errors, match[1], None)
        if isinstance(kind, type) and issubclass(kind, KitchenError) and kind is not ApiError:
            return kind(f"{server}: {match[2]}")
    if _is_refusal(error):
        return DataError(f"{server} refused the request: {message}")
    return RunFailed(f"{server} failed: {message}")


def _from_status_error(error: tinker.APIStatusError, text: str, server: str) -> KitchenError:
    detail = mask(_detail(error) or text)
    if is_missing_endpoint(error):
        request = error.response.request
        return ApiError(
            f"{server} lacks a part of the Tinker API: it answered {request.method} "
            f"{request.url.path} with status {error.status_code}: {detail}",
            status=error.status_code,
            body=detail,
        )
    return _from_status(error.status_code, detail, server)


def _from_status(status: int, detail: str, server: str) -> KitchenError:
    if status in NOT_FOUND_STATUSES:
        return SessionLost(f"the session on {server} is lost: {detail}")
    text = f"{server} answered with status {status}: {detail}"
    if "ttl_seconds" in detail:
        text += " (it lets no checkpoints expire: set the adapter's setting expire_after to 0)"
    if status in (401, 403):
        text = f"{server} rejects the API key: {detail}"
    return ApiError(text, status=status, body=detail)


def _from_sdk(error: BaseException, text: str, server: str) -> KitchenError:
    """Translate an error in the SDK's own code, which expects more of an answer than it checks."""
    names = [
        frame.f_code.co_name
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__", "").startswith("tinker.")
    ]
    kind = type(error).__name__
    if not names:
        return RunFailed(f"a request to {server} failed: {kind}: {text}")
    return BackendError(
        f"the Tinker SDK {tinker.__version__} cannot process an answer of {server}: {kind} in "
        f"{names[-1]}: {text}"
    )


def _detail(error: tinker.APIStatusError) -> str | None:
    """Return the message in the body of an answer; None if it is not one of an API."""
    body = error.body
    if not isinstance(body, dict):
        return None
    for key in ("detail", "message", "error"):
        if body.get(key):
            return str(body[key])
    return str(body)
