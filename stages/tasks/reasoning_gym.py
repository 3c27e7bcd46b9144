"""Problems of reasoning-gym (Stojanovski et al., 2025, arXiv:2505.24760), by name and seed."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import field
from functools import cache
from typing import Any

from kitchen.errors import ConfigError, DataError, did_you_mean
from kitchen.ports.environments import StepResult
from kitchen.stage import Stage
from kitchen.types import Facts, Table
from stages.chat.items import item_digest
from stages.data.splits import DataConfig, check_generated
from stages.tasks.gym_options import SETTING, GymOptions, check_options, library_options
from stages.tasks.rewards import Question, require_extra
from stages.tasks.subprocesses import WorkerPool, call_in_subprocess
from stages.tasks.tasks import Tasks, problem_facts

PREFIX = "reasoning-gym:"
ANSWER_FORMAT = "Give the final answer between <answer> and </answer>."
DEFAULT_PROBLEMS = 1000  # number of problems to train on
# distance between the first seeds of two runs; the problems from seed 0 on are held out
SEED_STRIDE = 10_000_000
_RANGE = ("size", "seed")  # options that choose problems, not their kind


class MakeReasoningGym(Stage):
    """Generate reasoning-gym problems to train on and to hold out; no problem is in both.

    Held-out problems are the same for every seed.
    """

    dataset: str  # reasoning-gym:NAME
    reading: DataConfig = DataConfig()
    seed: int = 0
    max_rows: int | None = None  # problems that the run can train on; None if not known
    # options of the task, such as min_digits; size is the number of problems to train on, and seed
    # that of the first one
    options: GymOptions = field(default_factory=dict)

    def run(self) -> tuple[Tasks, Facts, Table]:
        name = self.dataset.removeprefix(PREFIX)
        first_seed = self.options.get("seed", (self.seed + 1) * SEED_STRIDE)
        count = self.options.get("size", self.reading.row_limit(self.max_rows) or DEFAULT_PROBLEMS)
        config = {key: value for key, value in self.options.items() if key not in _RANGE}
        train_texts, held_out_texts = call_in_subprocess(
            make_problems, name, config, (first_seed, count), (0, self.reading.held_out_rows)
        )
        workers = WorkerPool()
        held_out = _questions(name, held_out_texts, 0, set(), workers, config)
        train = _questions(name, train_texts, first_seed, set(held_out_texts), workers, config)
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
        task = self.dataset.removeprefix(PREFIX)
        check_options(task, self.options)
        held_out = self.reading.held_out_rows
        if self.options.get("seed", held_out) < held_out:
            raise ConfigError(
                f"{SETTING}.{task}.seed={self.options['seed']}: the seeds from 0 to {held_out - 1} "
                "are those of held-out problems (reading.held_out_rows); set a higher one"
            )
        if "size" in self.options and self.reading.limit is not None:
            raise ConfigError(
                f"{SETTING}.{task}.size and reading.limit both set the number of problems to train "
                "on; leave one of them out"
            )


def check_dataset(dataset: str, reading: DataConfig) -> None:
    """Raise ConfigError if reasoning-gym or the dataset is missing, or a setting has no effect."""
    require_extra("reasoning_gym", f"dataset={dataset}")
    from reasoning_gym.factory import DATASETS

    name = dataset.removeprefix(PREFIX)
    names = set(DATASETS) - {"composite"}  # which needs a configuration
    if name == "composite":
        raise ConfigError(
            f"{dataset}: for several tasks, set a mixture of them with weights "
            "(mixture.DATASET=WEIGHT), in which each is called reasoning-gym:TASK"
        )
    if name not in names:
        raise ConfigError(f"reasoning-gym has no {name!r}; {did_you_mean(name, names)}")
    check_generated(dataset, reading)


def _questions(
    name: str,
    texts: Sequence[str],
    seed: int,
    excluded: Collection[str],
    workers: WorkerPool,
    config: GymOptions,
) -> tuple[Question, ...]:
    own = [config] if config else []  # none for the library's default configuration
    return tuple(
        Question(
            messages=({"role": "user", "content": f"{text}\n\n{ANSWER_FORMAT}"},),
            answer=json.dumps([name, seed, len(texts), index, *own]),
            reward=score_solution,
            tag=name,
            workers=workers,
            item=item_digest(text, [name, seed + index, *own]),
        )
        for index, text in enumerate(texts)
        if text not in excluded
    )


@cache
def _dataset(name: str, seed: int, size: int, config: str = "{}") -> Any:
    """Return a data set of the library; `config` has its other options as JSON."""
    from reasoning_gym import create_dataset

    options = library_options(name, json.loads(config))
    return create_dataset(name, seed=seed, size=size, **options)


def make_problems(name: str, config: GymOptions, *ranges: tuple[int, int]) -> list[list[str]]:
    """Return the questions of each range of (first seed, count); the n-th has seed first + n.

    Some problems depend on the iteration order of sets, which is the same in all workers of a
    WorkerPool, and only there.
    """
    options = json.dumps(config)
    datasets = [(_dataset(name, seed, count, options), count) for seed, count in ranges]
    return [_first_questions(dataset, count) for dataset, count in datasets]


def _first_questions(dataset: Any, count: int) -> list[str]:
    return [dataset[at]["question"] for at in range(count)]


def score_solution(answer: str, reference: str) -> StepResult:
    """Score an answer by its dataset's own scorer.

    An answer in <answer> tags is parsed; without tags, the whole text is scored. `reference` names
    the problem: [name, seed, size, index] as JSON, followed by the options of the task, if any.
    """
    from reasoning_gym.utils import extract_answer

    name, seed, size, index, *options = json.loads(reference)
    config = json.dumps(options[0]) if options else "{}"
    dataset = _dataset(name, seed, size, config)
    extracted = extract_answer(answer)
    text = answer.strip() if extracted is None else extracted
    score = dataset.score_answer(text, dataset[index])
    return StepResult(float(score), parsed=extracted is not None)
