"""An observer that kills runs, to test that they resume."""

from __future__ import annotations

from kitchen import Observer, StageDone


class Killed(BaseException):
    """Stands for a power cut: a BaseException, so that no handler catches it."""


class KillAt(Observer):
    """Kills the run at the n-th stage call, and records the stages called."""

    def __init__(self, at: int = -1) -> None:
        self.calls = 0
        self.at = at
        self.stages: list[str] = []

    def stage_done(self, event: StageDone) -> None:
        self.calls += 1
        self.stages.append(event.stage.title())
        if self.calls == self.at:
            raise Killed
