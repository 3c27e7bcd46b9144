"""Recipes cooked on the stand-in for models: directly, and through a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from kitchen import Kitchen, Observer
from kitchen.cooking import cook
from kitchen.runs import Order, read_journal
from recipes.distillation import Distillation
from tests.soak.victims import AHEAD, DATA, RECIPES

CLOCKS = ("seconds", "timestamp")


def cooked(
    name: str, training: Any, blobs: FakeBlobs, *, ahead: int = 0, observers: Sequence[Observer] = (),
    data: Mapping[str, Any] = DATA, **settings: Any,
) -> list[dict[str, Any]]:
    """All its metrics, without what clocks say."""
    cls, own = RECIPES[name]
    teacher = {"teacher": "other"} if cls is Distillation else {}
    recipe = cls(**{"model": "tiny", **teacher, "batch_size": 2, "learning_rate": 1e-2, "save_every": 2,
                    "warmup_steps": 2, "lora_rank": 4, AHEAD.get(name, "ahead"): ahead, **own, **settings})
    kitchen = Kitchen(training, FakeDatasets(data), None, blobs)
    cook(Order(f"{cls.__module__}:{cls.__name__}", {}), recipe, kitchen, "run", observers)
    return [{key: value for key, value in row.items() if key not in CLOCKS}
            for row in read_journal(blobs, "run", "metrics")]
