"""Problems to be solved, and what an answer is worth."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from kitchen.errors import ConfigError, did_you_mean
from kitchen.ports import DatasetStore, Message
from kitchen.ports.environments import Env, Task, Turn
from kitchen.stage import Stage
from kitchen.types import Facts, Table
from stages.conversations import Conversation, conversation
from stages.data import Loading, loaded
from stages.evaluation import question, spoken, wanted
from stages.reading import Reader, Rows
from stages.scores import exact_text, json_fields

Reward = Callable[[str, str], Turn]  # of an answer, and of the one that is wanted


@dataclass(frozen=True)
class Tasks:
    """Problems to train on, and those held out, by the name of their set."""

    train: Sequence[Task]
    held_out: Mapping[str, Sequence[Task]]


@dataclass(frozen=True)
class TaskBatch:
    """The problems that one round of rollouts plays."""

    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class Problems:
    """All that a run is to play."""

    count: int  # one for each time that it is played by a group


def field_f1(answer: str, right: str) -> Turn:
    """F1 over the fields of two JSON objects, 0..1."""
    score = json_fields(answer, right)
    return Turn(score.f1, parsed=score.parsed)


def exact(answer: str, right: str) -> Turn:
    """1 for the same text, white space around it aside."""
    return Turn(float(exact_text(answer, right)))


REWARDS: Mapping[str, Reward] = MappingProxyType({"field_f1": field_f1, "exact": exact})


@dataclass(frozen=True)
class Question:
    """One question with one right answer; a Task."""

    messages: tuple[Message, ...]
    right: str
    reward: str  # one of REWARDS
    tag: str

    def env(self) -> Env:
        return _Asked(self)


@dataclass(frozen=True)
class _Asked:
    question: Question

    async def begin(self) -> Sequence[Message]:
        return self.question.messages

    async def act(self, answer: str) -> Turn:
        return REWARDS[self.question.reward](answer, self.question.right)


class LoadTasks(Loading):
    """Read a data set of questions and right answers; held-out sets as LoadDataset makes them."""

    reward: str = "field_f1"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reward not in REWARDS:
            raise ConfigError(f"reward={self.reward!r} is unknown; {did_you_mean(self.reward, REWARDS)}")

    def run(self, store: DatasetStore) -> tuple[Tasks, Facts, Table]:
        found = loaded(Reader(store, self.dataset, self.reading, self.seed, self.most))
        held = {split: self._tasks(Rows(data, conversation), split) for split, data in found.held.items()}
        return Tasks(self._tasks(Rows(found.train, conversation), self.dataset), held), found.facts, found.table

    preview = run

    def _tasks(self, rows: Sequence[Conversation], tag: str) -> tuple[Question, ...]:
        return tuple(Question(tuple(map(spoken, question(each))), wanted(each), self.reward, tag) for each in rows)


class TaskBatches(Stage):
    """`steps` batches of `size` problems, in an order of each pass's own."""

    size: int
    steps: int
    seed: int = 0

    def preview(self) -> Problems:
        return Problems(self.size * self.steps)

    def run(self, tasks: Tasks) -> Iterable[TaskBatch]:
        count, needed = len(tasks.train), self.size * self.steps
        passes = range(-(-needed // count))
        orders = [np.random.default_rng([self.seed, number]).permutation(count) for number in passes]
        order = np.concatenate(orders)[:needed].reshape(self.steps, self.size)
        return [TaskBatch(tuple(tasks.train[at] for at in row)) for row in order.tolist()]
