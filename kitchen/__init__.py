"""Recipes for LLM post-training: stages assembled by recipes and cooked with any adapters."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kitchen.api import compare, resume, run, submit
    from kitchen.config.adapters import Kitchen
    from kitchen.engine.observers import (
        Observer,
        SavePointDue,
        StageDone,
        StageStarted,
        WeightsSaved,
    )
    from kitchen.engine.plan import Plan, PlanError, check
    from kitchen.errors import ResumeError
    from kitchen.experiments.experiment import Experiment, over
    from kitchen.progress import Location, LoopStep, Progress
    from kitchen.recipe import Recipe
    from kitchen.runs.handle import Run
    from kitchen.runs.outcome import Outcome
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
        OptimStepResult,
        Published,
        Result,
        RunId,
        Sampled,
        Samples,
        Table,
    )
    from kitchen.workflow import Step, every, for_each, parallel, sequence, when

_MODULES = {
    "engine.observers": "Observer SavePointDue StageDone StageStarted WeightsSaved",
    "engine.plan": "Plan PlanError check",
    "recipe": "Recipe",
    "config.adapters": "Kitchen",
    "errors": "ResumeError",
    "experiments.experiment": "Experiment over",
    "runs.handle": "Run",
    "runs.outcome": "Outcome",
    "stage": "Need Stage",
    "runs.status": "Event Status",
    "api": "compare resume run submit",
    "types": "Adam Batch Checkpoint Datum Facts Lora Loss LossOutput Metrics Published Result "
    "RunId Sampled Samples OptimStepResult Table",
    "progress": "Location LoopStep Progress",
    "workflow": "Step every for_each parallel sequence when",
}

__all__ = [
    "Adam",
    "Batch",
    "Checkpoint",
    "Datum",
    "Event",
    "Experiment",
    "Facts",
    "Kitchen",
    "Location",
    "LoopStep",
    "Lora",
    "Loss",
    "LossOutput",
    "Metrics",
    "Need",
    "Observer",
    "OptimStepResult",
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
    "SavePointDue",
    "Stage",
    "StageDone",
    "StageStarted",
    "Status",
    "Step",
    "Table",
    "WeightsSaved",
    "check",
    "compare",
    "every",
    "for_each",
    "over",
    "parallel",
    "resume",
    "run",
    "sequence",
    "submit",
    "when",
]


def __getattr__(name: str) -> Any:
    """Import public names on first use, so that `kitchen --help` need not import pydantic."""
    for module, names in _MODULES.items():
        if name in names.split():
            return getattr(import_module(f"kitchen.{module}"), name)
    if name == "__version__":
        from importlib.metadata import version

        return version("crucible-kitchen")
    raise AttributeError(f"module 'kitchen' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
