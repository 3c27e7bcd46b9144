"""Recipes for LLM post-training: stages, put together by recipes, cooked with any adapters."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kitchen.observers import Observer, StageDone
    from kitchen.plan import Plan, PlanError, check
    from kitchen.progress import Progress
    from kitchen.recipe import Recipe
    from kitchen.registry import Kitchen
    from kitchen.resume import ResumeError
    from kitchen.stage import Need, Stage
    from kitchen.types import (
        Adam,
        Batch,
        Checkpoint,
        Datum,
        Facts,
        Lora,
        Loss,
        LossOutput,
        Metrics,
        Published,
        Result,
        RunId,
        Sampled,
        Samples,
        Stepped,
        Table,
    )
    from kitchen.workflow import Step, every, for_each, parallel, sequence, when

_HOME = {
    "observers": "Observer StageDone", "plan": "Plan PlanError check", "recipe": "Recipe", "registry": "Kitchen",
    "resume": "ResumeError", "stage": "Need Stage",
    "types": "Adam Batch Checkpoint Datum Facts Lora Loss LossOutput Metrics Published Result RunId Sampled Samples "
             "Stepped Table",
    "progress": "Progress", "workflow": "Step every for_each parallel sequence when",
}

__all__ = [
    "Adam", "Batch", "Checkpoint", "Datum", "Facts", "Kitchen", "Lora", "Loss", "LossOutput", "Metrics", "Need",
    "Observer", "Plan", "PlanError", "Progress", "Published", "Recipe", "Result", "ResumeError", "RunId", "Sampled",
    "Samples", "Stage", "StageDone", "Step", "Stepped", "Table", "check", "every", "for_each", "parallel", "sequence",
    "when",
]


def __getattr__(name: str) -> Any:
    """Names are looked up when they are asked for, so that `kitchen --help` need not import pydantic."""
    for module, names in _HOME.items():
        if name in names.split():
            return getattr(import_module(f"kitchen.{module}"), name)
    raise AttributeError(f"module 'kitchen' has no attribute {name!r}")
