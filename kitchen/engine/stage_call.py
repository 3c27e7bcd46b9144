"""Call of one stage: gather its inputs, run it, store its outputs, notify the observers."""

from __future__ import annotations

import time
from inspect import isawaitable
from typing import Any

from kitchen.engine.memo import MemoStore
from kitchen.engine.observers import ObserverGroup, StageDone, StageStarted, WeightsSaved
from kitchen.engine.resume import SavePointStore
from kitchen.engine.scope import Scope
from kitchen.engine.stop import StopSignal
from kitchen.engine.tracing import PortWrapper, span
from kitchen.engine.type_names import short_name
from kitchen.errors import exits_as_failures
from kitchen.ports.future import Future, is_future
from kitchen.progress import Location, Progress
from kitchen.stage import Read, Stage, check_result, is_published
from kitchen.types import Checkpoint, Published


class StageCaller:
    """Calls the stages of one run in one process."""

    def __init__(
        self,
        observers: ObserverGroup,
        title: str,
        stop_signal: StopSignal,
        save_points: SavePointStore | None = None,
        memo: MemoStore | None = None,
        ports: PortWrapper | None = None,
    ) -> None:
        self.observers = observers
        self.stop_signal = stop_signal
        self.save_points = save_points
        self.published = 0  # values published in the whole run, earlier processes included
        self._title = title
        self._memo = memo
        self._ports = ports
        self._reported: set[Checkpoint] = set()

    async def call(self, stage: Stage, scope: Scope, address: str) -> Any:
        self.stop_signal.check(stage.title())
        progress = scope[Progress]
        started = time.perf_counter()
        self.observers.stage_started(StageStarted(stage, progress, scope.location))
        attributes = {
            "kitchen.recipe": self._title,
            "kitchen.stage": stage.title(),
            "kitchen.step": progress.step,
        }
        try:
            with span(stage.title(), attributes), exits_as_failures():
                result = await self._memoized(stage, scope, address, attributes)
            published = self._store(stage, scope, result)
        except Exception as error:
            add_location(error, scope.location, stage.title())
            raise
        self._notify(stage, progress, time.perf_counter() - started, published, scope.location)
        return result

    async def _memoized(
        self, stage: Stage, scope: Scope, address: str, attributes: dict[str, Any]
    ) -> Any:
        """Return the stage's result, from the memo where it is memoized and outside loops."""
        if self._memo is None or not stage.memoize or "[" in address:
            return await self._run(stage, scope, attributes)
        result = self._memo.read(stage, address)
        if result is None:
            result = await self._run(stage, scope, attributes)
            await self._memo.write(stage, address, result)
        return result

    async def _run(self, stage: Stage, scope: Scope, attributes: dict[str, Any]) -> Any:
        reads = [read for read in stage.contract().reads if read.kind in scope]
        arguments = {read.name: await self._argument(read, scope) for read in reads}
        if self._ports:
            kinds = {read.name: read.kind for read in reads}
            arguments = self._ports.wrap(kinds, arguments, attributes)
        result = stage.run(**arguments)
        if isawaitable(result) and not is_future(result):
            result = await result
        return check_result(stage.without_roles(), result)

    async def _argument(self, read: Read, scope: Scope) -> Any:
        value = scope[read.kind]
        if read.pending or not is_future(value):
            return value
        return await self.wait(value, scope, scope.requested_by(value) or short_name(read.kind))

    async def wait(self, future: Future[Any], scope: Scope, requested_by: str) -> Any:
        """Wait for a future of a stage; observers learn of saved weights at once."""
        try:
            value = await future
        except Exception as error:
            add_location(error, scope.location, requested_by)
            raise
        value = self._ports.unwrap(value) if self._ports else value
        if isinstance(value, Checkpoint) and value not in self._reported:
            self._reported.add(value)
            self.observers.weights_saved(WeightsSaved(value, scope[Progress], scope.location))
        return value

    def _store(self, stage: Stage, scope: Scope, result: Any) -> tuple[Published, ...]:
        """Put the outputs of a stage in scope and return the values that it published."""
        contract = stage.contract()
        outputs: list[Published] = []
        for kind, returned in zip(contract.returns, contract.values_of(result), strict=True):
            value = self._ports.unwrap(returned) if self._ports else returned
            if kind in contract.pending:
                scope.pending.append((value, stage.title()))
            if is_published(kind):
                outputs.append(value)
            elif contract.rewrites(kind) and kind in scope:
                scope.replace(kind, value)
            else:
                scope.put(kind, value)
        return tuple(outputs)

    def _notify(
        self,
        stage: Stage,
        progress: Progress,
        seconds: float,
        published: tuple[Published, ...],
        location: Location,
    ) -> None:
        replayed = bool(self.save_points and self.save_points.target)
        number = self.published
        self.published += len(published)
        self.observers.stage_done(
            StageDone(stage, progress, seconds, published, number, replayed, location)
        )


def add_location(error: Exception, location: Location, stage: str) -> None:
    """Add a note with the place of an error, once: the innermost place is the most precise."""
    if not any(text.startswith("in ") for text in getattr(error, "__notes__", ())):
        error.add_note(f"in {location} > {stage}" if location.frames else f"in {stage}")
