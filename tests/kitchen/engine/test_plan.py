"""What the plan refuses, each by name, and what it lets pass."""

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
    PlanError,
    Progress,
    Result,
    RunId,
    Stage,
    Stepped,
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
class Asked(Result):
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
    def run(self, item: Item) -> Future[Asked]:
        return Done(Asked(item.n))


class AskByScore(Stage):
    def run(self, item: Item, score: Score) -> Future[Asked]:
        return Done(Asked(int(score.value)))


class Keep(Stage):
    def run(self, asked: Asked, score: Score) -> Score:
        return Score(max(score.value, asked.n))


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
    def run(self, asked: Asked) -> Metrics:
        return Metrics(n=asked.n)


class Look(Stage):
    def run(self, item: Item) -> Metrics:
        return Metrics(n=item.n)


class LeaveUnread(Stage):
    def run(self) -> Unread:
        return Unread()


class Slow(Stage):
    loss: str = "cross_entropy"

    def run(self, session: TrainingSession, item: Item) -> Future[LossOutput]:
        return session.forward_backward([], self.loss)


class Step(Stage):
    def run(self, session: TrainingSession, output: Future[LossOutput]) -> Future[Stepped]:
        return session.optim_step(Adam())


class Encode(Stage):
    """Reads what OpenSession leaves, so that it is not in the way of these tests."""

    def run(self, session: TrainingSession, tokenizer: Any = None) -> Metrics:
        return Metrics()


class Greedy(Stage):
    def run(self, score: Score) -> Metrics:
        return Metrics()

    def needs(self) -> Iterable[Need]:
        return [Need(TrainingClient, "telepathy", must=False), Need(DatasetStore, "flight")]


class Kept(Stage):
    memoize = True

    def run(self, session: TrainingSession) -> tuple[Wrapped, Metrics]:
        return Wrapped(session), Metrics()


class Known(Stage):
    memoize = True

    def run(self) -> tuple[Metrics, Facts]:
        return Metrics(), Facts({"a": "b"})


class KeepsNothing(Stage):
    memoize = True

    def run(self) -> None:
        """Has no answer that could be written down."""


class Remember(Stage):
    memoize = True
    of: Any

    def run(self) -> Metrics:
        return Metrics()


GIVEN = {TrainingClient: FakeTraining(), BlobStore: FakeBlobs(), RunId: RunId("x")}


def problems(*steps: Any, outputs: tuple[Any, ...] = ()) -> list[str]:
    return check(sequence(*steps), GIVEN, outputs).problems


@pytest.mark.parametrize(
    ("steps", "problem"),
    [
        ((Read(),), "Read.. reads Asked, which no stage before it writes"),
        (
            (Start(), for_each(Items(), ahead=1)(AskByScore(), Keep())),
            "Score changes in the head or the tail",
        ),
        (
            (OpenSession("m"), for_each(Items(), ahead=1)(Ask(), SaveFinal(), Read(), Encode())),
            "TrainingSession changes",
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
            "both write TrainingSession, or one changes",
        ),
        ((parallel(Start(), Start()),), "both write Score"),
        ((OpenSession("m"), Wrap()), "Wrapped hides a checkpointable value"),
        ((OpenSession("m"), Kept()), "is memoized, but pydantic cannot serialize Wrapped"),
        ((Known(),), "is memoized, but publishes Facts"),
        ((KeepsNothing(),), "is memoized, but returns no value"),
        ((Remember(object()),), "option that is compared by identity"),
        ((for_each(Items())(every(2)(Ask()), Read()),), "only a `when` writes"),
        ((for_each(Items())(every(2)(Ask()), every(3)(Read())),), "only a `when` writes"),
        ((for_each(Items())(when(Ask())(Look())),), "does not return bool"),
        ((for_each(Ask())(Look()),), "does not return Iterable"),
        (
            (ForwardBackward("gspo").using({TrainingSession: Critic}),),
            "needs 'loss gspo', which FakeTraining lacks",
        ),
        (
            (for_each(Items(), save=1)(OptimStep(lambda done, width: 1.0)),),
            "option that is compared by identity",
        ),
        ((sequence(Start(), outputs=(Item,)),), "a phase must output Item"),
        (
            (Start(), sequence(Start(), outputs=(Score,))),
            "outputs Score, which is already in scope",
        ),
        ((OpenSession("m"), OpenSession("m")), "overwrites TrainingSession"),
        ((LeaveUnread(),), "LeaveUnread.. writes Unread, which no later stage reads"),
        ((for_each(Items())(Start()),), r"Items.. writes Item, which no later stage reads"),
        (
            (OpenSession("m"), for_each(Items())(Slow()), SaveFinal()),
            "writes LossOutput, and no later stage applies it",
        ),
        (
            (OpenSession("m"), for_each(Items())(Slow(), Step())),
            "trains TrainingSession, and no later stage reads it",
        ),
        (
            (OpenSession("m"), for_each(Items())(Slow(), Step(), every(2)(Encode()))),
            "no later stage reads it: the training would be lost",
        ),
    ],
)
def test_the_plan_refuses(steps: tuple[Any, ...], problem: str) -> None:
    found = problems(*steps)
    assert any(re.search(problem, text) for text in found), found


def test_it_lets_pass_what_works() -> None:
    encode = Encode()
    assert problems(
        OpenSession("m"), for_each(Items(), save=2, ahead=1)(Slow(), Step()), encode
    ) == ["OpenSession(model='m') writes Tokenizer, which no later stage reads"]
    assert not problems(
        Start(), for_each(Items(), ahead=1, stale=(Score,), save=2)(AskByScore(), Keep())
    )
    assert not problems(for_each(Items())(every(2)(Ask()), Look(), every(2)(Read())))


def test_roles_are_other_types() -> None:
    critic = {TrainingSession: Critic, LossOutput: Score}
    contract = OptimStep(Linear(1.0)).using(critic).contract()
    assert [read.kind for read in contract.reads] == [Critic, Score, Progress]


def test_a_recipe_must_leave_what_it_says() -> None:
    [problem] = problems(outputs=(Score,))
    assert (
        problem == "the recipe must output Score, which no stage in it writes (Keep or Start would)"
    )
    assert not problems(Start(), outputs=(Score,))
    assert problems(for_each(Items(), save=0)(when(IsTwo())(Start()), Look()), outputs=(Score,))


class IsTwo(Stage):
    def run(self, item: Item) -> bool:
        return item.n == 2


def test_what_a_setting_asks_and_an_adapter_lacks_is_said() -> None:
    plan = check(sequence(Start(), Greedy()), GIVEN)
    assert plan.not_honoured == ["telepathy"]
    assert not plan.problems  # there is no data-set adapter to ask


def test_every_problem_is_named_at_once_and_nothing_runs() -> None:
    class Explodes(Stage):
        def run(self, batch: Batch) -> Metrics:
            raise AssertionError("it ran")

    with pytest.raises(PlanError) as error:
        run(sequence(Explodes(), OptimStep(Linear(1e-4)), LeaveUnread()), {})
    text = str(error.value)
    assert len(text.splitlines()) == 5
    assert all(
        kind in text
        for kind in ("Batch", "LossOutput", "TrainingSession", "Unread", "would be lost")
    )


def test_saving_needs_a_blob_store() -> None:
    plan = check(for_each(Items(), save=1)(Look()), {})
    assert any("no BlobStore" in problem for problem in plan.problems)
    assert BlobStore in plan.missing


def test_the_ports_in_use_are_known() -> None:
    assert check(sequence(OpenSession("m"), Encode()), GIVEN).ports == {TrainingClient, BlobStore}
