"""A reward that a model comes upon by chance."""

from __future__ import annotations

from collections.abc import Mapping

from kitchen.ports.environments import Turn
from stages import questions


def letters(answer: str, right: str) -> Turn:
    """How many of the first three letters are in the right answer, 0..1."""
    return Turn(sum(letter in right for letter in answer[:3]) / 3)


REWARDS: Mapping[str, questions.Reward] = {**questions.REWARDS, "letters": letters}
