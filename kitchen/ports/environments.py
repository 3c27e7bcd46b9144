"""Where answers are rewarded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kitchen.ports.sampling import Message


@dataclass(frozen=True)
class StepResult:
    """What an environment says to an answer."""

    reward: float  # for this answer alone, finite; that of a rollout is their sum
    messages: tuple[Message, ...] = ()  # what is said next; empty where it is over
    parsed: bool = True  # whether the answer could be read as what was asked for


class Env(Protocol):
    """One problem, played once: a second rollout takes another Env.

    What waits in it must be awaited: no limit of time holds for one that blocks. What computes for
    long, or may hang, belongs in a process of its own (`stages.tasks.subprocesses`).

    One with an attribute `tools: Sequence[ToolSchema]` has its policy told of them, as its chat
    template does that.
    """

    async def reset(self) -> Sequence[Message]:
        """What is said first."""
        ...

    async def step(self, answer: str) -> StepResult: ...


class Task(Protocol):
    """A problem that can be played any number of times; a group of rollouts plays the same one."""

    @property
    def tag(self) -> str:
        """What kind of problem it is: rewards are reported by it."""
        ...

    def env(self) -> Env: ...
