"""Workflows that run: state in loops, look-ahead, phases, parallel branches, closing, errors."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from kitchen import (
    Metrics,
    Observer,
    Progress,
    Recipe,
    Stage,
    StageDone,
    every,
    for_each,
    parallel,
    sequence,
)
from kitchen.engine.runner import run
from kitchen.errors import RunFailed
from kitchen.ports import Done, Failed, Future, start
from kitchen.types import Result


@dataclass(frozen=True)
class Item:
    n: int


@dataclass(frozen=True)
class Reply(Result):
    n: int


@dataclass(frozen=True)
class Total(Result):
    value: float


class Items(Stage):
    count: int = 4

    def run(self) -> Iterable[Item]:
        return [Item(n) for n in range(self.count)]


@dataclass(frozen=True)
class Round(Result):
    """An item that no stage needs to read."""


class Rounds(Stage):
    def run(self) -> Iterable[Round]:
        return [Round(), Round()]


class Unsized(Stage):
    def run(self) -> Iterable[Item]:
        return iter([Item(0), Item(1)])


class Start(Stage):
    def run(self) -> Total:
        return Total(0.0)


class Add(Stage):
    def run(self, total: Total, item: Item) -> Total:
        return Total(0.5 * total.value + item.n)


class Ask(Stage):
    def run(self, item: Item) -> Future[Reply]:
        return Done(Reply(item.n))


class ReadOptional(Stage):
    def run(self, reply: Reply | None = None) -> Metrics:
        return Metrics(n=-1 if reply is None else reply.n)


class Read(Stage):
    def run(self, reply: Reply) -> Metrics:
        return Metrics(n=reply.n)


class Refuse(Stage):
    at: int

    def run(self, item: Item) -> Future[Reply]:
        return Failed(ValueError("no")) if item.n == self.at else Done(Reply(item.n))


class Fail(Stage):
    def run(self, item: Item) -> Metrics:
        raise ValueError("no")


class Seen(Observer):
    def __init__(self) -> None:
        self.metrics: list[dict[str, float]] = []
        self.progress: list[Progress] = []
        self.stages: list[Stage] = []

    def stage_done(self, event: StageDone) -> None:
        self.stages.append(event.stage)
        for value in event.published:
            assert isinstance(value, Metrics)
            self.metrics.append(dict(value))
            self.progress.append(event.progress)


def test_state_read_and_rewritten_survives_the_loop() -> None:
    assert run(sequence(Start(), for_each(Items())(Add())), {})[Total] == Total(4.25)


def test_stage_runs_without_a_kitchen() -> None:
    assert Add().run(Total(2.0), Item(10)) == Total(11.0)


def test_outputs_of_a_when_are_optional() -> None:
    seen = Seen()
    run(for_each(Items())(every(2)(Ask()), ReadOptional()), {}, (seen,))
    assert [m["n"] for m in seen.metrics] == [-1, 1, -1, 3]


def test_every_zero_never_runs() -> None:
    seen = Seen()
    run(for_each(Items())(every(0)(Ask()), ReadOptional()), {}, (seen,))
    assert [m["n"] for m in seen.metrics] == [-1] * 4


def test_progress_of_sized_and_unsized_loops() -> None:
    seen = Seen()
    run(for_each(Rounds())(for_each(Items(2))(Ask(), Read())), {}, (seen,))
    shown = [(p.step, p.done, p.width) for p in seen.progress]
    assert shown == [(0, 0, 0.25), (1, 0.25, 0.25), (2, 0.5, 0.25), (3, 0.75, 0.25)]
    seen = Seen()
    run(for_each(Unsized())(Ask(), Read()), {}, (seen,))
    assert [p.done for p in seen.progress] == [None, None]


@pytest.mark.parametrize("body", [(Fail(),), (Refuse(0),), (Refuse(0), Read())])
@pytest.mark.parametrize("ahead", [0, 2])
def test_error_names_its_location(body: tuple[Stage, ...], ahead: int) -> None:
    with pytest.raises(ValueError, match="no") as error:
        run(for_each(Items(), ahead=ahead)(*body), {}, title="recipes.mine")
    assert any("in recipes.mine > Items step 0 > " in note for note in error.value.__notes__), (
        error.value.__notes__
    )


class Half(Stage):
    def run(self) -> tuple[Total, Reply]:
        return Total(1.0)  # type: ignore[return-value]


def test_result_that_breaks_the_contract_is_refused() -> None:
    with pytest.raises(RunFailed, match=r"Half.run .* promises .* a value of type Total"):
        run(sequence(Half()), {})


@dataclass
class LateFuture:
    """A future that logs when it is first waited for."""

    log: list[str]
    name: str
    value: Any
    waited: bool = False

    def result(self, timeout: float | None = None) -> Any:
        return self.value

    def __await__(self) -> Generator[Any, Any, Any]:
        if not self.waited:
            self.log.append(f"wait{self.name}")
        self.waited = True
        return self.value
        yield


@dataclass(frozen=True)
class Log:
    lines: list[str] = field(default_factory=list)


class AskLater(Stage):
    def run(self, item: Item, log: Log) -> Future[Reply]:
        log.lines.append(f"ask{item.n}")
        return LateFuture(log.lines, str(item.n), Reply(item.n))


class Report(Stage):
    def run(self, reply: Reply, log: Log) -> Metrics:
        log.lines.append(f"report{reply.n}")
        return Metrics(n=reply.n)


@pytest.mark.parametrize(
    ("ahead", "order"),
    [
        (0, "ask0 wait0 report0 ask1 wait1 report1 ask2 wait2 report2"),
        (1, "ask0 ask1 wait0 report0 ask2 wait1 report1 wait2 report2"),
        (2, "ask0 ask1 ask2 wait0 report0 wait1 report1 wait2 report2"),
    ],
)
def test_look_ahead_submits_before_it_waits(ahead: int, order: str) -> None:
    log = Log()
    run(for_each(Items(3), ahead=ahead)(AskLater(), Report()), {Log: log})
    assert " ".join(log.lines) == order


@dataclass(frozen=True)
class Door:
    name: str
    log: list[str]

    def close(self) -> None:
        self.log.append(f"close {self.name}")


@dataclass(frozen=True)
class InnerDoor(Door): ...


class Open(Stage):
    def run(self, log: Log) -> Door:
        return Door("outer", log.lines)


class OpenInner(Stage):
    def run(self, log: Log, item: Item) -> Future[InnerDoor]:
        return Done(InnerDoor(f"inner {item.n}", log.lines))


class Through(Stage):
    fail: bool = False

    def run(self, door: Door, inner: InnerDoor) -> Metrics:
        if self.fail:
            raise ValueError("stuck")
        return Metrics(n=1)


def test_values_are_closed_when_their_scope_ends() -> None:
    log = Log()
    run(sequence(Open(), for_each(Items(2))(OpenInner(), Through())), {Log: log})
    assert log.lines == ["close inner 0", "close inner 1", "close outer"]


def test_values_are_closed_on_failure() -> None:
    log = Log()
    with pytest.raises(ValueError, match="stuck"):
        run(sequence(Open(), for_each(Items(2))(OpenInner(), Through(fail=True))), {Log: log})
    assert log.lines[-1] == "close outer"


def test_parallel_branches_run_concurrently() -> None:
    events: list[str] = []
    other_ran = asyncio.Event()

    class Slow(Stage):
        def run(self) -> Future[Reply]:
            return start(self.wait())

        async def wait(self) -> Reply:
            await other_ran.wait()
            events.append("slow ends")
            return Reply(1)

    class Other(Stage):
        async def run(self) -> Total:
            events.append("other")
            other_ran.set()
            return Total(2.0)

    values = run(parallel(Slow(), Other()), {})
    assert (values[Reply], values[Total]) == (Reply(1), Total(2.0))
    assert events == ["other", "slow ends"]


def test_error_in_a_branch_is_raised_unwrapped() -> None:
    class Fails(Stage):
        def run(self) -> Total:
            raise KeyError("branch")

    with pytest.raises(KeyError, match="branch"):
        run(parallel(Fails(), for_each(Items())(Ask())), {})


class Inner(Recipe):
    outputs = (Total,)

    def workflow(self) -> Any:
        return sequence(Start(), for_each(Items())(Add()))


class Takes(Stage):
    def run(self, total: Total) -> Metrics:
        return Metrics(total=total.value)


def test_recipe_can_be_a_step_of_another() -> None:
    seen = Seen()
    run(sequence(Inner(), Takes()), {}, (seen,))
    assert seen.metrics == [{"total": 4.25}]
