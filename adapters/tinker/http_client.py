"""Plain HTTP requests to a server, without the SDK."""

from __future__ import annotations

import http.client
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from kitchen.errors import ApiError, BackendError
from kitchen.secrets import mask

# the SDK's default server
HOSTED = "https://tinker.thinkingmachines.dev/services/tinker-prod"
_KEY = re.compile(r"[\x21-\x7e]+")
KEY_PREFIXES = ("tml-", "eyJ")  # of the keys that the SDK accepts


def address(base_url: str) -> str:
    """The URL of the server: `base_url`, else TINKER_BASE_URL, else the hosted service."""
    return (base_url or os.environ.get("TINKER_BASE_URL") or HOSTED).rstrip("/")


def read_key(variable: str) -> str:
    """Return the API key; raises BackendError, which names the variable but never its value."""
    key = os.environ.get(variable, "")
    if not key:
        raise BackendError(
            f"the environment variable {variable} is missing: set it to the API key of the server "
            "(for a `kitchen serve` without a key, to tml-any)"
        )
    if not key.startswith(KEY_PREFIXES) or not _KEY.fullmatch(key):
        raise BackendError(
            f"the environment variable {variable} does not hold an API key: keys begin with "
            f"{' or '.join(KEY_PREFIXES)}, and have no spaces or line breaks"
        )
    return key


class Unreachable(BackendError):
    """A server that does not answer, or reports that it is not healthy."""


def get(base_url: str, path: str, key: str, *, timeout: float) -> Mapping[str, Any]:
    """Return the JSON object at a path of the server.

    Raises Unreachable if nothing answers within `timeout` seconds, ApiError for a rejection.
    """
    url = f"{base_url}{path}"
    try:
        request = urllib.request.Request(url, headers={"X-API-Key": key})
        with urllib.request.urlopen(request, timeout=timeout) as response:
            content = json.loads(response.read())
        if not isinstance(content, dict):
            raise ValueError("its answer is not a JSON object")
    except urllib.error.HTTPError as error:
        body = mask(error.read(500).decode(errors="replace"))
        raise ApiError(
            f"{mask(url)} answered with status {error.code}: {body}", status=error.code, body=body
        ) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "reason", error)
        raise Unreachable(
            f"{mask(base_url)} does not answer as a server of the Tinker API: {mask(str(why))}; is "
            "it running, and is base_url (or TINKER_BASE_URL) right?"
        ) from None
    return content


def check_health(base_url: str, key: str, *, timeout: float) -> None:
    """Raise Unreachable if no healthy server answers; the SDK would retry for five minutes."""
    if get(base_url, "/api/v1/healthz", key, timeout=timeout).get("status") != "ok":
        raise Unreachable(f"{mask(base_url)} reports that it is not healthy; try again later")


def models(base_url: str, key: str, *, timeout: float) -> Mapping[str, int | None]:
    """Return the server's models, each with its context length in tokens if it is reported."""
    content = get(base_url, "/api/v1/get_server_capabilities", key, timeout=timeout)
    try:
        return {
            model["model_name"]: model.get("max_context_length")
            for model in content["supported_models"]
        }
    except (KeyError, TypeError):
        raise BackendError(
            f"{mask(base_url)}: its list of models cannot be read; is it a server of the Tinker "
            "API?"
        ) from None
