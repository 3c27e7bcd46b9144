"""Endpoints of the Tinker API that this server lacks, each with what to use instead."""

from __future__ import annotations

import re
from collections.abc import Mapping

ABSENT: Mapping[str, str] = {
    "copy_weights": "copies of weights; create a model from the checkpoint, and save it again",
    "create_custom_loss": "custom losses that run on the server; use forward_backward_custom, "
    "which computes the loss where the client runs",
    "join_sampling_session": "sampling sessions that several clients share; each client opens its "
    "own session on the same weights",
    "retrieve_futures": "results of several requests in one answer; use retrieve_future",
    r"sessions/search": "search of sessions; list them with GET /api/v1/sessions",
    r"sessions/[^/]+/trace_export": "traces of sessions; /metrics has metrics for Prometheus",
    r"auth/.*": "accounts and tokens; clients send the server's key as X-API-Key",
    r"audit|billing/.*": "accounts, audits and bills",
}


def why_absent(path: str) -> str:
    """Return a sentence about a path of the API that is not served; empty for any other path."""
    for pattern, feature in ABSENT.items():
        if re.fullmatch(f"/api/v1/(?:{pattern})", path):
            return f"this server does not support {feature}"
    return ""
