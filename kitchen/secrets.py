"""Secrets come from the environment, and must not come out again."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

_SECRET = re.compile(r"(^|_)(API|ACCESS)?(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$|_(PASS|PWD)$", re.IGNORECASE)
_IN_URL = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")
_SHORTEST = 6  # characters: a shorter value would blank out ordinary words


def mask(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text without the values of secret environment variables and without credentials in URLs."""
    for name, value in (os.environ if environment is None else environment).items():
        if _SECRET.search(name) and len(value) >= _SHORTEST:
            text = text.replace(value, "***")
    return _IN_URL.sub("***", text)


def masked(value: Any) -> Any:
    """A value for JSON with every text in it masked; to mask the JSON itself could break it."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {key: masked(each) for key, each in value.items()}
    return [masked(each) for each in value] if isinstance(value, list | tuple) else value
