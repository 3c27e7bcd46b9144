"""The five words at work: state in loops, look-ahead, phases, parallel branches, closing, and where
errors are.
"""

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
from kitchen.ports import Done, Failed, Future, start
from kitchen.types import Result


@dataclass(frozen=True)
class Item:
    n: int


@dataclass(frozen=True)
class Asked(Result):
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
    """Nobody need read it."""


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
    def run(self, item: Item) -> Future[Asked]:
        return Done(Asked(item.n))


class ReadIfThere(Stage):
    def run(self, asked: Asked | None = None) -> Metrics:
        return Metrics(n=-1 if asked is None else asked.n)


class Read(Stage):
    def run(self, asked: Asked) -> Metrics:
        return Metrics(n=asked.n)


class Refuse(Stage):
    at: int

    def run(self, item: Item) -> Future[Asked]:
        return Failed(ValueError("no")) if item.n == self.at else Done(Asked(item.n))


class Burst(Stage):
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


def test_state_that_is_read_and_rewritten_survives_the_loop() -> None:
    assert run(sequence(Start(), for_each(Items())(Add())), {})[Total] == Total(4.25)


def test_a_stage_needs_no_kitchen() -> None:
    assert Add().run(Total(2.0), Item(10)) == Total(11.0)


def test_what_a_when_left_can_be_read_if_it_is_there() -> None:
    seen = Seen()
    run(for_each(Items())(every(2)(Ask()), ReadIfThere()), {}, (seen,))
    assert [m["n"] for m in seen.metrics] == [-1, 1, -1, 3]


def test_every_zero_means_never() -> None:
    seen = Seen()
    run(for_each(Items())(every(0)(Ask()), ReadIfThere()), {}, (seen,))
    assert [m["n"] for m in seen.metrics] == [-1] * 4


def test_progress_knows_the_share_done_unless_a_length_is_unknown() -> None:
    seen = Seen()
    run(for_each(Rounds())(for_each(Items(2))(Ask(), Read())), {}, (seen,))
    shown = [(p.step, p.done, p.width) for p in seen.progress]
    assert shown == [(0, 0, 0.25), (1, 0.25, 0.25), (2, 0.5, 0.25), (3, 0.75, 0.25)]
    seen = Seen()
    run(for_each(Unsized())(Ask(), Read()), {}, (seen,))
    assert [p.done for p in seen.progress] == [None, None]


@pytest.mark.parametrize("body", [(Burst(),), (Refuse(0),), (Refuse(0), Read())])
@pytest.mark.parametrize("ahead", [0, 2])
def test_an_error_says_where(body: tuple[Stage, ...], ahead: int) -> None:
    with pytest.raises(ValueError, match="no") as error:
        run(for_each(Items(), ahead=ahead)(*body), {}, title="recipes.mine")
    assert any("in recipes.mine > Items step 0 > " in note for note in error.value.__notes__), (
        error.value.__notes__
    )


class Half(Stage):
    def run(self) -> tuple[Total, Asked]:
        return Total(1.0)  # type: ignore[return-value]


def test_a_stage_that_does_not_keep_its_promise_is_named() -> None:
    with pytest.raises(TypeError, match=r"Half.run promises Total, Asked and returned Total"):
        run(sequence(Half()), {})


class Untyped(Stage):
    def run(self, total):  # type: ignore[no-untyped-def]
        return total


def test_a_signature_without_types_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Untyped.run: 'total' has no type"):
        run(sequence(Start(), Untyped()), {})


@dataclass
class Late:
    """A future that notes when it is first waited for."""

    log: list[str]
    what: str
    value: Any
    waited: bool = False

    def result(self, timeout: float | None = None) -> Any:
        return self.value

    def __await__(self) -> Generator[Any, Any, Any]:
        if not self.waited:
            self.log.append(f"wait{self.what}")
        self.waited = True
        return self.value
        yield


@dataclass(frozen=True)
class Log:
    lines: list[str] = field(default_factory=list)


class AskLate(Stage):
    def run(self, item: Item, log: Log) -> Future[Asked]:
        log.lines.append(f"ask{item.n}")
        return Late(log.lines, str(item.n), Asked(item.n))


class Report(Stage):
    def run(self, asked: Asked, log: Log) -> Metrics:
        log.lines.append(f"report{asked.n}")
        return Metrics(n=asked.n)


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
    run(for_each(Items(3), ahead=ahead)(AskLate(), Report()), {Log: log})
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


def test_what_has_a_close_is_closed_when_its_scope_ends() -> None:
    log = Log()
    run(sequence(Open(), for_each(Items(2))(OpenInner(), Through())), {Log: log})
    assert log.lines == ["close inner 0", "close inner 1", "close outer"]


def test_it_is_closed_on_failure_too() -> None:
    log = Log()
    with pytest.raises(ValueError, match="stuck"):
        run(sequence(Open(), for_each(Items(2))(OpenInner(), Through(fail=True))), {Log: log})
    assert log.lines[-1] == "close outer"


def test_parallel_branches_run_at_once_on_the_same_inputs_and_both_leave() -> None:
    events: list[str] = []

    class Slow(Stage):
        def run(self) -> Future[Asked]:
            return start(self.wait())

        async def wait(self) -> Asked:
            events.append("slow begins")
            await asyncio.sleep(0.01)
            events.append("slow ends")
            return Asked(1)

    class Waits(Stage):
        async def run(self) -> Total:
            await asyncio.sleep(0)
            events.append("other")
            return Total(2.0)

    counter = run(parallel(Slow(), Waits()), {})
    assert (counter[Asked], counter[Total]) == (Asked(1), Total(2.0))
    assert events.index("other") < events.index("slow ends")


def test_an_error_in_a_branch_is_the_error_itself() -> None:
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


def test_a_recipe_can_be_a_step_of_another_one() -> None:
    seen = Seen()
    run(sequence(Inner(), Takes()), {}, (seen,))
    assert seen.metrics == [{"total": 4.25}]
