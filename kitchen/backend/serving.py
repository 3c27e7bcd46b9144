"""Listening on an address of this machine, and stopping on signals, for adapters that serve."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kitchen.backend.connections import (
    MAX_CONNECTIONS,
    Acceptor,
    OpenConnections,
    guard,
    raise_descriptor_limit,
)
from kitchen.errors import BackendError

MIN_KEY_LENGTH = 12  # characters of a key that clients send


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """Return the host in a Host header, without its port and brackets."""
    name, _, port = header.rpartition(":")
    return (name if port.isdecimal() else header).strip("[]")


def is_local_request(headers: Mapping[str, str], origins: Collection[str] = ()) -> bool:
    """Return whether a request reached a loopback address, and not from a page of another site.

    The host name of such a page may resolve to this machine. Pages of the given origins are
    accepted. In simple requests, browsers leave out Origin, but not Sec-Fetch-Site.
    """
    if not is_loopback(host_of(headers.get("host", ""))):
        return False
    if "origin" in headers:
        return headers["origin"] in origins
    return headers.get("sec-fetch-site") not in ("cross-site", "same-site")


def listen(host: str, port: int) -> socket.socket:
    """Listen on an address; raises BackendError if it is in use or not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise BackendError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port, or stop the "
            "program that uses it"
        ) from error


def address_of(listening: socket.socket, host: str) -> str:
    """Return the URL of a server; with this machine's name if it listens on all its addresses."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    return f"http://{f'[{name}]' if ':' in name else name}:{listening.getsockname()[1]}"


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM clean up as Ctrl-C does while a server starts."""

    def exit_now(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    with _handler(exit_now, signal.SIGTERM):
        yield


def run_server(
    app: Any,
    listening: socket.socket,
    grace: int,
    on_stop: Callable[[], None] = lambda: None,
) -> list[int]:
    """Serve an ASGI application until SIGINT or SIGTERM, and return the signals that arrived.

    When it stops, it closes idle connections and calls `on_stop`, which may answer requests that
    wait for something; the others have `grace` seconds to end. The caller raises the signals again
    when it has closed everything.
    """
    server = _limited_server(answer_when_cancelled(app), listening, grace, on_stop)
    with deferred_signals(server) as signals:
        server.run()
    return signals


def _limited_server(
    app: Any, listening: socket.socket, grace: int, on_stop: Callable[[], None]
) -> Any:
    """Return uvicorn's server with limits on its connections."""
    import uvicorn
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    limit = min(MAX_CONNECTIONS, raise_descriptor_limit() // 2)  # the rest is for files
    connections = OpenConnections(limit)
    guarded_protocol = guard(AutoHTTPProtocol, connections)

    class LimitedServer(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=[])
            if self.started:
                acceptor: Any = Acceptor(listening, connections, self._create_protocol)
                self.servers = [acceptor]

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            on_stop()
            await super().shutdown(sockets)

        def _create_protocol(self) -> Any:
            return guarded_protocol(
                config=self.config,
                server_state=self.server_state,
                app_state=self.lifespan.state,
            )

    config = uvicorn.Config(
        app,
        http=guarded_protocol,
        ws="none",
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=grace,
    )
    return LimitedServer(config)


def answer_when_cancelled(app: Any) -> Any:
    """Return the application with an answer to requests that the server cancels as it stops."""

    async def answering(scope: Any, receive: Any, send: Any) -> None:
        started = False

        async def send_and_note(message: Any) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await app(scope, receive, send_and_note)
        except asyncio.CancelledError:
            if started or scope["type"] != "http":
                raise
            headers = [(b"content-type", b"application/json"), (b"retry-after", b"5")]
            await send({"type": "http.response.start", "status": 503, "headers": headers})
            body = b'{"detail": "the server is stopping; try again later"}'
            await send({"type": "http.response.body", "body": body})

    return answering


@contextmanager
def deferred_signals(server: Any) -> Iterator[list[int]]:
    """Stop the server on SIGINT and SIGTERM, and yield the list of signals that arrived.

    uvicorn would raise them again when it is done, before everything here is closed; they are
    collected instead. A signal that arrives before uvicorn listens stops it too.
    """
    received: list[int] = []

    def stop(number: int, _: object) -> None:
        received.append(number)
        server.should_exit = True

    with _handler(stop, signal.SIGINT, signal.SIGTERM):
        yield received


@contextmanager
def _handler(handler: Callable[[int, object], None], *numbers: signal.Signals) -> Iterator[None]:
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, handler_before in previous.items():
            signal.signal(number, handler_before)
