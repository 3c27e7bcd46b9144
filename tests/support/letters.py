"""A reward that random answers earn too, and a game of several turns with it."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kitchen.ports import Message
from kitchen.ports.environments import Env, StepResult
from stages.tasks import games, tasks
from stages.tasks import rewards as questions


def letters(answer: str, right: str) -> StepResult:
    """Reward the share of the first three letters that are in the right answer, 0..1."""
    return StepResult(sum(letter in right for letter in answer[:3]) / 3)


REWARDS: Mapping[str, questions.Reward] = {**questions.REWARDS, "letters": letters}


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


def use(change: Callable[[Any, str, Any], None] = setattr) -> None:
    """Register `reward="letters"` and `dataset="game:talk"`."""
    for module in (questions, tasks):
        change(module, "REWARDS", REWARDS)
    change(games, "GAMES", {**games.GAMES, "talk": lambda random: Talk(int(random.integers(1000)))})
