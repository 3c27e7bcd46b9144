"""Multiple choice by likelihood: the choice that a model finds the most likely answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from kitchen.backend.work import gather_counted
from kitchen.errors import DataError, Diverged
from kitchen.ports import Sampler, Tokenizer, arrival
from kitchen.types import Datum
from stages.chat.conversations import Conversation, Message
from stages.chat.prompts import all_too_long, answer_content, prompt_messages, prompt_text
from stages.chat.render import Overlong, RenderDataset


@dataclass(frozen=True)
class ScoredChoices:
    """The choices of one problem, with the log-likelihood of each as the answer."""

    prompt: str
    expected: str  # the right choice
    choices: tuple[str, ...]
    logprobs: tuple[float, ...]  # nats of each choice, without the token that ends an answer
    row: int = 0  # index of the row in its set
    where: str = ""  # the row's place in the data

    @property
    def chosen(self) -> str:
        """The likeliest choice; the first of equally likely ones."""
        return self.choices[int(np.argmax(self.logprobs))]

    @property
    def chosen_by_length(self) -> str:
        """The choice with the highest log-likelihood per character."""
        lengths = [max(len(choice), 1) for choice in self.choices]
        return self.choices[int(np.argmax(np.divide(self.logprobs, lengths)))]

    @property
    def scores(self) -> Mapping[str, float]:
        """The scores by measure."""
        return {key: float(score(self)) for (_, key), score in CHOICE_MEASURES.items()}

    def record(self) -> Mapping[str, Any]:
        """Return what a line of samples.jsonl shows besides item and scores."""
        return {
            "prompt": self.prompt,
            "wanted": self.expected,
            "text": self.chosen,
            "exact": self.chosen == self.expected,
            "choices": list(self.choices),
            "logprobs": list(self.logprobs),
        }


# label and metric key of each measure
CHOICE_MEASURES: Mapping[tuple[str, str], Callable[[ScoredChoices], float]] = MappingProxyType(
    {
        ("accuracy", "acc"): lambda row: row.chosen == row.expected,
        ("accuracy by length", "acc_norm"): lambda row: row.chosen_by_length == row.expected,
    }
)


def check_choices(conversations: Sequence[Conversation]) -> None:
    """Raise DataError for a row without choices, or whose right choice is there twice."""
    for conversation in conversations:
        if not conversation.choices:
            raise DataError(
                f"{conversation.where}: evaluation.metric=choice: the row has no choices; add "
                "'choices', a list of texts, and 'answer', the index, the label or the text of "
                "the right one"
            )
        right = answer_content(conversation)
        if [choice.strip() for choice in conversation.choices].count(right.strip()) > 1:
            raise DataError(
                f"{conversation.where}: evaluation.metric=choice: choices has the right one, "
                f"{right!r}, more than once, so the score would mean nothing; remove the "
                "repetition, or drop the row"
            )


def choice_datums(
    conversation: Conversation, tokenizer: Tokenizer, render: RenderDataset
) -> tuple[Datum, ...]:
    """Render each choice as the answer, with weight on its tokens; none if the row is dropped."""
    overlong: Overlong = "drop" if render.overlong == "drop" else "error"
    render = replace(render, train_on="last_assistant_message", overlong=overlong)
    data = list[Datum]()
    for choice in conversation.choices:
        messages = (*prompt_messages(conversation), Message("assistant", choice))
        data += render.datums(replace(conversation, messages=messages), tokenizer)
    return tuple(data) if len(data) == len(conversation.choices) else ()


async def score_choices(
    sampler: Sampler,
    tokenizer: Tokenizer,
    render: RenderDataset,
    conversations: Sequence[Conversation],
) -> tuple[ScoredChoices, ...]:
    """Score the choices of all rows at once, without rows that are dropped as too long."""
    rendered = [choice_datums(row, tokenizer, render) for row in conversations]
    if not any(rendered):
        raise all_too_long(conversations, tokenizer, render)
    stop_ids = {*tokenizer.stop_ids, tokenizer.end_id}

    async def score(data: Sequence[Datum]) -> Sequence[float]:
        return await asyncio.gather(*(_answer_logprob(sampler, datum, stop_ids) for datum in data))

    logprobs = await gather_counted((score(data) for data in rendered), "rows")
    return tuple(
        _scored(row, at, logprobs[at]) for at, row in enumerate(conversations) if rendered[at]
    )


def _scored(conversation: Conversation, row: int, logprobs: Sequence[float]) -> ScoredChoices:
    if not all(map(math.isfinite, logprobs)):
        raise Diverged(
            f"{conversation.where}: the likelihood of a choice is not finite: the weights diverged"
        )
    return ScoredChoices(
        prompt=prompt_text(conversation),
        expected=answer_content(conversation),
        choices=conversation.choices,
        logprobs=tuple(logprobs),
        row=row,
        where=conversation.where,
    )


async def _answer_logprob(sampler: Sampler, datum: Datum, stop_ids: set[int]) -> float:
    """Return the log-likelihood of the answer's tokens, up to the token that ends it."""
    logprobs = await arrival(sampler.logprobs(np.append(datum.tokens, datum.targets[-1])))
    positions = np.flatnonzero(datum.loss_inputs["weights"])
    ends = [at for at in positions if int(datum.targets[at]) in stop_ids]
    if ends and ends[-1] > positions[0]:
        positions = positions[positions < ends[-1]]
    return float(logprobs[1:][positions].astype(np.float64).sum())
