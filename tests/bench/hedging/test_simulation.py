"""Hedged requests in simulated time: what they gain, and that they do no harm."""

from __future__ import annotations

import pytest

from tests.bench.hedging.simulation import (
    ONE_WORKER,
    OUTAGE,
    POLICIES,
    STRAGGLERS,
    Policy,
    Scenario,
)

NO_HEDGE = Policy()


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_stragglers_are_overtaken_within_the_budget(policy: Policy) -> None:
    before, after = STRAGGLERS.run(NO_HEDGE, 2000), STRAGGLERS.run(policy, 2000)
    assert after.quantile(0.99) < 0.3 * before.quantile(0.99)
    assert after.extra <= 0.05


def test_batches_end_without_their_stragglers() -> None:
    before = STRAGGLERS.run_batches(NO_HEDGE, 4000)
    after = STRAGGLERS.run_batches(Policy("adaptive"), 4000)
    assert after.quantile(0.5) < 0.3 * before.quantile(0.5)
    assert after.extra < 0.03


@pytest.mark.parametrize("scenario", [ONE_WORKER, OUTAGE], ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("policy", POLICIES[1:], ids=str)
def test_overloaded_servers_are_spared(scenario: Scenario, policy: Policy) -> None:
    requests = int(1500 * scenario.rate)  # until the outage is over
    before, after = scenario.run(NO_HEDGE, requests), scenario.run(policy, requests)
    assert after.quantile(0.5) < 1.1 * before.quantile(0.5)
    assert after.extra <= 0.05


def test_queue_collapses_without_a_budget() -> None:
    """The reason for the budget: every request becomes late, and is sent twice."""
    before = ONE_WORKER.run(NO_HEDGE, 4000)
    delay = f"fixed:{before.quantile(0.95)}"
    after = ONE_WORKER.run(Policy(delay, extra=1.0, cancels=False), 4000)
    assert after.quantile(0.5) > 50 * before.quantile(0.5)
