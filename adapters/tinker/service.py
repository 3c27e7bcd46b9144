"""One connection of the SDK to a server."""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import structlog

from adapters.tinker.online import address, healthy, key_in
from adapters.tinker.works import Work, fail
from kitchen.errors import BackendError, RunFailed, SessionLost

log = structlog.get_logger("kitchen.tinker")
PARTING = 2.0  # seconds that servers have at the end of the process to hear that sessions are over
_ENDING = set[threading.Thread]()  # who tells them
# seconds from one look at whether the server is there to the next, while answers are waited for
LOOK = 10.0


class Service:
    """Opened when it is first needed and again after it was lost; over once nobody uses it any
    more.
    """

    def __init__(
        self,
        base_url: str,
        variable: str,
        project: str,
        metadata: Mapping[str, str],
        patience: float,
        away: float,
    ) -> None:
        self._base_url, self._variable, self._project, self._patience = (
            base_url,
            variable,
            project,
            patience,
        )
        self._metadata, self._away = dict(metadata), away
        # again in the same thread: garbage is collected at any moment
        self._lock, self._users = threading.RLock(), 0
        self._opening = threading.Lock()  # held while the server is asked, which takes its time
        self._client: Any = None
        self._pending: set[Work[Any]] = set()
        self._watching = False

    @property
    def address(self) -> str:
        return address(self._base_url)

    def check(self) -> str:
        """The key; raises BackendError where it is missing, and asks nobody."""
        return key_in(self._variable)

    def enter(self) -> None:
        """Somebody uses it, until they `leave`."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """The last one ends the session with the server, and all that was opened in it."""
        with self._lock:
            self._users -= 1
            client = None
            if self._users == 0:
                client, self._client = self._client, None
        _close(client, "success")

    @contextmanager
    def used(self) -> Iterator[Any]:
        """The SDK's ServiceClient, for as long as the block lasts."""
        self.enter()
        try:
            yield self.client()
        finally:
            self.leave()

    def client(self) -> Any:
        """The SDK's ServiceClient, whose session begins with its first use; raises BackendError."""
        with self._opening:
            if (there := self._client) is not None:
                return there
            made = self._connect()
            with self._lock:
                if self._users:
                    self._client = made
                    return made
        _close(made, "success")
        raise RunFailed("the connection to the server was closed before it was there")

    def _connect(self) -> Any:
        key = key_in(self._variable)
        healthy(self.address, key, patience=self._patience)
        from tinker import ServiceClient

        from adapters.tinker.events import listen

        listen()
        return ServiceClient(
            user_metadata=self._metadata or None,
            project_id=self._project or None,
            base_url=self.address,
            api_key=key,
        )

    def rest(self) -> Any:
        """The SDK's RestClient, which needs no session; raises BackendError."""
        key = key_in(self._variable)
        healthy(self.address, key, patience=self._patience)
        from tinker import RestClient

        return RestClient(base_url=self.address, api_key=key)

    def lose(self, client: Any) -> None:
        """Open another when it is next asked for."""
        with self._lock:
            if client is None or self._client is not client:
                return
            self._client = None
        _close(client, "errored")

    def watch(self, answer: Work[Any]) -> None:
        """Have it fail with SessionLost where the server stays away, for which the SDK would wait
        for ever.
        """
        with self._lock:
            self._pending.add(answer)
            begin, self._watching = not self._watching, True
        answer.add_done_callback(self._seen)
        if begin:
            threading.Thread(target=self._watch, name="watch over a server", daemon=True).start()

    def _seen(self, answer: Work[Any]) -> None:
        with self._lock:
            self._pending.discard(answer)

    def _watch(self) -> None:
        there = time.monotonic()
        while True:
            time.sleep(min(LOOK, self._away))
            with self._lock:
                if not self._pending:
                    self._watching = False
                    return
            try:
                healthy(self.address, key_in(self._variable), patience=self._patience)
                there = time.monotonic()
            except BackendError as error:
                if time.monotonic() - there >= self._away:
                    self._give_up(
                        SessionLost(f"the server has been away for {self._away:g} s: {error}")
                    )

    def _give_up(self, why: SessionLost) -> None:
        with self._lock:
            pending, client = list(self._pending), self._client
        for answer in pending:
            fail(answer, why)
        self.lose(client)


def _close(client: Any, how: str) -> None:
    """Without waiting: a server that is away would be asked for minutes, and a client that opens
    holds its lock.
    """
    if client is not None:
        ending = threading.Thread(
            target=_end, args=(client, how), name="end of a session with a server", daemon=True
        )
        _ENDING.add(ending)
        ending.start()


def _end(client: Any, how: str) -> None:
    try:
        client.close(how).result()
    except Exception as error:  # noqa: BLE001 the server ends it by itself, once nobody calls
        log.debug("the session could not be ended", why=str(error))
    finally:
        _ENDING.discard(threading.current_thread())


@atexit.register
def _part() -> None:
    """Give the last sessions their time, all at once."""
    until = time.monotonic() + PARTING
    for each in list(_ENDING):
        each.join(max(until - time.monotonic(), 0.0))
