"""One connection of the SDK to a server, shared by its sessions and samplers."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 it registers its exit function before ours
import contextvars
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog

from adapters.tinker.futures import ConcurrentFuture, set_error
from adapters.tinker.http_client import address, check_health, read_key
from kitchen.errors import BackendError, RunFailed, SessionLost
from kitchen.secrets import mask

log = structlog.get_logger("kitchen.tinker")
# seconds that the process waits at exit until servers know that their sessions are over
EXIT_GRACE = 2.0
HOLD_BACK = 10.0  # seconds that a server counts as busy after it has queued or refused a request
HEALTH_INTERVAL = 10.0  # seconds between health checks while results are pending
_closing_threads = set[threading.Thread]()
# returns the address and the key that the SDK uses, from those of the server
Gateway = Callable[[str, str], tuple[str, str]]


class Service:
    """A connection that opens on first use, reopens when lost, and closes with its last user."""

    def __init__(
        self,
        base_url: str,
        key_variable: str,
        project: str,
        metadata: Mapping[str, str],
        timeout: float,  # seconds for an answer of any kind
        max_outage: float,  # seconds without an answer before pending requests fail
        gateway: Gateway | None = None,  # else the SDK talks to the server itself
    ) -> None:
        self._base_url = base_url
        self._key_variable = key_variable
        self._project = project
        self._metadata = dict(metadata)
        self._timeout = timeout
        self._max_outage = max_outage
        self._gateway = gateway
        # reentrant: garbage collection can run a user's finalizer in the same thread
        self._lock = threading.RLock()
        self._users = 0
        self._connecting = threading.Lock()  # held while a connection is opened
        self._client: Any = None
        self._pending: set[ConcurrentFuture[Any]] = set()
        self._watching = False
        self._queued_until = 0.0  # on the monotonic clock

    @property
    def address(self) -> str:
        return address(self._base_url)

    @property
    def name(self) -> str:
        """The address without secrets, for messages."""
        return mask(self.address)

    @property
    def holds_back(self) -> bool:
        """True if the server has recently queued requests of this key, or refused some as too many.

        The SDK sends those that were refused again, and notes until when it waits.
        """
        holder = getattr(self._client, "holder", None)
        refused_until = getattr(holder, "_sample_backoff_until", None) or 0.0
        return time.monotonic() < max(self._queued_until, refused_until + HOLD_BACK)

    def note_queued(self) -> None:
        """Note that the server has queued a request."""
        self._queued_until = time.monotonic() + HOLD_BACK

    def read_key(self) -> str:
        """Return the API key without a request; raises BackendError if it is missing."""
        return read_key(self._key_variable)

    def enter(self) -> None:
        """Register a user, until it calls `leave`."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """Unregister a user; the last one ends the server's session and all that it holds."""
        with self._lock:
            self._users -= 1
            client = None
            if self._users == 0:
                client, self._client = self._client, None
        _close(client, "success")

    @contextmanager
    def used(self) -> Iterator[Any]:
        """Yield the SDK's ServiceClient, with the connection held open for the block."""
        self.enter()
        try:
            yield self.client()
        finally:
            self.leave()

    def client(self) -> Any:
        """Return the SDK's ServiceClient, connected on first use; raises BackendError."""
        with self._connecting:
            current = self._client
            if current is not None:
                return current
            client = self._connect()
            with self._lock:
                if self._users:
                    self._client = client
                    return client
        _close(client, "success")
        raise RunFailed(f"the connection to {self.name} was closed before it was open")

    def _connect(self) -> Any:
        address, key = self._endpoint()
        from tinker import ServiceClient

        from adapters.tinker import request_log

        request_log.install()
        return ServiceClient(
            user_metadata=self._metadata or None,
            project_id=self._project or None,
            base_url=address,
            api_key=key,
        )

    def rest(self) -> Any:
        """Return the SDK's RestClient, which needs no session; raises BackendError."""
        address, key = self._endpoint()
        from tinker import RestClient

        return RestClient(base_url=address, api_key=key)

    def _endpoint(self) -> tuple[str, str]:
        """Return the address and the key for the SDK, once the server has answered."""
        key = self.read_key()
        check_health(self.address, key, timeout=self._timeout)
        return self._gateway(self.address, key) if self._gateway else (self.address, key)

    def discard(self, client: Any) -> None:
        """Drop a client that was lost; the next use connects again."""
        with self._lock:
            if client is None or self._client is not client:
                return
            self._client = None
        _close(client, "errored")

    def watch(self, future: ConcurrentFuture[Any]) -> None:
        """Fail the future with SessionLost if the server stays unreachable; the SDK would not."""
        with self._lock:
            self._pending.add(future)
            starts_thread = not self._watching
            self._watching = True
        future.add_done_callback(self._unwatch)
        if starts_thread:
            threading.Thread(
                target=contextvars.copy_context().run,  # warnings belong to the log of the run
                args=(self._watch,),
                name="health checks of a server",
                daemon=True,
            ).start()

    def _unwatch(self, future: ConcurrentFuture[Any]) -> None:
        with self._lock:
            self._pending.discard(future)

    def _watch(self) -> None:
        last_healthy, is_away = time.monotonic(), False
        while True:
            time.sleep(min(HEALTH_INTERVAL, self._max_outage))
            with self._lock:
                if not self._pending:
                    self._watching = False
                    return
            try:
                check_health(self.address, self.read_key(), timeout=self._timeout)
                last_healthy, is_away = time.monotonic(), False
            except BackendError as error:
                if not is_away:
                    log.warning("waiting for the server", max_s=self._max_outage, why=str(error))
                is_away = True
                if time.monotonic() - last_healthy >= self._max_outage:
                    self._fail_pending(
                        SessionLost(
                            f"{self.name} has been away for {self._max_outage:g} s: {error}"
                        )
                    )

    def _fail_pending(self, error: SessionLost) -> None:
        with self._lock:
            pending = list(self._pending)
            client = self._client
        for future in pending:
            set_error(future, error)
        self.discard(client)


def _close(client: Any, status: str) -> None:
    """Close a client in the background.

    The SDK would retry for minutes if the server is away, and holds its lock while a client opens.
    """
    if client is not None:
        thread = threading.Thread(
            target=_close_now, args=(client, status), name="close a server session", daemon=True
        )
        _closing_threads.add(thread)
        thread.start()


def _close_now(client: Any, status: str) -> None:
    try:
        client.close(status).result()
    except Exception as error:  # noqa: BLE001 the server ends an unused session anyway
        log.debug("the session could not be ended", why=str(error))
    finally:
        _closing_threads.discard(threading.current_thread())


def wait_for_closing(seconds: float = EXIT_GRACE) -> None:
    """Give the last sessions time to end, all at once."""
    deadline = time.monotonic() + seconds
    for thread in list(_closing_threads):
        thread.join(max(deadline - time.monotonic(), 0.0))


# `atexit` would be too late: the SDK uses a thread pool when it closes, and those have shut down
# then. Functions registered here run before, the last one first.
threading._register_atexit(wait_for_closing)  # type: ignore[attr-defined]
