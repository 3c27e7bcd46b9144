"""Plans: every mistake is reported by stage and type, and sound workflows pass."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.training import FakeTraining
from kitchen import (
    Adam,
    Batch,
    Facts,
    LossOutput,
    Metrics,
    Need,
    OptimStepResult,
    PlanError,
    Result,
    RunId,
    Stage,
    check,
    every,
    for_each,
    parallel,
    sequence,
    when,
)
from kitchen.engine.runner import run
from kitchen.ports import (
    BlobStore,
    DatasetStore,
    Done,
    Future,
    Sampler,
    TrainingClient,
    TrainingSession,
)
from stages.train.optim import ForwardBackward, OptimStep
from stages.train.schedules import Linear
from stages.train.session import OpenSession, SaveFinal


@dataclass(frozen=True)
class Item:
    n: int


@dataclass(frozen=True)
class Reply(Result):
    n: int


@dataclass(frozen=True)
class Score(Result):
    value: float


@dataclass(frozen=True)
class Wrapped(Result):
    session: TrainingSession


@dataclass(frozen=True)
class Unread:
    n: int = 0


class Critic(TrainingSession, Protocol):
    """A second set of weights."""


class Items(Stage):
    count: int = 4

    def run(self) -> Iterable[Item]:
        return [Item(n) for n in range(self.count)]


class Start(Stage):
    def run(self) -> Score:
        return Score(float("-inf"))


class Ask(Stage):
    def run(self, item: Item) -> Future[Reply]:
        return Done(Reply(item.n))


class AskByScore(Stage):
    def run(self, item: Item, score: Score) -> Future[Reply]:
        return Done(Reply(int(score.value)))


class KeepBest(Stage):
    def run(self, reply: Reply, score: Score) -> Score:
        return Score(max(score.value, reply.n))


class Wrap(Stage):
    def run(self, session: TrainingSession) -> Wrapped:
        return Wrapped(session)


class Refresh(Stage):
    def run(self, session: TrainingSession, sampler: Sampler) -> Future[Sampler]:
        return session.snapshot()


class First(Stage):
    def run(self, session: TrainingSession) -> Future[Sampler]:
        return session.snapshot()


class Read(Stage):
    def run(self, reply: Reply) -> Metrics:
        return Metrics(n=reply.n)


class IsTwo(Stage):
    def run(self, item: Item) -> bool:
        return item.n == 2


class IsOdd(Stage):
    def run(self, item: Item) -> bool:
        return item.n % 2 == 1


class Numbers(Stage):
    def run(self) -> Iterable[int]:
        return range(2)


class ReadBoth(Stage):
    def run(self, reply: Reply, number: int) -> Metrics:
        return Metrics(n=reply.n + number)


class Look(Stage):
    def run(self, item: Item) -> Metrics:
        return Metrics(n=item.n)


class WriteUnread(Stage):
    def run(self) -> Unread:
        return Unread()


class AddGradient(Stage):
    loss: str = "cross_entropy"

    def run(self, session: TrainingSession, item: Item) -> Future[LossOutput]:
        return session.forward_backward([], self.loss)


class Step(Stage):
    def run(self, session: TrainingSession, output: Future[LossOutput]) -> Future[OptimStepResult]:
        return session.optim_step(Adam())


class Encode(Stage):
    """Reads the outputs of OpenSession, which would be unread otherwise."""

    def run(self, session: TrainingSession, tokenizer: Any = None) -> Metrics:
        return Metrics()


class Demanding(Stage):
    def run(self, score: Score) -> Metrics:
        return Metrics()

    def needs(self) -> Iterable[Need]:
        return [Need(TrainingClient, "telepathy", required=False), Need(DatasetStore, "flight")]


class MemoizesSession(Stage):
    memoize = True

    def run(self, session: TrainingSession) -> tuple[Wrapped, Metrics]:
        return Wrapped(session), Metrics()


class MemoizesFacts(Stage):
    memoize = True

    def run(self) -> tuple[Metrics, Facts]:
        return Metrics(), Facts({"a": "b"})


class MemoizesNothing(Stage):
    memoize = True

    def run(self) -> None:
        """Returns no value to memoize."""


class MemoizesOption(Stage):
    memoize = True
    of: Any

    def run(self) -> Metrics:
        return Metrics()


PORTS = {TrainingClient: FakeTraining(), BlobStore: FakeBlobs(), RunId: RunId("x")}


def problems(*steps: Any, outputs: tuple[Any, ...] = ()) -> list[str]:
    return check(sequence(*steps), PORTS, outputs).problems


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ((Read(),), "Read.. reads Reply, which no stage before it writes"),
        (
            (Start(), for_each(Items(), ahead=1)(AskByScore(), KeepBest())),
            "with ahead=1: Score is changed by one iteration while another reads it",
        ),
        (
            (OpenSession("m"), for_each(Items(), ahead=1)(Ask(), SaveFinal(), Read(), Encode())),
            "TrainingSession is changed by one iteration",
        ),
        (
            (OpenSession("m"), First(), for_each(Items(), save=1)(Refresh())),
            "carries Sampler .* cannot serialize Sampler",
        ),
        (
            (for_each(Items(), ahead=1)(for_each(Items(), save=1)(Look())),),
            "looks ahead over a loop with save points",
        ),
        (
            (parallel(for_each(Items(), save=1)(Look()), Start()),),
            "parallel branches cannot have save points",
        ),
        (
            (OpenSession("m"), parallel(SaveFinal(), First())),
            "changes TrainingSession, which another branch reads",
        ),
        ((parallel(Start(), Start()),), "two parallel branches write Score"),
        ((OpenSession("m"), Wrap()), "Wrapped holds a session"),
        (
            (OpenSession("m"), MemoizesSession()),
            "is memoized, but pydantic cannot serialize Wrapped",
        ),
        ((MemoizesFacts(),), "is memoized, but publishes Facts"),
        ((MemoizesNothing(),), "is memoized, but returns no value"),
        ((MemoizesOption(object()),), "option whose repr is a memory address"),
        ((for_each(Items())(every(2)(Ask()), Read()),), "written only under a condition"),
        ((for_each(Items())(every(2)(Ask()), every(3)(Read())),), "only under a condition"),
        (
            (for_each(Items())(when(IsTwo())(Ask()), when(IsOdd())(Read())),),
            "Read.. reads Reply, which is written only under a condition",
        ),
        (
            (for_each(Items())(when(IsTwo())(Ask()), when(IsTwo())(Read())),),
            "Read.. reads Reply, which is written only under a condition",
        ),
        (
            (for_each(Items())(every(2)(Ask()), for_each(Numbers())(every(2)(ReadBoth()))),),
            "ReadBoth.. reads Reply, which is written only under a condition",
        ),
        ((for_each(Items())(when(Ask())(Look())),), "does not return bool"),
        ((for_each(Ask())(Look()),), "does not return Iterable"),
        (
            (ForwardBackward("stable_reinforce").using({TrainingSession: Critic}),),
            "needs 'loss stable_reinforce', which FakeTraining lacks",
        ),
        (
            (for_each(Items(), save=1)(OptimStep(lambda done, width: 1.0)),),
            "option whose repr is a memory address",
        ),
        ((sequence(Start(), outputs=(Item,)),), "a phase must output Item"),
        (
            (Start(), sequence(Start(), outputs=(Score,))),
            "outputs Score, which is already in scope",
        ),
        ((OpenSession("m"), OpenSession("m")), "overwrites TrainingSession"),
        ((WriteUnread(),), "WriteUnread.. writes Unread, which no later stage reads"),
        ((for_each(Items())(Start()),), r"Items.. writes Item, which no later stage reads"),
        (
            (OpenSession("m"), for_each(Items())(AddGradient()), SaveFinal()),
            "writes LossOutput, and no later stage applies it",
        ),
        (
            (OpenSession("m"), for_each(Items())(AddGradient(), Step())),
            "trains TrainingSession, and no later stage reads it",
        ),
        (
            (OpenSession("m"), for_each(Items())(AddGradient(), Step(), every(2)(Encode()))),
            "no later stage reads it: the training would be lost",
        ),
    ],
)
def test_plan_refuses(steps: tuple[Any, ...], problem: str) -> None:
    texts = problems(*steps)
    assert any(re.search(problem, text) for text in texts), texts


def test_sound_workflows_pass() -> None:
    encode = Encode()
    assert problems(
        OpenSession("m"), for_each(Items(), save=2, ahead=1)(AddGradient(), Step()), encode
    ) == ["OpenSession(model='m') writes Tokenizer, which no later stage reads"]
    assert not problems(
        Start(), for_each(Items(), ahead=1, stale=(Score,), save=2)(AskByScore(), KeepBest())
    )
    assert not problems(for_each(Items())(every(2)(Ask()), Look(), every(2)(Read())))


def test_recipe_must_write_its_outputs() -> None:
    [problem] = problems(outputs=(Score,))
    assert (
        problem
        == "the recipe must output Score, which no stage in it writes (KeepBest or Start would)"
    )
    assert not problems(Start(), outputs=(Score,))
    texts = problems(when(IsTwo())(Start()), outputs=(Score,))
    assert any("must output Score, which is written only under" in text for text in texts), texts


def test_capabilities_that_an_adapter_lacks_are_listed() -> None:
    plan = check(sequence(Start(), Demanding()), PORTS)
    assert plan.not_honoured == ["telepathy"]
    assert not plan.problems  # no dataset adapter is given, so its capabilities are unknown


def test_all_problems_are_raised_at_once() -> None:
    class Explodes(Stage):
        def run(self, batch: Batch) -> Metrics:
            raise AssertionError("it ran")

    with pytest.raises(PlanError) as error:
        run(sequence(Explodes(), OptimStep(Linear(1e-4)), WriteUnread()), {})
    text = str(error.value)
    assert len(text.splitlines()) == 5
    assert all(
        kind in text
        for kind in ("Batch", "LossOutput", "TrainingSession", "Unread", "would be lost")
    )


def test_lines_show_futures_as_signatures_do() -> None:
    plan = check(for_each(Items(), ahead=1)(Ask(), Read()), PORTS)
    assert [str(line) for line in plan.lines] == [
        "for each of Items(), ahead=1",
        "  Items(count=4): -> Item",
        "  Ask(): Item -> Future[Reply]",
        "  Read(): Reply -> Metrics",
    ]
    plan = check(sequence(Step()), PORTS)
    assert str(plan.lines[0]) == (
        "Step(): TrainingSession, Future[LossOutput] -> Future[OptimStepResult]"
    )


def test_save_points_need_a_blob_store() -> None:
    plan = check(for_each(Items(), save=1)(Look()), {})
    assert any("no BlobStore" in problem for problem in plan.problems)
    assert BlobStore in plan.missing


def test_plan_lists_the_ports_in_use() -> None:
    assert check(sequence(OpenSession("m"), Encode()), PORTS).ports == {TrainingClient, BlobStore}
