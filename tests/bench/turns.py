"""What a side of a benchmark is, and its end of the pipe: wait for the word, take one step, tell
what came of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from tests.bench.memory import cuda, peak_mb, settle

MODEL = "packaged:smollm2-135m-instruct"
Values = Mapping[str, Any]  # plain numbers and lists: they travel through a pipe


class Over(Exception):
    """There are no more turns."""


class Turns:
    """Lets one process take its steps when it is told to, and no others."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._loaded_mb = 0.0

    def loaded(self) -> None:
        """The weights are in memory: what is taken from now on is the work's."""
        self._loaded_mb = settle()

    def wait(self) -> None:
        """Between steps all is quiet here; comes back when this side has the turn, or raises Over."""
        self._pipe.send(("ready", {}))
        if self._pipe.recv() != "go":
            raise Over

    def stop(self) -> None:
        """The step is over, on the device too; what comes after is on nobody's clock."""
        if (device := cuda()) is not None:
            device.synchronize()
        self._pipe.send(("done", {}))

    def tell(self, **values: Any) -> None:
        self._pipe.send(("told", {"peak_mb": peak_mb() - self._loaded_mb, **values}))


class Side(Protocol):
    """One of those compared: it has a process to itself, and takes its steps in `run`. Must go
    through a pickle.
    """

    @property
    def name(self) -> str: ...
    def run(self, turns: Turns) -> None:
        """Load, call `turns.loaded`; then for each step `turns.wait`, the step, `turns.stop`,
        `turns.tell`.
        """
        ...


@dataclass(frozen=True)
class Setup:
    """What both sides of a work have in common."""

    folder: Path  # of this run: the start weights, logs
    seed: int = 0
    steps: int = 7  # that there must be data for
    dtype: str = "float32"  # of the base model
    model: str = MODEL  # as the local hub knows it
    device: str = "cpu"  # or cuda


@dataclass(frozen=True)
class Step:
    """One step as the parent saw it."""

    seconds: float
    values: Values = field(default_factory=dict)
