"""Walk a workflow and do what it says."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import Mapping
from itertools import islice
from typing import Any

import structlog

from kitchen.engine.effects import cut
from kitchen.engine.observers import Observer, ObserverGroup
from kitchen.engine.plan import Plan, PlanError, check
from kitchen.engine.resume import Damaged, Keeper, SavePoint
from kitchen.engine.scope import Context
from kitchen.engine.stage_call import Caller
from kitchen.engine.stop import StopSignal, refuse_loop
from kitchen.engine.tracing import span
from kitchen.errors import CorruptCheckpoint, Interrupted, ResumeError, RunFailed, SessionLost
from kitchen.ports.blobs import BlobStore
from kitchen.ports.future import is_future
from kitchen.progress import Progress, shares_of
from kitchen.types import RunId
from kitchen.workflow import ForEach, Parallel, Series, Step, When, keeps, saves

log = structlog.get_logger("kitchen.engine.runner")


def run(
    step: Step,
    given: Mapping[Any, Any],
    observers: tuple[Observer, ...] = (),
    *,
    name: str = "run",
    outputs: tuple[Any, ...] = (),
    title: str = "",
    stop_signal: StopSignal | None = None,
    plan: Plan | None = None,
    retries: int = 2,
) -> Context:
    """Check, then run, or go on where the run of this name stopped; return what the workflow left
    on the counter.

    `outputs` are the types that it must leave, `title` is what errors call it, `stop_signal` is for others
    to stop it, `plan` is what `check` made of this step and what is given, where it was asked
    already. A session that is lost is opened again from the last save point, `retries` times at
    most. Raises PlanError or ConfigError before anything runs.
    """
    refuse_loop()
    given, title, stop_signal = (
        {**given, RunId: RunId(name)},
        title or name,
        stop_signal or StopSignal(),
    )
    plan = plan or check(step, given, outputs)
    if plan.problems:
        raise PlanError("\n".join(plan.problems))
    audience = ObserverGroup(observers)
    audience.began(name, step)
    keeping = BlobStore in given and keeps(step)
    with span("run", {"kitchen.recipe": title, "kitchen.run": name}):
        while True:
            context = Context({Progress: Progress(), **given}, where=title)
            keeper = Keeper(given[BlobStore], name, f"{plan}\n{step!r}") if keeping else None
            try:
                asyncio.run(
                    _Run(Caller(audience, keeper, title, stop_signal)).whole(step, context, outputs)
                )
                return context
            except SessionLost as lost:
                if not retries:
                    raise
                retries -= 1
                log.warning(
                    "the session was lost; going on from the last save point",
                    why=str(lost),
                    run=name,
                )
            except Damaged as damage:
                if keeper is None or not keeper.fall_back(damage):
                    raise RunFailed(
                        f"{damage}; there is no save point before it: start a new run"
                    ) from damage


class _Run:
    def __init__(self, caller: Caller) -> None:
        self.caller, self.audience, self.keeper, self.stop_signal = (
            caller,
            caller.audience,
            caller.keeper,
            caller.stop_signal,
        )
        self.steps: Counter[str] = Counter()  # iterations begun, by loop

    async def whole(self, step: Step, context: Context, outputs: tuple[Any, ...]) -> None:
        if self.keeper:
            self.keeper.open()
        with self.stop_signal.listening():
            try:
                await self.walk(step, context, "0")
                await self.close(context)
            finally:
                self.dispose(context, keep=outputs)
        if self.keeper and self.keeper.target:
            raise ResumeError(f"the run never came back to its save point at {self.keeper.target}")

    async def walk(self, step: Step, context: Context, at: str) -> None:
        """`at` is the address of the step: indices into sequences, and in brackets those of
        iterations.
        """
        match step:
            case Series():
                await self.sequence(step, context, at)
            case ForEach():
                await self.loop(step, context, at)
            case When(condition, body):
                if await self.caller.call(condition, context, at):
                    await self.walk(body, context, at)
            case Parallel(branches):
                await self.parallel(branches, context, at)
            case _:
                await self.caller.call(step, context, at)

    async def sequence(self, step: Series, context: Context, at: str) -> None:
        scope = context if step.outputs is None else context.inner(where=step.title)
        try:
            for index, inner in enumerate(step.steps):
                await self.walk(inner, scope, f"{at}.{index}")
                if at == "0":
                    self.audience.phase_over()
            if step.outputs is not None:
                await self.close(scope)
                for kind in step.outputs:
                    scope.hand_out(kind, context)
        finally:
            if step.outputs is not None:
                self.dispose(scope)

    async def parallel(self, branches: tuple[Step, ...], context: Context, at: str) -> None:
        scopes = [context.inner() for _ in branches]
        try:
            async with asyncio.TaskGroup() as group:
                for index, (branch, scope) in enumerate(zip(branches, scopes, strict=True)):
                    group.create_task(self.walk(branch, scope, f"{at}.{index}"))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        for scope in scopes:
            context.merge(scope)

    async def loop(self, loop: ForEach, context: Context, at: str) -> None:
        items, outer = await self.caller.call(loop.source, context, at), context[Progress]
        shares = shares_of(items, loop.source.contract().yields)
        point = await self.come_back(loop, context, at)
        (head, tail), index, place = cut(loop), point.index, re.sub(r"\[\d+\]", "", at)
        in_flight: deque[tuple[Context, str]] = deque()
        try:
            for item in islice(items, index, None) if not point.ended else ():
                with self.stop_signal.iteration(loop.save > 0):
                    progress = outer.within(self.steps[place], index, shares)
                    self.steps[place] += 1
                    scope = context.inner(
                        {loop.source.contract().yields: item, Progress: progress},
                        f"{loop.source.title()} step {progress.step}",
                    )
                    in_flight.append((scope, f"{at}[{index}].{len(head.steps)}"))
                    await self.walk(head, scope, f"{at}[{index}]")
                    index += 1
                    due = saves(loop) and (not loop.save or self.steps[place] % loop.save == 0)
                    await self.finish(tail, in_flight, 0 if due else loop.ahead)
                    # which must not catch up here
                    if (stop := self.stop_signal.asked and loop.save > 0) and not loop.stale:
                        await self.finish(tail, in_flight, 0)
                        due = True
                    if due:
                        await self.keep(loop, context, at, SavePoint(index, False, 0, {}))
                if stop:
                    step = self.steps[place]
                    raise Interrupted(
                        f"stopped at step {step}, and saved"
                        if due
                        else f"stopped at step {step}, and not saved where weights lag"
                    )
            with self.stop_signal.iteration(loop.save > 0):
                await self.finish(tail, in_flight, 0)
                if saves(loop) and not point.ended:
                    await self.keep(loop, context, at, SavePoint(index, True, 0, {}))
            if self.stop_signal.asked and loop.save > 0:
                raise Interrupted(f"stopped after step {self.steps[place]}, and saved")
        finally:
            for scope, _ in in_flight:
                self.dispose(scope)

    async def finish(self, tail: Series, in_flight: deque[tuple[Context, str]], left: int) -> None:
        """Run the tails of all but the youngest `left` iterations, oldest first."""
        while len(in_flight) > left:
            scope, at = in_flight[0]
            await self.walk(tail, scope, at)
            await self.close(scope)
            self.dispose(scope)
            in_flight.popleft()

    async def close(self, scope: Context) -> None:
        """No answer is lost: a scope closes only once all that was asked in it has come back."""
        for future, asker in scope.asked:
            scope.settle(future, await self.caller.arrival(future, scope, asker))
        scope.asked.clear()

    def dispose(self, scope: Context, keep: tuple[Any, ...] = ()) -> None:
        """Close what can be closed and belongs to this scope; what is still in flight is let go."""
        kept = {id(scope[kind]) for kind in keep if kind in scope}
        for value in scope.disposable():
            if id(value) not in kept and not is_future(value) and hasattr(value, "close"):
                value.close()

    async def come_back(self, loop: ForEach, context: Context, at: str) -> SavePoint:
        try:
            point = await self.keeper.restore(at, loop, context) if self.keeper else None
        except CorruptCheckpoint as error:
            raise Damaged(str(error)) from error
        if point is None:
            return SavePoint(0, False, self.caller.published, {})
        self.steps, self.caller.published = Counter(point.steps), point.published
        return point

    async def keep(self, loop: ForEach, context: Context, at: str, point: SavePoint) -> None:
        assert self.keeper is not None
        self.audience.keeping(context[Progress])
        steps, published = dict(self.steps), self.caller.published
        await self.keeper.save(
            at, loop, context, SavePoint(point.index, point.ended, published, steps)
        )
