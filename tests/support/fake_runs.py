"""Recipes run on the fake adapters, directly or through a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from kitchen import Kitchen, Observer
from kitchen.runs.execute import execute
from kitchen.runs.store import read_journal
from tests.support.killed_runs import DATA, build_recipe, order_of
from tests.support.recording import without_clocks


def run_recipe(
    name: str,
    training: Any,
    blobs: FakeBlobs,
    *,
    model: str = "tiny",
    teacher: str = "other",
    ahead: int = 0,
    observers: Sequence[Observer] = (),
    data: Mapping[str, Any] = DATA,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Run a recipe, and return its metrics without those that clocks set."""
    recipe = build_recipe(name, model, teacher, ahead, **{"save_every": 2, **settings})
    kitchen = Kitchen(training, FakeDatasets(data), None, blobs)
    execute(order_of(recipe), recipe, kitchen, "run", observers)
    return [without_clocks(row) for row in read_journal(blobs, "run", "metrics")]
