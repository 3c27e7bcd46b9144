"""Stop signals: what is finished first, and what stops at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kitchen.engine.stop import StopSignal, refuse_running_loop
from kitchen.errors import ConfigError, Interrupted


def test_nothing_stops_without_a_request() -> None:
    StopSignal().check("Train")


def test_request_outside_iterations_stops_before_the_next_stage() -> None:
    signal = StopSignal()
    signal.request()
    with pytest.raises(Interrupted, match="Train"):
        signal.check("Train")


def test_iteration_with_save_points_is_finished_first() -> None:
    signal = StopSignal()
    with signal.iteration(True):
        signal.request()
        signal.check("Train")
        signal.request(at_once=True)
        with pytest.raises(Interrupted):
            signal.check("Train")


def test_first_ctrl_c_warns_and_the_second_interrupts() -> None:
    signal = StopSignal()
    warnings: list[Any] = []
    with signal.iteration(True):
        signal.on_sigint(lambda *arguments: warnings.append(arguments))
        assert signal.requested
        assert len(warnings) == 1
        with pytest.raises(KeyboardInterrupt):
            signal.on_sigint(lambda *arguments: None)


def test_ctrl_c_with_nothing_to_save_interrupts() -> None:
    with pytest.raises(KeyboardInterrupt):
        StopSignal().on_sigint(lambda *arguments: None)


def test_running_event_loop_is_refused() -> None:
    async def inside() -> None:
        refuse_running_loop()

    refuse_running_loop()
    with pytest.raises(ConfigError, match=r"kitchen\.submit"):
        asyncio.run(inside())
