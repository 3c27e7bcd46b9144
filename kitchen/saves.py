"""Whether a loop can be saved and come back to."""

from __future__ import annotations

from kitchen.effects import carried
from kitchen.hints import name, unkeepable
from kitchen.ports.live import is_live
from kitchen.workflow import ForEach, saves


def save_problems(loop: ForEach) -> list[str]:
    """What is wrong with the save points of a loop that has some."""
    problems = []
    if loop.ahead and saves(loop.body):
        problems.append(f"{loop.source} looks ahead over a loop with save points")
    for kind in carried(loop):
        if not is_live(kind) and (why := unkeepable(kind)):
            problems.append(f"{loop.source} carries {name(kind)} from one iteration to the next, but {why}")
    return problems
