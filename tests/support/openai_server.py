"""A server of the OpenAI API on loopback whose answers and faults are scripted."""

from __future__ import annotations

import asyncio
import email.utils
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.support.polling import wait_until_async
from tests.support.tinker_server import RunningServer

KEY = "sk-of-these-tests-only"
MODELS = ("clever-large", "clever-small")
Body = dict[str, Any]
Send = Callable[[Any], Any]
App = Callable[[Any, Any, Send], Awaitable[None]]


def written(body: Body, index: int) -> str:
    """Return the text that the server writes as a choice: it depends on the whole request."""
    last = body["messages"][-1]["content"]
    return f"{body['model']} on {last!r} with seed {body.get('seed')}, choice {index}"


class OpenAIServer:
    """An ASGI application with a chat endpoint; `faults` occur in the next requests, in order.

    A fault is a name, which is the name of a method here, or "" for an answer.
    """

    def __init__(self, *faults: str, write: Callable[[Body, int], str] = written) -> None:
        self.faults = deque(faults)
        self.bodies: list[Body] = []  # of the requests for answers
        self.keys: list[str] = []  # that they were sent with
        self.times: list[float] = []  # monotonic seconds
        self.answered: Counter[str] = Counter()  # whole answers by request
        self.gate = threading.Event()  # releases answers that are "held"
        self.held = threading.Event()  # set when an answer is held
        self.owner, self.sha256 = "tests", ""  # of the models
        self.listing: tuple[int, Any] | None = None  # status and body in place of the list
        self.most_at_once = 0
        self._at_once = 0
        self._write = write

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            await _answer_lifespan(receive, send)
            return
        if scope["path"].endswith("/models"):
            listed = [{"id": name, "object": "model", "owned_by": self.owner} for name in MODELS]
            await respond(send, *self.listing or (200, {"object": "list", "data": listed}))
            return
        if "/models/" in scope["path"]:
            await respond(send, 200, {"owned_by": self.owner, "sha256": self.sha256})
            return
        body = json.loads(await read_body(receive))
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.keys.append(headers["authorization"].removeprefix("Bearer "))
        self.times.append(time.monotonic())
        self.bodies.append(body)
        fault = self.faults.popleft() if self.faults else ""
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await getattr(self, f"_{fault or 'whole'}")(body, send)
        finally:
            self._at_once -= 1

    async def _whole(self, body: Body, send: Send) -> None:
        if body["model"] not in MODELS:
            await _refuse(send, 404, f"no model {body['model']}", code="model_not_found")
        elif body.get("stream"):
            await self._stream(body, send)
        else:
            self.answered[json.dumps(body, sort_keys=True)] += 1
            await respond(send, 200, self._answer(body))

    def _answer(self, body: Body) -> dict[str, Any]:
        choices = [
            _choice(index, {"content": self._write(body, index)}) for index in range(body["n"])
        ]
        return {"object": "chat.completion", "choices": choices}

    async def _stream(self, body: Body, send: Send, *, breaks: bool = False) -> None:
        await _start(send, 200, (b"content-type", b"text/event-stream"))
        for piece in self._write(body, 0).split(" "):
            delta = {"index": 0, "delta": {"content": f"{piece} "}, "finish_reason": None}
            await _part(send, f"data: {json.dumps({'choices': [delta]})}\n\n".encode())
            if breaks:
                _abort(send)
                return
        last = {"index": 0, "delta": {}, "finish_reason": "stop"}
        await _part(send, f"data: {json.dumps({'choices': [last]})}\n\n".encode())
        await _part(send, b"data: [DONE]\n\n", more=False)

    async def _broken_stream(self, body: Body, send: Send) -> None:
        await self._stream(body, send, breaks=True)

    async def _no_key(self, body: Body, send: Send) -> None:
        await _refuse(send, 401, f"Incorrect API key provided: {self.keys[-1]}")

    async def _forbidden(self, body: Body, send: Send) -> None:
        await _refuse(send, 403, "your project may not use this model")

    async def _invalid(self, body: Body, send: Send) -> None:
        await _refuse(send, 400, "messages is too long")

    async def _busy(self, body: Body, send: Send) -> None:
        await _refuse(send, 429, "too many requests")

    async def _busy_for_seconds(self, body: Body, send: Send) -> None:
        await _refuse(send, 429, "too many requests", (b"retry-after", b"1"))

    async def _busy_until(self, body: Body, send: Send) -> None:
        date = email.utils.formatdate(time.time() + 2, usegmt=True).encode()
        await _refuse(send, 429, "too many requests", (b"retry-after", date))

    async def _busy_for_a_day(self, body: Body, send: Send) -> None:
        await _refuse(send, 429, "too many requests", (b"retry-after", b"86400"))

    async def _busy_without_end(self, body: Body, send: Send) -> None:
        await _refuse(send, 429, "too many requests", (b"retry-after", b"1e308"))

    async def _no_credit(self, body: Body, send: Send) -> None:
        await _refuse(send, 429, "you exceeded your quota", code="insufficient_quota")

    async def _failing(self, body: Body, send: Send) -> None:
        await _refuse(send, 500, "out of order")

    async def _unavailable(self, body: Body, send: Send) -> None:
        await _refuse(send, 503, "loading the model")

    async def _reset(self, body: Body, send: Send) -> None:
        _abort(send)

    async def _truncated(self, body: Body, send: Send) -> None:
        """Break the connection in the middle of the answer."""
        data = json.dumps(self._answer(body)).encode()
        await _start(send, 200, (b"content-length", str(len(data)).encode()))
        await _part(send, data[: len(data) // 2])
        transport = send.__self__.transport  # type: ignore[attr-defined]
        await wait_until_async(lambda: transport.get_write_buffer_size() == 0)
        _abort(send)

    async def _half_json(self, body: Body, send: Send) -> None:
        data = json.dumps(self._answer(body)).encode()
        await _start(send, 200)
        await _part(send, data[: len(data) // 2], more=False)

    async def _deep(self, body: Body, send: Send) -> None:
        await _start(send, 200)
        await _part(send, b'{"choices":' + b"[" * 100_000 + b"]" * 100_000 + b"}", more=False)

    async def _no_choices(self, body: Body, send: Send) -> None:
        await respond(send, 200, {"choices": []})

    async def _empty_choice(self, body: Body, send: Send) -> None:
        await respond(send, 200, {"choices": [{"index": 0, "finish_reason": "stop"}]})

    async def _no_content(self, body: Body, send: Send) -> None:
        await respond(send, 200, {"choices": [_choice(0, {"content": None}, "length")]})

    async def _refusal(self, body: Body, send: Send) -> None:
        message = {"content": None, "refusal": "I cannot help with that."}
        await respond(send, 200, {"choices": [_choice(0, message)]})

    async def _filtered(self, body: Body, send: Send) -> None:
        await respond(send, 200, {"choices": [_choice(0, {"content": "so"}, "content_filter")]})

    async def _tool_call(self, body: Body, send: Send) -> None:
        function = {"name": "add", "arguments": '{"a": 1, "b": 2}'}
        message = {"content": None, "tool_calls": [{"type": "function", "function": function}]}
        await respond(send, 200, {"choices": [_choice(0, message, "tool_calls")]})

    async def _fewer(self, body: Body, send: Send) -> None:
        await self._whole({**body, "n": 1}, send)

    async def _too_long(self, body: Body, send: Send) -> None:
        usage = {"completion_tokens": 100_000}
        await respond(send, 200, {**self._answer(body), "usage": usage})

    async def _held(self, body: Body, send: Send) -> None:
        """Answer when the gate opens."""
        self.held.set()
        await asyncio.to_thread(self.gate.wait, 60)
        await self._whole(body, send)


@contextmanager
def serving_openai(server: OpenAIServer) -> Iterator[str]:
    """Run a server for the block; yields its base URL."""
    running = RunningServer(server)
    try:
        yield f"{running.url}/v1"
    finally:
        server.gate.set()
        running.stop()


class MountedServers:
    """Many servers behind one port, each below its own path, as a start takes long."""

    def __init__(self) -> None:
        self._servers: list[App] = []

    def mount(self, server: App) -> str:
        """Add a server, and return the path of its API."""
        self._servers.append(server)
        return f"/{len(self._servers) - 1}/v1"

    async def __call__(self, scope: Any, receive: Any, send: Send) -> None:
        if scope["type"] != "http":
            await _answer_lifespan(receive, send)
            return
        number = int(scope["path"].split("/")[1])
        await self._servers[number](scope, receive, send)


def _choice(index: int, message: Mapping[str, Any], reason: str = "stop") -> dict[str, Any]:
    return {
        "index": index,
        "message": {"role": "assistant", **message},
        "finish_reason": reason,
    }


async def read_body(receive: Any) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def _answer_lifespan(receive: Any, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _refuse(
    send: Send, status: int, message: str, *headers: tuple[bytes, bytes], code: str | None = None
) -> None:
    await respond(send, status, {"error": {"message": message, "code": code}}, *headers)


async def respond(send: Send, status: int, body: Any, *headers: tuple[bytes, bytes]) -> None:
    data = json.dumps(body).encode()
    await _start(send, status, (b"content-type", b"application/json"), *headers)
    await _part(send, data, more=False)


async def _start(send: Send, status: int, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})


async def _part(send: Send, data: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


def _abort(send: Send) -> None:
    send.__self__.transport.abort()  # type: ignore[attr-defined]
