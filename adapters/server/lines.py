"""Who waits for which weights: a few samplers in memory, asked in fair shares."""

from __future__ import annotations

import asyncio
import bisect
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from kitchen.errors import ConfigError, DataError
from kitchen.ports.future import Failed
from kitchen.ports.sampling import Sampler
from kitchen.types import Checkpoint

# samplers that are in memory at once; the others are opened again when they have their turn
MOST_OPEN = 4
ROWS = 256  # completions that a sampler is asked for at once, where one request does not want more
# seconds that requests wait for others, to be served with them in the order of their numbers
GATHER = 0.005
IDLE = 60.0  # seconds after which a sampler that nobody asks is closed
Weights = str | Checkpoint


@dataclass
class Wanted:
    """A request that waits for its turn."""

    session: str  # of sampling
    number: int  # in its order
    rows: int  # completions
    ask: Callable[[Sampler], Awaitable[bytes]]
    begun: asyncio.Future[Awaitable[bytes]]  # what its answer comes of, once it had its turn


@dataclass
class Line:
    """What waits for some weights, and their sampler while it is open.

    By client and by its sampling sessions, of both those that had their turn last at the end.
    """

    weights: Weights
    sampler: Sampler | None = None
    busy: int = 0  # requests that are being answered
    spoiled: bool = False  # one of them failed through no fault of whoever asked
    used: float = 0.0
    ready: bool = False  # what waits has waited for what else may come with it
    waiting: OrderedDict[str, OrderedDict[str, list[Wanted]]] = field(default_factory=OrderedDict)

    def add(self, client: str, wanted: Wanted) -> None:
        mine = self.waiting.setdefault(client, OrderedDict()).setdefault(wanted.session, [])
        bisect.insort(mine, wanted, key=lambda one: one.number)

    def share(self) -> list[Wanted]:
        """Those whose turn it is: a request of each client after the other, in the order of its
        numbers.
        """
        taken: list[Wanted] = []
        while self.waiting and sum(one.rows for one in taken) < ROWS:
            client, sessions = next(iter(self.waiting.items()))
            session, mine = next(iter(sessions.items()))
            taken.append(mine.pop(0))
            sessions.move_to_end(session)
            self.waiting.move_to_end(client)
            self._drop_empty(client, session)
        return taken

    def prune(self) -> None:
        """Drop what nobody waits for any more."""
        for client, sessions in list(self.waiting.items()):
            for session, mine in list(sessions.items()):
                mine[:] = [one for one in mine if not one.begun.done()]
                self._drop_empty(client, session)

    def _drop_empty(self, client: str, session: str) -> None:
        if not self.waiting[client][session]:
            del self.waiting[client][session]
        if not self.waiting[client]:
            del self.waiting[client]

    def close(self) -> None:
        if self.sampler is not None:
            self.sampler.close()
        self.sampler, self.spoiled = None, False


class Lines:
    """One share at a time of each sampler; who waits longest for weights that are not in memory has
    them opened.
    """

    def __init__(self, opened: Callable[[Weights], Sampler]) -> None:
        self._opened = opened
        # by weights, those that had a share last at the end
        self._lines: OrderedDict[str, Line] = OrderedDict()

    @property
    def open(self) -> list[str]:
        """The weights that are in memory."""
        return [key for key, line in self._lines.items() if line.sampler is not None]

    def join(self, weights: Weights, client: str, wanted: Wanted) -> None:
        key = weights if isinstance(weights, str) else weights.path
        line = self._lines.setdefault(key, Line(weights))
        if not line.waiting:
            asyncio.get_running_loop().call_later(GATHER, self._ready, line)
        line.add(client, wanted)

    def let_go(self, beginning: str) -> None:
        """Close those whose weights begin so: they are about to be deleted."""
        for key in [each for each in self._lines if each.startswith(beginning)]:
            self._lines.pop(key).close()

    def sweep(self) -> None:
        """Close those that nobody asked for a while."""
        for line in self._lines.values():
            if not line.busy and not line.waiting and time.monotonic() - line.used > IDLE:
                line.close()
        self._tidy()

    def close(self) -> None:
        for line in self._lines.values():
            line.close()

    def _ready(self, line: Line) -> None:
        line.ready = True
        self._go_on()

    def _go_on(self) -> None:
        for key, line in list(self._lines.items()):
            line.prune()
            if (
                line.waiting
                and line.ready
                and not line.busy
                and (line.sampler is not None or self._room(line))
            ):
                self._begin(line)
                self._lines.move_to_end(key)
        self._tidy()

    def _room(self, for_: Line) -> bool:
        """Whether one more can be opened, for which another may be closed that is not busy."""
        there = [
            line for line in self._lines.values() if line.sampler is not None and line is not for_
        ]
        if len(there) < MOST_OPEN:
            return True
        still = sorted(
            (line for line in there if not line.busy),
            key=lambda line: (bool(line.waiting), line.used),
        )
        if still:
            still[0].close()
        return bool(still)

    def _begin(self, line: Line) -> None:
        """All of a share is asked before any of it is waited for; another, where all of one was
        refused.
        """
        while line.waiting and not line.busy:
            for one in line.share():
                one.begun.set_result(self._begun(line, one))
        line.ready = bool(line.waiting)

    def _begun(self, line: Line, one: Wanted) -> Awaitable[bytes]:
        try:
            line.sampler = line.sampler or self._opened(line.weights)
            work = one.ask(line.sampler)
        except Exception as error:  # noqa: BLE001 it is the answer
            return Failed(error)
        line.busy += 1
        answer = asyncio.ensure_future(work)
        answer.add_done_callback(lambda done: self._finished(line, done))
        return answer

    def _finished(self, line: Line, answer: asyncio.Future[bytes]) -> None:
        line.busy, line.used = line.busy - 1, time.monotonic()
        error = None if answer.cancelled() else answer.exception()
        line.spoiled |= error is not None and not isinstance(error, DataError | ConfigError)
        if not line.busy:
            if line.spoiled:
                line.close()  # the next request has it opened again
            asyncio.get_running_loop().call_soon(self._go_on)

    def _tidy(self) -> None:
        for key in [
            key
            for key, line in self._lines.items()
            if line.sampler is None and not line.waiting and not line.busy
        ]:
            del self._lines[key]
