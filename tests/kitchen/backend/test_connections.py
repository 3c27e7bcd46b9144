"""Limits on connections: clients that send nothing, or too slowly, make room for others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

pytest.importorskip("uvicorn")

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from kitchen.backend.connections import (
    BODY_WINDOW,
    HEAD_TIMEOUT,
    MIN_BODY_BYTES,
    OpenConnections,
    guard,
)
from kitchen.backend.serving import answer_when_cancelled
from tests.support.virtual_time import advance, run_in_virtual_time

HEAD = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000\r\n"


class MemoryTransport(asyncio.Transport):
    """A transport whose client is the test."""

    def __init__(self) -> None:
        super().__init__()
        self.is_open = True
        self.protocol: Any = None

    def is_closing(self) -> bool:
        return not self.is_open

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if self.is_open:
            self.is_open = False
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def write(self, data: Any) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Read the body, and answer after 100 s."""
    while (await receive()).get("more_body"):
        pass
    await asyncio.sleep(100)
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


class Server:
    """Connections of the guarded protocol, with transports in memory."""

    def __init__(self, limit: int = 100) -> None:
        self.connections = OpenConnections(limit)
        self._protocol = guard(H11Protocol, self.connections)
        self._config = uvicorn.Config(app, lifespan="off", log_config=None)
        self._state = ServerState()

    def connect(self, data: bytes = b"") -> MemoryTransport:
        transport = MemoryTransport()
        protocol = self._protocol(config=self._config, server_state=self._state, app_state={})
        transport.protocol = protocol
        protocol.connection_made(transport)
        if data:
            protocol.data_received(data)
        return transport


@pytest.mark.parametrize("data", [b"", HEAD])
def test_incomplete_head_is_given_up(data: bytes) -> None:
    async def main() -> None:
        client = Server().connect(data)
        await advance(HEAD_TIMEOUT - 1)
        assert client.is_open
        await advance(2)
        assert not client.is_open

    run_in_virtual_time(main())


@pytest.mark.parametrize("rate, is_open", [(1, False), (MIN_BODY_BYTES, True)])
def test_slow_body_is_given_up(rate: int, is_open: bool) -> None:
    async def main() -> None:
        client = Server().connect(HEAD + b"\r\n")
        for _ in range(3):
            await advance(BODY_WINDOW - 1)
            if client.is_open:
                client.protocol.data_received(b"x" * rate)
        assert client.is_open == is_open

    run_in_virtual_time(main())


def test_request_in_progress_is_not_limited() -> None:
    async def main() -> None:
        client = Server().connect(HEAD.replace(b"1000000", b"1") + b"\r\nx")
        await advance(99)
        assert client.is_open

    run_in_virtual_time(main())


def test_oldest_idle_connection_makes_room() -> None:
    async def main() -> None:
        server = Server(limit=3)
        busy = server.connect(HEAD + b"\r\n")
        idle = [server.connect() for _ in range(5)]
        await advance(0.1)
        assert busy.is_open
        assert [each.is_open for each in idle] == [False, False, False, True, True]

    run_in_virtual_time(main())


def test_new_clients_wait_while_all_connections_are_in_use() -> None:
    async def main() -> None:
        server = Server(limit=2)
        first, _ = (server.connect(HEAD + b"\r\n") for _ in range(2))
        room = asyncio.ensure_future(server.connections.wait_for_room())
        await advance(0.1)
        assert not room.done()
        first.close()
        await room

    run_in_virtual_time(main())


def test_full_server_is_reported_once_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    async def main() -> None:
        connections = OpenConnections(2)
        for _ in range(1000):
            connections.report("full")
        await advance(61)
        connections.report("full")

    run_in_virtual_time(main())
    assert capsys.readouterr().err.count("full") == 2


async def _never(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.Event().wait()


def test_cancelled_request_is_answered_with_503() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def main(start: Callable[..., Coroutine[Any, Any, None]]) -> None:
        request = asyncio.create_task(start({"type": "http"}, None, send))
        await asyncio.sleep(0)
        request.cancel()
        await request

    asyncio.run(main(answer_when_cancelled(_never)))
    assert sent[0]["status"] == 503
    assert b"stopping" in sent[1]["body"]
