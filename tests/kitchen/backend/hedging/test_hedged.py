"""A second request if the first is late: which answer counts, what it costs, and what is learnt."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import pytest

from kitchen.backend.hedging.clock import RealClock
from kitchen.backend.hedging.hedged import HedgeCounts, Hedged, Hedging
from kitchen.backend.hedging.race import Cancellable
from kitchen.backend.port_call import PortCall, working_for
from kitchen.errors import BackendError, ConfigError, RunFailed
from tests.support.event_clock import EventClock
from tests.support.slow_samplers import FAILS, SlowSampler

PROMPT = np.arange(5)


class Pair:
    """A primary, a backup and what is hedged over them, in simulated time."""

    def __init__(
        self,
        primary: Iterable[float],
        backup: Iterable[float],
        delay: str = "fixed:2.0",
        cancellable: bool = True,
        **options: Any,
    ) -> None:
        self.clock = EventClock()
        self.primary = SlowSampler(self.clock, iter(primary), cancellable, "the primary")
        self.backup = SlowSampler(self.clock, iter(backup), cancellable, "the backup")
        self.hedged = Hedged(
            self.primary, [self.backup], delay, clock=self.clock, **{"extra": 1.0, **options}
        )
        self.hedging = self.hedged.hedging

    def sample(self, seed: int = 0, max_tokens: int = 8) -> tuple[float, int]:
        """Return the seconds until the answer, and its token."""
        started = self.clock.now()
        future = self.hedged.sample(PROMPT, max_tokens=max_tokens, seed=seed)
        answered: list[float] = []
        assert hasattr(future, "work")
        future.work.add_done_callback(lambda _: answered.append(self.clock.now()))
        self.clock.run()
        token = int(future.result(0)[0].tokens[0])
        return answered[0] - started, token


@pytest.mark.parametrize(
    ("primary", "backup", "seconds", "counts"),
    [
        (1.0, 1.0, 1.0, (0, 0)),  # in time
        (9.0, 1.0, 3.0, (1, 1)),  # late, and the backup is first
        (4.0, 9.0, 4.0, (1, 0)),  # late, and first nevertheless
        (FAILS + 2.5, 1.0, 3.0, (1, 1)),  # an error waits for the other
        (4.0, FAILS + 1.0, 4.0, (1, 0)),
    ],
)
def test_first_answer_counts(
    primary: float, backup: float, seconds: float, counts: tuple[int, int]
) -> None:
    pair = Pair([primary], [backup])
    assert pair.sample(seed=7) == (seconds, 7)
    assert (pair.hedging.counts.extra, pair.hedging.counts.won) == counts
    assert set(pair.primary.seeds + pair.backup.seeds) == {7}
    fails = max(primary, backup) >= FAILS
    assert pair.primary.cancelled + pair.backup.cancelled == (counts[0] and not fails)


@pytest.mark.parametrize(
    ("primary", "extra"),
    [(FAILS + 1.0, 0), (FAILS + 4.0, 1), (FAILS + 9.0, 1)],  # before the delay, first, last
)
def test_errors_are_those_of_the_primary(primary: float, extra: int) -> None:
    pair = Pair([primary], [FAILS + 3.0])
    with pytest.raises(BackendError, match="the primary failed"):
        pair.sample()
    assert pair.hedging.counts.extra == extra


def test_extra_requests_stay_within_the_budget() -> None:
    pair = Pair(itertools.repeat(9.0), itertools.repeat(1.0), extra=0.05)
    for number in range(1, 401):
        pair.sample(seed=number)
        assert pair.hedging.counts.extra <= 0.05 * number + 1e-9
    assert pair.hedging.counts.extra == 20


def test_answers_that_were_kept_do_not_count() -> None:
    """They are no requests, earn no extra ones, and teach no delay."""
    pair = Pair(itertools.repeat(4.0), itertools.repeat(9.0), extra=0.5)
    pair.sample()
    pair.primary.keeps = pair.backup.keeps = True
    with working_for(call := PortCall("Sampler", "sample", {})):
        for _ in range(20):
            pair.sample()
    assert pair.hedging.counts == HedgeCounts(requests=1)
    assert call.hedge == ""
    pair.primary.keeps = pair.backup.keeps = False
    for extra in (1, 1, 2):  # one for each two requests
        pair.sample()
        assert pair.hedging.counts.extra == extra
    learning = Pair([0.5] * 40 + [4.0] * 19 + [9.0], [1.0], "percentile:0.95")
    learning.primary.keeps = True
    for _ in range(40):
        learning.sample()
    learning.primary.keeps = False
    for _ in range(19):
        assert learning.sample()[0] == 4.0
    assert learning.sample()[0] == 9.0  # 19 latencies are too few for the percentile
    assert learning.hedging.counts == HedgeCounts(requests=20)


@pytest.mark.parametrize(("together", "extra"), [(40, 3), (400, 20)])
def test_few_extra_requests_are_saved_up(together: int, extra: int) -> None:
    """A batch that becomes late at once gets the tokens saved up, or those that it earned."""
    pair = Pair([1.0] * 1000 + [9.0] * 400, itertools.repeat(1.0), extra=0.05)
    for _ in range(1000):
        pair.sample()
    futures = [pair.hedged.sample(PROMPT, max_tokens=8) for _ in range(together)]
    pair.clock.run()
    assert all(future.result(0) for future in futures)
    assert pair.hedging.counts.extra == extra


def test_servers_that_hold_back_get_no_extra_requests() -> None:
    busy: list[Any] = []
    pair = Pair([9.0, 9.0], [1.0], holds_back=lambda sampler: sampler in busy)
    busy.append(pair.backup)
    assert pair.sample() == (9.0, 0)
    assert pair.hedging.counts.extra == 0
    busy.clear()
    assert pair.sample() == (3.0, 0)


def test_backups_take_turns() -> None:
    clock = EventClock()
    primary = SlowSampler(clock, itertools.repeat(9.0))
    backups = [SlowSampler(clock, itertools.repeat(1.0)) for _ in range(3)]
    hedged = Hedged(primary, backups, "fixed:1.0", 1.0, clock=clock)
    for seed in range(6):
        hedged.sample(PROMPT, max_tokens=8, seed=seed)
    clock.run()
    assert [len(backup.seeds) for backup in backups] == [2, 2, 2]
    hedged.close()
    assert [sampler.closed for sampler in (primary, *backups)] == [1, 1, 1, 1]


def test_closed_sampler_sends_no_extra_request() -> None:
    pair = Pair([9.0], [])
    future = pair.hedged.sample(PROMPT, max_tokens=8)
    pair.hedged.close()
    pair.clock.run()
    assert future.result(0)
    assert pair.hedging.counts.extra == 0


def test_delay_is_learnt_for_each_length() -> None:
    latencies = [*np.linspace(1, 2, 20), *np.linspace(10, 20, 20), 9.0, 90.0]
    pair = Pair(latencies, itertools.repeat(0.1), delay="percentile:0.95")
    for number in range(40):
        pair.sample(max_tokens=8 if number < 20 else 100)
    (short, _), (long, _) = pair.sample(max_tokens=8), pair.sample(max_tokens=100)
    assert short == pytest.approx(1 + 18 / 19 + 0.1)
    assert long == pytest.approx(10 * (1 + 18 / 19) + 0.1)


def test_models_that_share_a_budget_have_delays_of_their_own() -> None:
    clock = EventClock()
    small = SlowSampler(clock, itertools.repeat(1.0))
    large = SlowSampler(clock, itertools.repeat(30.0))
    of_small = Hedged(small, [small], "percentile:0.95", clock=clock)
    of_large = Hedged(large, [large], of_small.hedging, model="large")
    for hedged in (of_small, of_large):
        for _ in range(30):
            hedged.sample(PROMPT, max_tokens=8)
            clock.run()
    assert of_small.hedging.counts.requests == 60
    assert of_small.hedging.counts.extra == 0


@pytest.mark.parametrize("seconds", [1.0, 3.0])
def test_cancelled_request_is_given_up_with_its_extra_one(seconds: float) -> None:
    pair = Pair([9.0], [9.0])
    future = pair.hedged.sample(PROMPT, max_tokens=8)
    assert isinstance(future, Cancellable)
    pair.clock.call_later(seconds, future.cancel)
    pair.clock.run()
    with pytest.raises(RunFailed, match="cancelled"):
        future.result(0)
    assert pair.primary.cancelled == 1
    assert pair.backup.cancelled == len(pair.backup.seeds) == (seconds > 2.0)


def test_no_extra_request_before_the_delay_is_known() -> None:
    latencies = [1.0] * 19 + [9.0, 9.0]
    pair = Pair(latencies, [0.5], delay="percentile:0.95")
    assert [pair.sample()[0] for _ in latencies] == pytest.approx([1.0] * 19 + [9.0, 1.5])


@pytest.mark.parametrize("cancellable", [True, False])
def test_delay_stays_while_late_requests_are_cancelled(cancellable: bool) -> None:
    """Cancelled requests count as longer, so the delay does not sink from one to the next."""
    random = np.random.default_rng(0)
    latencies = random.lognormal(0, 1, 20_000)
    pair = Pair(
        latencies, random.lognormal(0, 1, 20_000), "percentile:0.95", cancellable=cancellable
    )
    for seed in range(6000):
        pair.sample(seed)
    share = pair.hedging.counts.extra / 6000
    assert 0.04 < share < 0.06
    assert (pair.primary.cancelled > 100) == cancellable


def test_row_of_the_call_shows_the_extra_request() -> None:
    shown = []
    for primary, backup in ((1.0, 1.0), (9.0, 1.0), (4.0, 9.0)):
        pair = Pair([primary], [backup])
        call = PortCall("Sampler", "sample", {})
        with working_for(call):
            pair.sample()
        shown.append(call.hedge)
    assert shown == ["", "won", "lost"]


def test_scores_are_hedged_as_well() -> None:
    pair = Pair([9.0, 9.0], [1.0, 1.0])
    scores, top = pair.hedged.logprobs(PROMPT), pair.hedged.top_logprobs(PROMPT, 1)
    pair.clock.run()
    assert np.array_equal(scores.result(0), PROMPT)
    assert np.array_equal(top.result(0)[0], PROMPT)
    assert pair.hedging.counts.won == 2


@pytest.mark.parametrize(
    ("delay", "text"),
    [
        ("percentil:0.95", "did you mean 'percentile'"),
        ("percentile:95", "as in percentile:0.95"),
        ("percentile:0.9995", "at most 0.999 "),
        ("percentile", "as in percentile:0.95"),
        ("fixed:-1", "above 0, as in fixed:2.0"),
        ("fixed:nan", "as in fixed:2.0"),
        ("adaptive:3", "adaptive takes no value"),
        ("", "null for none"),
    ],
)
def test_wrong_delays_are_refused(delay: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Pair([], [], delay)


@pytest.mark.parametrize("extra", [0.0, -0.1, 1.5, float("nan")])
def test_wrong_budgets_are_refused(extra: float) -> None:
    with pytest.raises(ConfigError, match="hedge_extra"):
        Pair([], [], extra=extra)


def test_largest_percentile_is_learnt() -> None:
    pair = Pair([1.0] * 1000 + [9.0], [0.5], delay="percentile:0.999")
    assert [pair.sample()[0] for _ in range(1001)] == [1.0] * 1000 + [1.5]


@pytest.mark.parametrize("seconds", [9.0, FAILS + 4.0])
def test_first_goes_on_if_the_extra_one_cannot_be_sent(seconds: float) -> None:
    pair = Pair([1.0, seconds, 9.0], [1.0], extra=0.5)
    pair.backup.refusals = 1
    pair.sample()
    if seconds < FAILS:
        assert pair.sample() == (9.0, 0)
    else:
        with pytest.raises(BackendError, match="the primary failed"):
            pair.sample()
    assert pair.hedging.counts.extra == 0
    assert pair.sample() == (3.0, 0)  # with the token of the request that was not sent


def test_real_timers_survive_errors_and_very_long_waits() -> None:
    def fail() -> None:
        raise KeyboardInterrupt

    clock, done = RealClock(), threading.Event()
    clock.call_later(1e308, done.clear)
    clock.call_later(0.0, fail)
    clock.call_later(0.05, done.set)
    assert done.wait(10)


def test_settings_are_named_as_they_are_typed() -> None:
    assert Hedging.from_settings("training.hedge", None, None) is None
    for delay, extra, text in (
        ("quick", None, r"training\.hedge='quick' is unknown"),
        ("fixed:0", 0.1, r"training\.hedge='fixed:0': fixed needs"),
        ("adaptive", 7.0, r"training\.hedge_extra=7 must be"),
        (None, 7.0, r"training\.hedge_extra=7 has no effect without training\.hedge"),
    ):
        with pytest.raises(ConfigError, match=text):
            Hedging.from_settings("training.hedge", delay, extra)


def test_real_timers_fire_in_order_unless_cancelled() -> None:
    clock, fired, done = RealClock(), list[int](), threading.Event()
    for number, seconds in ((3, 0.3), (1, 0.1)):
        clock.call_later(seconds, partial(fired.append, number))
    clock.call_later(0.2, partial(fired.append, 2))()
    clock.call_later(0.4, done.set)
    assert done.wait(10)
    assert fired == [1, 3]
