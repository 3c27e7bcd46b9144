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
from stages.data.splits import Reading, check_made
from stages.tasks import games
from stages.tasks.rewards import Question, check_extra
from stages.tasks.subprocesses import Processes, call_apart
from stages.tasks.tasks import LoadTasks, Tasks, described

PREFIX = "reasoning-gym:"
ASKED = "Give the final answer between <answer> and </answer>."
TRAIN = 1000  # problems, where nothing says how many
# between the seeds of one run's problems and the next one's; the first are held out
APART = 10_000_000


class MakeProblems(Stage):
    """Have problems made, to train on and held out; the latter are the same for every seed, and
    none is among both.
    """

    dataset: str  # reasoning-gym:NAME
    reading: Reading = Reading()
    seed: int = 0
    most: int | None = None  # problems that the run can train on; None: not known

    def run(self) -> tuple[Tasks, Facts, Table]:
        name, processes = self.dataset.removeprefix(PREFIX), Processes()
        first, count = (self.seed + 1) * APART, self.reading.wanted(self.most) or TRAIN
        texts, kept = call_apart(problems, name, (first, count), (0, self.reading.held_out_rows))
        held = _questions(name, kept, 0, set(), processes)
        train = _questions(name, texts, first, set(kept), processes)
        if not train:
            raise DataError(
                f"{self.dataset}: each of {count} problems to train on is held out as well; "
                "it makes too few, so hold out less (reading.held_out_rows)"
            )
        return Tasks(train, {"held_out": held}, processes), *described(
            self.dataset, [text for text in texts if text not in kept], kept
        )

    preview = run

    def verify(self) -> None:
        check(self.dataset, self.reading)


def check(dataset: str, reading: Reading) -> None:
    """Raise ConfigError for what is not installed, a name that is not there, or a setting that
    means nothing.
    """
    check_extra("reasoning_gym", f"dataset={dataset}")
    from reasoning_gym.factory import DATASETS

    # which needs a configuration
    name, names = dataset.removeprefix(PREFIX), set(DATASETS) - {"composite"}
    if name not in names:
        raise ConfigError(f"reasoning-gym has no {name!r}; {did_you_mean(name, names)}")
    check_made(dataset, reading)


def find_tasks(dataset: str, reading: Reading, seed: int, most: int, reward: str | None) -> Stage:
    """The stage that reads the problems of this name, or has them made."""
    made = next(
        (
            stage
            for prefix, stage in ((PREFIX, MakeProblems), (games.PREFIX, games.MakeGames))
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
    name: str, texts: Sequence[str], seed: int, but: Collection[str], processes: Processes
) -> tuple[Question, ...]:
    return tuple(
        Question(
            ({"role": "user", "content": f"{text}\n\n{ASKED}"},),
            json.dumps([name, seed, len(texts), at]),
            solved,
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


def problems(name: str, *ranges: tuple[int, int]) -> list[list[str]]:
    """What is asked, by first seed and number; each problem has a seed of its own, that of the one
    before and 1.

    Some are made along the order of a set: they are the same in each of Processes, and nowhere
    else.
    """
    made = [(_dataset(name, seed, size), size) for seed, size in ranges]
    return [[dataset[at]["question"] for at in range(size)] for dataset, size in made]


def solved(answer: str, right: str) -> StepResult:
    """The score of its maker; parsed is an answer in <answer> tags, and of another one the whole
    text is scored.
    """
    from reasoning_gym.utils import extract_answer

    name, seed, size, at = json.loads(right)
    dataset, found = _dataset(name, seed, size), extract_answer(answer)
    score = dataset.score_answer(answer.strip() if found is None else found, dataset[at])
    return StepResult(float(score), parsed=found is not None)
