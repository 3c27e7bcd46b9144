"""On-policy distillation: the student answers, and a teacher scores each token of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Literal, get_args

import numpy as np

from kitchen import Step
from kitchen.errors import ConfigError, check_name, did_you_mean
from kitchen.ports import Tokenizer, TrainingClient, arrival
from kitchen.stage import Need, Stage
from kitchen.types import Array, Datum, Metrics, Samples, Table, Tokens
from stages.chat.conversations import Conversation, TrainRows
from stages.chat.prompts import prompt_dicts
from stages.chat.render import RenderDataset
from stages.data.bad_rows import report_bad_rows
from stages.data.dataset import DEFAULT_DATASET, DataConfig, HeldOut, LoadDataset
from stages.data.mixture import LoadMixture, MixtureRows
from stages.distill.teachers import ComputeTeacherLogprobs, Teachers
from stages.evaluate.bad_rows import good_held_out
from stages.evaluate.evaluation import EvalConfig
from stages.evaluate.reference import check_logprobs
from stages.rl.policy_gradient import ComputeAdvantages, PolicyData, ReportPolicy
from stages.rl.rollouts import Episode, Rollouts, TrainingExample, generation_metrics
from stages.tasks.rewards import Prompt
from stages.tasks.tasks import TaskBatch, Tasks, good_tasks
from stages.train.optim import ReportStep

DivergenceName = Literal["reverse", "forward"]


class PromptsFromRows(Stage):
    """Turn rows into prompts for the student; the answers in the data are not used."""

    def run(self, rows: TrainRows) -> Tasks:
        return Tasks(_prompts(rows.conversations, ""), {})

    preview = run


class PromptsFromSources(Stage):
    """Turn the rows of several data sets into prompts, each tagged with its data set."""

    weights: Mapping[str, float] = field(default_factory=dict)  # empty: all prompts equally

    def run(self, sources: MixtureRows) -> Tasks:
        prompts: list[Prompt] = []
        for name, rows in sources.rows.items():
            prompts += _prompts(rows, name)
        return Tasks(prompts, {}, weights=dict(self.weights))

    preview = run


def load_prompts(
    dataset: str,
    mixture: Mapping[str, float] | None,
    teachers: Mapping[str, str] | None,
    reading: DataConfig,
    seed: int,
    max_rows: int,
) -> tuple[Step, ...]:
    """Return the stages that load the prompts of one data set, or of several.

    Raises ConfigError for a mixture of other data sets than those that have teachers.
    """
    if mixture is not None:
        _check_mixture(dataset, mixture, teachers)
        return LoadMixture(tuple(mixture), reading, seed), PromptsFromSources(dict(mixture))
    if teachers is None:
        return LoadDataset(dataset, reading, seed, max_rows), PromptsFromRows()
    return LoadMixture(tuple(teachers), reading, seed), PromptsFromSources()


def _check_mixture(
    dataset: str, mixture: Mapping[str, float], teachers: Mapping[str, str] | None
) -> None:
    if dataset != DEFAULT_DATASET:
        raise ConfigError(
            f"mixture.DATASET=WEIGHT names the data sets: leave dataset={dataset} out"
        )
    for name in () if teachers is None else mixture:
        if name not in (teachers or {}):
            raise ConfigError(
                f"mixture.{name}: the data set has no teacher; set teachers.{name}=WEIGHTS"
            )
    for name in teachers or ():
        if name not in mixture:
            raise ConfigError(
                f"teachers.{name}: the mixture has no such data set; {did_you_mean(name, mixture)}"
            )


def _prompts(rows: Sequence[Conversation], tag: str) -> list[Prompt]:
    return [Prompt(prompt_dicts(row), tag, row.where, row.inputs) for row in rows]


class DropBadPrompts(Stage):
    """Leave out prompts and held-out rows that cannot be rendered, and report those left out."""

    render: RenderDataset
    config: EvalConfig
    max_tokens: int  # maximum tokens per answer to a prompt

    def run(
        self, tasks: Tasks, held_out: HeldOut, tokenizer: Tokenizer
    ) -> tuple[Tasks, HeldOut, Metrics, Table, Samples]:
        tasks = good_tasks(tasks, tokenizer, self.max_tokens, self.render)
        held_out = good_held_out(held_out, tokenizer, self.render, self.config)
        return tasks, held_out, *report_bad_rows([*held_out.bad_rows, *tasks.bad_rows])

    preview = run


class ReportAnswers(Stage):
    """Report the number of sampled tokens, and record some of the student's answers."""

    shown: int = 2  # number of answers per batch that are recorded as samples

    def run(self, rollouts: Rollouts) -> tuple[Metrics, Samples]:
        recorded = list(rollouts.all())[: self.shown]
        return generation_metrics(rollouts), Samples(
            tuple({"when": "rollout", "text": rollout.text} for rollout in recorded)
        )


class TopKTargets(Stage):
    """Build the data of the forward KL: the teacher's top `k` tokens at each sampled token.

    Their weights are the teacher's probabilities, normalised over the top k, so that the
    cross-entropy on them is KL(teacher || student) plus the teacher's entropy, both over the top k
    and means over tokens (Hinton et al., 2015, arXiv:1503.02531, on the student's own answers as in
    Agarwal et al., 2023, arXiv:2306.13649).
    """

    k: int

    async def run(
        self, teachers: Teachers, batch: TaskBatch, rollouts: Rollouts
    ) -> tuple[PolicyData, Metrics]:
        self.preview(teachers.tokenizer)
        inputs = await teachers.inputs(batch, rollouts)
        top = await asyncio.gather(
            *[arrival(answer.teacher.top_logprobs(answer.tokens, self.k)) for answer in inputs]
        )
        examples = []
        mass = []
        entropy = []
        for answer, (ids, logprobs) in zip(inputs, top, strict=True):
            sampled = answer.aligned(logprobs)[answer.episode.action_mask]
            check_logprobs(sampled, "the teacher")
            probs = np.exp(sampled.astype(np.float64))  # (sampled tokens, K)
            shares = probs / probs.sum(-1, keepdims=True)
            mass.append(probs.sum(-1))
            entropy.append(-(shares * np.log(np.where(shares > 0, shares, 1))).sum(-1))
            examples.append(_example(answer.episode, answer.aligned(ids), shares))
        return PolicyData(tuple(examples)), Metrics(
            teacher_mass=float(np.concatenate(mass).mean()),
            teacher_entropy=float(np.concatenate(entropy).mean()),
        )

    def preview(self, tokenizer: Tokenizer) -> None:
        if self.k > tokenizer.vocabulary:
            raise ConfigError(
                f"top_k={self.k} is more than the {tokenizer.vocabulary} tokens of the vocabulary: "
                "lower it."
            )

    def needs(self) -> Iterable[Need]:
        fix = "set divergence=reverse"
        names = "top_logprobs", "topk_targets"
        return [Need(TrainingClient, name, alternative=fix) for name in names]


def divergence_steps(
    divergence: DivergenceName, coefficient: float | None, discount: float | None, top_k: int | None
) -> tuple[tuple[Step, ...], str, Stage]:
    """Return the stages that build the training data, the name of the loss, and its report.

    None stands for the default. Raises ConfigError for an option of the other divergence.
    """
    check_name("divergence", divergence, get_args(DivergenceName))
    if divergence == "forward":
        unused = {"coefficient": coefficient, "discount": discount}
    else:
        unused = {"top_k": top_k}
    if wrong := [f"{name}={value}" for name, value in unused.items() if value is not None]:
        raise ConfigError(
            f"{', '.join(wrong)} has no effect with divergence={divergence}: leave it out."
        )
    if divergence == "forward":
        return (TopKTargets(20 if top_k is None else top_k),), "cross_entropy", ReportStep()
    penalty = ComputeAdvantages(
        penalty=1.0 if coefficient is None else coefficient, discount=discount or 0.0
    )
    return (ComputeTeacherLogprobs(), penalty), "importance_sampling", ReportPolicy()


def _example(episode: Episode, ids: Tokens, shares: Array) -> TrainingExample:
    """Return the example of an episode; `ids` are (T, K), `shares` (sampled tokens, K)."""
    weights = np.zeros(ids.shape, np.float32)
    weights[episode.action_mask] = shares
    datum = Datum(episode.tokens[:-1], {"target_tokens": ids[1:], "weights": weights[1:]})
    return datum, len(shares)
