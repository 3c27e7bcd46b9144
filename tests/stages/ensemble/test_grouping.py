"""Groups of answers that are equal by a metric."""

from __future__ import annotations

import asyncio

import pytest

from stages.ensemble.grouping import AnswerGroups
from stages.tasks.grading import GradingConfig

CASES = [
    ("text", {}, ["Paris", " Paris\n", "paris", "Paris."], [0, 0, 2, 3], "1111"),
    (
        "text",
        {"ignore_case": True, "ignore_punctuation": True},
        ["Paris", "paris.", "Rome"],
        [0, 0, 2],
        "111",
    ),
    ("text", {"extract": r"is (\w+)"}, ["It is B", "B", "is B!", "B"], [0, 1, 0, 1], "1010"),
    (
        "json",
        {},
        ['{"a": 1, "b": 2}', '```json\n{"b": 2, "a": 1.0}\n```', '{"a": 1}', "no", "no"],
        [0, 0, 2, 3, 3],
        "11100",
    ),
    ("json", {}, ['{"a": true}', '{"a": 1}'], [0, 1], "11"),
    ("len:measure", {}, ["yes", "yes ", "no"], [0, 0, 2], "111"),
]


@pytest.mark.parametrize(("metric", "options", "texts", "groups", "readable"), CASES)
def test_equal_answers_are_grouped(
    metric: str, options: dict[str, object], texts: list[str], groups: list[int], readable: str
) -> None:
    grading = GradingConfig(**options)  # type: ignore[arg-type]
    [found] = asyncio.run(AnswerGroups(metric, grading).group([texts]))
    assert [answer.group for answer in found] == groups
    assert [answer.readable for answer in found] == [flag == "1" for flag in readable]


def test_equal_numbers_and_formulas_are_grouped() -> None:
    answers = AnswerGroups("math")
    problems = [["#### 0.5", r"\boxed{\frac{1}{2}}", "1/2", "no number", "2"], ["x^2", "2"]]
    first, second = asyncio.run(answers.group(problems))
    assert [answer.group for answer in first] == [0, 0, 0, 3, 4]
    assert [answer.readable for answer in first] == [True, True, True, False, True]
    assert [answer.group for answer in second] == [0, 1]
