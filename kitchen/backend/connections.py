"""Limits on the open connections of a server, so that clients that send nothing cannot stop it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Protocol

import structlog

log = structlog.get_logger("kitchen.serving")
MAX_CONNECTIONS = 10_000
MAX_DESCRIPTORS = 65_536  # the limit is raised to this number if the system allows it
HEAD_TIMEOUT = 30.0  # seconds for the head of a request, from the connection or the last answer
BODY_WINDOW = 30.0  # seconds in which at least MIN_BODY_BYTES of a body arrive
MIN_BODY_BYTES = 30_000
REPORT_INTERVAL = 60.0  # seconds between two reports that the limit is reached
ACCEPT_RETRY = 0.5  # seconds until the next attempt when the process has no descriptor left


def raise_descriptor_limit() -> int:
    """Raise the limit of open files and sockets as far as possible, and return it."""
    try:
        import resource
    except ImportError:  # Windows, where sockets are not counted
        return MAX_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):  # macOS has another, lower limit
            return soft
        return wanted
    return min(soft, MAX_DESCRIPTORS) if soft > 0 else MAX_DESCRIPTORS


class Connection(Protocol):
    """An open connection."""

    def is_idle(self) -> bool:
        """Return whether no complete head of a request has arrived since the last answer."""

    def abort(self) -> None:
        """Close the connection at once."""


class OpenConnections:
    """The open connections of a server, the oldest first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: dict[Connection, None] = {}
        self._changed = asyncio.Event()
        self._closed = 0  # idle connections that were closed since the last report
        self._reported_at = -REPORT_INTERVAL

    def add(self, connection: Connection) -> None:
        """Add a new connection; above the limit, the oldest idle one is closed for it."""
        idle = self._oldest_idle() if len(self._open) >= self._limit else None
        self._open[connection] = None
        if idle is not None:
            self.report("more clients connect than this process can serve at the same time")
            self.remove(idle)
            idle.abort()

    def remove(self, connection: Connection) -> None:
        self._open.pop(connection, None)
        self._changed.set()

    def note_idle(self) -> None:
        """Note that a connection has become idle, so that it may be closed for a new one."""
        self._changed.set()

    async def wait_for_room(self) -> None:
        """Wait until a connection may be accepted."""
        while len(self._open) >= self._limit and self._oldest_idle() is None:
            self.report("all connections are in use, and new clients wait")
            self._changed.clear()
            await self._changed.wait()

    def report(self, problem: str) -> None:
        """Log a problem with the number of connections, at most once a minute."""
        now = asyncio.get_running_loop().time()
        self._closed += 1
        if now - self._reported_at >= REPORT_INTERVAL:
            log.warning(problem, limit=self._limit, times=self._closed)
            self._reported_at, self._closed = now, 0

    def _oldest_idle(self) -> Connection | None:
        return next((each for each in self._open if each.is_idle()), None)


class Acceptor:
    """Accepts connections one at a time; with the interface of `asyncio.Server` that uvicorn uses.

    asyncio itself accepts as many as are waiting before it looks at any, and logs each failure.
    """

    def __init__(
        self,
        listening: socket.socket,
        connections: OpenConnections,
        create_protocol: Callable[[], asyncio.Protocol],
    ) -> None:
        listening.setblocking(False)
        self._listening = listening
        self._connections = connections
        self._create_protocol = create_protocol
        self._task = asyncio.create_task(self._accept())

    def close(self) -> None:
        self._task.cancel()
        self._listening.close()

    async def wait_closed(self) -> None:
        await asyncio.wait({self._task})

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._connections.wait_for_room()
            try:
                accepted, _ = await loop.sock_accept(self._listening)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._connections.report(f"a connection cannot be accepted: {error.strerror}")
                await asyncio.sleep(ACCEPT_RETRY)
                continue
            try:
                await loop.connect_accepted_socket(self._create_protocol, accepted)
            except OSError:  # the client has gone
                accepted.close()


class RequestTimer:
    """Gives up on a request whose head takes too long to arrive, or whose body is too slow."""

    def __init__(self, give_up: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._give_up = give_up
        self._phase = ""  # the part of the request that has to arrive; empty for none
        self._received = 0  # bytes since the timer was set
        self._timer: asyncio.TimerHandle | None = None

    def receive(self, size: int) -> None:
        self._received += size

    def wait_for(self, phase: str) -> None:
        """Set the timer for the next part of the request, `head` or `body`; empty for none."""
        if phase == self._phase:
            return
        self._phase = phase
        self._cancel()
        if phase == "head":
            self._timer = self._loop.call_later(HEAD_TIMEOUT, self._give_up)
        elif phase == "body":
            self._await_body()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _await_body(self) -> None:
        self._received = 0
        self._timer = self._loop.call_later(BODY_WINDOW, self._check_body)

    def _check_body(self) -> None:
        if self._received < MIN_BODY_BYTES:
            self._give_up()
        else:
            self._await_body()


def guard(base: Any, connections: OpenConnections) -> Any:
    """Return uvicorn's HTTP protocol with time limits for requests that arrive too slowly."""

    class GuardedProtocol(base):  # type: ignore[misc]
        """A connection that is closed if its client does not send a whole request in time."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._timer = RequestTimer(self.abort)
            self._timer.wait_for("head")
            connections.add(self)

        def connection_lost(self, exc: Exception | None) -> None:
            self._timer.wait_for("")
            connections.remove(self)
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._timer.receive(len(data))
            super().data_received(data)
            self._follow()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._follow()

        def is_idle(self) -> bool:
            return _next_part(self.cycle) == "head"

        def abort(self) -> None:
            self.transport.abort()

        def _follow(self) -> None:
            if self.is_idle():
                connections.note_idle()
            if not self.transport.is_closing():
                self._timer.wait_for(_next_part(self.cycle))

    return GuardedProtocol


def _next_part(cycle: Any) -> str:
    """Return the part of a request that has to arrive next; empty while it is answered."""
    if cycle is None or cycle.response_complete:
        return "head"
    return "body" if cycle.more_body else ""
