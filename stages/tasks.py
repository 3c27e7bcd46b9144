"""Problems to be solved, and what an answer is worth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kitchen.errors import ConfigError, did_you_mean
from kitchen.ports import Dataset, DatasetStore
from kitchen.ports.environments import Task
from kitchen.stage import Stage
from kitchen.types import Facts, Table
from stages.conversations import conversation
from stages.data import Loading, loaded
from stages.evaluation import question, spoken, wanted
from stages.gym import PREFIX, Gym
from stages.processes import Processes
from stages.questions import MAY_HANG, REWARDS, Question, check_extra
from stages.reading import Reader, Rows


@dataclass(frozen=True)
class Tasks:
    """Problems to train on, and those held out, by the name of their set."""

    train: Sequence[Task]
    held_out: Mapping[str, Sequence[Task]]
    processes: Processes = field(default_factory=Processes)  # where rewards are computed that may hang

    def close(self) -> None:
        self.processes.close()


@dataclass(frozen=True)
class TaskBatch:
    """The problems that one round of rollouts plays."""

    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class Problems:
    """All that a run is to play."""

    count: int  # one for each time that it is played by a group


class LoadTasks(Loading):
    """Read a data set of questions and right answers, held-out sets as LoadDataset makes them; or have problems made.

    reasoning-gym:NAME are problems of reasoning-gym, with rewards of their own.
    """

    reward: str | None = None  # one of REWARDS; None: field_f1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reward is not None and self.reward not in REWARDS:
            raise ConfigError(f"reward={self.reward!r} is unknown; {did_you_mean(self.reward, REWARDS)}")
        if self.reward is not None and self.gym:
            raise ConfigError(f"{self.dataset} has a reward of its own; leave out reward={self.reward}")

    @property
    def gym(self) -> Gym | None:
        made = self.dataset.startswith(PREFIX)
        return Gym(self.dataset, self.reading, self.seed, self.most) if made else None

    def run(self, store: DatasetStore) -> tuple[Tasks, Facts, Table]:
        processes = Processes()
        if self.gym:
            made, kept_back, facts, table = self.gym.questions(processes)
            return Tasks(made, {"held_out": kept_back}, processes), facts, table
        found = loaded(Reader(store, self.dataset, self.reading, self.seed, self.most))
        held = {split: self._questions(data, split, processes) for split, data in found.held.items()}
        train = self._questions(found.train, self.dataset, processes)
        return Tasks(train, held, processes), found.facts, found.table

    preview = run

    def verify(self, store: DatasetStore) -> None:
        if self.gym:
            return self.gym.check()
        if self.reward == "math":
            check_extra("math_verify", "reward=math")
        super().verify(store)

    def _questions(self, data: Dataset, tag: str, processes: Processes) -> tuple[Question, ...]:
        name = self.reward or "field_f1"
        apart = processes if name in MAY_HANG else None
        return tuple(Question(tuple(map(spoken, question(each))), wanted(each), REWARDS[name], tag, apart)
                     for each in Rows(data, conversation))


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
