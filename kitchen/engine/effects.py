"""Effects of a step on the values around it, which look-ahead, parallel and resume depend on."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

from kitchen.engine.codec import why_not_serializable
from kitchen.engine.type_names import short_name
from kitchen.ports.checkpointable import is_checkpointable
from kitchen.progress import Progress
from kitchen.stage import Stage
from kitchen.workflow import ForEach, Parallel, Series, Step, When, has_save_points, walk

Kinds = frozenset[Any]


@dataclass(frozen=True)
class Effects:
    """Types around a step that it reads or changes, and types that it adds to them."""

    reads: Kinds = frozenset()
    changes: Kinds = frozenset()  # rewritten, or mutable in place because checkpointable
    outputs: Kinds = frozenset()

    def then(self, after: Effects) -> Effects:
        return Effects(
            self.reads | (after.reads - self.outputs),
            self.changes | (after.changes - self.outputs),
            self.outputs | after.outputs,
        )

    def without(self, inside: Kinds) -> Effects:
        return Effects(self.reads - inside, self.changes - inside)


def effects(step: Step) -> Effects:
    match step:
        case Stage():
            return _stage_effects(step)
        case Series(steps, outputs, _):
            total = Effects()
            for inner in steps:
                total = total.then(effects(inner))
            if outputs is None:
                return total
            return Effects(total.reads, total.changes, frozenset(outputs))
        case ForEach(source, body):
            return effects(source).then(effects(body).without(loop_inputs(step)))
        case When(condition, body):
            return effects(condition).then(effects(body))
        case Parallel(branches):
            return _union([effects(branch) for branch in branches])


def _stage_effects(stage: Stage) -> Effects:
    contract = stage.contract()
    reads = frozenset(read.kind for read in contract.reads)
    changes = {kind for kind in reads if kind in contract.writes or is_checkpointable(kind)}
    return Effects(reads, frozenset(changes), frozenset(contract.writes) - reads)


def _union(branches: list[Effects]) -> Effects:
    empty: Kinds = frozenset()
    return Effects(
        empty.union(*(branch.reads for branch in branches)),
        empty.union(*(branch.changes for branch in branches)),
        empty.union(*(branch.outputs for branch in branches)),
    )


def loop_inputs(loop: ForEach) -> Kinds:
    """Return the types that a loop puts in scope for its body: the item and its progress."""
    return frozenset({loop.source.contract().yields, Progress})


def carried(loop: ForEach) -> Kinds:
    """Return the types that one iteration passes to the next: exactly what a save point stores."""
    return effects(loop.body).changes - loop_inputs(loop)


def split_at_wait(loop: ForEach) -> tuple[Series, Series]:
    """Return head and tail of a body: the tail starts at the first wait for a future of the head.

    With look-ahead, heads of later iterations run before the tail of an earlier one.
    """
    if not loop.ahead:
        return loop.body, Series(())
    steps = loop.body.steps
    pending = set[Any]()
    for index, step in enumerate(steps):
        contracts = [inner.contract() for inner in walk(step) if isinstance(inner, Stage)]
        reads = chain.from_iterable(contract.reads for contract in contracts)
        if any(read.kind in pending and not read.pending for read in reads):
            return Series(steps[:index]), Series(steps[index:])
        pending.update(*(contract.pending for contract in contracts))
    return loop.body, Series(())


def save_point_problems(loop: ForEach) -> list[str]:
    """Return why the save points of a loop could not work; empty if they can."""
    problems = []
    if loop.ahead and has_save_points(loop.body):
        problems.append(f"{loop.source} looks ahead over a loop with save points: set ahead=0")
    for kind in carried(loop):
        if not is_checkpointable(kind) and (why := why_not_serializable(kind)):
            name = short_name(kind)
            problems.append(f"{loop.source} carries {name} to the next iteration, but {why}")
    return problems
