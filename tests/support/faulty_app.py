"""Faults of a server, or of the network before it, put around an ASGI application."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.support.polling import wait_until_async

Send = Callable[[Any], Any]

SLOW_SECONDS = 1.5  # by which the fault "slow" delays a response


@dataclass
class Fault:
    """A fault of the given kind in the requests of these numbers, from 1, to a path's suffix."""

    kind: str
    path: str
    numbers: tuple[int, ...] = (2,)


@dataclass
class FaultyApp:
    """An ASGI application with faults; `injected` counts those that occurred."""

    app: Any
    faults: tuple[Fault, ...]
    # seconds that each result takes at least, as on a slow server; results that are awaited
    # together overlap
    latency: float = 0.0
    requests: Counter[str] = field(default_factory=Counter)  # by path
    injected: int = 0
    gate: threading.Event = field(default_factory=threading.Event)  # releases "held" requests

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        self.requests[path] += 1
        if self.latency and path.endswith("retrieve_future"):
            await asyncio.sleep(self.latency)
        for fault in self.faults:
            if path.endswith(fault.path) and self.requests[path] in fault.numbers:
                self.injected += 1
                await getattr(self, f"_{fault.kind}")(scope, receive, send)
                return
        await self.app(scope, receive, send)

    async def _busy(self, scope: Any, receive: Any, send: Send) -> None:
        await _respond(send, 429, {"detail": "too many requests"})

    async def _busy_for_a_second(self, scope: Any, receive: Any, send: Send) -> None:
        await _respond(send, 429, {"detail": "too many requests"}, (b"retry-after", b"1"))

    async def _broken(self, scope: Any, receive: Any, send: Send) -> None:
        await _respond(send, 500, {"detail": "out of order"})

    async def _reset(self, scope: Any, receive: Any, send: Any) -> None:
        """Break the connection before the request is read."""
        send.__self__.transport.abort()

    async def _lost(self, scope: Any, receive: Any, send: Any) -> None:
        """Execute the request, and break the connection before the response."""

        async def discard(message: Any) -> None:
            pass

        await self.app(scope, receive, discard)
        send.__self__.transport.abort()

    async def _truncated(self, scope: Any, receive: Any, send: Any) -> None:
        """Send half of the response, and break the connection."""

        async def send_half(message: Any) -> None:
            if message["type"] == "http.response.body" and message.get("body"):
                half = message["body"][: len(message["body"]) // 2]
                await send({**message, "body": half, "more_body": True})
                transport = send.__self__.transport
                await wait_until_async(lambda: transport.get_write_buffer_size() == 0)
                transport.abort()
            else:
                await send(message)

        await self.app(scope, receive, send_half)

    async def _slow(self, scope: Any, receive: Any, send: Send) -> None:
        """Respond late, as an overloaded server does."""
        await asyncio.sleep(SLOW_SECONDS)
        await self.app(scope, receive, send)

    async def _held(self, scope: Any, receive: Any, send: Send) -> None:
        await asyncio.to_thread(self.gate.wait, 60)
        await self.app(scope, receive, send)

    async def _expired(self, scope: Any, receive: Any, send: Send) -> None:
        await _respond(send, 410, {"detail": "the session has expired"})

    async def _paused(self, scope: Any, receive: Any, send: Send) -> None:
        await _respond(send, 408, {"type": "try_again", "queue_state": "paused_capacity"})

    async def _failed(self, scope: Any, receive: Any, send: Send) -> None:
        await _respond(send, 200, {"error": "the machine behind it is gone", "category": "server"})


async def _respond(send: Send, status: int, body: Any, *headers: tuple[bytes, bytes]) -> None:
    data = json.dumps(body).encode()
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(data)).encode()),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": data})
