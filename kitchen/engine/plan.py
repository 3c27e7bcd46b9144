"""Plans, derived from stage signatures: every mistake is found before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kitchen.engine.codec import why_not_serializable
from kitchen.engine.dataflow import Dataflow
from kitchen.engine.effects import effects, loop_inputs, save_point_problems, split_at_wait
from kitchen.engine.type_names import read_names, return_names, short_name, suggest_writers
from kitchen.errors import ConfigError
from kitchen.ports.blobs import BlobStore
from kitchen.ports.checkpointable import hides_checkpointable
from kitchen.ports.training import TrainingClient, why_missing
from kitchen.progress import Progress
from kitchen.stage import Contract, Need, Stage
from kitchen.workflow import (
    Every,
    ForEach,
    Parallel,
    Series,
    Step,
    When,
    has_save_points,
    is_resumable,
)

# types in scope -> True; for a type written under a condition, that condition if it is constant
# within an iteration, else False
Available = Mapping[Any, bool | Stage]


class PlanError(ConfigError):
    """A workflow that cannot work; the text lists every problem, and nothing has run."""


@dataclass(frozen=True)
class Line:
    """One step in the tree of a plan."""

    depth: int
    text: str
    reads: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()

    # part of a run's fingerprint, as is `_loop_text`: a run cannot be resumed after it has changed
    def __str__(self) -> str:
        types = f"{', '.join(self.reads)} -> {', '.join(self.outputs)}".strip()
        return f"{'  ' * self.depth}{self.text}{f': {types}' if types != '->' else ''}"


@dataclass
class Plan:
    """The steps of a workflow and the problems found in it."""

    step: Step
    lines: list[Line] = field(default_factory=list)
    ports: set[Any] = field(default_factory=set)  # provided types that some stage reads
    missing: set[Any] = field(default_factory=set)  # types that nothing writes
    problems: list[str] = field(default_factory=list)
    not_honoured: list[str] = field(default_factory=list)  # settings that the chosen adapters lack

    def __str__(self) -> str:
        return "\n".join([*map(str, self.lines), *(f"problem: {p}" for p in self.problems)])


def check(
    step: Step, ports: Mapping[Any, Any] | Iterable[Any], outputs: tuple[Any, ...] = ()
) -> Plan:
    """Walk the workflow as the runner would, with types in place of values.

    `ports` are adapters by type, or types alone, in which case capabilities are not checked.
    `outputs` are the types that the workflow must write.
    """
    adapters = ports if isinstance(ports, Mapping) else {}
    checker = _Checker(Plan(step), adapters, frozenset(ports), Dataflow(), is_resumable(step))
    added = checker.visit(step, dict.fromkeys([*ports, Progress], True), 0)
    for kind in outputs:
        if added.get(kind) is not True:
            checker.unwritten("the recipe", kind, added)
    plan = checker.plan
    plan.problems += checker.dataflow.problems(outputs)
    plan.problems = list(dict.fromkeys(plan.problems))
    plan.not_honoured = list(dict.fromkeys(plan.not_honoured))
    return plan


@dataclass(frozen=True)
class _Checker:
    plan: Plan
    adapters: Mapping[Any, Any]
    ports: frozenset[Any]
    dataflow: Dataflow
    resumable: bool

    def problem(self, text: str) -> None:
        self.plan.problems.append(text)

    def unwritten(self, who: str, kind: Any, added: Available) -> None:
        reason = f"no stage in it writes{suggest_writers(kind)}"
        if kind in added:
            reason = "is written only under a condition (`when` or `every`)"
        self.problem(f"{who} must output {short_name(kind)}, which {reason}")

    def line(self, depth: int, text: str, contract: Contract | None = None) -> None:
        reads = read_names(contract) if contract else ()
        outputs = return_names(contract) if contract else ()
        self.plan.lines.append(Line(depth, text, reads, outputs))

    def visit(self, step: Step, available: Available, depth: int) -> Available:
        """Check a step and return what it adds to the scope around it."""
        match step:
            case Stage():
                return self.stage(step, available, depth)
            case Series(_, None):
                return self.steps(step, available, depth)
            case Series():
                return self.phase(step, available, depth)
            case ForEach():
                return self.loop(step, available, depth)
            case When():
                return self.when(step, available, depth)
            case Parallel():
                return self.parallel(step, available, depth)

    def steps(self, series: Series, available: Available, depth: int) -> Available:
        added: Available = {}
        for step in series.steps:
            added = {**added, **self.visit(step, {**available, **added}, depth)}
        return added

    def phase(self, phase: Series, available: Available, depth: int) -> Available:
        outputs = phase.outputs or ()
        names = ", ".join(map(short_name, outputs)) or "nothing"
        self.line(depth, f"{phase.title or 'phase'} outputs {names}")
        for kind in set(outputs) & set(available):
            self.problem(f"a phase outputs {short_name(kind)}, which is already in scope around it")
        # a phase may write a type that lies outside again, as long as it does not read that first
        inside = effects(Series(phase.steps))
        shadowed = inside.outputs - inside.reads
        visible = {kind: sure for kind, sure in available.items() if kind not in shadowed}
        with self.dataflow.scope(outputs):
            added = self.steps(phase, visible, depth + 1)
        for kind in set(outputs) - set(added):
            self.unwritten("a phase", kind, added)
        return {kind: sure for kind, sure in added.items() if kind in outputs}

    def when(self, step: When, available: Available, depth: int) -> Available:
        if isinstance(step.condition, Every):
            self.line(depth, f"every {step.condition.n}")
            self.check_reads(step.condition, available)
        else:
            self.line(depth, "when")
            self.visit(step.condition, available, depth + 1)
        if not step.condition.contract().is_condition:
            self.problem(f"{step.condition} is a condition but does not return bool")
        condition = step.condition if step.constant_within_iteration else False
        # a type that was written under the same condition certainly exists in this body
        same = {kind: True for kind, sure in available.items() if sure and sure == condition}
        with self.dataflow.conditional():
            added = self.visit(step.body, {**available, **same}, depth + 1)
        return {kind: condition if sure is True else False for kind, sure in added.items()}

    def stage(self, stage: Stage, available: Available, depth: int) -> Available:
        contract = stage.contract()
        self.check_reads(stage, available)
        for kind in contract.writes:
            if kind in available and not contract.rewrites(kind):
                self.problem(f"{stage} overwrites {short_name(kind)} without reading it")
            if hides_checkpointable(kind):
                self.problem(
                    f"{short_name(kind)} holds a session, which save points would miss: return the "
                    "session itself, with a Protocol subclass as its type"
                )
        self.check_memo(stage, contract)
        for need in stage.needs():
            self.check_need(stage, need)
        if self.resumable and " at 0x" in repr(stage):
            self.problem(
                f"{stage} has an option whose repr is a memory address, so a resumed run could not "
                "be compared with it: use a dataclass instead of a function or a plain object"
            )
        self.dataflow.visit(stage)
        self.line(depth, repr(stage), contract)
        return {
            kind: True
            for kind in contract.writes
            if not (contract.rewrites(kind) and kind in available)
        }

    def check_memo(self, stage: Stage, contract: Contract) -> None:
        if not stage.memoize:
            return
        for kind in contract.returns or (None,):
            if why := why_not_serializable(kind):
                self.problem(f"{stage} is memoized, but {why}")

    def check_need(self, stage: Stage, need: Need) -> None:
        adapter = self.adapters.get(need.port)
        if adapter is None or need.capability in adapter.capabilities:
            return
        # "loss ?": the adapter may support further losses, which only it can name
        may_have = f"{need.capability.split()[0]} ?" in adapter.capabilities
        if need.required and not may_have:
            name = adapter.__class__.__name__
            lacks = getattr(adapter, "why_lacking", lambda _: f"{name} lacks")(need.capability)
            advice = f"; {need.alternative}" if need.alternative else ""
            self.problem(f"{stage} needs {need.capability!r}, which {lacks}{advice}")
        else:
            self.plan.not_honoured.append(need.capability)

    def check_reads(self, stage: Stage, available: Available) -> None:
        for read in stage.contract().reads:
            name = short_name(read.kind)
            if read.kind in self.ports:
                self.plan.ports.add(read.kind)
            if read.optional:
                continue
            if read.kind not in available:
                self.plan.missing.add(read.kind)
                self.problem(self.absent(stage, read.kind))
            elif available[read.kind] is not True:
                self.problem(
                    f"{stage} reads {name}, which is written only under a condition (`when` or "
                    f"`every`): annotate the parameter as `{name} | None = None`"
                )

    def absent(self, stage: Stage, kind: Any) -> str:
        name = short_name(kind)
        training = self.adapters.get(TrainingClient)
        if training is not None and (reason := why_missing(kind, training)):
            return f"{stage} reads {name}, but {reason}"
        return f"{stage} reads {name}, which no stage before it writes{suggest_writers(kind)}"

    def loop(self, loop: ForEach, available: Available, depth: int) -> Available:
        self.line(depth, _loop_text(loop))
        self.visit(loop.source, available, depth + 1)
        if loop.source.contract().yields is None:
            self.problem(f"{loop.source} is a loop source but does not return Iterable[item]")
        # the body has another Progress, so that conditions around the loop are no longer constant
        inside = {kind: sure is True for kind, sure in available.items()}
        with self.dataflow.scope():
            self.dataflow.item(loop.source)
            self.visit(loop.body, {**inside, **dict.fromkeys(loop_inputs(loop), True)}, depth + 1)
        self.check_look_ahead(loop)
        if has_save_points(loop):
            self.plan.problems += save_point_problems(loop)
            if BlobStore not in available:
                self.plan.missing.add(BlobStore)
                self.problem(f"{loop.source} has save points, and there is no BlobStore for them")
            self.plan.ports.add(BlobStore)
        return {}

    def check_look_ahead(self, loop: ForEach) -> None:
        inputs = loop_inputs(loop)
        head, tail = (effects(part).without(inputs) for part in split_at_wait(loop))
        conflicts = (head.changes & tail.reads) | (head.reads & tail.changes)
        for name in sorted(map(short_name, conflicts - set(loop.stale))):
            self.problem(
                f"{loop.source} with ahead={loop.ahead}: {name} is changed by one iteration while "
                f"another reads it: set ahead=0, or allow it with stale=({name},)"
            )

    def parallel(self, step: Parallel, available: Available, depth: int) -> Available:
        self.line(depth, "parallel")
        if has_save_points(step):
            self.problem("parallel branches cannot have save points: save in a loop around them")
        added: Available = {}
        for index, branch in enumerate(step.branches):
            branch_adds = self.visit(branch, available, depth + 1)
            others = [effects(other) for at, other in enumerate(step.branches) if at != index]
            read_by_others = frozenset[Any]().union(*(other.reads for other in others))
            for kind in set(added) & set(branch_adds):
                self.problem(f"two parallel branches write {short_name(kind)}")
            for kind in effects(branch).changes & read_by_others:
                name = short_name(kind)
                self.problem(f"a parallel branch changes {name}, which another branch reads")
            added = {**added, **branch_adds}
        return added


def _loop_text(loop: ForEach) -> str:
    parts = [f"for each of {loop.source}"]
    if loop.ahead:
        parts.append(f"ahead={loop.ahead}")
    if loop.save:
        parts.append(f"save={loop.save}")
    if loop.stale:
        parts.append(f"stale={', '.join(map(short_name, loop.stale))}")
    return ", ".join(parts)
