"""HTTP requests and replies as values, and quirks: functions that change them on their way."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from kitchen.errors import BackendError

API = "/api/v1/"
JSON = "application/json"
PROTOBUF = "application/x-protobuf"
MAX_DETAIL = 500  # bytes of a reply that an error quotes


class UnexpectedReply(BackendError):
    """A reply that the bridge cannot read; the text continues a sentence on the reply."""


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
        """The object in the body; empty if there is none. Raises UnexpectedReply."""
        try:
            content = json.loads(self.body or b"{}")
        except ValueError as error:
            raise UnexpectedReply(f"is not JSON: {self.text!r}") from error
        if not isinstance(content, dict):
            raise UnexpectedReply(f"is not a JSON object: {self.text!r}")
        return content

    @property
    def text(self) -> str:
        """The start of the body."""
        return self.body[:MAX_DETAIL].decode(errors="replace")

    @property
    def detail(self) -> str:
        """The message of an error: the field `detail`, or else the body."""
        try:
            return str(self.json()["detail"])
        except (UnexpectedReply, KeyError):
            return self.text or "no reason given"

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


def is_result_with(request: ApiRequest, answer: ApiReply, part: bytes) -> bool:
    """Return whether an answer is the result of a request, and contains these bytes."""
    is_result = request.endpoint == "retrieve_future" and not answer.is_error
    return is_result and part in answer.body
