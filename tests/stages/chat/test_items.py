"""Items of questions: what they depend on, and what not."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from stages.chat.conversations import parse_conversation
from stages.chat.items import digest, recorded_columns
from stages.chat.prompts import item_of
from stages.tasks.games import Guess
from stages.tasks.rewards import Question, exact_reward
from stages.tasks.tasks import item_of_task

ROW: dict[str, Any] = {"prompt": "2 + 2?", "completion": "4", "id": 7}


def item(row: dict[str, Any], where: str = "rows:0") -> str:
    return item_of(parse_conversation(row, where))


def test_item_is_16_hex_digits() -> None:
    assert re.fullmatch("[0-9a-f]{16}", item(ROW))


@pytest.mark.parametrize(
    "same",
    [
        {**ROW, "id": 8, "source": "other"},
        {"question": "?", **ROW},
        {
            "messages": [
                {"role": "user", "content": "2 + 2?"},
                {"role": "assistant", "content": "4"},
            ]
        },
        {"conversations": [{"from": "human", "value": "2 + 2?"}, {"from": "gpt", "value": "4"}]},
        {"instruction": "2 + 2?", "output": "4"},
    ],
)
def test_same_question_in_other_formats_is_the_same_item(same: dict[str, Any]) -> None:
    assert item(same, "other.jsonl:99") == item(ROW)


@pytest.mark.parametrize(
    "other",
    [
        {**ROW, "prompt": "2 + 2 ?"},
        {**ROW, "completion": "5"},
        {**ROW, "completion": ["4", "four"]},
        {**ROW, "system": "Be brief."},
        {**ROW, "chat_template_kwargs": {"enable_thinking": True}},
        {**ROW, "choices": ["4", "5"]},
        {"prompt": "", "completion": "2 + 2?4"},
    ],
)
def test_another_question_or_answer_is_another_item(other: dict[str, Any]) -> None:
    assert item(other) != item(ROW)


def test_columns_for_grouping_are_scalars_and_digests() -> None:
    long = "x" * 65
    columns = recorded_columns(
        {"doc": "d1", "n": 3, "ok": True, "none": None, "nan": float("nan"), "text": long}
        | {"messages": [1], "map": {}, "day": date(2026, 1, 2)}
    )
    assert columns == {
        "doc": "d1",
        "n": 3,
        "ok": True,
        "none": None,
        "day": "2026-01-02",
        "text": f"sha256:{digest(long)}",
    }
    assert parse_conversation(ROW, "rows:0").columns["id"] == 7


@dataclass(frozen=True)
class Riddle:
    """A task of a user."""

    text: str
    keys: frozenset[str] = frozenset()
    tag: str = "riddle"
    cache: dict[str, int] = field(default_factory=dict, compare=False)


class Plain:
    """A task of a user without fields."""

    tag = "plain"

    def __init__(self, number: int) -> None:
        self.number = number


def test_tasks_of_users_are_items_by_their_attributes() -> None:
    tasks: list[Any] = [
        Guess(1, 9, 3),
        Guess(1, 9, 4),
        Riddle("?", frozenset("ab")),
        Riddle("?", frozenset("abc")),
        Plain(1),
        Plain(2),
    ]
    items = [item_of_task(task) for task in tasks]
    assert len(set(items)) == len(tasks)
    again: list[Any] = [Guess(1, 9, 3), Riddle("?", frozenset("ba"), cache={"a": 1}), Plain(1)]
    assert [item_of_task(task) for task in again] == [items[0], items[2], items[4]]


def test_question_without_a_row_is_an_item_by_its_text() -> None:
    asked = ({"role": "user", "content": "?"},)
    one, same, other = (
        Question(asked, answer, exact_reward, tag)
        for answer, tag in (("a", "held"), ("a", "test"), ("b", "held"))
    )
    assert item_of_task(one) == item_of_task(same) != item_of_task(other)


class Level(Enum):
    """A choice of a user."""

    EASY = 1
    HARD = 2


@dataclass(frozen=True)
class Sum:
    """A node of a formula."""

    left: int
    right: int


@dataclass(frozen=True)
class Product:
    """A node of a formula with the same fields."""

    left: int
    right: int


class Slots:
    """An object without a dictionary."""

    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        self.number = number


@dataclass(frozen=True)
class Case:
    """A task of a user with a value of any type."""

    value: Any


def tell(number: int) -> int:
    return number


@pytest.mark.parametrize(
    ("make", "one", "other"),
    [
        (Level, 1, 2),
        (Path, "a", "b"),
        (Decimal, "1.5", "2.5"),
        (Fraction, "1/2", "1/3"),
        (complex, 1, 2),
        (date.fromisoformat, "2026-01-02", "2026-01-03"),
        (datetime.fromisoformat, "2026-01-02T03:04", "2026-01-02T03:05"),
        (timedelta, 1, 2),
        (UUID, "0" * 32, "1" * 32),
        (str.encode, "a", "b"),
        (lambda text: bytearray(text, "utf-8"), "a", "b"),
        (re.compile, "a", "b"),
        (range, 1, 2),
        (np.float32, 1, 2),
        (np.complex128, 1, 2),
        (np.longdouble, 1, 2),
        (lambda number: partial(tell, number), 1, 2),
        (lambda number: Plain(number).__init__, 1, 2),
        (Plain, 1, 2),
        (Slots, 1, 2),
        (lambda number: [{"a": Plain(number)}], 1, 2),
        (lambda number: {(Plain(number), 1): 2}, 1, 2),
        (lambda number: {Path(number)}, "a", "b"),
        (lambda kind: kind(1, 2), Sum, Product),
        (lambda kind: kind(), Exception, threading.Event),
    ],
)
def test_tasks_differ_in_values_of_any_type(make: Any, one: Any, other: Any) -> None:
    for task in (Case, Plain):
        assert item_of_task(task(make(one))) == item_of_task(task(make(one)))
        assert item_of_task(task(make(one))) != item_of_task(task(make(other)))


@pytest.mark.parametrize("make", [threading.Lock, lambda: lambda: 1, lambda: iter([1])])
def test_tasks_without_known_content_differ_by_their_index(make: Any) -> None:
    assert item_of_task(Case(make()), 3) == item_of_task(Case(make()), 3)
    assert item_of_task(Case(make()), 3) != item_of_task(Case(make()), 4)
    assert item_of_task(Case(tell), 3) == item_of_task(Case(tell), 4)


def test_task_that_contains_itself_is_an_item() -> None:
    first, second = Plain(1), Plain(2)
    for task in (first, second):
        task.own = task  # type: ignore[attr-defined]
    assert item_of_task(first) != item_of_task(second)
