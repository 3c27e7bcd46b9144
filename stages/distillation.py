"""Distillation: a teacher says what it would have said in the place of each token that the student wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kitchen.errors import ConfigError
from kitchen.ports import Message, Tokenizer, TrainingClient, arrival
from kitchen.ports.environments import Env, Turn
from kitchen.stage import Need, Stage
from kitchen.types import Array, Datum, Metrics, Samples, Tokens
from stages.conversations import TrainRows
from stages.evaluation import question, spoken
from stages.policy import PolicyData, episodes_of
from stages.rollouts import Episode, Lesson, Rollouts, written
from stages.scoring import Reference
from stages.tasks import Tasks

DivergenceName = Literal["reverse", "forward"]


@dataclass(frozen=True)
class Prompt:
    """A question whose answer is not judged; a Task, and the Env of it."""

    messages: tuple[Message, ...]
    tag: str = ""

    def env(self) -> Env:
        return self

    async def begin(self) -> Sequence[Message]:
        return self.messages

    async def act(self, answer: str) -> Turn:
        return Turn(0.0)


class AskRows(Stage):
    """Rows as questions to the student; the answers that they have are not looked at."""

    def run(self, rows: TrainRows) -> Tasks:
        return Tasks([Prompt(tuple(map(spoken, question(each)))) for each in rows.conversations], {})


class ReportAnswers(Stage):
    """Publish how much the student wrote, and some of it."""

    shown: int = 2  # answers of a batch that go into the record

    def run(self, rollouts: Rollouts) -> tuple[Metrics, Samples]:
        some = list(rollouts.all())[: self.shown]
        return written(rollouts), Samples(tuple({"when": "rollout", "text": each.text} for each in some))


class ImitateTop(Stage):
    """Data of the forward divergence: at each token written, the reference's `k` likeliest, weighted by their chances.

    The chances are divided by their sum, so that the cross-entropy on them is KL(reference || student) and the entropy
    of the reference, both over its top k and means over tokens (Hinton et al., 2015, arXiv:1503.02531, on the
    student's own answers as in Agarwal et al., 2023, arXiv:2306.13649).
    """

    k: int

    async def run(self, reference: Reference, rollouts: Rollouts) -> tuple[PolicyData, Metrics]:
        episodes = episodes_of(rollouts)
        found = await asyncio.gather(*[arrival(reference.top_logprobs(one.tokens, self.k)) for one in episodes])
        tops = [np.exp(top[one.acted].astype(np.float64)) for one, (_, top) in zip(episodes, found, strict=True)]
        mass = np.concatenate([top.sum(-1) for top in tops])  # (tokens written,)
        shares = [top / top.sum(-1, keepdims=True) for top in tops]
        entropy = np.concatenate([-(share * np.log(np.where(share > 0, share, 1))).sum(-1) for share in shares])
        lessons = tuple(_imitated(one, ids, share)
                        for one, (ids, _), share in zip(episodes, found, shares, strict=True))
        return PolicyData(lessons), Metrics(teacher_mass=float(mass.mean()), teacher_entropy=float(entropy.mean()))

    def preview(self, tokenizer: Tokenizer) -> None:
        if self.k > tokenizer.vocabulary:
            raise ConfigError(f"top_k={self.k} is more than the {tokenizer.vocabulary} tokens that there are")

    def needs(self) -> Iterable[Need]:
        return [Need(TrainingClient, "top_logprobs")]


def _imitated(one: Episode, ids: Tokens, shares: Array) -> Lesson:
    """`ids` are (T, K), `shares` (tokens written, K)."""
    weights = np.zeros(ids.shape, np.float32)
    weights[one.acted] = shares
    return Datum(one.tokens[:-1], {"target_tokens": ids[1:], "weights": weights[1:]}), len(shares)
