"""A side of a benchmark, and its end of the pipe: wait, take one step, report."""

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
    """Raised when there are no more turns."""


class Turns:
    """The turns of one process: it steps only when it is asked to."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._loaded_mb = 0.0

    def loaded(self) -> None:
        """Mark the weights as loaded: memory from here on belongs to the benchmark."""
        self._loaded_mb = settle()

    def wait(self) -> None:
        """Wait for this side's turn, with nothing running here; raises Over."""
        self._pipe.send(("ready", {}))
        if self._pipe.recv() != "go":
            raise Over

    def stop(self) -> None:
        """Stop the clock once the step is over, on the device too."""
        if (device := cuda()) is not None:
            device.synchronize()
        self._pipe.send(("done", {}))

    def tell(self, **values: Any) -> None:
        self._pipe.send(("report", {"peak_mb": peak_mb() - self._loaded_mb, **values}))


class Side(Protocol):
    """One side of a comparison, in its own process. It must be picklable."""

    @property
    def name(self) -> str: ...
    def run(self, turns: Turns) -> None:
        """Load and call `turns.loaded`; then per step `wait`, the step, `stop`, `tell`."""
        ...


@dataclass(frozen=True)
class Setup:
    """The parts of a benchmark that all sides share."""

    folder: Path  # of this run: the start weights, logs
    seed: int = 0
    steps: int = 7  # number of steps, for which there must be data
    dtype: str = "float32"  # of the base model
    model: str = MODEL  # as the local hub knows it
    device: str = "cpu"  # or cuda


@dataclass(frozen=True)
class Step:
    """One step as the parent process saw it."""

    seconds: float
    values: Values = field(default_factory=dict)
