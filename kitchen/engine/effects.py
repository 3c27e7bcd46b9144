"""What a step does to the values around it: what look-ahead, parallel and resume need to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kitchen.engine.codec import unkeepable
from kitchen.engine.type_names import name
from kitchen.ports.checkpointable import is_checkpointable
from kitchen.progress import Progress
from kitchen.stage import Stage
from kitchen.workflow import ForEach, Parallel, Series, Step, When, saves, walk

Kinds = frozenset[Any]


@dataclass(frozen=True)
class Effects:
    """Types that lie outside a step and are touched by it, and types that it adds to them."""

    reads: Kinds = frozenset()
    changes: Kinds = frozenset()  # reads and rewrites, or may move because they are live
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
            contract = step.contract()
            reads = frozenset(read.kind for read in contract.reads)
            changes = frozenset(
                kind for kind in reads if kind in contract.writes or is_checkpointable(kind)
            )
            return Effects(reads, changes, frozenset(contract.writes) - reads)
        case Series(steps, outputs, _):
            total = Effects()
            for inner in steps:
                total = total.then(effects(inner))
            return (
                total
                if outputs is None
                else Effects(total.reads, total.changes, frozenset(outputs))
            )
        case ForEach(source, body):
            return effects(source).then(effects(body).without(item_and_progress(step)))
        case When(condition, body):
            return effects(condition).then(effects(body))
        case Parallel(branches):
            every = [effects(branch) for branch in branches]
            sets = zip(*((e.reads, e.changes, e.outputs) for e in every), strict=True)
            return Effects(*(frozenset[Any]().union(*each) for each in sets))


def item_and_progress(loop: ForEach) -> Kinds:
    return frozenset({loop.source.contract().yields, Progress})


def carried(loop: ForEach) -> Kinds:
    """What one iteration hands to the next: a save point keeps these, and nothing else."""
    return effects(loop.body).changes - item_and_progress(loop)


def cut(loop: ForEach) -> tuple[Series, Series]:
    """Head and tail: the tail begins where the body must wait for an answer that it asked for
    itself.
    """
    steps, pending = loop.body.steps, set[Any]()
    for index, step in enumerate(steps if loop.ahead else ()):
        stages = [inner for inner in walk(step) if isinstance(inner, Stage)]
        if any(r.kind in pending and not r.pending for s in stages for r in s.contract().reads):
            return Series(steps[:index]), Series(steps[index:])
        for s in stages:
            pending |= s.contract().pending
    return loop.body, Series(())


def save_problems(loop: ForEach) -> list[str]:
    """What is wrong with the save points of a loop that has some."""
    problems = []
    if loop.ahead and saves(loop.body):
        problems.append(f"{loop.source} looks ahead over a loop with save points")
    for kind in carried(loop):
        if not is_checkpointable(kind) and (why := unkeepable(kind)):
            problems.append(
                f"{loop.source} carries {name(kind)} from one iteration to the next, but {why}"
            )
    return problems
