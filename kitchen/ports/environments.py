"""The port for environments, which reward the answers of a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kitchen.ports.sampling import Message


@dataclass(frozen=True)
class StepResult:
    """The response of an environment to an answer."""

    # of this answer alone, finite; a rollout's reward is the sum over its answers. None: the answer
    # has no reward, and a rollout whose answers have none is not trained on
    reward: float | None
    messages: tuple[Message, ...] = ()  # the next messages; empty when the episode is over
    parsed: bool = True  # whether the answer has the requested form
    parts: Mapping[str, float] = field(default_factory=dict)  # of the reward, reported apart


class Env(Protocol):
    """One attempt at a problem; every rollout gets a new Env.

    Waiting must be awaited: time limits cannot stop an environment that blocks. Long computations,
    and those that may hang, belong in another process (`stages.tasks.subprocesses`).

    If it has an attribute `tools: Sequence[ToolSchema]`, the chat template describes these tools to
    the policy; `chat_template_kwargs: Mapping[str, Any]` are variables for the template.
    """

    async def reset(self) -> Sequence[Message]:
        """Return the first messages."""
        ...

    async def step(self, answer: str) -> StepResult:
        """Take an answer of the policy and return the reward and the next messages."""
        ...


class Task(Protocol):
    """A problem that can be attempted any number of times, as the rollouts of a group do."""

    @property
    def tag(self) -> str:
        """The kind of problem, by which rewards are reported."""
        ...

    def env(self) -> Env:
        """Return a new attempt at the problem."""
        ...
