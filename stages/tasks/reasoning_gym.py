"""Problems of reasoning-gym (Stojanovski et al., 2025, arXiv:2505.24760), by name and seed."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import cache
from typing import Any

from kitchen.errors import ConfigError, DataError, did_you_mean
from kitchen.ports.environments import StepResult
from kitchen.stage import Stage
from kitchen.types import Facts, Table
from stages.chat.items import item_digest
from stages.data.splits import DataConfig, check_generated
from stages.tasks import games
from stages.tasks.grading import GradingConfig
from stages.tasks.reward_setting import RewardSetting
from stages.tasks.rewards import AS_IS, Question, require_extra
from stages.tasks.subprocesses import WorkerPool, call_in_subprocess
from stages.tasks.tasks import LoadTasks, Tasks, problem_facts

PREFIX = "reasoning-gym:"
ANSWER_FORMAT = "Give the final answer between <answer> and </answer>."
DEFAULT_PROBLEMS = 1000  # number of problems to train on
# distance between the first seeds of two runs; the problems from seed 0 on are held out
SEED_STRIDE = 10_000_000


class MakeReasoningGym(Stage):
    """Generate reasoning-gym problems to train on and to hold out; no problem is in both.

    Held-out problems are the same for every seed.
    """

    dataset: str  # reasoning-gym:NAME
    reading: DataConfig = DataConfig()
    seed: int = 0
    max_rows: int | None = None  # problems that the run can train on; None if not known

    def run(self) -> tuple[Tasks, Facts, Table]:
        name = self.dataset.removeprefix(PREFIX)
        first_seed = (self.seed + 1) * SEED_STRIDE
        count = self.reading.row_limit(self.max_rows) or DEFAULT_PROBLEMS
        train_texts, held_out_texts = call_in_subprocess(
            make_problems, name, (first_seed, count), (0, self.reading.held_out_rows)
        )
        workers = WorkerPool()
        held_out = _questions(name, held_out_texts, 0, set(), workers)
        train = _questions(name, train_texts, first_seed, set(held_out_texts), workers)
        if not train:
            raise DataError(
                f"{self.dataset} has too few problems: all {count} training problems are held out "
                "as well; hold out fewer (reading.held_out_rows)"
            )
        used = [text for text in train_texts if text not in held_out_texts]
        facts, table = problem_facts(self.dataset, used, held_out_texts)
        return Tasks(train, {"held_out": held_out}, workers), facts, table

    preview = run

    def verify(self) -> None:
        check_dataset(self.dataset, self.reading)


def check_dataset(dataset: str, reading: DataConfig) -> None:
    """Raise ConfigError if reasoning-gym or the dataset is missing, or a setting has no effect."""
    require_extra("reasoning_gym", f"dataset={dataset}")
    from reasoning_gym.factory import DATASETS

    name = dataset.removeprefix(PREFIX)
    names = set(DATASETS) - {"composite"}  # which needs a configuration
    if name not in names:
        raise ConfigError(f"reasoning-gym has no {name!r}; {did_you_mean(name, names)}")
    check_generated(dataset, reading)


def load_tasks_stage(
    dataset: str,
    reading: DataConfig,
    seed: int,
    max_rows: int,
    reward: RewardSetting,
    grading: GradingConfig = AS_IS,
) -> Stage:
    """Return the stage that loads or generates the problems of this name."""
    generators = {PREFIX: MakeReasoningGym, games.PREFIX: games.MakeGames}
    for prefix, generator in generators.items():
        if dataset.startswith(prefix):
            if reward is not None:
                raise ConfigError(f"{dataset} has its own reward; leave out reward={reward}")
            if grading != AS_IS:
                raise ConfigError(f"{dataset} has its own reward; leave out the options of grading")
            return generator(dataset, reading, seed, max_rows)
    return LoadTasks(dataset, reading, seed, max_rows, reward, grading)


def _questions(
    name: str, texts: Sequence[str], seed: int, excluded: Collection[str], workers: WorkerPool
) -> tuple[Question, ...]:
    return tuple(
        Question(
            messages=({"role": "user", "content": f"{text}\n\n{ANSWER_FORMAT}"},),
            answer=json.dumps([name, seed, len(texts), index]),
            reward=score_solution,
            tag=name,
            workers=workers,
            item=item_digest(text, [name, seed + index]),
        )
        for index, text in enumerate(texts)
        if text not in excluded
    )


@cache
def _dataset(name: str, seed: int, size: int) -> Any:
    from reasoning_gym import create_dataset

    return create_dataset(name, seed=seed, size=size)


def make_problems(name: str, *ranges: tuple[int, int]) -> list[list[str]]:
    """Return the questions of each range of (first seed, count); the n-th has seed first + n.

    Some problems depend on the iteration order of sets, which is the same in all workers of a
    WorkerPool, and only there.
    """
    datasets = [(_dataset(name, seed, count), count) for seed, count in ranges]
    return [_first_questions(dataset, count) for dataset, count in datasets]


def _first_questions(dataset: Any, count: int) -> list[str]:
    return [dataset[at]["question"] for at in range(count)]


def score_solution(answer: str, reference: str) -> StepResult:
    """Score an answer by its dataset's own scorer.

    An answer in <answer> tags is parsed; without tags, the whole text is scored. `reference` names
    the problem: [name, seed, size, index] as JSON.
    """
    from reasoning_gym.utils import extract_answer

    name, seed, size, index = json.loads(reference)
    dataset = _dataset(name, seed, size)
    extracted = extract_answer(answer)
    text = answer.strip() if extracted is None else extracted
    score = dataset.score_answer(text, dataset[index])
    return StepResult(float(score), parsed=extracted is not None)
