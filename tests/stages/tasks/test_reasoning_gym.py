"""Reasoning-gym problems: seeded, held out separately, and scored by reasoning-gym."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from kitchen.errors import ConfigError
from kitchen.ports.environments import StepResult
from kitchen.types import Facts
from recipes.rl import Rl
from stages.data.splits import DataConfig
from stages.tasks.reasoning_gym import (
    ANSWER_FORMAT,
    MakeReasoningGym,
    make_problems,
    score_solution,
)
from stages.tasks.rewards import Question
from stages.tasks.sources import ProblemSources
from stages.tasks.subprocesses import call_in_subprocess
from stages.tasks.tasks import Tasks

FEW = DataConfig(limit=6, held_out_rows=4)


def load(
    name: str,
    seed: int = 0,
    reading: DataConfig = FEW,
    max_rows: int | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[Tasks, Facts]:
    stage = MakeReasoningGym(f"reasoning-gym:{name}", reading, seed, max_rows, dict(options))
    stage.verify()
    tasks, facts, _ = stage.run()
    return tasks, facts


def asked(tasks: Tasks) -> list[str]:
    return [str(each.messages[0]["content"]) for each in tasks.train if isinstance(each, Question)]


def test_problems_are_made_by_name_and_seed() -> None:
    one, facts = load("chain_sum")
    again, same = load("chain_sum")
    other, others = load("chain_sum", seed=1)
    assert asked(one) == asked(again) != asked(other)
    assert facts == same != others
    assert facts["data.held_out.sha256"] == others["data.held_out.sha256"]
    assert (len(one.train), len(one.held_out["held_out"])) == (6, 4)
    assert all(text.endswith(ANSWER_FORMAT) for text in asked(one))
    assert {task.tag for task in one.train} == {"chain_sum"}


def test_problem_count_matches_the_run() -> None:
    assert len(load("chain_sum", reading=DataConfig(held_out_rows=2), max_rows=11)[0].train) == 11


def test_held_out_problems_are_not_trained_on() -> None:
    [held] = make_problems("tower_of_hanoi", {}, (0, 40))
    tasks, _ = load("tower_of_hanoi", reading=DataConfig(limit=40, held_out_rows=40))
    assert 0 < len(tasks.train) < 40, "some of the 40 that were made are held out"
    assert not {f"{text}\n\n{ANSWER_FORMAT}" for text in held} & set(asked(tasks))


def test_options_of_a_task_are_those_of_the_library() -> None:
    from reasoning_gym import create_dataset

    options = {"max_digits": 1, "operators": ["+"], "min_terms": 2, "max_terms": 2}
    few = DataConfig(held_out_rows=3)
    tasks, _ = load("basic_arithmetic", reading=few, options={"size": 4, "seed": 50, **options})
    made = create_dataset("basic_arithmetic", seed=50, size=4, **options)
    assert asked(tasks) == [f"{each['question']}\n\n{ANSWER_FORMAT}" for each in made]
    question = tasks.train[1]
    assert isinstance(question, Question)
    assert score_solution(made[1]["answer"], question.answer).reward == 1.0
    assert len(tasks.held_out["held_out"]) == 3
    default, _ = load("basic_arithmetic", reading=few, options={"size": 4, "seed": 50})
    assert asked(default) != asked(tasks)


def test_options_are_read_from_dotted_and_nested_settings() -> None:
    dotted = Rl(reasoning_gym={"chain_sum.max_digits": 2, "chain_sum.size": 9})
    nested = Rl(reasoning_gym={"chain_sum": {"max_digits": 2, "size": 9}})
    assert (
        dotted.reasoning_gym == nested.reasoning_gym == {"chain_sum": {"max_digits": 2, "size": 9}}
    )
    with pytest.raises(ConfigError, match=r"reasoning_gym\.chain_sum=2 must name a task"):
        Rl(reasoning_gym={"chain_sum": 2})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_digit": 2}, "no option 'max_digit'; did you mean 'max_digits'"),
        ({"max_digits": "two"}, r"reasoning_gym\.chain_sum\.max_digits='two'"),
        ({"max_digits": True}, r"reasoning_gym\.chain_sum\.max_digits=True must be a number"),
        ({"min_digits": 9}, r"^reasoning_gym\.chain_sum: max_digits must be >= min_digits"),
        ({"seed": 3}, r"seed=3: the seeds from 0 to 3 .*\(reading\.held_out_rows\)"),
        ({"size": 3}, r"size and reading\.limit"),
    ],
)
def test_bad_options_are_found_before_the_run(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("chain_sum", options=options)


def test_set_ordered_problems_are_equal_in_all_workers() -> None:
    assert call_in_subprocess(make_problems, "ransom_note", {}, (0, 3)) == call_in_subprocess(
        make_problems, "ransom_note", {}, (0, 3)
    )


def test_score_is_that_of_reasoning_gym() -> None:
    from reasoning_gym import create_dataset

    made, [task, *_] = (
        create_dataset("chain_sum", seed=10_000_000, size=6),
        load("chain_sum")[0].train,
    )
    assert isinstance(task, Question)
    right = made[0]["answer"]
    assert score_solution(f"So <answer>{right}</answer>", task.answer) == StepResult(1.0)
    assert score_solution(right, task.answer) == StepResult(1.0, parsed=False)
    untagged = f"It is {right}."
    assert score_solution(untagged, task.answer) == StepResult(
        made.score_answer(untagged, made[0]), parsed=False
    )
    assert score_solution("<answer>x</answer>", task.answer).reward == 0.0


def test_bad_datasets_are_found_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match="reasoning-gym has no 'chain_sums'; did you mean 'chain_sum'"
    ):
        load("chain_sums")
    with pytest.raises(ConfigError, match="it takes limit and held_out_rows"):
        load("chain_sum", reading=DataConfig(train="train"))
    with pytest.raises(
        ConfigError, match="reasoning-gym:chain_sum has its own reward; leave out reward=math"
    ):
        ProblemSources("reasoning-gym:chain_sum", FEW, 0, 4, "math").stage()
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(
        ConfigError, match=r"chain_sum needs reasoning-gym.*: pip install 'crucible-kitchen\[rl\]'"
    ):
        load("chain_sum")
