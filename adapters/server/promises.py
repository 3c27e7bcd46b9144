"""Answers that are fetched later, and requests done in the order of their numbers."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from kitchen.errors import BackendError, ConfigError, DataError, KitchenError, RunFailed
from kitchen.secrets import mask

log = structlog.get_logger("kitchen.serve")
KEPT = 300.0  # seconds that an answer is kept once it was fetched, lest it was lost on its way
# seconds that one is kept that nobody fetches: a client that gave up on it does not say so
UNCLAIMED = 3600.0
# answers of one queue that may wait to be fetched, before whoever asks has to come back later
UNFETCHED = 10_000
# bytes of requests of one queue that are not answered yet, before whoever asks has to come back
# later
HELD = 2**30
USERS = (ConfigError, DataError, RunFailed, BackendError)  # what whoever asked can mend


@dataclass(frozen=True)
class Answer:
    """What came of a request: JSON, or for some kinds of request a message of the API's protobuf."""

    json: Mapping[str, Any] | None = None
    message: bytes = b""


class Gone(Exception):
    """A promise, model or session that there was, or that nobody here knows any more."""


class Full(Exception):
    """A session has too much here that is not answered, or that it did not fetch."""


@dataclass
class Promise:
    """A request that is here, or its answer."""

    task: asyncio.Task[Answer]
    owner: str  # the session that it ends with
    queue: str  # what it counts among: the requests of a model, or those of its session that sample
    size: int  # bytes
    until: float = math.inf  # when it is forgotten
    fetched: bool = False


class Promises:
    """The answers to requests by id; a request that comes again is not done again."""

    def __init__(self) -> None:
        self._found: dict[str, Promise] = {}
        self._unfetched: Counter[str] = Counter()  # by queue
        self._held: Counter[str] = Counter()  # bytes, by queue

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._found

    def __len__(self) -> int:
        return len(self._found)

    def check_room(self, queue: str) -> None:
        """To be asked before a promise is made; raises Full."""
        if self._unfetched[queue] >= UNFETCHED:
            raise Full(
                f"there are {UNFETCHED} requests of this kind here whose answers the session did "
                "not fetch; "
                "come back later"
            )
        if self._held[queue] >= HELD:
            raise Full(
                f"there are requests of {HELD >> 20} MiB here of this session that wait; come back "
                "later"
            )

    def make(
        self, request_id: str, owner: str, work: Awaitable[Answer], *, queue: str, size: int = 0
    ) -> None:
        """The work is begun by whoever made it."""
        task = asyncio.ensure_future(_told(request_id, work))
        made = self._found[request_id] = Promise(task, owner, queue, size)
        self._unfetched[queue] += 1
        self._held[queue] += size
        task.add_done_callback(lambda _: self._done(made))

    def _done(self, made: Promise) -> None:
        _less(self._held, made.queue, made.size)
        made.until = min(made.until, time.monotonic() + UNCLAIMED)

    async def fetch(self, request_id: str, patience: float) -> Answer | None:
        """None if it takes longer than so many seconds; raises Gone."""
        if request_id not in self._found:
            raise Gone(
                f"there is no request {request_id!r}, or its answer was fetched and forgotten"
            )
        made = self._found[request_id]
        done, _ = await asyncio.wait({made.task}, timeout=patience)
        if not done:
            return None
        if made.task.cancelled() or request_id not in self._found:
            raise Gone(f"the session that asked for {request_id!r} has ended")
        _less(self._unfetched, made.queue, not made.fetched)
        made.fetched, made.until = True, time.monotonic() + KEPT
        return made.task.result()

    def sweep(self) -> None:
        """Forget answers that were fetched a while ago, or that nobody came for."""
        now = time.monotonic()
        self._forget([request_id for request_id, made in self._found.items() if made.until < now])

    def end(self, owner: str) -> None:
        """Forget all that a session asked for."""
        mine = [request_id for request_id, made in self._found.items() if made.owner == owner]
        for request_id in mine:
            self._found[request_id].task.cancel()
        self._forget(mine)

    def _forget(self, request_ids: list[str]) -> None:
        for request_id in request_ids:
            made = self._found.pop(request_id)
            _less(self._unfetched, made.queue, not made.fetched)


def _less(counter: Counter[str], queue: str, by: int) -> None:
    """Nothing is left of a queue that has nothing."""
    counter[queue] -= by
    if not counter[queue]:
        del counter[queue]


async def _told(request_id: str, work: Awaitable[Answer]) -> Answer:
    try:
        return await work
    except Exception as error:  # noqa: BLE001 it is the answer
        return failed(error, request_id)


def failed(error: Exception, request_id: str = "") -> Answer:
    """An error as an answer: whose turn it is to mend it, and the name of its kind before what is
    wrong.
    """
    if not isinstance(error, KitchenError):
        log.error("a request failed", request=request_id, exc_info=error)
    user = isinstance(error, USERS)
    return Answer(
        {
            "error": mask(f"{type(error).__name__}: {error}"),
            "category": "user" if user else "server",
        }
    )


@dataclass
class Turns:
    """Work in the order of its numbers, in whichever order it comes."""

    following: int = 1
    held: dict[int, Callable[[], None]] = field(default_factory=dict)

    def take(self, number: int, begin: Callable[[], None]) -> None:
        """Begin it once all before it has begun; raises Gone for a number whose turn is over."""
        if number < self.following:
            raise Gone(f"request {number} comes too late: number {self.following} is next")
        self.held[number] = begin
        while self.following in self.held:
            self.following += 1
            self.held.pop(self.following - 1)()
