"""Listening on an address of this machine, and stopping on signals, for adapters that serve."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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


def run_server(app: Any, listening: socket.socket, grace: int) -> list[int]:
    """Serve an ASGI application until SIGINT or SIGTERM, and return the signals that arrived.

    Requests in progress have `grace` seconds to end. The caller raises the signals again when it
    has closed everything.
    """
    import uvicorn

    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=grace)
    server = uvicorn.Server(config)
    with deferred_signals(server) as signals:
        server.run(sockets=[listening])
    return signals


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
