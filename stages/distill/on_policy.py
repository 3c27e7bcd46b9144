"""Distillation: a teacher says what it would have said in the place of each token that the student
wrote.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

import numpy as np

from kitchen import Step
from kitchen.errors import ConfigError, check_name
from kitchen.ports import Tokenizer, TrainingClient, arrival
from kitchen.stage import Need, Stage
from kitchen.types import Array, Datum, Metrics, Samples, Tokens
from stages.chat.conversations import Conversation, TrainRows
from stages.chat.prompts import message_to_dict, prompt_messages
from stages.data.dataset import DataConfig, LoadDataset
from stages.data.mixture import LoadMixture, MixtureRows
from stages.distill.teachers import ScoreByTeachers, Teachers
from stages.rl.policy_gradient import PolicyData, PolicyUpdate, ReportPolicy
from stages.rl.rollouts import Episode, Rollouts, TrainingExample, written
from stages.tasks.rewards import Prompt
from stages.tasks.tasks import TaskBatch, Tasks
from stages.train.optim import ReportStep

DivergenceName = Literal["reverse", "forward"]


class AskRows(Stage):
    """Rows as questions to the student; the answers that they have are not looked at."""

    def run(self, rows: TrainRows) -> Tasks:
        return Tasks(_prompts(rows.conversations, ""), {})

    preview = run


def ask(
    dataset: str, teachers: Mapping[str, str] | None, reading: DataConfig, seed: int, rows: int
) -> tuple[Step, ...]:
    """Questions of one data set, or of those that have a teacher each."""
    if teachers is None:
        return LoadDataset(dataset, reading, seed, rows), AskRows()
    return LoadMixture(tuple(teachers), reading, seed), AskSources()


class AskSources(Stage):
    """The rows of several data sets as questions, each with the name of its own."""

    def run(self, sources: MixtureRows) -> Tasks:
        return Tasks(
            [each for name, rows in sources.rows.items() for each in _prompts(rows, name)], {}
        )

    preview = run


def _prompts(rows: Sequence[Conversation], tag: str) -> list[Prompt]:
    return [Prompt(tuple(map(message_to_dict, prompt_messages(each))), tag) for each in rows]


class ReportAnswers(Stage):
    """Publish how much the student wrote, and some of it."""

    shown: int = 2  # answers of a batch that go into the record

    def run(self, rollouts: Rollouts) -> tuple[Metrics, Samples]:
        some = list(rollouts.all())[: self.shown]
        return written(rollouts), Samples(
            tuple({"when": "rollout", "text": each.text} for each in some)
        )


class ImitateTop(Stage):
    """Data of the forward divergence: at each token written, the teacher's `k` likeliest, weighted
    by their chances.

    The chances are divided by their sum, so that the cross-entropy on them is KL(teacher ||
    student) and the entropy of the teacher, both over its top k and means over tokens (Hinton et
    al., 2015, arXiv:1503.02531, on the student's own answers as in Agarwal et al., 2023,
    arXiv:2306.13649).
    """

    k: int

    async def run(
        self, teachers: Teachers, batch: TaskBatch, rollouts: Rollouts
    ) -> tuple[PolicyData, Metrics]:
        self.preview(teachers.tokenizer)
        heard = await teachers.hear(batch, rollouts)
        found = await asyncio.gather(
            *[arrival(each.teacher.top_logprobs(each.tokens, self.k)) for each in heard]
        )
        tops = [
            np.exp(each.aligned(top)[each.episode.acted].astype(np.float64))
            for each, (_, top) in zip(heard, found, strict=True)
        ]
        mass = np.concatenate([top.sum(-1) for top in tops])  # (tokens written,)
        shares = [top / top.sum(-1, keepdims=True) for top in tops]
        entropy = np.concatenate(
            [-(share * np.log(np.where(share > 0, share, 1))).sum(-1) for share in shares]
        )
        lessons = tuple(
            _imitated(each.episode, each.aligned(ids), share)
            for each, (ids, _), share in zip(heard, found, shares, strict=True)
        )
        return PolicyData(lessons), Metrics(
            teacher_mass=float(mass.mean()), teacher_entropy=float(entropy.mean())
        )

    def preview(self, tokenizer: Tokenizer) -> None:
        if self.k > tokenizer.vocabulary:
            raise ConfigError(
                f"top_k={self.k} is more than the {tokenizer.vocabulary} tokens that there are"
            )

    def needs(self) -> Iterable[Need]:
        return [Need(TrainingClient, "top_logprobs")]


def lesson(
    divergence: DivergenceName, coefficient: float | None, discount: float | None, top_k: int | None
) -> tuple[tuple[Step, ...], str, Stage]:
    """How answers become data, the loss by which these are learnt, and who reports that.

    Raises ConfigError for a setting that is the other divergence's; None is what is usual.
    """
    check_name("divergence", divergence, get_args(DivergenceName))
    strange = (
        {"coefficient": coefficient, "discount": discount}
        if divergence == "forward"
        else {"top_k": top_k}
    )
    if told := [f"{name}={value}" for name, value in strange.items() if value is not None]:
        raise ConfigError(
            f"{', '.join(told)} means nothing with divergence={divergence}: leave it out"
        )
    if divergence == "forward":
        return (ImitateTop(20 if top_k is None else top_k),), "cross_entropy", ReportStep()
    cost = PolicyUpdate(
        penalty=1.0 if coefficient is None else coefficient, discount=discount or 0.0
    )
    return (ScoreByTeachers(), cost), "importance_sampling", ReportPolicy()


def _imitated(one: Episode, ids: Tokens, shares: Array) -> TrainingExample:
    """`ids` are (T, K), `shares` (tokens written, K)."""
    weights = np.zeros(ids.shape, np.float32)
    weights[one.acted] = shares
    return Datum(one.tokens[:-1], {"target_tokens": ids[1:], "weights": weights[1:]}), len(shares)
