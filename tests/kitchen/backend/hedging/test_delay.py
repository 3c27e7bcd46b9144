"""The distribution of latencies with cancelled requests, and the delays derived from it."""

from __future__ import annotations

import numpy as np
import pytest

from kitchen.backend.hedging.delay import parse_delay
from kitchen.backend.hedging.forwarding import length_bucket
from kitchen.backend.hedging.latencies import Survival


def test_survival_without_cancellations_is_the_empirical_one() -> None:
    survival = Survival.of([3.0, 1.0, 2.0, 4.0], [True] * 4)
    assert survival.shares == pytest.approx([0.75, 0.5, 0.25, 0.0])
    assert [survival.quantile(share) for share in (0.25, 0.5, 0.75, 1.0)] == [1, 2, 3, 4]
    assert survival.beyond([0.5, 1.0, 2.5, 9.0]) == pytest.approx([1.0, 0.75, 0.5, 0.0])


def test_survival_agrees_with_a_published_example() -> None:
    """Remission times of 6-MP in Freireich et al. (1963), with the estimate of Kaplan-Meier."""
    weeks = [6, 6, 6, 7, 10, 13, 16, 22, 23, 6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    survival = Survival.of(weeks, [True] * 9 + [False] * 12)
    expected = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    assert {t: round(float(survival.beyond(t)), 3) for t in expected} == expected


def test_quantile_survives_cancellation() -> None:
    """Half of all requests over the quantile are cut off at random; a plain quantile would sink."""
    random = np.random.default_rng(1)
    latencies, cut = random.lognormal(0, 1, 50_000), 2.0 + random.lognormal(0, 1, 50_000)
    seen = np.minimum(latencies, cut)
    truth = np.exp(1.6449)
    assert Survival.of(seen, latencies <= cut).quantile(0.95) == pytest.approx(truth, rel=0.03)
    assert np.quantile(seen, 0.95) < 0.9 * truth


def test_unreached_quantile_is_the_largest_time() -> None:
    assert Survival.of([1.0, 2.0, 3.0], [True, False, False]).quantile(0.9) == 3.0


def test_adaptive_needs_fewer_extra_requests() -> None:
    """2 % stragglers: a delay behind all others costs little time, and spares the budget."""
    random = np.random.default_rng(2)
    latencies = random.lognormal(0, 0.1, 20_000)
    latencies[random.random(20_000) < 0.02] *= 10
    survival = Survival.of(latencies, [True] * len(latencies))
    chosen = parse_delay("adaptive").lateness(survival, 0.05)
    assert chosen.probability * survival.beyond(chosen.delay) < 0.03

    def tail(delay: float, probability: float) -> float:
        other = random.permutation(latencies) + delay
        extra = (latencies > delay) & (random.random(len(latencies)) < probability)
        return float(np.quantile(np.where(extra, np.minimum(latencies, other), latencies), 0.99))

    at_percentile = tail(survival.quantile(0.95), 1.0)
    assert tail(chosen.delay, chosen.probability) < 1.15 * at_percentile
    assert at_percentile < 0.3 * np.quantile(latencies, 0.99)


def test_lengths_are_grouped_by_powers_of_two() -> None:
    assert length_bucket("sample", 600, 100, 4) == length_bucket("sample", 1000, 127, 7)
    assert length_bucket("sample", 600, 100) != length_bucket("sample", 600, 200)
    assert length_bucket("sample", 600, 0) != length_bucket("logprobs", 600)
