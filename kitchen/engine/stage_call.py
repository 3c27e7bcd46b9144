"""Call one stage: fetch what it reads, put down what it leaves, tell who listens."""

from __future__ import annotations

import time
from inspect import isawaitable
from typing import Any

from kitchen.engine.observers import ObserverGroup, StageDone
from kitchen.engine.resume import Keeper
from kitchen.engine.scope import Context
from kitchen.engine.stop import StopSignal
from kitchen.engine.tracing import span, traced, untraced
from kitchen.engine.type_names import name
from kitchen.ports.future import Future, is_future
from kitchen.progress import Progress
from kitchen.stage import Contract, Read, Stage, published
from kitchen.types import Checkpoint, Published


class Caller:
    """Calls the stages of one run, in one process."""

    def __init__(
        self, audience: ObserverGroup, keeper: Keeper | None, title: str, stop_signal: StopSignal
    ) -> None:
        self.audience, self.keeper, self.stop_signal, self._title = (
            audience,
            keeper,
            stop_signal,
            title,
        )
        self._saved: set[Checkpoint] = set()  # those told of
        self.published = 0  # over the whole run, those of earlier processes included

    async def call(self, stage: Stage, context: Context, at: str) -> Any:
        self.stop_signal.check(stage.title())
        contract, progress, started = stage.contract(), context[Progress], time.perf_counter()
        attributes = {
            "kitchen.recipe": self._title,
            "kitchen.stage": stage.title(),
            "kitchen.step": progress.step,
        }
        self.audience.entered(stage, progress)
        try:
            with span(stage.title(), attributes):
                result = self._kept_answer(stage, at)
                if result is None:
                    result = await self._answer(stage, context, attributes)
                    await self._keep_answer(stage, at, result)
            told = self._put_down(stage, contract, context, result)
        except Exception as error:
            note(error, context, stage.title())
            raise
        self._tell(stage, progress, time.perf_counter() - started, told, context)
        return result

    def _kept_answer(self, stage: Stage, at: str) -> Any:
        """What an earlier process answered here; None where there is none. Inside loops nothing is
        kept.
        """
        return (
            self.keeper.kept(stage, at) if self.keeper and stage.memoize and "[" not in at else None
        )

    async def _keep_answer(self, stage: Stage, at: str, result: Any) -> None:
        if self.keeper and stage.memoize and "[" not in at:
            await self.keeper.keep_answer(stage, at, result)

    def _put_down(
        self, stage: Stage, contract: Contract, context: Context, result: Any
    ) -> tuple[Published, ...]:
        values = contract.parts(result)
        if not isinstance(values, tuple) or len(values) != len(contract.returns):
            raise TypeError(
                f"{stage.title()}.run promises {', '.join(map(name, contract.returns))} "
                f"and returned {type(result).__name__}"
            )
        told: list[Published] = []
        for kind, value in zip(contract.returns, values, strict=True):
            if kind in contract.pending:
                context.asked.append((value, stage.title()))
            if published(kind):
                told.append(value)
            elif contract.rewrites(kind) and kind in context:
                context.replace(kind, untraced(value))
            else:
                context.put(kind, untraced(value))
        return tuple(told)

    def _tell(
        self,
        stage: Stage,
        progress: Progress,
        seconds: float,
        told: tuple[Published, ...],
        context: Context,
    ) -> None:
        replayed = bool(self.keeper and self.keeper.target)
        where = " > ".join([*context.where(), stage.title()])
        event = StageDone(stage, progress, seconds, told, self.published, replayed, where)
        self.published += len(told)
        self.audience.done(event)

    async def _answer(self, stage: Stage, context: Context, attributes: dict[str, Any]) -> Any:
        reads = [read for read in stage.contract().reads if read.kind in context]
        arguments = {
            r.name: traced(r.kind, await self._value(r, context), attributes) for r in reads
        }
        result = stage.run(**arguments)
        return await result if isawaitable(result) and not is_future(result) else result

    async def _value(self, read: Read, context: Context) -> Any:
        value = context[read.kind]
        if read.pending or not is_future(value):
            return value
        return await self.arrival(value, context, context.asker(value) or name(read.kind))

    async def arrival(self, future: Future[Any], context: Context, asker: str) -> Any:
        """Wait for what was asked for; weights are told of as soon as somebody knows that they are
        there.
        """
        try:
            value = await future
        except Exception as error:
            note(error, context, asker)
            raise
        if isinstance(value, Checkpoint) and value not in self._saved:
            self._saved.add(value)
            self.audience.saved(value, context[Progress])
        return value


def note(error: Exception, context: Context, stage: str) -> None:
    """Say where, once: the innermost place knows best."""
    if not any(text.startswith("in ") for text in getattr(error, "__notes__", ())):
        error.add_note("in " + " > ".join([*context.where(), stage]))
