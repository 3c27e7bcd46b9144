"""A judge: a language model that compares two answers; its preference can be a reward."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from kitchen.errors import ConfigError
from kitchen.ports import Sampler, Tokenizer, arrival
from kitchen.types import Array, Checkpoint, ModelName
from stages.chat.conversations import Conversation
from stages.chat.messages import Message
from stages.chat.prompts import answer_content, prompt_messages, request_text
from stages.chat.render import RenderDataset
from stages.chat.template import (
    DEFAULT_RENDERING,
    NO_INPUTS,
    PromptRendering,
    TemplateInputs,
)
from stages.preference.comparisons import Comparison

EVEN = 0.5  # the judge's preference of an answer to itself
JudgeSays = Literal["answer", "letter"]


@dataclass(frozen=True)
class JudgeConfig:
    """The form of the judge's preferences, and its training."""

    # answer: the judge rates each answer by its likelihood given the request; letter: it reads both
    # answers and replies A or B
    says: JudgeSays = "answer"
    # weights that the judge's training starts from, named like `model`; null for `model` itself
    model: ModelName | None = None
    # with says=answer, scale of the rewards: beta times the mean log-probability per token, in nats
    beta: PositiveFloat = 10.0
    # with says=answer, weight of the chosen answers' cross-entropy per token
    imitation: NonNegativeFloat = 1.0
    epochs: PositiveInt = 1  # passes over the comparisons
    # comparisons per optimiser step; with says=letter, questions, of which a comparison gives two
    batch_size: PositiveInt = 16
    learning_rate: PositiveFloat = 1e-4  # peak learning rate, reached at the end of warm-up
    warmup_steps: NonNegativeInt = 5  # length of the warm-up, in optimiser steps
    # maximum tokens of a request and an answer; longer comparisons are not used
    max_tokens: PositiveInt = 1024

    def __post_init__(self) -> None:
        for name in ("beta", "imitation"):
            if self.says == "letter" and getattr(self, name) != getattr(JudgeConfig, name):
                raise ConfigError(
                    f"judge.{name}={getattr(self, name):g} has no effect with judge.says=letter: "
                    "leave it out."
                )

    @property
    def rendering(self) -> RenderDataset:
        """The rendering of requests with answers."""
        return RenderDataset("last_assistant_message", self.max_tokens, "drop")

    def with_prompts_of(self, model: str, prompts: PromptRendering) -> JudgeConfig:
        """Return the form of a judge that starts from `model`, with that model's rendering.

        A judge that starts from another model is unchanged: its chat template is another one.
        """
        if self.model not in (None, model):
            return self
        return _PolicyJudgeConfig(**vars(self), prompts=prompts)


@dataclass(frozen=True)
class _PolicyJudgeConfig(JudgeConfig):
    """The form of a judge that starts from the policy's model."""

    prompts: PromptRendering = DEFAULT_RENDERING

    @property
    def rendering(self) -> RenderDataset:
        """The rendering of requests with answers, with the policy's template and variables."""
        return RenderDataset(
            "last_assistant_message",
            self.max_tokens,
            "drop",
            chat_template_kwargs=self.prompts.chat_template_kwargs,
            template=self.prompts.template,
        )


@dataclass(frozen=True)
class JudgeWeights(Checkpoint):
    """Final weights of a judge."""

    policy: ClassVar[bool] = False


def answer_conversation(
    request: Sequence[Message],
    answer: str,
    inputs: TemplateInputs = NO_INPUTS,
) -> Conversation:
    """Return the conversation whose last message the judge rates, with says=answer."""
    messages = (*request, Message("assistant", answer))
    return Conversation(
        messages,
        "the judge's input",
        single_turn=len(request) == 1,
        sampled=True,
        inputs=inputs,
    )


def letter_conversation(
    request: Sequence[Message],
    first: str,
    second: str,
    letter: str,
    inputs: TemplateInputs = NO_INPUTS,
) -> Conversation:
    """Return the question about two answers and a reply, A or B, with says=letter."""
    text = request_text(request, inputs)
    question = (
        f"Which answer to this request is better?\n\n{text}\n\nAnswer A:\n{first}\n\n"
        f"Answer B:\n{second}\n\nReply with A or B."
    )
    asked = (Message("user", question), Message("assistant", letter))
    return Conversation(asked, "the judge's input", single_turn=True)


def request_and_answers(row: Comparison) -> tuple[Sequence[Message], str, str]:
    """Return the request, the chosen answer and the rejected one."""
    assert row.rejected is not None, "comparisons for a judge have both answers"
    return prompt_messages(row.chosen), answer_content(row.chosen), answer_content(row.rejected)


@dataclass(frozen=True)
class Judge:
    """A language model that rates answers, or chooses the better of two."""

    sampler: Sampler
    tokenizer: Tokenizer
    config: JudgeConfig

    async def prefers(
        self,
        request: Sequence[Message],
        answer: str,
        other: str,
        inputs: TemplateInputs = NO_INPUTS,
    ) -> float | None:
        """Return the probability, 0..1, that `answer` is better; 0.5 for an answer and itself.

        It is None if the judge cannot read them: they are too long, or its chat template changes
        them.

        With says=answer, this is the Bradley-Terry model (1952, doi:10.2307/2334029), in which an
        answer's reward is beta times the mean log-probability of its tokens, nats (Meng et al.,
        2024, arXiv:2405.14734, eq. 4). With says=letter, the question is asked in both orders
        (Zheng et al., 2023, arXiv:2306.05685); the result is the mean of the probability of A where
        `answer` is A, and one minus that where `other` is A.
        """
        letters = self.config.says == "letter"
        if letters:
            both = (
                letter_conversation(request, answer, other, "A", inputs),
                letter_conversation(request, other, answer, "A", inputs),
            )
        else:
            both = (
                answer_conversation(request, answer, inputs),
                answer_conversation(request, other, inputs),
            )
        first, second = await asyncio.gather(*map(self._logprobs, both))
        if first is None or second is None:
            return None
        if letters:
            return EVEN + float(np.exp(first.sum()) - np.exp(second.sum())) / 2
        return float(np.exp(-np.logaddexp(0, -self.config.beta * (first.mean() - second.mean()))))

    async def _logprobs(self, conversation: Conversation) -> Array | None:
        """Return the log-probabilities, (N,), of the last message; None if it cannot be read."""
        data = self.config.rendering.datums(conversation, self.tokenizer)
        if not data:
            return None
        [datum] = data
        logprobs = await arrival(self.sampler.logprobs(np.append(datum.tokens, datum.targets[-1])))
        of_reply: Array = logprobs[1:].astype(np.float64)[datum.loss_inputs["weights"] != 0]
        return of_reply

    def close(self) -> None:
        self.sampler.close()
