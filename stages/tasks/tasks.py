"""Problems to be solved, and what an answer is worth."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from kitchen.errors import DataError, check_name
from kitchen.ports import DatasetStore
from kitchen.ports.environments import Task
from kitchen.stage import Stage
from kitchen.types import Facts, Table
from stages.chat.conversations import Conversation, parse_conversation
from stages.chat.prompts import message_to_dict, prompt_messages, reference_answer
from stages.data.dataset import DatasetLoader, load_splits
from stages.data.splits import DatasetReader, ParsedRows
from stages.tasks.json_score import default_metric
from stages.tasks.rewards import MAY_HANG, REWARDS, Question, first_ungradable, require_extra
from stages.tasks.subprocesses import WorkerPool


@dataclass(frozen=True)
class Tasks:
    """Problems to train on, and those held out, by the name of their set."""

    train: Sequence[Task]
    held_out: Mapping[str, Sequence[Task]]
    # where rewards are computed that may hang
    processes: WorkerPool = field(default_factory=WorkerPool)

    def sets(self) -> Mapping[str, Sequence[Task]]:
        """All of them; those to train on under the empty name."""
        return {"": self.train, **self.held_out}

    def close(self) -> None:
        self.processes.close()


@dataclass(frozen=True)
class TaskBatch:
    """The problems that one round of rollouts plays."""

    tasks: tuple[Task, ...]


@dataclass(frozen=True)
class PlannedTasks:
    """All that a run is to play, in this order."""

    tasks: tuple[Task, ...]  # one for each time that it is played by a group


class LoadTasks(DatasetLoader):
    """Read a data set of questions and right answers, held-out sets as LoadDataset makes them."""

    # one of REWARDS; None: field_f1 where right answers are JSON objects, else exact
    reward: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reward is not None:
            check_name("reward", self.reward, REWARDS)

    def run(self, store: DatasetStore) -> tuple[Tasks, Facts, Table]:
        found, processes = (
            load_splits(DatasetReader(store, self.dataset, self.reading, self.seed, self.max_rows)),
            WorkerPool(),
        )
        rows = {
            name: list(ParsedRows(data, parse_conversation))
            for name, data in (("", found.train), *found.held_out.items())
        }
        name = choose_reward(self.reward, [row for some in rows.values() for row in some])
        reward, apart = REWARDS[name], processes if name in MAY_HANG else None
        asked = {
            split: tuple(
                Question(
                    tuple(map(message_to_dict, prompt_messages(row))),
                    reference_answer(row),
                    reward,
                    split or self.dataset,
                    apart,
                )
                for row in some
            )
            for split, some in rows.items()
        }
        return Tasks(asked.pop(""), asked, processes), found.facts, found.table

    preview = run

    def verify(self, store: DatasetStore) -> None:
        if self.reward == "math":
            require_extra("math_verify", "reward=math")
        super().verify(store)


def problem_facts(
    dataset: str, train: Sequence[str], held_out: Sequence[str]
) -> tuple[Facts, Table]:
    """What is to be found again of problems that were made, and how many there are."""
    facts = {
        f"data.{name}.sha256": hashlib.sha256(json.dumps(list(some)).encode()).hexdigest()
        for name, some in (("train", train), ("held_out", held_out))
    }
    rows = (
        ("train", "trained on", f"{len(train):,}"),
        ("held_out", "held out", f"{len(held_out):,}"),
    )
    return Facts(facts), Table(f"Problems of {dataset}", ("split", "are", "problems"), rows)


def choose_reward(reward: str | None, rows: Sequence[Conversation]) -> str:
    """The reward for these; by default field_f1 where all right answers are JSON objects, else
    exact.

    Raises DataError for a right answer that the reward can compare nothing with.
    """
    rights = [reference_answer(row) for row in rows]
    if reward is None:
        return "field_f1" if default_metric(rights) == "json" else "exact"
    if bad := first_ungradable(reward, rights):
        raise DataError(f"{rows[bad[0]].where}: reward={reward}: {bad[1]}")
    return reward


class TaskBatches(Stage):
    """`steps` batches of `size` problems, in an order of each pass's own."""

    size: int
    steps: int
    seed: int = 0

    def preview(self, tasks: Tasks) -> PlannedTasks:
        return PlannedTasks(tuple(task for batch in self.run(tasks) for task in batch.tasks))

    def run(self, tasks: Tasks) -> Iterable[TaskBatch]:
        count, needed = len(tasks.train), self.size * self.steps
        passes = range(-(-needed // count))
        orders = [
            np.random.default_rng([self.seed, number]).permutation(count) for number in passes
        ]
        order = np.concatenate(orders)[:needed].reshape(self.steps, self.size)
        return [TaskBatch(tuple(tasks.train[at] for at in row)) for row in order.tolist()]
