"""A reward that random answers earn too, and a game of several turns with it."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from kitchen.ports import Message
from kitchen.ports.environments import Env, StepResult
from stages.tasks.games import GAMES
from stages.tasks.rewards import REWARDS


def letters(answer: str, right: str) -> StepResult:
    """Reward the share of the first three letters that are in the right answer, 0..1."""
    return StepResult(sum(letter in right for letter in answer[:3]) / 3)


@dataclass(frozen=True)
class Talk:
    """A task of three turns, each of which is rewarded."""

    number: int
    tag: str = "talk"

    def env(self) -> Env:
        return _Talking(self)


@dataclass
class _Talking:
    talk: Talk
    answers: int = 0

    async def reset(self) -> Sequence[Message]:
        return [{"role": "user", "content": f"say {self.talk.number}"}]

    async def step(self, answer: str) -> StepResult:
        self.answers += 1
        more: tuple[Message, ...] = (
            () if self.answers == 3 else ({"role": "user", "content": f"and {self.answers}"},)
        )
        return StepResult(letters(answer, string.ascii_lowercase).reward, more)


def make_talk(random: np.random.Generator) -> Talk:
    return Talk(int(random.integers(1000)))


@contextmanager
def registered() -> Iterator[None]:
    """Register `reward="letters"` and `dataset="game:talk"` during the block."""
    REWARDS["letters"] = letters
    GAMES["talk"] = make_talk
    try:
        yield
    finally:
        del REWARDS["letters"], GAMES["talk"]
