"""Secrets come from the environment, and must not come out again."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)", re.IGNORECASE)
_IN_URL = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")
_SHORTEST = 6  # characters: a shorter value would blank out ordinary words


def mask(text: str, environment: Mapping[str, str] | None = None) -> str:
    """The text without the values of secret environment variables and without credentials in URLs."""
    for name, value in (os.environ if environment is None else environment).items():
        if _SECRET.search(name) and len(value) >= _SHORTEST:
            text = text.replace(value, "***")
    return _IN_URL.sub("***", text)
