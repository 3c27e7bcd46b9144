"""Held-out evaluation: answers scored, and the loss on data that is not trained on."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveInt

from kitchen.errors import ConfigError, DataError, RunFailed, check_name
from kitchen.ports import (
    BlobStore,
    Future,
    Sampler,
    Tokenizer,
    TrainingClient,
    TrainingSession,
    arrival,
    start,
)
from kitchen.stage import Stage
from kitchen.types import Array, Datum, Loss, LossOutput, Samples
from stages.chat.conversations import Conversation, TrainRows
from stages.chat.prompts import prompt_tokens, reference_answer
from stages.chat.render import RenderDataset
from stages.data.dataset import HeldOut, normalise_weights
from stages.evaluate.graded_answers import METRIC_REWARDS, GradedAnswer, grade_samples
from stages.evaluate.reference import open_sampler, sample_answers
from stages.tasks.json_score import default_metric
from stages.tasks.rewards import first_ungradable, require_extra
from stages.train.optim import summed_metrics
from stages.train.session import FinalWeights


@dataclass(frozen=True)
class Likelihood:
    """How likely the trained-on tokens of each row of a set are: their negative log-likelihood."""

    nats: tuple[float, ...]
    tokens: tuple[int, ...]  # how many they are
    # bytes of UTF-8, at least 1; what ends an answer costs too, and writes nothing
    written: tuple[int, ...]

    def measures(self) -> Mapping[str, tuple[str, Array, Array]]:
        """By the name of the metric, in words, and row by row what is to be divided by what."""
        nats = np.array(self.nats)
        return {
            "loss": ("loss, nats per token", nats, np.array(self.tokens)),
            "bits_per_byte": (
                "bits per byte",
                nats / math.log(2),
                np.array(self.written, np.float64),
            ),
        }


@dataclass(frozen=True)
class Evaluation:
    """Answers by held-out set; empty where the data has no answers that can be compared."""

    answers: Mapping[str, tuple[GradedAnswer, ...]]
    losses: Mapping[str, Likelihood]  # by set


@dataclass(frozen=True)
class EvaluationBefore(Evaluation):
    """Of the model as it came."""


@dataclass(frozen=True)
class EvaluationAfter(Evaluation):
    """Of the weights that were saved."""


@dataclass(frozen=True)
class HeldOutData:
    """Held-out rows as datums, with weights that sum to 1."""

    data: tuple[Datum, ...]


@dataclass(frozen=True)
class HeldOutLoss:
    """What the loss says of held-out data."""

    nats: float  # the loss: of cross-entropy the mean per trained-on token
    metrics: Mapping[str, float] = field(default_factory=dict)  # "loss" and what else it says


@dataclass(frozen=True)
class EvalConfig:
    """How answers are compared with what is wanted."""

    # auto: json if all answers are JSON objects,
    metric: Literal["auto", "json", "text", "math", "loss"] = "auto"
    # else loss; math: an equal number or formula, after the last #### if there is one
    max_tokens: PositiveInt = 64  # per answer; one that is cut there counts as wrong
    # exact match on the first held-out set, below which the run
    at_least: Annotated[float, Field(ge=0, le=1)] = 0.0
    # ends with exit code 5

    def __post_init__(self) -> None:
        check_name("metric", self.metric, ("auto", *METRIC_REWARDS, "loss"))
        if self.at_least > 0 and self.metric == "loss":
            raise ConfigError(
                f"at_least={self.at_least} is of exact match, for which answers are compared: set "
                "evaluation.metric to json, text or math, or leave it out"
            )
        if self.metric == "math":
            require_extra("math_verify", "evaluation.metric=math")

    def choose(self, conversations: Sequence[Conversation]) -> str:
        """The metric of a held-out set; raises DataError for a right answer that it can compare
        nothing with.
        """
        if self.metric == "loss":
            return "loss"
        rights = [reference_answer(each) for each in conversations]
        if self.metric == "auto":
            return "json" if default_metric(rights) == "json" else "loss"
        if bad := first_ungradable(METRIC_REWARDS[self.metric], rights):
            raise DataError(
                f"{conversations[bad[0]].where}: evaluation.metric={self.metric}: {bad[1]}"
            )
        return self.metric


@dataclass(frozen=True)
class DecodingConfig:
    """How answers are drawn."""

    temperature: NonNegativeFloat = 0.0  # 0 is greedy
    tries: PositiveInt = 1  # answers to each problem; scores are means over them
    pass_at: tuple[int, ...] = ()  # for each k: the chance that one of k answers at least is right

    def __post_init__(self) -> None:
        check_tries(self.tries, self.temperature)
        if wrong := [k for k in self.pass_at if not 1 <= k <= self.tries]:
            raise ConfigError(
                f"pass_at={wrong[0]} must be from 1 to tries={self.tries}, for pass@k is estimated "
                "from "
                "at least k answers to each problem"
            )


def check_tries(tries: int, temperature: float) -> None:
    """Raise ConfigError for several answers that would all be the same."""
    if tries > 1 and temperature == 0:
        raise ConfigError(
            f"tries={tries} at temperature=0 are that many times the same answer: raise the "
            "temperature, "
            "or leave tries at 1"
        )


GREEDY = DecodingConfig()


@dataclass(frozen=True)
class _Evaluator:
    """Some weights, and how their answers are drawn and scored."""

    sampler: Sampler
    tokenizer: Tokenizer
    how: EvalConfig
    render: RenderDataset
    answering: DecodingConfig
    seed: int

    async def evaluation(self, held_out: HeldOut) -> Evaluation:
        metrics = await asyncio.to_thread(metrics_by_set, held_out, self.how, self.answering)
        answers, losses = {}, {}
        for name, conversations in held_out.sets.items():
            if metrics[name] == "loss":
                losses[name] = await self._likelihood(conversations)
            else:
                answers[name] = await self._answers(name, conversations, metrics[name])
        return Evaluation(answers, losses)

    async def _answers(
        self, name: str, conversations: Sequence[Conversation], metric: str
    ) -> tuple[GradedAnswer, ...]:
        prompts = [prompt_tokens(each, self.tokenizer, self.render) for each in conversations]
        came = await sample_answers(  # by the name of the set, whatever others there are
            self.sampler,
            prompts,
            [self.seed, zlib.crc32(name.encode())],
            count=self.answering.tries,
            max_tokens=self.how.max_tokens,
            temperature=self.answering.temperature,
        )
        places = [(row, attempt) for row, some in enumerate(came) for attempt in range(len(some))]
        answers = await grade_samples(
            metric,
            [(conversations[row], came[row][attempt]) for row, attempt in places],
            self.tokenizer,
        )
        return tuple(
            replace(answer, row=row, attempt=attempt)
            for answer, (row, attempt) in zip(answers, places, strict=True)
        )

    async def _likelihood(self, conversations: Sequence[Conversation]) -> Likelihood:
        """Of the rows that are not left out for their length."""
        render_all = [
            (each.where, self.render.datums(each, self.tokenizer)) for each in conversations
        ]
        rows = [(where, data) for where, data in render_all if data]
        if not rows:
            raise DataError(
                f"{conversations[0].where}: it and all other rows of its set are left out, for "
                "they do not "
                f"fit into max_tokens={self.render.max_tokens}"
            )
        found = await asyncio.gather(*(self._nats(data) for _, data in rows))
        if wrong := [
            where for (where, _), nats in zip(rows, found, strict=True) if not math.isfinite(nats)
        ]:
            raise RunFailed(f"{wrong[0]}: its loss is not finite, by weights that have gone astray")
        trained = [[d.targets[d.loss_inputs["weights"] != 0] for d in data] for _, data in rows]
        written = (
            sum(len(self.tokenizer.decode(each).encode()) for each in some) for some in trained
        )
        return Likelihood(
            tuple(found),
            tuple(sum(map(len, some)) for some in trained),
            tuple(max(each, 1) for each in written),
        )

    async def _nats(self, row: Sequence[Datum]) -> float:
        asked = [self.sampler.logprobs(np.append(d.tokens, d.targets[-1])) for d in row]
        found = await asyncio.gather(*map(arrival, asked))
        return -sum(
            float(lp[1:][d.loss_inputs["weights"] != 0].astype(np.float64).sum())
            for lp, d in zip(found, row, strict=True)
        )


def metrics_by_set(
    held_out: HeldOut, how: EvalConfig, answering: DecodingConfig
) -> Mapping[str, str]:
    """By the name of each set; raises ConfigError where answers are to be drawn, or a target is,
    and none would be compared.
    """
    metrics = {name: how.choose(conversations) for name, conversations in held_out.sets.items()}
    if how.at_least > 0 and "loss" in list(metrics.values())[:1]:
        raise ConfigError(
            f"at_least={how.at_least:g} is of exact match on {next(iter(metrics))}, which is "
            "evaluated "
            "by its loss: set evaluation.metric=text to compare its answers as texts, or leave it "
            "out"
        )
    if answering != GREEDY and (
        lost := [name for name, metric in metrics.items() if metric == "loss"]
    ):
        raise ConfigError(
            f"{lost[0]} is evaluated by its loss, for which no answers are drawn: set "
            "evaluation.metric=text to compare them as texts, or choose other splits"
        )
    return metrics


def render_all(
    conversations: Sequence[Conversation], tokenizer: Tokenizer, how: RenderDataset
) -> tuple[Datum, ...]:
    return tuple(how.run(TrainRows(conversations), tokenizer)[0].data)


class EvaluateBase(Stage):
    """What the model as it came makes of the held-out sets."""

    memoize = True
    model: str
    how: EvalConfig
    render: RenderDataset

    async def run(
        self,
        client: TrainingClient,
        tokenizer: Tokenizer,
        held_out: HeldOut,
        blobs: BlobStore | None = None,
    ) -> tuple[EvaluationBefore, Samples]:
        sampler = open_sampler(self.model, client, blobs)
        found = await evaluate(sampler, tokenizer, self.how, self.render, held_out)
        return EvaluationBefore(found.answers, found.losses), sample_records(found, when="before")


class EvaluateWeights(Stage):
    """What the saved weights make of the held-out sets."""

    memoize = True
    how: EvalConfig
    render: RenderDataset

    async def run(
        self, client: TrainingClient, tokenizer: Tokenizer, held_out: HeldOut, weights: FinalWeights
    ) -> tuple[EvaluationAfter, Samples]:
        found = await evaluate(client.sampler(weights), tokenizer, self.how, self.render, held_out)
        return EvaluationAfter(found.answers, found.losses), sample_records(found, when="after")


async def evaluate(
    sampler: Sampler,
    tokenizer: Tokenizer,
    how: EvalConfig,
    render: RenderDataset,
    held_out: HeldOut,
    answering: DecodingConfig = GREEDY,
    seed: int = 0,
) -> Evaluation:
    """What these weights make of the held-out sets; the sampler is closed."""
    try:
        return await _Evaluator(sampler, tokenizer, how, render, answering, seed).evaluation(
            held_out
        )
    finally:
        sampler.close()


def sample_records(found: Evaluation, **more: str) -> Samples:
    """Every answer as a line of samples.jsonl."""
    return Samples(
        tuple(
            {
                **more,
                "set": name,
                "row": each.row,
                "try": each.attempt,
                "where": each.where,
                "prompt": each.prompt,
                "wanted": each.expected,
                "text": each.text,
                "exact": each.exact,
                "f1": each.f1,
                "parsed": each.parsed,
                "truncated": each.truncated,
                "failed": each.failed,
            }
            for name, answers in found.answers.items()
            for each in answers
        )
    )


class RenderHeldOut(Stage):
    """Render all held-out rows, so that a bad one is found before training, and keep the first
    `rows` of each set.
    """

    render: RenderDataset
    rows: int = 16

    def run(self, held_out: HeldOut, tokenizer: Tokenizer) -> HeldOutData:
        sets = [self._rendered(name, rows, tokenizer) for name, rows in held_out.sets.items()]
        return HeldOutData(normalise_weights([datum for each in sets for datum in each]))

    def _rendered(
        self, name: str, rows: Sequence[Conversation], tokenizer: Tokenizer
    ) -> tuple[Datum, ...]:
        try:
            return render_all(rows, tokenizer, self.render)[: self.rows]
        except DataError as error:
            raise DataError(f"held out ({name}): {error}") from error


class MeasureHeldOut(Stage):
    """Ask for the mean loss on held-out data; the answer comes later."""

    loss: str | Loss = "cross_entropy"

    def run(self, session: TrainingSession, data: HeldOutData) -> Future[HeldOutLoss]:
        return start(_measured(session.forward(data.data, self.loss)))


async def _measured(asked: Future[LossOutput]) -> HeldOutLoss:
    metrics = summed_metrics((await asked).metrics)
    return HeldOutLoss(metrics["loss"], metrics)
