"""Runner: walk a workflow, call its stages, save, stop and resume."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import structlog

from kitchen.engine.effects import split_at_wait
from kitchen.engine.memo import MemoStore
from kitchen.engine.observers import Observer, ObserverGroup, SavePointDue
from kitchen.engine.plan import Plan, PlanError, check
from kitchen.engine.resume import DamagedSavePoint, SavePoint, SavePointStore
from kitchen.engine.scope import Scope
from kitchen.engine.stage_call import StageCaller
from kitchen.engine.stop import StopSignal, refuse_running_loop
from kitchen.engine.tracing import PortWrapper, span
from kitchen.errors import CorruptCheckpoint, Interrupted, ResumeError, RunFailed, SessionLost
from kitchen.ports.blobs import BlobStore
from kitchen.ports.future import is_future
from kitchen.progress import NOWHERE, Progress, shares_of
from kitchen.types import RunId
from kitchen.workflow import ForEach, Parallel, Series, Step, When, has_save_points, is_resumable

log = structlog.get_logger("kitchen.engine.runner")


def run(
    step: Step,
    ports: Mapping[Any, Any],
    observers: tuple[Observer, ...] = (),
    *,
    name: str = "run",
    outputs: tuple[Any, ...] = (),
    title: str = "",
    stop_signal: StopSignal | None = None,
    plan: Plan | None = None,
    retries: int = 2,
    port_wrapper: PortWrapper | None = None,
) -> Scope:
    """Check a workflow, then run it, or resume the run of this name; return the scope it filled.

    `outputs` are the types that the workflow must write, and `title` is its name in errors. Other
    threads stop the run by `stop_signal`. `plan` is the result of `check` on this step and these
    ports, if known. A lost session is opened again from the last save point, at most `retries`
    times. `port_wrapper` observes calls of ports. Raises PlanError or ConfigError before anything
    runs.
    """
    refuse_running_loop()
    ports = {**ports, RunId: RunId(name)}
    plan = plan or check(step, ports, outputs)
    if plan.problems:
        raise PlanError("\n".join(plan.problems))
    group = ObserverGroup(observers)
    group.run_started(name, step)
    stop_signal = stop_signal or StopSignal()
    execution = _Run(
        step, plan, ports, outputs, name, title or name, group, stop_signal, port_wrapper
    )
    with span("run", {"kitchen.recipe": execution.title, "kitchen.run": name}):
        return execution.with_retries(retries)


@dataclass(frozen=True)
class _Run:
    """The arguments of every attempt to run a workflow to its end."""

    step: Step
    plan: Plan
    ports: Mapping[Any, Any]
    outputs: tuple[Any, ...]
    name: str
    title: str
    observers: ObserverGroup
    stop_signal: StopSignal
    port_wrapper: PortWrapper | None

    def with_retries(self, retries: int) -> Scope:
        """Run; retry from the last save point if the session is lost or a save point damaged."""
        while True:
            store = self.save_points()
            try:
                return self.attempt(store)
            except SessionLost as lost:
                if not retries:
                    raise
                retries -= 1
                text = "the session was lost; resuming from the last save point"
                log.warning(text, why=str(lost), run=self.name)
            except DamagedSavePoint as damage:
                if store is None or not store.fall_back(damage):
                    saved = self.ports[BlobStore].locate(f"{self.name}/save")
                    text = f"{damage}; to replay from the start, delete {saved} and resume"
                    raise RunFailed(text) from damage

    def save_points(self) -> SavePointStore | None:
        if BlobStore not in self.ports or not is_resumable(self.step):
            return None
        fingerprint = f"{self.plan}\n{self.step!r}"
        return SavePointStore(self.ports[BlobStore], self.name, fingerprint)

    def attempt(self, store: SavePointStore | None) -> Scope:
        memo = MemoStore(self.ports[BlobStore], self.name) if store else None
        caller = StageCaller(
            self.observers, self.title, self.stop_signal, store, memo, self.port_wrapper
        )
        location = NOWHERE.recipe(self.title)
        scope = Scope({Progress: Progress(), **self.ports}, location=location)
        asyncio.run(_Walk(caller).workflow(self.step, scope, self.outputs))
        return scope


@dataclass
class _LoopState:
    """A loop in progress."""

    loop: ForEach
    scope: Scope  # around the loop
    address: str
    key: str  # address without iterations, under which steps are counted over the whole run
    index: int  # iterations started since the loop was entered, those before a resume included
    head: Series
    tail: Series
    in_flight: deque[tuple[Scope, str]] = field(default_factory=deque)  # oldest first


class _Walk:
    """One walk through a workflow, from its first step to its last."""

    def __init__(self, caller: StageCaller) -> None:
        self.caller = caller
        self.observers = caller.observers
        self.save_points = caller.save_points
        self.stop_signal = caller.stop_signal
        self.steps: Counter[str] = Counter()  # iterations started, by key of the loop

    async def workflow(self, step: Step, scope: Scope, outputs: tuple[Any, ...]) -> None:
        if self.save_points:
            self.save_points.open()
        with self.stop_signal.listening():
            try:
                await self.step(step, scope, "0")
                await self.resolve_all(scope)
            finally:
                self.dispose(scope, except_for=outputs)
        if self.save_points and self.save_points.target:
            where = self.save_points.target
            raise ResumeError(
                f"the saved loop, at {where}, was not reached: the data differ; start a new run"
            )

    async def step(self, step: Step, scope: Scope, address: str) -> None:
        """Run a step; its address has indices into sequences and, in brackets, iterations."""
        match step:
            case Series():
                await self.sequence(step, scope, address)
            case ForEach():
                await self.loop(step, scope, address)
            case When(condition, body):
                if await self.caller.call(condition, scope, address):
                    await self.step(body, scope, address)
            case Parallel(branches):
                await self.parallel(branches, scope, address)
            case _:
                await self.caller.call(step, scope, address)

    async def sequence(self, series: Series, outer: Scope, address: str) -> None:
        is_phase = series.outputs is not None
        scope = outer.inner(location=outer.location.recipe(series.title)) if is_phase else outer
        try:
            for index, inner in enumerate(series.steps):
                await self.step(inner, scope, f"{address}.{index}")
                if address == "0":
                    self.observers.phase_done()
            if is_phase:
                await self.resolve_all(scope)
                for kind in series.outputs or ():
                    scope.hand_out(kind, outer)
        finally:
            if is_phase:
                self.dispose(scope)

    async def parallel(self, branches: tuple[Step, ...], scope: Scope, address: str) -> None:
        scopes = [scope.inner() for _ in branches]
        try:
            async with asyncio.TaskGroup() as group:
                for index, (branch, inner) in enumerate(zip(branches, scopes, strict=True)):
                    group.create_task(self.step(branch, inner, f"{address}.{index}"))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        for inner in scopes:
            scope.merge(inner)

    async def loop(self, loop: ForEach, scope: Scope, address: str) -> None:
        items = await self.caller.call(loop.source, scope, address)
        outer = scope[Progress]
        shares = shares_of(items, loop.source.contract().yields)
        point = await self.restore(loop, scope, address)
        head, tail = split_at_wait(loop)
        key = re.sub(r"\[\d+\]", "", address)
        state = _LoopState(loop, scope, address, key, point.index, head, tail)
        saves = loop.save > 0
        try:
            for item in islice(items, point.index, None) if not point.ended else ():
                with self.stop_signal.iteration(saves):
                    progress = outer.within(self.steps[key], state.index, shares)
                    await self.start_iteration(state, item, progress)
                    stop_text = await self.end_iteration(state)
                if stop_text:
                    raise Interrupted(stop_text)
            with self.stop_signal.iteration(saves):
                await self.finish(state, 0)
                if has_save_points(loop) and not point.ended:
                    await self.save(state, ended=True)
            if self.stop_signal.requested and saves:
                raise Interrupted(f"stopped after step {self.steps[key]}, and saved")
        finally:
            for inner, _ in state.in_flight:
                self.dispose(inner)

    async def start_iteration(self, state: _LoopState, item: Any, progress: Progress) -> None:
        """Run the head of the body, up to the first wait for a future of its own."""
        source = state.loop.source
        self.steps[state.key] += 1
        scope = state.scope.inner(
            {source.contract().yields: item, Progress: progress},
            state.scope.location.iteration(source.title(), progress),
        )
        address = f"{state.address}[{state.index}]"
        state.in_flight.append((scope, f"{address}.{len(state.head.steps)}"))
        await self.step(state.head, scope, address)
        state.index += 1

    async def end_iteration(self, state: _LoopState) -> str:
        """Finish the iterations whose turn it is and save if due; return why to stop, or ""."""
        loop = state.loop
        step = self.steps[state.key]
        due = has_save_points(loop) and (not loop.save or step % loop.save == 0)
        await self.finish(state, 0 if due else loop.ahead)
        stop = self.stop_signal.requested and loop.save > 0
        # a loop with stale types must not catch up here: its numbers would change
        if stop and not loop.stale:
            await self.finish(state, 0)
            due = True
        if due:
            await self.save(state, ended=False)
        if stop and due:
            return f"stopped at step {step}, and saved"
        return f"stopped at step {step}, between two save points" if stop else ""

    async def finish(self, state: _LoopState, left: int) -> None:
        """Run the tails of all but the youngest `left` iterations, oldest first."""
        while len(state.in_flight) > left:
            scope, address = state.in_flight[0]
            await self.step(state.tail, scope, address)
            await self.resolve_all(scope)
            self.dispose(scope)
            state.in_flight.popleft()

    async def resolve_all(self, scope: Scope) -> None:
        """Wait for every future of a scope before it closes, so that no error is lost."""
        for future, stage in scope.pending:
            scope.resolve(future, await self.caller.wait(future, scope, stage))
        scope.pending.clear()

    def dispose(self, scope: Scope, except_for: tuple[Any, ...] = ()) -> None:
        """Close the values of a scope that have `close`; what is still in flight is abandoned."""
        excepted = {id(scope[kind]) for kind in except_for if kind in scope}
        for value in scope.disposable():
            if id(value) not in excepted and not is_future(value) and hasattr(value, "close"):
                value.close()

    async def restore(self, loop: ForEach, scope: Scope, address: str) -> SavePoint:
        """Return the save point of a loop, restored; one at the start if it has none."""
        point = None
        if self.save_points:
            try:
                point = await self.save_points.restore(address, loop, scope)
            except CorruptCheckpoint as error:
                raise DamagedSavePoint(str(error)) from error
        if point is None:
            return SavePoint(0, False, self.caller.published, {})
        self.steps = Counter(point.steps)
        self.caller.published = point.published
        return point

    async def save(self, state: _LoopState, *, ended: bool) -> None:
        assert self.save_points is not None
        scope = state.scope
        self.observers.save_point_due(SavePointDue(scope[Progress], scope.location))
        point = SavePoint(state.index, ended, self.caller.published, dict(self.steps))
        await self.save_points.save(state.address, state.loop, scope, point)
