"""Faults of a server: which are tried again, how long to wait, and our error for each."""

from __future__ import annotations

import email.utils
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kitchen.errors import ApiError, BackendError, KitchenError
from kitchen.secrets import mask

_TRANSIENT = frozenset({408, 409, 425, 429})  # and all from 500 on
_NO_CREDIT = ("insufficient_quota", "billing_hard_limit_reached")  # codes of OpenAI with 429
_REFUSED_FIELD = (400, 422)
_OPTIONAL = ("temperature", "top_p", "top_k", "seed", "stop")  # fields of requests
_TOKEN_LIMITS = ("max_completion_tokens", "max_tokens")
_MAX_DETAIL = 500  # characters of a server's text in an error


class MalformedAnswer(Exception):
    """An answer with status 200 that lacks what was asked for."""


@dataclass(frozen=True)
class Fault:
    """A request that failed."""

    error: KitchenError
    transient: bool = False  # whether it is worth trying again
    status: int | None = None
    # the server refuses requests for now, this one and others
    is_limit: bool = False
    retry_after: float | None = None  # seconds, if the server names a time


def fault_of(error: Exception, server: str, key_variable: str) -> Fault | None:
    """Return the fault for an exception of the SDK or of the network; None for another one."""
    import openai

    if isinstance(error, MalformedAnswer):
        text = f"{server} gave an answer that cannot be used: {mask(str(error))}"
        return Fault(BackendError(text), transient=True, status=200)
    if isinstance(error, TimeoutError | openai.APITimeoutError):
        return Fault(
            BackendError(
                f"{server} did not answer in time; sampling.timeout sets the seconds that it has"
            ),
            transient=True,
        )
    if isinstance(error, openai.APIStatusError):
        return _of_status(error, server, key_variable)
    if not isinstance(error, openai.OpenAIError | OSError) and not _is_of_network(error):
        return None
    cause = error.__cause__ or error
    reason = mask(str(cause)) or type(cause).__name__
    return Fault(
        BackendError(
            f"the connection to {server} failed: {reason}; is the server running, and is "
            "sampling.base_url (or OPENAI_BASE_URL) right?"
        ),
        transient=True,
    )


def _is_of_network(error: Exception) -> bool:
    """Return whether an HTTP client has raised this, as it does in the middle of a stream."""
    return type(error).__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2")


def _of_status(error: Any, server: str, key_variable: str) -> Fault:
    status: int = error.status_code
    detail = detail_of(error)
    code = str(error.code or error.type or "")
    if status == 401:
        text = (
            f"{server} rejects the API key: {detail}; the environment variable {key_variable} "
            "must hold the key of this server"
        )
    elif status == 403:
        text = f"{server} refuses access with the key in {key_variable}: {detail}"
    elif status == 429 and code in _NO_CREDIT:
        text = f"the account at {server} has no credit left: {detail}"
    else:
        text = f"{server} answered with status {status}: {detail}"
        text += _advice(error, detail) if status in _REFUSED_FIELD else ""
    is_limit = status == 429 and code not in _NO_CREDIT
    after = retry_after(error.response.headers)
    return Fault(
        ApiError(text, status=status, body=detail),
        transient=status >= 500 or (status in _TRANSIENT and code not in _NO_CREDIT),
        status=status,
        is_limit=is_limit or (status == 503 and after is not None),
        retry_after=after,
    )


def _advice(error: Any, detail: str) -> str:
    """Return what to do about a field of the request that a refusal names; "" if it names none."""
    quoted = {str(error.param), *re.findall(r"['\"`](\w+)['\"`]", detail)}
    named = quoted | (set(re.findall(r"\w+", detail)) - {"stop"})  # which is also a plain word
    if not named.isdisjoint(_TOKEN_LIMITS):
        return "; if the server does not know this field, sampling.limit_field names another"
    for name in _OPTIONAL:
        if name in named:
            return (
                f"; if the model does not take this {name}, "
                f"--set 'sampling.fields={{{name}: null}}' leaves it out"
            )
    return ""


def detail_of(error: Any) -> str:
    """Return the server's own message of a status error, without secrets."""
    body = error.body
    if isinstance(body, Mapping):
        body = body.get("message") or body.get("detail") or body.get("error") or body
        body = body.get("message", body) if isinstance(body, Mapping) else body
    text = mask(str(body or error.response.text or "no reason")).strip()
    return text if len(text) <= _MAX_DETAIL else text[:_MAX_DETAIL] + "..."


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds until a server wants the next request: in seconds, or as a date."""
    for name, per_second in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) / per_second
        except ValueError:
            continue
        if math.isfinite(seconds):
            return max(seconds, 0.0)
    try:
        date = email.utils.parsedate_to_datetime(headers.get("retry-after", ""))
        return max(date.timestamp() - time.time(), 0.0)
    except (TypeError, ValueError, OverflowError):
        return None
