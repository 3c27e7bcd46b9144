"""Check a workflow before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from kitchen.engine.codec import unkeepable
from kitchen.engine.dataflow import Ledger
from kitchen.engine.effects import cut, effects, item_and_progress, save_problems
from kitchen.engine.type_names import name, who_leaves
from kitchen.errors import ConfigError
from kitchen.ports.blobs import BlobStore
from kitchen.ports.checkpointable import hides_checkpointable
from kitchen.ports.training import TrainingClient, why_missing
from kitchen.progress import Progress
from kitchen.stage import Stage
from kitchen.workflow import Every, ForEach, Parallel, Series, Step, When, keeps, saves

# type -> whether it is there for sure, or the condition under which it is
Scope = Mapping[Any, bool | Stage]


class PlanError(ConfigError):
    """The workflow cannot work; every problem is listed, none was run into."""


@dataclass(frozen=True)
class Line:
    """One step of the tree that a plan is."""

    depth: int
    text: str
    reads: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        arrow = (
            f": {', '.join(self.reads)} -> {', '.join(self.outputs)}"
            if self.reads or self.outputs
            else ""
        )
        return f"{'  ' * self.depth}{self.text}{arrow}"


@dataclass
class Plan:
    """What a workflow will do, and what is wrong with it."""

    step: Step
    lines: list[Line] = field(default_factory=list)
    ports: set[Any] = field(default_factory=set)  # given types that some stage reads
    missing: set[Any] = field(default_factory=set)  # types that nothing leaves
    problems: list[str] = field(default_factory=list)
    not_honoured: list[str] = field(default_factory=list)  # settings that the chosen adapters lack

    def __str__(self) -> str:
        return "\n".join([*map(str, self.lines), *(f"problem: {p}" for p in self.problems)])


def check(
    step: Step, given: Mapping[Any, Any] | Iterable[Any], outputs: tuple[Any, ...] = ()
) -> Plan:
    """Walk the workflow as the runner would, with types for values.

    `given` are the ports: adapters by type, or the types alone, which leaves out what adapters can
    do.
    """
    adapters = given if isinstance(given, Mapping) else {}
    checker = _Checker(Plan(step), adapters, frozenset(given), Ledger(), resumable=keeps(step))
    added = checker.visit(step, dict.fromkeys([*given, Progress], True), 0)
    for kind in outputs:
        if added.get(kind) is not True:
            checker.problem(
                f"the recipe is to leave {name(kind)}, which nothing in it leaves{who_leaves(kind)}"
            )
    checker.plan.problems += checker.ledger.problems(outputs)
    for texts in (checker.plan.problems, checker.plan.not_honoured):
        texts[:] = dict.fromkeys(texts)
    return checker.plan


@dataclass(frozen=True)
class _Checker:
    plan: Plan
    adapters: Mapping[Any, Any]
    given: frozenset[Any]
    ledger: Ledger
    resumable: bool

    def problem(self, text: str) -> None:
        self.plan.problems.append(text)

    def line(
        self, depth: int, text: str, reads: Iterable[Any] = (), outputs: Iterable[Any] = ()
    ) -> None:
        self.plan.lines.append(
            Line(depth, text, tuple(map(name, reads)), tuple(map(name, outputs)))
        )

    def visit(self, step: Step, scope: Scope, depth: int) -> Scope:
        """Return what `step` adds to the scope around it."""
        match step:
            case Stage():
                return self.stage(step, scope, depth)
            case Series():
                return self.sequence(step, scope, depth)
            case ForEach():
                return self.loop(step, scope, depth)
            case When():
                return self.when(step, scope, depth)
            case Parallel():
                return self.parallel(step, scope, depth)

    def sequence(self, step: Series, scope: Scope, depth: int) -> Scope:
        added: Scope = {}
        # a phase may make its own of what lies outside, as long as it did not read it
        if step.outputs is not None:
            inside = effects(Series(step.steps))
            self.line(
                depth,
                f"{step.title or 'phase'} leaves {', '.join(map(name, step.outputs)) or 'nothing'}",
            )
            scope, outside = (
                {k: sure for k, sure in scope.items() if k not in inside.outputs - inside.reads},
                scope,
            )
            for kind in set(step.outputs) & set(outside):
                self.problem(f"a phase leaves {name(kind)} where one already lies")
        with self.ledger.scope(step.outputs) if step.outputs is not None else nullcontext():
            for inner in step.steps:
                added = {
                    **added,
                    **self.visit(inner, {**scope, **added}, depth + (step.outputs is not None)),
                }
        for kind in set(step.outputs or ()) - set(added):
            self.problem(
                f"a phase is to leave {name(kind)}, which nothing in it leaves{who_leaves(kind)}"
            )
        return (
            added
            if step.outputs is None
            else {k: sure for k, sure in added.items() if k in step.outputs}
        )

    def when(self, step: When, scope: Scope, depth: int) -> Scope:
        if isinstance(step.condition, Every):
            self.line(depth, f"every {step.condition.n}")
            self.reads(step.condition, scope)
        else:
            self.line(depth, "when")
            self.visit(step.condition, scope, depth + 1)
        if not step.condition.contract().decides:
            self.problem(f"{step.condition} is a condition but does not return bool")
        condition = step.condition if step.steady else False
        inside = {k: sure if sure != condition else True for k, sure in scope.items()}
        with self.ledger.maybe():
            added = self.visit(step.body, inside, depth + 1)
        return {k: condition if sure is True else False for k, sure in added.items()}

    def stage(self, stage: Stage, scope: Scope, depth: int) -> Scope:
        contract = stage.contract()
        self.reads(stage, scope)
        for kind in contract.writes:
            if kind in scope and not contract.rewrites(kind):
                self.problem(f"{stage} overwrites {name(kind)} without reading it")
            if hides_checkpointable(kind):
                self.problem(
                    f"{name(kind)} hides a live value from the save points: make it a Protocol "
                    "subclass"
                )
        for why in filter(
            None, map(unkeepable, (contract.returns or (None,)) if stage.memoize else ())
        ):
            self.problem(f"{stage} is kept, but {why}")
        for need in stage.needs():
            offered = (
                self.adapters[need.port].capabilities
                if need.port in self.adapters
                else {need.capability}
            )
            if need.capability not in offered:
                lacks = f"{type(self.adapters[need.port]).__name__} lacks"
                # "loss ?": it may have others
                must = need.must and f"{need.capability.split()[0]} ?" not in offered
                found, text = (
                    (self.plan.problems, f"{stage} needs {need.capability!r}, which {lacks}")
                    if must
                    else (self.plan.not_honoured, need.capability)
                )
                found.append(text)
        if self.resumable and " at 0x" in repr(stage):
            self.problem(
                f"{stage} has an option without a value of its own: a resumed run could not "
                "recognise it"
            )
        self.ledger.enter(stage)
        self.line(depth, repr(stage), [read.kind for read in contract.reads], contract.returns)
        return {
            kind: True
            for kind in contract.writes
            if not (contract.rewrites(kind) and kind in scope)
        }

    def reads(self, stage: Stage, scope: Scope) -> None:
        for kind, optional in [(read.kind, read.optional) for read in stage.contract().reads]:
            if kind in self.given:
                self.plan.ports.add(kind)
            if kind not in scope and not optional:
                self.plan.missing.add(kind)
                self.problem(f"{stage} reads {name(kind)}, {self.why_absent(kind)}")
            elif scope.get(kind, True) is not True and not optional:
                self.problem(
                    f"{stage} reads {name(kind)}, which only a `when` leaves: let it default to "
                    "None"
                )

    def why_absent(self, kind: Any) -> str:
        training = self.adapters.get(TrainingClient)
        if training is not None and (problem := why_missing(kind, training)):
            return f"but {problem}"
        return f"which nothing before it leaves{who_leaves(kind)}"

    def loop(self, loop: ForEach, scope: Scope, depth: int) -> Scope:
        words = [f"for each of {loop.source}"]
        words += [
            f"{word}={value}"
            for word, value in (("ahead", loop.ahead), ("save", loop.save))
            if value
        ]
        words += [f"stale={', '.join(map(name, loop.stale))}"] * bool(loop.stale)
        self.line(depth, ", ".join(words))
        self.visit(loop.source, scope, depth + 1)
        if loop.source.contract().yields is None:
            self.problem(f"{loop.source} is a loop source but does not return Iterable[item]")
        with self.ledger.scope():
            self.ledger.item(loop.source)
            self.visit(
                loop.body, {**scope, **dict.fromkeys(item_and_progress(loop), True)}, depth + 1
            )
        head, tail = (effects(part).without(item_and_progress(loop)) for part in cut(loop))
        for kind in ((head.changes & tail.reads) | (head.reads & tail.changes)) - set(loop.stale):
            self.problem(
                f"{loop.source} ahead={loop.ahead}: {name(kind)} changes in the head or the tail "
                "of the body"
                " and is read by the other: wait for it, or say stale="
            )
        if saves(loop):
            self.plan.problems += save_problems(loop)
            if BlobStore not in scope:
                self.plan.missing.add(BlobStore)
                self.problem(
                    f"{loop.source} has save points but there is no BlobStore to keep them"
                )
            self.plan.ports.add(BlobStore)
        return {}

    def parallel(self, step: Parallel, scope: Scope, depth: int) -> Scope:
        self.line(depth, "parallel")
        if saves(step):
            self.problem("parallel branches cannot have save points: save in a loop around them")
        left: Scope = {}
        for index, branch in enumerate(step.branches):
            added, mine = self.visit(branch, scope, depth + 1), effects(branch)
            others = [effects(other) for at, other in enumerate(step.branches) if at != index]
            for kind in (set(left) & set(added)) | {
                k for k in mine.changes for other in others if k in other.reads
            }:
                self.problem(
                    f"parallel branches both leave {name(kind)}, or one changes what another reads"
                )
            left = {**left, **added}
        return left
