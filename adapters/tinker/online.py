"""Asking a server by plain HTTP, without the SDK."""

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

# where the SDK goes unless it is told
HOSTED = "https://tinker.thinkingmachines.dev/services/tinker-prod"
_KEY = re.compile(r"[\x21-\x7e]+")
PREFIXES = ("tml-", "eyJ")  # of the keys that the SDK takes


def address(base_url: str) -> str:
    return (base_url or os.environ.get("TINKER_BASE_URL") or HOSTED).rstrip("/")


def key_in(variable: str) -> str:
    """The API key; raises BackendError that names the variable, never its value."""
    found = os.environ.get(variable, "")
    if not found:
        raise BackendError(
            f"the environment variable {variable} is missing: set it to the API key of the server "
            "(for "
            "a `kitchen serve` without a key, to tml-any)"
        )
    if not found.startswith(PREFIXES) or not _KEY.fullmatch(found):
        raise BackendError(
            f"the environment variable {variable} is set, and not to an API key: those begin with "
            f"{' or '.join(PREFIXES)}, and have no spaces or line ends"
        )
    return found


def get(base_url: str, path: str, key: str, *, patience: float) -> Mapping[str, Any]:
    """JSON of an address; raises BackendError where nobody answers in so many seconds, ApiError for
    a refusal.
    """
    url = f"{base_url}{path}"
    try:
        request = urllib.request.Request(url, headers={"X-API-Key": key})
        with urllib.request.urlopen(request, timeout=patience) as answer:
            found = json.loads(answer.read())
        if not isinstance(found, dict):
            raise ValueError("what it says is no JSON object")
    except urllib.error.HTTPError as error:
        body = mask(error.read(500).decode(errors="replace"))
        raise ApiError(
            f"{mask(url)} answered with status {error.code}: {body}", status=error.code, body=body
        ) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "reason", error)
        raise BackendError(
            f"{mask(base_url)} does not answer as a server of the Tinker API: {mask(str(why))}; is "
            "it "
            "running, and is base_url (or TINKER_BASE_URL) right?"
        ) from None
    return found


def healthy(base_url: str, key: str, *, patience: float) -> None:
    """Raises BackendError for an address where no server is, which the SDK would ask for five
    minutes.
    """
    if get(base_url, "/api/v1/healthz", key, patience=patience).get("status") != "ok":
        raise BackendError(f"{mask(base_url)} says that it is not well; try again later")


def models(base_url: str, key: str, *, patience: float) -> Mapping[str, int | None]:
    """Names of the models that a server has, and how many tokens each reads at most, where it says
    so.
    """
    found = get(base_url, "/api/v1/get_server_capabilities", key, patience=patience)
    try:
        return {
            each["model_name"]: each.get("max_context_length") for each in found["supported_models"]
        }
    except (KeyError, TypeError):
        raise BackendError(
            f"{mask(base_url)}: what it says of its models is not understood"
        ) from None
