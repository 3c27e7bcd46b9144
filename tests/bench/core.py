"""Benchmarks of the framework's own overhead, by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from tests.bench.core_calls import stage_call
from tests.bench.core_growth import growth
from tests.bench.core_loop import kitchen_run
from tests.bench.core_plan import check_plan
from tests.bench.results import BenchmarkFunction

CORE: Mapping[str, BenchmarkFunction] = MappingProxyType(
    {
        **{
            f"kitchen_run_{training}": partial(kitchen_run, training=training)
            for training in ("peft", "fake")
        },
        "stage_call": stage_call,
        "check": check_plan,
        **{
            f"growth_{training}": partial(growth, training=training)
            for training in ("fake", "peft")
        },
    }
)
