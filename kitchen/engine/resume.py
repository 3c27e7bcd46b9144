"""Save points: the state of a run's loops on disk, and how a resumed run returns to it.

A resumed run walks its workflow from the top. Stages outside of loops run again. A loop with a save
point restores what it carried (`carried`: rewritten values and checkpointable ones) and continues
with the next iteration, or is skipped if it had ended. By induction every stage that runs again
finds what it found the first time.

Each save point is a separate file, written once and atomically. The last two are retained, so that
a damaged checkpoint costs the steps since the one before, not the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from secrets import token_hex

import structlog
from pydantic import TypeAdapter

from kitchen.engine.codec import decode, encode, read_sealed
from kitchen.engine.effects import carried
from kitchen.engine.scope import Scope
from kitchen.engine.type_names import qualified_name
from kitchen.errors import CorruptCheckpoint, ResumeError
from kitchen.ports.blobs import BlobStore, seal, sha256, unseal
from kitchen.ports.checkpointable import is_checkpointable
from kitchen.types import Checkpoint
from kitchen.workflow import ForEach

log = structlog.get_logger("kitchen.engine.resume")


class DamagedSavePoint(CorruptCheckpoint):
    """A loop could not be restored from its save point."""


@dataclass(frozen=True)
class SavePoint:
    """The state of a loop after `index` iterations, with nothing in flight."""

    index: int
    ended: bool
    published: int  # values published so far
    steps: Mapping[str, int]  # Progress.step by loop
    checkpoints: Mapping[str, Checkpoint] = field(default_factory=dict)  # by type name
    values: Mapping[str, str] = field(default_factory=dict)  # by type name, JSON


@dataclass
class RunState:
    """The save points of all loops that have started, oldest first."""

    points: dict[str, SavePoint] = field(default_factory=dict)  # by address, such as "1[2].0"

    def paths(self) -> set[str]:
        """Return the paths of all checkpoints that this state refers to."""
        saved = chain.from_iterable(point.checkpoints.values() for point in self.points.values())
        return {checkpoint.path for checkpoint in saved}

    def with_point(self, address: str, point: SavePoint) -> RunState:
        """Return the state with a loop's new save point; those of loops inside it are dropped."""
        points = {
            other: earlier
            for other, earlier in self.points.items()
            if other != address and not other.startswith(f"{address}[")
        }
        return RunState({**points, address: point})


_STATE_JSON = TypeAdapter(RunState)


class SavePointStore:
    """The save points of one run, in a BlobStore under `RUN/save/`."""

    def __init__(self, blobs: BlobStore, run: str, plan: str) -> None:
        self._blobs = blobs
        self._run = run
        self._prefix = f"{run}/save/"
        self._plan = sha256(plan)
        self._state = RunState()
        # the newest state with other checkpoints, to return to if those of `_state` are damaged
        self._previous: RunState | None = None
        self._number = 0  # of the file of `_state`
        self._previous_number = 0
        self._attempt = token_hex(4)  # part of checkpoint names, so that none is written twice
        self.target = ""  # address where a resumed run stops replaying; empty once reached

    def open(self) -> None:
        """Load the newest intact state.

        Raises ResumeError if the run was started with another plan, or other options of stages.
        """
        name = f"{self._prefix}plan"
        if self._blobs.read(name) is None and self._blobs.read(f"{self._prefix}attempt") is None:
            self._blobs.write(name, seal(self._plan))
        content, remedy = "the digest of the plan", "restore it from a copy, or start a new run"
        if read_sealed(self._blobs, name, content, remedy) != self._plan:
            raise ResumeError(
                f"run {self._run!r} was started with another recipe, another version of it, or "
                "other settings; start a new run"
            )
        self._blobs.write(f"{self._prefix}attempt", self._attempt.encode())
        for number in self._numbers():
            if state := self._read(number):
                self._advance(number, state)
        self.target = next(reversed(self._state.points), "")
        self._delete_leftovers()

    def fall_back(self, why: CorruptCheckpoint) -> bool:
        """Discard the newest, damaged save point; return False if there is no other."""
        if self._previous is None:
            return False
        text = "a checkpoint is damaged; returning to the save point before it"
        log.warning(text, why=str(why), run=self._run)
        self._blobs.delete(self._file(self._number))
        return True

    async def save(self, address: str, loop: ForEach, scope: Scope, point: SavePoint) -> None:
        """Write a save point, which is valid from the moment that its file exists."""
        checkpoints = await self._checkpoint(address, loop, scope, point.index)
        values = {
            qualified_name(kind): await encode(kind, scope[kind])
            for kind in carried(loop)
            if not is_checkpointable(kind) and kind in scope
        }
        complete = replace(point, checkpoints=checkpoints, values=values)
        await self._commit(self._state.with_point(address, complete), loop, scope)

    async def _checkpoint(
        self, address: str, loop: ForEach, scope: Scope, index: int
    ) -> Mapping[str, Checkpoint]:
        """Checkpoint what the loop carries, or reuse the checkpoints of the same iteration."""
        earlier = self._state.points.get(address)
        if earlier and earlier.index == index:
            return dict(earlier.checkpoints)
        prefix = f"{self._prefix}{self._number + 1:06d}-{self._attempt}"
        futures = {
            qualified_name(kind): scope[kind].save(f"{prefix}/{kind.__name__}")
            for kind in sorted(carried(loop), key=qualified_name)
            if is_checkpointable(kind)
        }
        return {name: await future for name, future in futures.items()}

    async def restore(self, address: str, loop: ForEach, scope: Scope) -> SavePoint | None:
        """Restore what a loop carried and return its save point; None if it has none."""
        point = self._state.points.get(address)
        if point is None:
            return None
        for kind in carried(loop):
            name = qualified_name(kind)
            if checkpoint := point.checkpoints.get(name):
                await scope[kind].load(checkpoint)
            elif name in point.values:
                scope.replace(kind, decode(kind, point.values[name]))
        if address == self.target:
            self.target = ""
        return point

    async def _commit(self, state: RunState, loop: ForEach, scope: Scope) -> None:
        oldest = self._previous
        number = max([self._number, *self._numbers()]) + 1
        self._blobs.write(self._file(number), seal(_STATE_JSON.dump_json(state).decode()))
        self._advance(number, state)
        for other in set(self._numbers()) - {self._number, self._previous_number}:
            self._blobs.delete(self._file(other))
        if oldest is not None and oldest is not self._previous:
            await self._delete_checkpoints(oldest, loop, scope)

    def _advance(self, number: int, state: RunState) -> None:
        """Make a newer state the current one, and the current one the fallback if it can be."""
        if self._state.points and self._state.paths() != state.paths():
            self._previous = self._state
            self._previous_number = self._number
        self._state = state
        self._number = number

    def _read(self, number: int) -> RunState | None:
        name = self._file(number)
        try:
            return _STATE_JSON.validate_json(unseal(self._blobs.read(name) or b""))
        except ValueError as error:  # pydantic's ValidationError is one too
            text = "skipping a corrupt save point"
            log.warning(text, file=self._blobs.locate(name), why=str(error))
            return None

    def _numbers(self) -> list[int]:
        """Return the numbers of the save point files, oldest first."""
        names = [name.removeprefix(self._prefix) for name in self._blobs.list(self._prefix)]
        stems = [name.removesuffix(".json") for name in names if name.endswith(".json")]
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def _file(self, number: int) -> str:
        return f"{self._prefix}{number:06d}.json"

    def _retained(self) -> set[str]:
        """Return the paths of the checkpoints that a resumed run may need."""
        return self._state.paths() | (self._previous.paths() if self._previous else set())

    async def _delete_checkpoints(self, oldest: RunState, loop: ForEach, scope: Scope) -> None:
        """Delete this run's checkpoints that no state needs, after the commit, which may fail."""
        old = {path for path in oldest.paths() - self._retained() if path.startswith(self._prefix)}
        kinds = {qualified_name(kind): kind for kind in carried(loop) if is_checkpointable(kind)}
        for point in oldest.points.values():
            for name, checkpoint in point.checkpoints.items():
                if checkpoint.path in old and name in kinds:
                    await scope[kinds[name]].delete(checkpoint)

    def _delete_leftovers(self) -> None:
        """Delete what killed attempts left half-written."""
        folders = tuple(f"{path}/" for path in self._retained())
        for name in self._blobs.list(self._prefix):
            in_subfolder = name.count("/") > self._prefix.count("/")
            if in_subfolder and not name.startswith(folders):
                self._blobs.delete(name)
