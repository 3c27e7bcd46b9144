"""The measurement of hedged requests over loopback."""

from __future__ import annotations

import pytest

pytest.importorskip("tinker")
pytest.importorskip("starlette")

from tests.bench.hedging.loopback import SCENARIOS, Scenario, measure
from tests.support.tinker_server import KEY


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_no_answer_is_lost_or_wrong(scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINKER_API_KEY", KEY)
    monkeypatch.setenv("TINKER_TELEMETRY", "0")
    seconds, extra, wrong = measure(scenario, "percentile:0.95", int(12 * scenario.rate))
    assert len(seconds) == int(12 * scenario.rate)
    assert wrong == 0
    assert extra <= 0.05
