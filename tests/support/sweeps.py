"""Sweeps whose points are functions of a test in place of processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from kitchen.experiments.executors import Job
from kitchen.experiments.ledger import Ledger, Point
from kitchen.runs.store import write_run


def record(
    of: Ledger,
    point: Point,
    status: str,
    reason: str = "",
    metrics: Mapping[str, float] | None = None,
) -> None:
    """Write the record of a point's run, as its process would."""
    content = {
        "run": point.run,
        "recipe": point.order.recipe,
        "order": vars(point.order),
        "attempts": [{"started": "2026-01-01", "seconds": 1.0}],
        "facts": {},
        "rendering": {},
        "status": status,
        "metrics": metrics or {"loss": 0.5},
        "reason": reason,
    }
    write_run(of.blobs, point.run, content)


@dataclass
class Ended:
    """A process that has ended, and the signals that it received before."""

    code: int | None
    stopped: int = 0

    def exit_code(self) -> int | None:
        return self.code

    def stop(self) -> None:
        self.stopped += 1
        self.code = 130


@dataclass
class Scripted:
    """An executor that runs a function of the test in place of each process."""

    assigns_devices: ClassVar[bool] = False
    confirms_death: ClassVar[bool] = True
    ledger: Ledger
    behave: Callable[[Point], int | None]
    started: list[int] = field(default_factory=list)
    jobs: list[Ended] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)

    def prepare(self) -> None: ...

    def threads(self, jobs: int) -> int:
        return 2

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> Job:
        assert environment["OMP_NUM_THREADS"] == "2"
        [point] = [point for point in self.ledger.points() if point.digest in command]
        self.started.append(point.number)
        self.devices.append(environment.get("CUDA_VISIBLE_DEVICES", "all"))
        self.jobs.append(Ended(self.behave(point)))
        return self.jobs[-1]
