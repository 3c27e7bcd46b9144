"""A judge: a language model that says which of two answers is better, so that its word can be a
reward.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from kitchen.errors import ConfigError
from kitchen.ports import Sampler, Tokenizer, arrival
from kitchen.types import Array, Checkpoint
from stages.chat.conversations import Conversation, Message
from stages.chat.prompts import prompt_messages, reference_answer
from stages.chat.render import RenderDataset
from stages.preference.comparisons import Comparison

EVEN = 0.5  # how far a judge prefers an answer to itself
JudgeSays = Literal["answer", "letter"]


@dataclass(frozen=True)
class Judging:
    """What the judge says, and how it is trained."""

    # it reads the request, and gives the better answer; letter: reads both, and says A or B
    says: JudgeSays = "answer"
    # weights of any name to begin with; null for those that the policy begins with
    model: str | None = None
    beta: PositiveFloat = 10.0  # of answer: how much surer it is by a nat per token between the two
    # of answer: weight of the better answers' own cross-entropy, nats per token
    imitation: NonNegativeFloat = 1.0
    epochs: PositiveInt = 1
    # of an optimiser step: comparisons, or with letter questions, two of a comparison
    batch_size: PositiveInt = 16
    learning_rate: PositiveFloat = 1e-4  # the highest, at the end of warm-up
    warmup_steps: NonNegativeInt = 5  # optimiser steps
    max_tokens: PositiveInt = 1024  # of what it reads and says; what is longer is not learnt from

    def __post_init__(self) -> None:
        for name in ("beta", "imitation"):
            if self.says == "letter" and getattr(self, name) != getattr(Judging, name):
                raise ConfigError(
                    f"judge.{name}={getattr(self, name):g} means nothing with judge.says=letter: "
                    "leave "
                    "it out"
                )

    @property
    def rendering(self) -> RenderDataset:
        return RenderDataset("last_assistant_message", self.max_tokens, "drop")


@dataclass(frozen=True)
class JudgeWeights(Checkpoint):
    """Of a judge, when its training is over."""

    policy: ClassVar[bool] = False


def answered(request: Sequence[Message], answer: str) -> Conversation:
    """What a judge of answers reads, and an answer that it may give, whoever wrote it."""
    return Conversation(
        (*request, Message("assistant", answer)),
        "what the judge is asked",
        single_turn=len(request) == 1,
        sampled=True,
    )


def asked(request: Sequence[Message], first: str, second: str, letter: str) -> Conversation:
    """What a judge of letters reads, and what it may say."""
    said = (
        request[0].content
        if len(request) == 1
        else "\n".join(f"{each.role}: {each.content}" for each in request)
    )
    text = (
        f"Which answer to this request is better?\n\n{said}\n\nAnswer A:\n{first}\n\nAnswer "
        f"B:\n{second}\n\n"
        "Reply with A or B."
    )
    return Conversation(
        (Message("user", text), Message("assistant", letter)),
        "what the judge is asked",
        single_turn=True,
    )


def answers(one: Comparison) -> tuple[Sequence[Message], str, str]:
    """The request, the answer that is wanted, and the other."""
    assert one.rejected is not None, "whoever made the comparison for a judge gave it both"
    return prompt_messages(one.chosen), reference_answer(one.chosen), reference_answer(one.rejected)


@dataclass(frozen=True)
class Judge:
    """A language model that gives the better answer, or says A or B."""

    sampler: Sampler
    tokenizer: Tokenizer
    how: Judging

    async def prefers(self, request: Sequence[Message], answer: str, other: str) -> float | None:
        """How far it prefers `answer`, 0..1, and an answer to itself 0.5; None for what it cannot
        read.

        That is what is too long for it, and answers that its chat template changes.

        Of answers, the chance by Bradley and Terry (1952, doi:10.2307/2334029) where each is as
        strong as beta times the mean log-probability of its tokens, nats (the reward of Meng et
        al., 2024, arXiv:2405.14734, eq. 4). Of letters, the mean of both orders (Zheng et al.,
        2023, arXiv:2306.05685): how likely it says A where `answer` is A, and that it does not
        where `other` is.
        """
        letters = self.how.says == "letter"
        both = (
            (asked(request, answer, other, "A"), asked(request, other, answer, "A"))
            if letters
            else (answered(request, answer), answered(request, other))
        )
        first, second = await asyncio.gather(*map(self._nats, both))
        if first is None or second is None:
            return None
        if letters:
            return EVEN + float(np.exp(first.sum()) - np.exp(second.sum())) / 2
        return float(np.exp(-np.logaddexp(0, -self.how.beta * (first.mean() - second.mean()))))

    async def _nats(self, conversation: Conversation) -> Array | None:
        """(N,) log-probabilities of what is said last; None where it cannot be read."""
        data = self.how.rendering.datums(conversation, self.tokenizer)
        if not data:
            return None
        [datum] = data
        found = await arrival(self.sampler.logprobs(np.append(datum.tokens, datum.targets[-1])))
        said: Array = found[1:].astype(np.float64)[datum.loss_inputs["weights"] != 0]
        return said

    def close(self) -> None:
        self.sampler.close()
