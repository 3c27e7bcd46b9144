"""Faults that a server, or the network before it, may have: put around its application."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Send = Callable[[Any], Any]


@dataclass
class Fault:
    """`kind` befalls the requests of these numbers, counted from 1, to a path that ends so."""

    kind: str
    path: str
    numbers: tuple[int, ...] = (2,)


@dataclass
class Faulty:
    """An ASGI application with faults; `befell` counts those that came."""

    app: Any
    faults: tuple[Fault, ...]
    # seconds that each answer takes at least; answers that are waited for together overlap
    latency: float = 0.0
    seen: Counter[str] = field(default_factory=Counter)
    befell: int = 0
    gate: threading.Event = field(default_factory=threading.Event)  # what is held waits for it

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        self.seen[path] += 1
        if self.latency and path.endswith("retrieve_future"):
            await asyncio.sleep(self.latency)
        for fault in self.faults:
            if path.endswith(fault.path) and self.seen[path] in fault.numbers:
                self.befell += 1
                await getattr(self, f"_{fault.kind}")(scope, receive, send)
                return
        await self.app(scope, receive, send)

    async def _busy(self, scope: Any, receive: Any, send: Send) -> None:
        await _say(send, 429, {"detail": "too many requests"})

    async def _busy_for_a_second(self, scope: Any, receive: Any, send: Send) -> None:
        await _say(send, 429, {"detail": "too many requests"}, (b"retry-after", b"1"))

    async def _broken(self, scope: Any, receive: Any, send: Send) -> None:
        await _say(send, 500, {"detail": "out of order"})

    async def _reset(self, scope: Any, receive: Any, send: Any) -> None:
        """Before it was looked at."""
        send.__self__.transport.abort()

    async def _lost(self, scope: Any, receive: Any, send: Any) -> None:
        """It was done, and its answer did not arrive."""

        async def nowhere(message: Any) -> None:
            pass

        await self.app(scope, receive, nowhere)
        send.__self__.transport.abort()

    async def _truncated(self, scope: Any, receive: Any, send: Any) -> None:
        """Half of the answer, and the end of the connection."""

        async def half(message: Any) -> None:
            if message["type"] == "http.response.body" and message.get("body"):
                await send(
                    {
                        **message,
                        "body": message["body"][: len(message["body"]) // 2],
                        "more_body": True,
                    }
                )
                await asyncio.sleep(0.05)  # so that the half goes out
                send.__self__.transport.abort()
            else:
                await send(message)

        await self.app(scope, receive, half)

    async def _slow(self, scope: Any, receive: Any, send: Send) -> None:
        await asyncio.sleep(1.5)
        await self.app(scope, receive, send)

    async def _held(self, scope: Any, receive: Any, send: Send) -> None:
        await asyncio.to_thread(self.gate.wait, 60)
        await self.app(scope, receive, send)

    async def _expired(self, scope: Any, receive: Any, send: Send) -> None:
        await _say(send, 410, {"detail": "the session has expired"})

    async def _paused(self, scope: Any, receive: Any, send: Send) -> None:
        await _say(send, 408, {"type": "try_again", "queue_state": "paused_capacity"})

    async def _failed(self, scope: Any, receive: Any, send: Send) -> None:
        await _say(send, 200, {"error": "the machine behind it is gone", "category": "server"})


async def _say(send: Send, status: int, answer: Any, *headers: tuple[bytes, bytes]) -> None:
    body = json.dumps(answer).encode()
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": body})
