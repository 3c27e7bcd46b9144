"""Translation of the SDK's errors into errors of the kitchen."""

from __future__ import annotations

import concurrent.futures
import re
from typing import Any

import tinker

from kitchen import errors
from kitchen.errors import ApiError, BackendError, DataError, KitchenError, RunFailed, SessionLost
from kitchen.secrets import mask

_REQUEST_FAILED = re.compile(r"Request failed: (.*?)(?: for self\.request_id=.*)?$", re.DOTALL)
_KIND_AND_MESSAGE = re.compile(r"(\w+): (.*)", re.DOTALL)
_STATUS = re.compile(r"with status (\d+)")
# phrases in the SDK's errors about clients that no longer work
_CLOSED_CLIENT = ("poisoned", "holder is closed", "ServiceClient is closed")
NOT_FOUND_STATUSES = (404, 410)  # for something that the server does not know, or no longer knows


def translate_error(error: BaseException) -> BaseException:
    """Return an error of the SDK as one of the kitchen's.

    SessionLost means that opening the session again may help.
    """
    if isinstance(error, KitchenError):
        return error
    if isinstance(error, concurrent.futures.CancelledError):
        return SessionLost("the session was dropped before the server answered")
    text = mask(str(error) or type(error).__name__)
    if isinstance(error, tinker.RequestFailedError):
        return _from_failed_request(error, text)
    if isinstance(error, tinker.APIStatusError):
        return _from_status(error.status_code, text, error)
    if isinstance(error, tinker.APIConnectionError | TimeoutError | ConnectionError):
        return SessionLost(f"the server cannot be reached: {text}")
    is_closed = any(phrase in text for phrase in _CLOSED_CLIENT)
    if is_closed or type(error).__name__ == "RetryableException":
        return SessionLost(f"the session is lost: {text}")
    if (match := _STATUS.search(text)) is not None:
        return _from_status(int(match[1]), text, error)
    return RunFailed(f"the Tinker SDK failed: {type(error).__name__}: {text}")


def _from_failed_request(error: Any, text: str) -> KitchenError:
    """Translate an error that the server reports as the result of a request.

    A `kitchen serve` puts the name of one of our error classes before the message.
    """
    failed = _REQUEST_FAILED.match(text)
    message = failed[1] if failed else text
    if (match := _KIND_AND_MESSAGE.match(message)) is not None:
        kind = getattr(errors, match[1], None)
        if isinstance(kind, type) and issubclass(kind, KitchenError) and kind is not ApiError:
            return kind(match[2])
    if error.category == tinker.types.RequestErrorCategory.User:
        return DataError(message)
    return RunFailed(f"the server failed: {message}")


def _from_status(status: int, text: str, error: Any) -> KitchenError:
    body = getattr(error, "body", None)
    detail = mask(str(body.get("detail", text))) if isinstance(body, dict) else text
    if status in NOT_FOUND_STATUSES:
        return SessionLost(f"the session is lost: {detail}")
    if status in (401, 403):
        return BackendError(f"the server rejects the API key: {detail}")
    return ApiError(
        f"the server answered with status {status}: {detail}", status=status, body=detail
    )
