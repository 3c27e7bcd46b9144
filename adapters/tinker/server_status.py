"""The state of a server for `kitchen doctor`: does it answer, is the key valid, which models."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from adapters.tinker.http_client import address, check_health, models, read_key
from kitchen.errors import ApiError, BackendError
from kitchen.secrets import mask

KEY = "TINKER_API_KEY"
BASE_URL = "TINKER_BASE_URL"
REJECTED = (401, 403)
SHOWN_MODELS = 5


def server_status(*, online: bool, timeout: float, url: str = "") -> Mapping[str, Any]:
    """Return "address", "reachable", "key_accepted", "models" and "status" of the server.

    It is the server at `url`, else that of TINKER_BASE_URL, else the hosted service, which is asked
    only if `online` is set. Values that are not known are None. Without an address and a key, the
    result is empty.
    """
    chosen = address(url)
    unknown: dict[str, Any] = {"reachable": None, "key_accepted": None, "models": None}
    found = {"address": mask(chosen), **unknown}
    if not url and not os.environ.get(BASE_URL):
        if not os.environ.get(KEY):
            return {}
        if not online:
            return {**found, "status": "not asked: --online asks it"}
    try:
        key = read_key(KEY)
    except BackendError as error:
        return {**found, "status": f"not asked: {error}"}
    return {**found, **_ask(chosen, key, timeout)}


def _ask(server: str, key: str, timeout: float) -> Mapping[str, Any]:
    try:
        check_health(server, key, timeout=timeout)
        # `kitchen serve` offers its models by their folders, too
        names = sorted(
            models(server, key, timeout=timeout), key=lambda name: (name[:1] == "/", name)
        )
    except ApiError as error:
        if error.status in REJECTED:
            text = f"answers, but rejects the key in {KEY} (status {error.status})"
            return {"reachable": True, "key_accepted": False, "status": text}
        return {"reachable": True, "status": f"answers with status {error.status}: {error.body}"}
    except BackendError as error:
        return {"reachable": False, "status": str(error).removeprefix(f"{mask(server)} ")}
    more = f" and {len(names) - SHOWN_MODELS} more" if len(names) > SHOWN_MODELS else ""
    serves = f"serves {', '.join(names[:SHOWN_MODELS])}{more}" if names else "serves no model"
    return {
        "reachable": True,
        "key_accepted": True,
        "models": names,
        "status": f"answers, accepts the key, and {serves}",
    }
