"""Where a run stands: what is written down at save points, and how loops come back to them.

A resumed run walks its workflow from the top. Stages outside of loops run again. A loop with a save
point takes back what it carried (`carried`: rewritten values and live ones) and goes on from the
iteration after, or is skipped if it had ended. By induction every stage that runs again finds what
it found the first time.

Each save point is a file of its own, written once and whole; the last two are kept, so that a
checkpoint that turns out damaged costs the steps since the one before, not the run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from pydantic import TypeAdapter, ValidationError

from kitchen.engine.codec import read_back, write_down
from kitchen.engine.effects import carried
from kitchen.engine.memo import keep_answer, read_answer
from kitchen.engine.scope import Context
from kitchen.engine.type_names import key
from kitchen.errors import CorruptCheckpoint, ResumeError
from kitchen.ports.blobs import BlobStore
from kitchen.ports.checkpointable import is_checkpointable
from kitchen.stage import Stage
from kitchen.types import Checkpoint
from kitchen.workflow import ForEach

log = structlog.get_logger("kitchen.engine.resume")


class Damaged(CorruptCheckpoint):
    """A loop could not come back to its save point."""


@dataclass(frozen=True)
class SavePoint:
    """A loop after `index` iterations, with nothing in flight."""

    index: int
    ended: bool
    published: int  # values published so far
    steps: Mapping[str, int]  # Progress.step by loop
    live: Mapping[str, Checkpoint] = field(default_factory=dict)  # by type name
    values: Mapping[str, str] = field(default_factory=dict)  # by type name, JSON


@dataclass
class Record:
    """The save points that a run stands at, oldest first: one per loop that is under way or over."""

    points: dict[str, SavePoint] = field(default_factory=dict)  # by address, such as "1[2].0"

    def paths(self) -> set[str]:
        return {
            checkpoint.path for point in self.points.values() for checkpoint in point.live.values()
        }


RECORD = TypeAdapter(Record)


class Keeper:
    """Keeps the save points of one run in a BlobStore, under `RUN/save/`."""

    def __init__(self, blobs: BlobStore, run: str, plan: str) -> None:
        self._blobs, self._run, self._prefix = blobs, run, f"{run}/save/"
        self._plan, self._record = _digest(plan), Record()
        # the newest with other checkpoints: the way back if these are damaged
        self._before: Record | None = None
        self._number = self._before_number = 0  # their files
        self._attempt = 0  # in the names of checkpoints, so that none is written twice
        self.target = ""  # the address where a resumed run stops replaying; empty once there

    def open(self) -> None:
        """Find the newest save point that is whole, and count this attempt; raises ResumeError for
        another plan.
        """
        attempts, plan = self._blobs.read(f"{self._prefix}attempt"), self._plan.encode()
        if attempts is None:
            self._blobs.write(f"{self._prefix}plan", plan)
        elif self._blobs.read(f"{self._prefix}plan") != plan:
            raise ResumeError(
                f"run {self._run!r} began with another recipe, another version of it, or other "
                "settings; "
                "start a new run"
            )
        self._attempt = int(attempts or b"0") + 1
        self._blobs.write(f"{self._prefix}attempt", str(self._attempt).encode())
        found = [(number, record) for number in self._numbers() if (record := self._read(number))]
        if found:
            self._number, self._record = found[-1]
        others = [each for each in found if each[1].paths() != self._record.paths()]
        self._before_number, self._before = others[-1] if others else (0, None)
        self.target = next(reversed(self._record.points), "")
        self._sweep()

    def fall_back(self, why: CorruptCheckpoint) -> bool:
        """Forget the newest save point, whose checkpoint is damaged; False if there was none before
        it.
        """
        if self._before is None:
            return False
        log.warning(
            "a checkpoint is damaged; going back to the save point before it",
            why=str(why),
            run=self._run,
        )
        self._blobs.delete(self._file(self._number))
        return True

    async def save(self, address: str, loop: ForEach, context: Context, point: SavePoint) -> None:
        """Write the point; it counts from the moment that its file is there."""
        kinds = carried(loop)
        before = self._record.points.get(address)
        if before and before.index == point.index:
            live = dict(before.live)
        else:
            prefix = f"{self._prefix}{self._attempt:03d}-{self._number + 1:06d}"
            asked = {
                key(k): context[k].save(f"{prefix}/{k.__name__}")
                for k in sorted(kinds, key=key)
                if is_checkpointable(k)
            }
            live = {k: await future for k, future in asked.items()}
        values = {
            key(k): await write_down(k, context[k])
            for k in kinds
            if not is_checkpointable(k) and k in context
        }
        was = self._record
        points = {
            k: p for k, p in was.points.items() if k != address and not k.startswith(f"{address}[")
        }
        points[address] = SavePoint(
            point.index, point.ended, point.published, point.steps, live, values
        )
        await self._commit(Record(points), loop, context)

    async def restore(self, address: str, loop: ForEach, context: Context) -> SavePoint | None:
        point = self._record.points.get(address)
        if point is None:
            return None
        for kind in carried(loop):
            if checkpoint := point.live.get(key(kind)):
                await context[kind].load(checkpoint)
            elif key(kind) in point.values:
                context.replace(kind, read_back(kind, point.values[key(kind)]))
        if address == self.target:
            self.target = ""
        return point

    def kept(self, stage: Stage, at: str) -> Any:
        """The answer of a stage as an earlier process wrote it down, or None."""
        return read_answer(self._blobs, self._run, stage, at)

    async def keep_answer(self, stage: Stage, at: str, result: Any) -> None:
        await keep_answer(self._blobs, self._run, stage, at, result)

    async def _commit(self, record: Record, loop: ForEach, context: Context) -> None:
        oldest, was, was_number = self._before, self._record, self._number
        number = max([self._number, *self._numbers()]) + 1
        body = RECORD.dump_json(record).decode()
        whole = json.dumps({"sha256": _digest(body), "record": body})
        self._blobs.write(self._file(number), whole.encode())
        if was.points and was.paths() != record.paths():
            self._before, self._before_number = was, was_number
        self._record, self._number = record, number
        for other in set(self._numbers()) - {self._number, self._before_number}:
            self._blobs.delete(self._file(other))
        if oldest is not self._before:
            await self._forget(oldest, loop, context)

    def _read(self, number: int) -> Record | None:
        name = self._file(number)
        try:
            whole = json.loads(self._blobs.read(name) or b"")
            if _digest(whole["record"]) != whole["sha256"]:
                raise ValueError("its digest is another")
            return RECORD.validate_json(whole["record"])
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            where = self._blobs.locate(name)
            log.warning(
                "a save point is damaged; the one before is used", file=where, why=str(error)
            )
            return None

    def _numbers(self) -> list[int]:
        names = [name.removeprefix(self._prefix) for name in self._blobs.list(self._prefix)]
        return sorted(
            int(n.removesuffix(".json")) for n in names if n.endswith(".json") and n[:-5].isdigit()
        )

    def _file(self, number: int) -> str:
        return f"{self._prefix}{number:06d}.json"

    async def _forget(self, oldest: Record | None, loop: ForEach, context: Context) -> None:
        """Only after the commit: until then the old points are the way back."""
        kept = self._record.paths() | (self._before.paths() if self._before else set())
        kinds = {key(kind): kind for kind in carried(loop) if is_checkpointable(kind)}
        for name, checkpoint in [
            item for p in (oldest.points.values() if oldest else ()) for item in p.live.items()
        ]:
            if checkpoint.path not in kept and name in kinds:
                await context[kinds[name]].delete(checkpoint)

    def _sweep(self) -> None:
        """Delete what killed attempts left half-written."""
        kept = self._record.paths() | (self._before.paths() if self._before else set())
        for name in self._blobs.list(self._prefix):
            if name.count("/") > self._prefix.count("/") and not any(
                name.startswith(f"{path}/") for path in kept
            ):
                self._blobs.delete(name)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
