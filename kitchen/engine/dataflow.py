"""Who left what, who used it, and whose work would be lost: the plan's book-keeping."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kitchen.engine.type_names import name
from kitchen.ports.checkpointable import is_checkpointable
from kitchen.stage import Stage
from kitchen.types import Result


@dataclass
class _Entry:
    """One value that some stage leaves."""

    kind: Any
    by: str
    used: bool = False
    settled: bool = False
    gone: bool = False  # its scope has ended


@dataclass
class Ledger:
    """A value must be read, a gradient stepped along, and a session looked at after it was trained."""

    _entries: list[_Entry] = field(default_factory=list)
    # live types trained and not looked at since -> by whom
    _trained: dict[Any, str] = field(default_factory=dict)
    _maybe: int = 0

    @contextmanager
    def maybe(self) -> Iterator[None]:
        """What is read in here may not be read at all."""
        self._maybe += 1
        yield
        self._maybe -= 1

    @contextmanager
    def scope(self, outputs: tuple[Any, ...] = ()) -> Iterator[None]:
        """A loop body or a phase: what it left is out of reach afterwards, but for `outputs`."""
        start = len(self._entries)
        yield
        for entry in self._entries[start:]:
            entry.gone |= entry.kind not in outputs

    def item(self, source: Stage) -> None:
        """A loop gives its body an item, which is there to be read."""
        self._entries.append(_Entry(source.contract().yields, str(source)))

    def enter(self, stage: Stage) -> None:
        contract = stage.contract()
        reads = {read.kind for read in contract.reads}
        for entry in reversed(self._entries):
            if entry.kind in reads and not entry.gone:
                entry.used = True
                entry.settled |= any(_settles(kind, entry.kind) for kind in contract.writes)
                reads.discard(entry.kind)
        self._entries += [
            _Entry(kind, str(stage)) for kind in contract.writes if not contract.rewrites(kind)
        ]
        self._follow(stage)

    def _follow(self, stage: Stage) -> None:
        contract = stage.contract()
        settles = [
            read.kind
            for read in contract.reads
            if any(_settles(kind, read.kind) for kind in contract.writes)
        ]
        for kind in {read.kind for read in contract.reads if is_checkpointable(read.kind)}:
            if settles:
                self._trained[kind] = str(stage)
            elif not self._maybe and not any(
                hasattr(left, "settled_by") for left in contract.writes
            ):
                self._trained.pop(kind, None)

    def problems(self, outputs: tuple[Any, ...]) -> list[str]:
        found = []
        for entry in self._entries:
            kind = entry.kind
            if hasattr(kind, "settled_by") and not entry.settled:
                found.append(
                    f"{entry.by} leaves {name(kind)} that no later stage steps along: a stage that "
                    "reads it "
                    f"and leaves {name(kind.settled_by)}, such as OptimStep, is missing"
                )
            elif (
                not entry.used
                and not (isinstance(kind, type) and issubclass(kind, Result))
                and kind not in outputs
            ):
                found.append(f"{entry.by} leaves {name(kind)}, which no later stage reads")
        found += [
            f"{by} trains {name(kind)}, and nothing reads it afterwards: the training would be lost"
            for kind, by in self._trained.items()
        ]
        return found


def _settles(left: Any, read: Any) -> bool:
    by = getattr(read, "settled_by", None)
    return by is not None and isinstance(left, type) and issubclass(left, by)
