"""A sampler that asks another one if an answer is late."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

import structlog

from kitchen.backend.hedging.budget import Budget
from kitchen.backend.hedging.clock import Clock, RealClock
from kitchen.backend.hedging.delay import Lateness, parse_delay
from kitchen.backend.hedging.forwarding import ForwardingSampler
from kitchen.backend.hedging.latencies import Latencies
from kitchen.backend.hedging.race import Cancellable, Race, Send, SendExtra
from kitchen.errors import ConfigError
from kitchen.ports.future import Future
from kitchen.ports.sampling import Sampler

T = TypeVar("T")
log = structlog.get_logger("kitchen.hedging")
EXTRA = 0.05  # the usual share of extra requests


@dataclass
class HedgeCounts:
    """The numbers of requests, of extra ones, and of extra ones that answered first."""

    requests: int = 0
    extra: int = 0
    won: int = 0


class _Bucket:
    """The requests of about one length: their latencies, and when one is late."""

    def __init__(self) -> None:
        self.latencies = Latencies()
        self.lateness: Lateness | None = None


class Hedging:
    """Decides on extra requests; samplers that share it learn together and have one budget.

    The delay is learnt for each length of requests. As long as too few were answered, it is not
    known, and no extra request of that length is sent.
    """

    def __init__(
        self,
        delay: str = "percentile:0.95",
        extra: float = EXTRA,
        *,
        setting: str = "hedge",
        clock: Clock | None = None,
        seed: int = 0,
    ) -> None:
        """`extra` is the largest share of extra requests; `seed` is that of `adaptive`'s chances.

        Raises ConfigError for values that cannot be used, which names the `setting` of the delay.
        """
        self._rule = parse_delay(delay, setting)
        if not 0 < extra <= 1:
            raise ConfigError(f"{setting}_extra={extra:g} must be above 0 and at most 1")
        self.counts = HedgeCounts()
        self._clock = clock or RealClock()
        self._budget = Budget(extra)
        self._buckets = dict[Hashable, _Bucket]()
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._reported = 0

    @classmethod
    def from_settings(cls, setting: str, delay: str | None, extra: float | None) -> Hedging | None:
        """Return the hedging of an adapter with these values of its settings; None without a delay.

        `setting` is the full name of the delay, such as `training.hedge`; that of the share ends
        with `_extra`. Raises ConfigError, which names them.
        """
        if delay is not None:
            return cls(delay, EXTRA if extra is None else extra, setting=setting)
        if extra is not None:
            raise ConfigError(
                f"{setting}_extra={extra:g} has no effect without {setting}: set "
                f"{setting}=adaptive as well, or leave it out"
            )
        return None

    def submit(
        self, bucket: Hashable, first: Send[T], extra: SendExtra[T] | None = None
    ) -> Future[T]:
        """Send a request, and later an extra one if it is late; return the future of both."""
        with self._lock:
            self.counts.requests += 1
            earned = self._budget.begin()
            state = self._buckets.setdefault(bucket, _Bucket())
            lateness = self._lateness(state) if extra else None
        timers = list[Callable[[], object]]()

        def on_end(extra_won: bool) -> None:
            with self._lock:
                if race.was_sent:
                    self.counts.won += extra_won
                    self._budget.end()
                else:
                    self._forget(race, earned)
            for cancel in timers:
                cancel()

        race = Race[T](self._clock, state.latencies, on_end)
        try:
            race.start(first)
        except BaseException:
            on_end(False)
            raise
        if extra is not None and lateness is not None and not race.is_over:
            due = lateness.delay
            timers.append(self._clock.call_later(due, lambda: self._on_late(race, extra)))
            if race.is_over:  # before the timer was in the list
                timers[0]()
        return Cancellable(race.future, race.cancel)

    def report(self) -> None:
        """Log the counts, if twice as many extra requests were sent as when they were last logged.

        A run closes a sampler after each step, so it does not log each time.
        """
        with self._lock:
            counts = replace(self.counts)
            is_due = counts.extra >= max(2 * self._reported, 1)
            if is_due:
                self._reported = counts.extra
        if is_due:
            log.info("late requests were sent again so far", **asdict(counts))

    def _lateness(self, bucket: _Bucket) -> Lateness | None:
        """Return when a request that is sent now is late; None if it gets no extra one."""
        if bucket.latencies.answers < self._rule.min_answers:
            return None
        survival, is_new = bucket.latencies.survival()
        if bucket.lateness is None or is_new:
            bucket.lateness = self._rule.lateness(survival, self._budget.extra)
        is_chosen = self._random.random() < bucket.lateness.probability
        return bucket.lateness if is_chosen else None

    def _forget(self, race: Race[T], earned: float) -> None:
        """Take back what was counted for a request that no server was asked."""
        self.counts.requests -= 1
        self._budget.forget(earned)
        if race.has_extra:
            self.counts.extra -= 1
            self._budget.refund()

    def _on_late(self, race: Race[T], extra: SendExtra[T]) -> None:
        with self._lock:
            if race.is_over or not self._budget.pay():
                return
            self.counts.extra += 1
        if not race.extend(extra):
            with self._lock:
                self.counts.extra -= 1
                self._budget.refund()


class Hedged(ForwardingSampler):
    """Asks the primary sampler, and one of the backups as well if the answer is late.

    The first answer counts. Both get the same seed, so if the samplers give the same answer to the
    same request, it does not matter which of them is first. If they do not, short answers are
    favoured, as they arrive first.
    """

    def __init__(
        self,
        primary: Sampler,
        backups: Sequence[Sampler],
        delay: str | Hedging = "percentile:0.95",
        extra: float = EXTRA,
        *,
        model: str = "",
        holds_back: Callable[[Sampler], bool] = lambda sampler: False,
        clock: Clock | None = None,
    ) -> None:
        """`delay` is a text, or a `Hedging` that other samplers share, with its budget and clock;
        delays are learnt for each `model`.

        A sampler that `holds_back`, as its server limits the rate of requests, gets no extra ones.
        """
        self._primary = primary
        self._model = model
        self._backups = tuple(backups)
        self._holds_back = holds_back
        self.hedging = Hedging(delay, extra, clock=clock) if isinstance(delay, str) else delay
        self._turns = itertools.count()
        self._closed = False

    def close(self) -> None:
        self._closed = True
        for sampler in {id(each): each for each in (self._primary, *self._backups)}.values():
            sampler.close()
        self.hedging.report()

    def _submit(self, bucket: Hashable, request: Callable[[Sampler], Future[T]]) -> Future[T]:
        def send_extra() -> Future[T] | None:
            sampler = None if self._closed else self._next_backup()
            return None if sampler is None else request(sampler)

        of_model = (self._model, bucket)
        return self.hedging.submit(of_model, lambda: request(self._primary), send_extra)

    def _next_backup(self) -> Sampler | None:
        """Return the backup whose turn it is, of those that do not hold back."""
        ready = [sampler for sampler in self._backups if not self._holds_back(sampler)]
        return ready[next(self._turns) % len(ready)] if ready else None
