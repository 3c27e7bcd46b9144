"""Problems of reasoning-gym (Stojanovski et al., 2025, arXiv:2505.24760), made by name and seed."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from kitchen.errors import ConfigError, DataError, did_you_mean
from kitchen.ports.environments import StepResult
from kitchen.stage import Stage
from kitchen.types import Facts, Table
from stages.data.splits import DataConfig, check_generated
from stages.tasks import games
from stages.tasks.rewards import Question, require_extra
from stages.tasks.subprocesses import WorkerPool, call_in_subprocess
from stages.tasks.tasks import LoadTasks, Tasks, problem_facts

PREFIX = "reasoning-gym:"
ANSWER_FORMAT = "Give the final answer between <answer> and </answer>."
DEFAULT_PROBLEMS = 1000  # problems, where nothing says how many
# between the seeds of one run's problems and the next one's; the first are held out
SEED_STRIDE = 10_000_000


class MakeReasoningGym(Stage):
    """Have problems made, to train on and held out; the latter are the same for every seed, and
    none is among both.
    """

    dataset: str  # reasoning-gym:NAME
    reading: DataConfig = DataConfig()
    seed: int = 0
    max_rows: int | None = None  # problems that the run can train on; None: not known

    def run(self) -> tuple[Tasks, Facts, Table]:
        name, processes = self.dataset.removeprefix(PREFIX), WorkerPool()
        first, count = (
            (self.seed + 1) * SEED_STRIDE,
            self.reading.row_limit(self.max_rows) or DEFAULT_PROBLEMS,
        )
        texts, kept = call_in_subprocess(
            make_problems, name, (first, count), (0, self.reading.held_out_rows)
        )
        held = _questions(name, kept, 0, set(), processes)
        train = _questions(name, texts, first, set(kept), processes)
        if not train:
            raise DataError(
                f"{self.dataset}: each of {count} problems to train on is held out as well; "
                "it makes too few, so hold out less (reading.held_out_rows)"
            )
        return Tasks(train, {"held_out": held}, processes), *problem_facts(
            self.dataset, [text for text in texts if text not in kept], kept
        )

    preview = run

    def verify(self) -> None:
        check_dataset(self.dataset, self.reading)


def check_dataset(dataset: str, reading: DataConfig) -> None:
    """Raise ConfigError for what is not installed, a name that is not there, or a setting that
    means nothing.
    """
    require_extra("reasoning_gym", f"dataset={dataset}")
    from reasoning_gym.factory import DATASETS

    # which needs a configuration
    name, names = dataset.removeprefix(PREFIX), set(DATASETS) - {"composite"}
    if name not in names:
        raise ConfigError(f"reasoning-gym has no {name!r}; {did_you_mean(name, names)}")
    check_generated(dataset, reading)


def load_tasks_stage(
    dataset: str, reading: DataConfig, seed: int, most: int, reward: str | None
) -> Stage:
    """The stage that reads the problems of this name, or has them made."""
    made = next(
        (
            stage
            for prefix, stage in ((PREFIX, MakeReasoningGym), (games.PREFIX, games.MakeGames))
            if dataset.startswith(prefix)
        ),
        None,
    )
    if made is None:
        return LoadTasks(dataset, reading, seed, most, reward)
    if reward is not None:
        raise ConfigError(f"{dataset} has a reward of its own; leave out reward={reward}")
    return made(dataset, reading, seed, most)


def _questions(
    name: str, texts: Sequence[str], seed: int, but: Collection[str], processes: WorkerPool
) -> tuple[Question, ...]:
    return tuple(
        Question(
            ({"role": "user", "content": f"{text}\n\n{ANSWER_FORMAT}"},),
            json.dumps([name, seed, len(texts), at]),
            score_solution,
            name,
            processes,
        )
        for at, text in enumerate(texts)
        if text not in but
    )


@cache
def _dataset(name: str, seed: int, size: int) -> Any:
    from reasoning_gym import create_dataset

    return create_dataset(name, seed=seed, size=size)


def make_problems(name: str, *ranges: tuple[int, int]) -> list[list[str]]:
    """What is asked, by first seed and number; each problem has a seed of its own, that of the one
    before and 1.

    Some are made along the order of a set: they are the same in each of Processes, and nowhere
    else.
    """
    made = [(_dataset(name, seed, size), size) for seed, size in ranges]
    return [[dataset[at]["question"] for at in range(size)] for dataset, size in made]


def score_solution(answer: str, right: str) -> StepResult:
    """The score of its maker; parsed is an answer in <answer> tags, and of another one the whole
    text is scored.
    """
    from reasoning_gym.utils import extract_answer

    name, seed, size, at = json.loads(right)
    dataset, found = _dataset(name, seed, size), extract_answer(answer)
    score = dataset.score_answer(answer.strip() if found is None else found, dataset[at])
    return StepResult(float(score), parsed=found is not None)
