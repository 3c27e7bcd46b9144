"""Latency put around the application of a server of the Tinker API: samples arrive later."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Latency = Callable[[int], float]  # of the n-th request for samples, seconds from its arrival


@dataclass
class SlowApp:
    """An ASGI application that holds the answers to requests for samples back.

    While `is_away` is set, it answers nothing at all.
    """

    app: Any
    latency: Latency
    samples: int = 0  # requests for samples so far
    is_away: threading.Event = field(default_factory=threading.Event)
    _due: dict[str, float] = field(default_factory=dict)  # by request id, on the monotonic clock

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        while self.is_away.is_set():
            await asyncio.sleep(0.05)
        if scope["path"].endswith("/asample"):
            due = time.monotonic() + self.latency(self.samples)
            self.samples += 1
            await self.app(scope, receive, self._noting(due, send))
        elif scope["path"].endswith("/retrieve_future"):
            body = await _read(receive)
            due = self._due.pop(json.loads(body)["request_id"], 0.0)
            await asyncio.sleep(max(due - time.monotonic(), 0.0))
            await self.app(scope, _replay(body, receive), send)
        else:
            await self.app(scope, receive, send)

    def _noting(self, due: float, send: Any) -> Callable[[Any], Any]:
        """Return a `send` that notes when the answer to the request is due."""

        async def noted(message: Any) -> None:
            if message["type"] == "http.response.body" and message.get("body"):
                request_id = json.loads(message["body"]).get("request_id", "")
                self._due[request_id] = due
            await send(message)

        return noted


async def _read(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    return body


def _replay(body: bytes, receive: Any) -> Callable[[], Any]:
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Any:
        return messages.pop() if messages else await receive()

    return replayed
