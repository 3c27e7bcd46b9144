"""A reward that a model comes upon by chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kitchen.ports.environments import Turn
from stages import questions, tasks


def letters(answer: str, right: str) -> Turn:
    """How many of the first three letters are in the right answer, 0..1."""
    return Turn(sum(letter in right for letter in answer[:3]) / 3)


REWARDS: Mapping[str, questions.Reward] = {**questions.REWARDS, "letters": letters}


def use(change: Callable[[Any, str, Any], None] = setattr) -> None:
    """`reward="letters"` can be said."""
    for module in (questions, tasks):
        change(module, "REWARDS", REWARDS)
