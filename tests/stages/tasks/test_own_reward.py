"""Rewards by name, MODULE:function: how they are found, called and refused."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from adapters.fake.datasets import FakeDatasets
from kitchen.errors import ConfigError, DataError
from kitchen.ports.environments import StepResult
from stages.data import DataConfig
from stages.tasks.own_reward import find_reward, parse_question
from stages.tasks.rewards import Question
from stages.tasks.tasks import LoadTasks, Tasks

HERE = __name__
ROWS = [
    {"prompt": "Name a dish.", "completion": "soup", "must": ["basil"], "longest": 12},
    {"prompt": "Name a herb.", "completion": "thyme", "must": ["thyme"], "longest": 5},
    {"prompt": "Name a fish.", "completion": "cod", "must": ["cod"], "longest": 3},
]


def by_row(answer: str, row: Mapping[str, Any]) -> float:
    return sum(word in answer for word in row["must"]) - (len(answer) > row["longest"])


def by_columns(text: str, must: list[str], /, *, longest: int = 2, weight: float = 0.5) -> float:
    return weight * len(text) - longest


def by_keywords(text: str, must: list[str], *, longest: int, weight: float = 0.5) -> float:
    return weight * sum(word in text for word in must) + longest


async def later(prompt: str, reference: str, **columns: Any) -> StepResult:
    """A reward whose first parameter has the name of a column."""
    await asyncio.sleep(0)
    return StepResult(float(prompt == reference), parsed="must" in columns)


def abstain(answer: str) -> float | None:
    return None if answer == "pass" else 1.0


def unfinished(answer: str, mst: list[str]) -> float:
    return 0.0


def without_answer() -> float:
    return 0.0


def only_keywords(*, answer: str) -> float:
    return 0.0


def load(function: str, rows: list[dict[str, Any]] = ROWS, **reading: Any) -> Tasks:
    store = FakeDatasets({"dishes": {"train": rows, "test": rows[:1]}})
    stage = LoadTasks("dishes", DataConfig(**reading), reward=f"{HERE}:{function}")
    return stage.run(store)[0]


def score(function: str, answer: str, row: int = 0) -> StepResult:
    return asyncio.run(load(function).train[row].env().step(answer))


@pytest.mark.parametrize(
    "function, answer, expected",
    [
        ("by_row", "basil", StepResult(1.0)),
        ("by_row", "a long answer with basil", StepResult(0.0)),
        ("by_keywords", "basil", StepResult(12.5)),
        ("later", "soup", StepResult(1.0)),
        ("later", "stew", StepResult(0.0)),
        ("abstain", "pass", StepResult(None)),
        ("abstain", "stew", StepResult(1.0)),
    ],
)
def test_function_gets_answer_and_columns(function: str, answer: str, expected: StepResult) -> None:
    assert score(function, answer) == expected


def test_each_row_has_its_own_columns() -> None:
    assert [score("by_row", "thyme", row).reward for row in range(3)] == [0, 1, -1]


@pytest.mark.parametrize(
    "name, text",
    [
        (f"{HERE}:by_rwo", "has no function 'by_rwo'; did you mean 'by_row'"),
        (f"{HERE}:ROWS", "has no function 'ROWS'"),
        (f"{HERE}:Path", "has no function 'Path'"),
        ("no_such_module:score", "there is no module 'no_such_module'"),
        ("rewards.py:score", "reward=rewards:score"),
        (f"{HERE}:without_answer", r"signature is \(\)"),
        (f"{HERE}:only_keywords", "called with the answer"),
        (f"{HERE}:by_columns", "called with the answer"),
        (":score", "'' is not a module; write MODULE:function"),
        ("exat", "did you mean 'exact'.*MODULE:function"),
    ],
)
def test_other_names_are_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        LoadTasks("dishes", reward=name)


@pytest.mark.parametrize(
    ("name", "statement", "error"),
    [
        ("divides", "print(1 / 0)", "ZeroDivisionError"),
        ("exits", "raise SystemExit(0)", "SystemExit: 0"),
        ("stops", "raise type('Stop', (BaseException,), {})('no salt')", "Stop: no salt"),
    ],
)
def test_module_that_fails_names_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, statement: str, error: str
) -> None:
    (tmp_path / f"reward_{name}.py").write_text(f"LIMIT = 1\n{statement}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=rf"reward_{name}\.py:2: {error}"):
        find_reward(f"reward_{name}:score")


def test_missing_column_names_the_row() -> None:
    with pytest.raises(DataError, match=r"dishes:train:0: .*reads 'mst'.*did you mean 'must'"):
        load("unfinished")
    broken = [*ROWS, {"prompt": "Name a nut.", "completion": "pecan", "longest": 4}]
    with pytest.raises(DataError, match="reads 'must'"):
        load("by_keywords", broken)
    tasks = load("by_keywords", broken, bad_rows="drop")
    assert (len(tasks.train), len(tasks.bad_rows)) == (3, 1)


@pytest.mark.parametrize(
    "row, prompt, answer",
    [
        ({"prompt": "Hi?"}, "Hi?", ""),
        ({"prompt": [{"role": "user", "content": "Hi?"}], "completion": None}, "Hi?", ""),
        ({"messages": [{"role": "user", "content": "Hi?"}]}, "Hi?", ""),
        ({"prompt": "Hi?", "completion": "Ho"}, "Hi?", "Ho"),
        ({"input": "Hi?", "output": "Ho"}, "Hi?", "Ho"),
    ],
)
def test_row_needs_no_answer(row: dict[str, Any], prompt: str, answer: str) -> None:
    *others, last = parse_question(row, "row 1").messages
    assert [message.content for message in others] == [prompt]
    assert (last.role, last.content) == ("assistant", answer)


def test_row_without_a_question_is_an_error() -> None:
    with pytest.raises(DataError, match="no known format"):
        parse_question({"must": ["basil"]}, "row 1")


def by_named(
    answer: str, weight: float, reasoning: str, documents: list[str], label: bool
) -> float:
    return weight * len(documents) + len(reasoning) + label


def by_rest(answer: str, **columns: Any) -> float:
    return float(columns["weight"])


def by_whole_row(answer: str, row: Mapping[str, Any]) -> float:
    return float(row["loss_weight"]) * len(row["mask"])


READ = {"weight": 0.5, "reasoning": "off", "documents": ["a", "b"], "label": False}


@pytest.mark.parametrize(
    ("function", "columns", "expected"),
    [
        ("by_named", READ, 4),
        ("by_rest", {"weight": 2, "thinking": True}, 2),
        ("by_whole_row", {"loss_weight": 3, "mask": [1, 1], "thought": "on"}, 6),
    ],
)
@pytest.mark.parametrize(
    "asked", [{"prompt": "Hi?"}, {"messages": [{"role": "user", "content": "Hi?"}]}]
)
def test_columns_that_only_the_function_reads(
    function: str, columns: dict[str, Any], expected: float, asked: dict[str, Any]
) -> None:
    task = load(function, [{**asked, **columns, "id": at} for at in range(2)]).train[0]
    assert isinstance(task, Question)
    assert [message["content"] for message in task.messages] == ["Hi?"]
    assert asyncio.run(task.env().step("yes")).reward == expected
    assert set(columns) - {"mask", "documents"} <= set(task.columns)


def test_columns_that_the_function_does_not_read_are_refused() -> None:
    with pytest.raises(DataError, match="the column 'weight' is not supported"):
        load("abstain", [{**row, "weight": 0.5} for row in ROWS])
    with pytest.raises(DataError, match="the column 'images' is not supported"):
        load("by_row", [{**row, "images": ["a.png"]} for row in ROWS])
