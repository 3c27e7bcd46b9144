"""Distillation: a teacher says what it would have said in the place of each token that the student wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from kitchen.errors import ConfigError
from kitchen.ports import BlobStore, Message, Sampler, Tokenizer, TrainingClient, arrival
from kitchen.ports.environments import Env, Turn
from kitchen.stage import Need, Stage
from kitchen.types import Array, Datum, Floats, Metrics, Samples, Tokens
from kitchen.weights import find_weights
from stages.conversations import TrainRows
from stages.evaluation import question, spoken
from stages.policy import PolicyData, ReferenceScores, episodes_of
from stages.rollouts import Episode, Rollouts, shown, written
from stages.tasks import Tasks

DivergenceName = Literal["reverse", "forward"]


class Teacher(Sampler, Protocol):
    """The weights that are learnt from."""


class OpenTeacher(Stage):
    """Open the weights that are learnt from; they must read the same tokens as the student."""

    teacher: str  # a name of weights

    def run(self, client: TrainingClient, tokenizer: Tokenizer, blobs: BlobStore | None = None) -> Teacher:
        found = find_weights(self.teacher, client, blobs)
        if not same_tokens(client.tokenizer(found.model), tokenizer):
            raise ConfigError(f"teacher={self.teacher!r} reads other tokens than the student, so that its chances of a "
                              "token say nothing of the student's; take weights with the same tokenizer")
        return client.sampler(found.source)

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_weights(self.teacher, client, blobs)


def same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    """Whether they have as many tokens, and read a text of many letters and words alike."""
    probe = "The quick brown fox jumps over 1,234 lazy dogs.\n\n\t" + "".join(map(chr, range(32, 0x250)))
    return one.vocabulary == other.vocabulary and np.array_equal(one.encode(probe), other.encode(probe))


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
        return written(rollouts), shown(rollouts, self.shown)


class ScoreByTeacher(Stage):
    """Ask the teacher for its log-probabilities of what the student wrote.

    `kl_teacher` is the mean of log(student / teacher) over the tokens written, nats: the reverse divergence.
    """

    async def run(self, teacher: Teacher, rollouts: Rollouts) -> tuple[ReferenceScores, Metrics]:
        episodes = episodes_of(rollouts)
        found = await asyncio.gather(*[arrival(teacher.logprobs(one.tokens)) for one in episodes])
        apart = np.concatenate([(one.logprobs - each)[one.acted] for one, each in zip(episodes, found, strict=True)])
        return ReferenceScores(tuple(found)), Metrics(kl_teacher=float(apart.mean(dtype=np.float64)))


class ImitateTop(Stage):
    """Data of the forward divergence: at each token written, the teacher's `k` likeliest with their chances as weights.

    Their chances are divided by their sum, and by the number of tokens written, so that the cross-entropy on them is
    KL(teacher || student) and the teacher's entropy, both over its top k and a mean over tokens (Hinton et al., 2015,
    arXiv:1503.02531, on the student's own answers as in Agarwal et al., 2023, arXiv:2306.13649).
    """

    k: int

    async def run(self, teacher: Teacher, rollouts: Rollouts) -> tuple[PolicyData, Metrics]:
        episodes = episodes_of(rollouts)
        found = await asyncio.gather(*[arrival(teacher.top_logprobs(one.tokens, self.k)) for one in episodes])
        chances = [np.where(one.acted[1:, None], np.exp(top[1:].astype(np.float64)), 0.0)
                   for one, (_, top) in zip(episodes, found, strict=True)]
        count = sum(int(one.acted.sum()) for one in episodes)
        data = tuple(_imitated(one, ids, each, count)
                     for one, (ids, _), each in zip(episodes, found, chances, strict=True))
        return PolicyData(data), Metrics(
            teacher_mass=sum(float(each.sum()) for each in chances) / count,
            teacher_entropy=-sum(float((w * np.log(np.where(w > 0, w * count, 1))).sum()) for w in (
                datum.loss_inputs["weights"].astype(np.float64) for datum in data)))

    def needs(self) -> Iterable[Need]:
        return [Need(TrainingClient, "top_logprobs")]


def _imitated(one: Episode, ids: Tokens, chances: Array, count: int) -> Datum:
    """`chances` are (T - 1, K), 0 where the student did not speak."""
    total = chances.sum(-1, keepdims=True)
    weights: Floats = (chances / np.where(total > 0, total, 1.0) / count).astype(np.float32)
    return Datum(one.tokens[:-1], {"target_tokens": ids[1:], "weights": weights})
