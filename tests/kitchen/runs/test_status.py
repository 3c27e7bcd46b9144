"""Status of a run under way, and the events of its listeners."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kitchen import Event, Metrics, Stage, for_each
from kitchen.engine.runner import run
from kitchen.runs.status import RunStatus
from kitchen.types import Result


@dataclass(frozen=True)
class Epoch(Result):
    number: int


@dataclass(frozen=True)
class Batch(Result):
    number: int


class Epochs(Stage):
    def run(self) -> Iterable[Epoch]:
        return [Epoch(0), Epoch(1)]


class Batches(Stage):
    def run(self, epoch: Epoch) -> Iterable[Batch]:
        return [Batch(0), Batch(1), Batch(2)]


class Report(Stage):
    def run(self, epoch: Epoch, batch: Batch) -> Metrics:
        return Metrics(loss=1.0 - epoch.number / 2 - batch.number / 8)


WORKFLOW = for_each(Epochs())(for_each(Batches())(Report()))


def test_events_carry_epoch_step_and_loss() -> None:
    events: list[Event] = []
    status = RunStatus("mine-1", "recipes.mine", events.append, {})
    run(WORKFLOW, {}, (status,))
    status.run_ended(None)
    assert [event.kind for event in events] == ["start", *["progress"] * 6, "complete"]
    assert [(event.epoch, event.step, event.loss) for event in events[1:-1]] == [
        (1, 1, 1.0),
        (1, 2, 0.875),
        (1, 3, 0.75),
        (2, 4, 0.5),
        (2, 5, 0.375),
        (2, 6, 0.25),
    ]
    assert events[-1].metrics == {"loss": 0.25}


def test_status_counts_steps_of_all_epochs() -> None:
    status = RunStatus("mine-1", "recipes.mine", None, {"loss": 2.0})
    assert (status.status.loss, status.status.steps, status.started) == (2.0, None, False)
    run(WORKFLOW, {}, (status,))
    now = status.status
    assert (now.epoch, now.step, now.steps, now.stage) == (2, 6, 6, "Report")
    status.finish("completed")
    assert (status.status.state, status.status.done) == ("completed", 1.0)


def test_late_listeners_receive_start_and_completion() -> None:
    status = RunStatus("mine-1", "recipes.mine", None, {})
    run(WORKFLOW, {}, (status,))
    status.run_ended(None)
    events: list[Event] = []
    status.listen(events.append)
    assert [event.kind for event in events] == ["start", "complete"]
