"""Recipes for LLM post-training: stages, put together by recipes, cooked with any adapters."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kitchen.api import resume, run, submit
    from kitchen.config.adapters import Kitchen
    from kitchen.engine.observers import Observer, StageDone
    from kitchen.engine.plan import Plan, PlanError, check
    from kitchen.errors import ResumeError
    from kitchen.progress import Progress
    from kitchen.recipe import Recipe
    from kitchen.runs.handle import Outcome, Run
    from kitchen.runs.status import Event, Status
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
    "engine.observers": "Observer StageDone",
    "engine.plan": "Plan PlanError check",
    "recipe": "Recipe",
    "config.adapters": "Kitchen",
    "errors": "ResumeError",
    "runs.handle": "Outcome Run",
    "stage": "Need Stage",
    "runs.status": "Event Status",
    "api": "resume run submit",
    "types": "Adam Batch Checkpoint Datum Facts Lora Loss LossOutput Metrics Published Result RunId Sampled Samples "
    "Stepped Table",
    "progress": "Progress",
    "workflow": "Step every for_each parallel sequence when",
}

__all__ = [
    "Adam",
    "Batch",
    "Checkpoint",
    "Datum",
    "Event",
    "Facts",
    "Kitchen",
    "Lora",
    "Loss",
    "LossOutput",
    "Metrics",
    "Need",
    "Observer",
    "Outcome",
    "Plan",
    "PlanError",
    "Progress",
    "Published",
    "Recipe",
    "Result",
    "ResumeError",
    "Run",
    "RunId",
    "Sampled",
    "Samples",
    "Stage",
    "StageDone",
    "Status",
    "Step",
    "Stepped",
    "Table",
    "check",
    "every",
    "for_each",
    "parallel",
    "resume",
    "run",
    "sequence",
    "submit",
    "when",
]


def __getattr__(name: str) -> Any:
    """Names are looked up when they are asked for, so that `kitchen --help` need not import
    pydantic.
    """
    for module, names in _HOME.items():
        if name in names.split():
            return getattr(import_module(f"kitchen.{module}"), name)
    raise AttributeError(f"module 'kitchen' has no attribute {name!r}")
