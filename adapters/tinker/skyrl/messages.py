"""HTTP requests and replies as values, and quirks: functions that change them on their way."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

API = "/api/v1/"
JSON = "application/json"
PROTOBUF = "application/x-protobuf"


@dataclass(frozen=True)
class ApiRequest:
    """A request of the SDK to the server."""

    method: str
    path: str  # with the query
    body: bytes = b""
    content_type: str = JSON

    @property
    def endpoint(self) -> str:
        """The path without the prefix of the API and without the query."""
        return self.path.partition("?")[0].removeprefix(API)

    def json(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self.body)
        return content

    def with_json(self, content: Mapping[str, Any]) -> ApiRequest:
        return replace(self, body=json.dumps(content).encode(), content_type=JSON)


@dataclass(frozen=True)
class ApiReply:
    """A reply of the server to the SDK."""

    status: int
    body: bytes = b""
    content_type: str = JSON
    location: str = ""  # of a redirect

    @property
    def is_error(self) -> bool:
        return self.status >= 400

    def json(self) -> dict[str, Any]:
        """The object in the body; empty if there is none."""
        content = json.loads(self.body or b"{}")
        return content if isinstance(content, dict) else {}

    def with_json(self, content: Mapping[str, Any]) -> ApiReply:
        return replace(self, body=json.dumps(content).encode(), content_type=JSON)


Send = Callable[[ApiRequest], ApiReply]
# a difference between SkyRL and the Tinker API: it answers a request, with `send` for what is
# behind it
Quirk = Callable[[ApiRequest, Send], ApiReply]


def behind(quirks: Sequence[Quirk], send: Send) -> Send:
    """Return `send` behind all the quirks; the first one sees a request first."""
    for quirk in reversed(quirks):
        send = partial(_through, quirk, send)
    return send


def _through(quirk: Quirk, send: Send, request: ApiRequest) -> ApiReply:
    return quirk(request, send)


def post(endpoint: str, content: Mapping[str, Any]) -> ApiRequest:
    return ApiRequest("POST", f"{API}{endpoint}").with_json(content)


def reply(content: Mapping[str, Any], status: int = 200) -> ApiReply:
    return ApiReply(status).with_json(content)
