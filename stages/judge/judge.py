"""A judge: a language model that compares two answers; its preference can be a reward."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from kitchen.backend.sampling_router import is_sampled_elsewhere
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
from stages.evaluate.reference import check_logprobs
from stages.preference.comparisons import Comparison
from stages.tasks.asked_model import AskedModel, Judgement
from stages.tasks.rubric import delimited_texts

UNREAD = "the judge cannot read it"  # an answer that is too long, or changed by the template
EVEN = 0.5  # the judge's preference of an answer to itself
JudgeSays = Literal["answer", "letter"]
# settings of the judge's training
TRAINING = ("imitation", "batch_size", "learning_rate", "warmup_steps")
LETTERS = {"A": 1.0, "B": 0.0}  # replies, as the preference for the first answer
FORM = "Reply with A or B."


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
    # passes over the comparisons; 0 for a judge that is not trained
    epochs: NonNegativeInt = 1
    # comparisons per optimiser step; with says=letter, questions, of which a comparison gives two
    batch_size: PositiveInt = 16
    # peak learning rate, reached at the end of warm-up; null for 1e-4, with train=full for 1e-5
    learning_rate: PositiveFloat | None = None
    warmup_steps: NonNegativeInt = 5  # length of the warm-up, in optimiser steps
    # maximum tokens of a request and an answer; longer comparisons are not used
    max_tokens: PositiveInt = 1024
    # with says=letter and epochs=0, replies per order of the two answers, of which the share of A
    # counts; 0 for the probability of A, which a judge of text alone does not give
    draws: NonNegativeInt = 0
    temperature: NonNegativeFloat = 0.0  # with draws, sampling temperature of the judge; 0: greedy
    reply_tokens: PositiveInt = 16  # with draws, maximum tokens of a reply of the judge
    # with draws, times that the judge is asked again if it replies neither A nor B; then the
    # rollout fails
    retries: NonNegativeInt = 2

    def __post_init__(self) -> None:
        if self.says == "letter":
            self._check_unset(("beta", "imitation"), "judge.says=letter")
        if self.epochs == 0:
            self._check_unset(TRAINING, "judge.epochs=0, which trains no judge")
        if self.draws:
            self._check_draws()
        else:
            self._check_unset(("temperature", "reply_tokens", "retries"), "judge.draws=0")

    def _check_unset(self, names: Sequence[str], setting: str) -> None:
        """Raise ConfigError for settings that have no effect."""
        for name in names:
            value = getattr(self, name)
            if value != getattr(JudgeConfig, name):
                raise ConfigError(
                    f"judge.{name}={value:g} has no effect with {setting}: leave it out."
                )

    def _check_draws(self) -> None:
        """Raise ConfigError for settings that contradict each other if replies are sampled."""
        if self.says == "answer" or self.epochs:
            raise ConfigError(
                f"judge.draws={self.draws} samples replies of a judge that is not trained: set "
                "judge.says=letter and judge.epochs=0, or leave draws out."
            )
        if self.draws > 1 and self.temperature == 0:
            raise ConfigError(
                f"judge.draws={self.draws} asks for the same reply each time, because "
                "judge.temperature=0: raise judge.temperature, or leave draws at 1."
            )
        self._check_unset(("max_tokens",), "judge.draws, which reads answers of any length")

    def check_weights(self, name: str) -> None:
        """Raise ConfigError, with the settings to use, for weights that cannot be trained."""
        if is_sampled_elsewhere(name) and not self.asked:
            raise ConfigError(
                f"judge.model={name} is a model of another service, which cannot be trained: set "
                "judge.epochs=0, judge.says=letter, and judge.draws to 1 or more, so that it is "
                "asked which answer is better"
            )

    @property
    def asked(self) -> bool:
        """True if the judge is used as it is, without training."""
        return self.epochs == 0

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
    """Return the question about two answers and a reply, A or B, for the log-probability of A.

    An answer can imitate the heading of the other one; `asked_prompt` prevents that. A trained
    judge has to be asked as it was trained.
    """
    text = request_text(request, inputs)
    question = (
        f"Which answer to this request is better?\n\n{text}\n\nAnswer A:\n{first}\n\n"
        f"Answer B:\n{second}\n\n{FORM}"
    )
    asked = (Message("user", question), Message("assistant", letter))
    return Conversation(asked, "the judge's input", single_turn=True)


def asked_prompt(
    request: Sequence[Message], first: str, second: str, inputs: TemplateInputs = NO_INPUTS
) -> str:
    """Return the question about two answers to a judge whose reply is sampled."""
    parts = [
        ("REQUEST", request_text(request, inputs)),
        ("ANSWER A", first),
        ("ANSWER B", second),
    ]
    return f"Which answer to a request is better?\n\n{delimited_texts(parts)}\n\n{FORM}"


def request_and_answers(row: Comparison) -> tuple[Sequence[Message], str, str]:
    """Return the request, the chosen answer and the rejected one."""
    assert row.rejected is not None, "comparisons for a judge have both answers"
    return prompt_messages(row.chosen), answer_content(row.chosen), answer_content(row.rejected)


@dataclass(frozen=True)
class Preference:
    """A judge's preference for an answer over another one."""

    value: float | None  # probability, 0..1, that the answer is better; None if there is none
    problem: str = ""  # the reason why there is none
    judgements: tuple[Judgement, ...] = ()  # of a judge that is asked, in both orders


def read_letter(reply: str) -> tuple[float | None, str]:
    """Return 1 for a reply that is A and 0 for B, or the reason why it is neither."""
    letter = reply.strip().removeprefix("Answer ").strip("*.:()\"'` \n")
    if letter in LETTERS:
        return LETTERS[letter], ""
    return None, f"it is {reply.strip()[:60]!r}, neither A nor B"


@dataclass(frozen=True)
class Judge:
    """A language model that rates answers, or chooses the better of two."""

    sampler: Sampler
    tokenizer: Tokenizer
    config: JudgeConfig
    seed: int = 0
    name: str = ""  # of its weights, for errors

    async def prefers(
        self,
        request: Sequence[Message],
        answer: str,
        other: str,
        inputs: TemplateInputs = NO_INPUTS,
    ) -> float | None:
        """Return the probability, 0..1, that `answer` is better; None if `compare` has none."""
        return (await self.compare(request, answer, other, inputs)).value

    async def compare(
        self,
        request: Sequence[Message],
        answer: str,
        other: str,
        inputs: TemplateInputs = NO_INPUTS,
    ) -> Preference:
        """Return the probability, 0..1, that `answer` is better; 0.5 for an answer and itself.

        There is none if the judge cannot read them: they are too long, or its chat template changes
        them. Raises BackendError for log-probabilities that are not finite, or above 0.

        With says=answer, this is the Bradley-Terry model (1952, doi:10.2307/2334029), in which an
        answer's reward is beta times the mean log-probability of its tokens, nats (Meng et al.,
        2024, arXiv:2405.14734, eq. 4). With says=letter, the question is asked in both orders
        (Zheng et al., 2023, arXiv:2306.05685); the result is the mean of the probability of A where
        `answer` is A, and one minus that where `other` is A. With draws, the probability of A is
        the share of replies that are A.
        """
        if self.config.draws:
            return await self._ask(request, answer, other, inputs)
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
            return Preference(None, UNREAD)
        if letters:
            as_a, as_b = (np.exp(min(each.sum(), 0.0)) for each in (first, second))
            return Preference(EVEN + float(as_a - as_b) / 2)
        margin = self.config.beta * (first.mean() - second.mean())
        return Preference(float(np.exp(-np.logaddexp(0, -margin))))

    async def _ask(
        self, request: Sequence[Message], answer: str, other: str, inputs: TemplateInputs
    ) -> Preference:
        """Return the mean over both orders of the share of replies that prefer `answer`."""
        if answer == other:
            return Preference(EVEN)
        orders = {"answer as A": (answer, other), "answer as B": (other, answer)}
        judged = await asyncio.gather(
            *(self._ask_in_order(order, request, inputs, *two) for order, two in orders.items())
        )
        first, second = judged
        for judgement in judged:
            if judgement.score is None:
                return Preference(None, judgement.problem, tuple(judged))
        assert first.score is not None
        assert second.score is not None
        return Preference(EVEN + (first.score - second.score) / 2, judgements=tuple(judged))

    async def _ask_in_order(
        self,
        order: str,
        request: Sequence[Message],
        inputs: TemplateInputs,
        first: str,
        second: str,
    ) -> Judgement:
        """Ask which of two answers is better; the score is the share of A."""
        config = self.config
        prompt = asked_prompt(request, first, second, inputs)
        limits = config.reply_tokens, "judge.reply_tokens", config.temperature, config.retries
        tokenizer = config.rendering.tokenizer(self.tokenizer)
        model = AskedModel(tokenizer, self.sampler, *limits, self.seed)
        return await model.judge(order, prompt, config.draws, read_letter, FORM)

    async def _logprobs(self, conversation: Conversation) -> Array | None:
        """Return the log-probabilities, (N,), of the last message; None if it cannot be read."""
        data = self.config.rendering.datums(conversation, self.tokenizer)
        if not data:
            return None
        [datum] = data
        logprobs = await arrival(self.sampler.logprobs(np.append(datum.tokens, datum.targets[-1])))
        of_reply: Array = logprobs[1:].astype(np.float64)[datum.loss_inputs["weights"] != 0]
        check_logprobs(of_reply, f"the judge {self.name}".rstrip())
        return of_reply

    def close(self) -> None:
        self.sampler.close()
