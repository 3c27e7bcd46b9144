"""The side of a benchmark, and its connection to the process that takes the time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from tests.bench.memory import cuda, peak_mb, reset_peak

MODEL = "packaged:smollm2-135m-instruct"
Values = Mapping[str, Any]  # plain numbers and lists: they are sent through a pipe


class Finished(Exception):
    """Raised when no more steps are requested."""


class Turns:
    """The turns of one side: it takes a step only when the parent process requests one."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._loaded_mb = 0.0

    def loaded(self) -> None:
        """Record the memory in use once the weights are loaded; it is subtracted from the peak."""
        self._loaded_mb = reset_peak()

    def wait(self) -> None:
        """Wait for this side's turn; raises Finished after the last one."""
        self._pipe.send(("ready", {}))
        if self._pipe.recv() != "go":
            raise Finished

    def stop(self) -> None:
        """Stop the clock after the step, once the device is synchronised."""
        if (device := cuda()) is not None:
            device.synchronize()
        self._pipe.send(("done", {}))

    def report(self, **values: Any) -> None:
        """Send the values of the step, with its peak memory above the loaded weights."""
        memory = {"peak_mb": peak_mb() - self._loaded_mb, "loaded_mb": self._loaded_mb}
        self._pipe.send(("report", {**memory, **values}))


class Side(Protocol):
    """One side of a benchmark. It must be picklable, as it runs in a separate process."""

    @property
    def name(self) -> str: ...
    def run(self, turns: Turns) -> None:
        """Load and call `turns.loaded`; then for each step `wait`, the step, `stop`, `report`."""
        ...


@dataclass(frozen=True)
class Setup:
    """The settings of a benchmark that all sides share."""

    folder: Path  # the start weights and logs of this run
    seed: int = 0
    steps: int = 7
    dtype: str = "float32"  # of the base model
    model: str = MODEL  # a name that LocalHub resolves
    device: str = "cpu"  # or cuda
    quantization: str = "none"  # of the base model, on both sides: none or 4bit
    full: bool = False  # train all weights, on both sides, and not LoRA weights


def numbers(values: Values) -> dict[str, Any]:
    """Return the values of a step without texts and other lists."""
    return {key: value for key, value in values.items() if not isinstance(value, list)}


@dataclass(frozen=True)
class Step:
    """One step as the parent process measured it."""

    seconds: float
    values: Values = field(default_factory=dict)
