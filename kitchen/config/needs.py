"""The capabilities that the stages of a workflow need of adapters."""

from __future__ import annotations

from itertools import chain
from typing import Any

from kitchen.stage import Stage
from kitchen.workflow import Step, walk


def required_capabilities(step: Step, port: Any) -> list[str]:
    """Return the capabilities of a port without which a stage of the workflow cannot run."""
    stages = (inner for inner in walk(step) if isinstance(inner, Stage))
    needs = chain.from_iterable(stage.needs() for stage in stages)
    return [need.capability for need in needs if need.port is port and need.required]
