"""Secrets come from the environment, and must not come out again."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

_SECRET = re.compile(
    r"(^|_)(API|ACCESS)?(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$|_(PASS|PWD)$",
    re.IGNORECASE,
)
_IN_URL = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")
_SHORTEST = 6  # characters: a shorter value would blank out ordinary words


def mask(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text without the values of secret environment variables and without credentials in URLs."""
    return _without(secrets(environment), text)


def masked(value: Any, hidden: Iterable[str] | None = None) -> Any:
    """A value for JSON with every text in it masked, of these secrets; to mask the JSON itself
    could break it.
    """
    known = secrets() if hidden is None else hidden
    if isinstance(value, str):
        return _without(known, value)
    if isinstance(value, Mapping):
        return {key: masked(each, known) for key, each in value.items()}
    return [masked(each, known) for each in value] if isinstance(value, list | tuple) else value


def secrets(environment: Mapping[str, str] | None = None) -> list[str]:
    """Values of secret variables as they are now, for a program may set one at any time."""
    variables = os.environ if environment is None else environment
    values = [variables.get(name, "") for name in variables if is_secret(name)]
    return [value for value in values if len(value) >= _SHORTEST]


def _without(hidden: Iterable[str], text: str) -> str:
    for secret in hidden:
        text = text.replace(secret, "***")
    return _IN_URL.sub("***", text) if "://" in text else text


@cache
def is_secret(name: str) -> bool:
    """Whether an environment variable of this name holds a secret."""
    return _SECRET.search(name) is not None
