"""Masking of secrets from the environment in output and records."""

from __future__ import annotations

import json
import os
import re
import traceback
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import chain
from typing import Any
from urllib.parse import quote

from kitchen.safe_text import escape_controls

_SECRET_NAME = re.compile(
    r"((^|_)(API|ACCESS)?(KEY|TOKEN|SECRET|CREDENTIALS?)|PASSWORD|PASSWD|_(PASS|PWD|PAT))(_?\d+)?$",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")
_SHORTEST = 6  # characters: masking a shorter value would blank out ordinary words


def mask(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Return a text without values of secret environment variables and credentials in URLs."""
    return _without(secrets(environment), text)


def printable(text: str) -> str:
    """Return a text for people: without secrets, and with control characters escaped."""
    return escape_controls(mask(text))


def error_attributes(error: BaseException) -> Mapping[str, str]:
    """Return the message and traceback of an error for OpenTelemetry, without secrets."""
    return {
        "exception.message": mask(str(error)),
        "exception.stacktrace": mask("".join(traceback.format_exception(error))),
    }


def masked(value: Any, hidden: Iterable[str] | None = None) -> Any:
    """Return a value for JSON with every text in it masked; masking the JSON could break it."""
    known = secrets() if hidden is None else hidden
    if isinstance(value, str):
        return _without(known, value)
    if isinstance(value, Mapping):
        return {_masked_key(key, known): masked(item, known) for key, item in value.items()}
    return [masked(item, known) for item in value] if isinstance(value, list | tuple) else value


def _masked_key(key: Any, hidden: Iterable[str]) -> Any:
    return _without(hidden, key) if isinstance(key, str) else key


def secrets(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the current values of secret variables; a program may set one at any time.

    Each is there as errors may show it, too: escaped, and without white space around it. The
    longest come first, because one may contain another.
    """
    variables = os.environ if environment is None else environment
    values = [variables.get(name, "") for name in variables if is_secret(name)]
    forms = set(chain.from_iterable(map(_forms, values)))
    return sorted((form for form in forms if len(form) >= _SHORTEST), key=lambda form: -len(form))


@cache
def _forms(secret: str) -> tuple[str, ...]:
    """Return a secret as it is, and as it stands in a `repr`, in JSON and in a URL."""
    text = secret.strip()
    return secret, text, repr(text)[1:-1], json.dumps(text)[1:-1], quote(text, safe="")


def _without(hidden: Iterable[str], text: str) -> str:
    for secret in hidden:
        text = text.replace(secret, "***")
    return _IN_URL.sub("***", text) if "://" in text else text


@cache
def is_secret(name: str) -> bool:
    """Return whether an environment variable of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None
