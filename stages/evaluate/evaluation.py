"""Held-out evaluation: graded answers, or the loss of data that is not trained on."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Annotated, Any

import numpy as np
import structlog
from pydantic import Field, NonNegativeFloat, PositiveInt

from kitchen.backend.text_tokens import TextTokenizer
from kitchen.backend.work import counted, gather_counted
from kitchen.config.user_functions import is_function_name
from kitchen.errors import ConfigError, DataError, Diverged, check_name
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
from kitchen.types import Array, Datum, Loss, LossOutput, Sampled, Samples, Table, Tries
from stages.chat.conversations import Conversation
from stages.chat.prompts import (
    all_too_long,
    answers_by_tool_call,
    prompt_tokens,
    prompts_with_room,
    reference_answers,
)
from stages.chat.render import RenderDataset, RenderedDatums
from stages.chat.stop_texts import StopTexts
from stages.chat.token_table import MarkedTokens, token_table
from stages.data.dataset import HeldOut, normalise_weights
from stages.evaluate.choices import ScoredChoices, check_choices, choice_datums, score_choices
from stages.evaluate.graded_answers import (
    METRIC_REWARDS,
    GradedAnswer,
    grade_samples,
    measures_of,
)
from stages.evaluate.metric_functions import (
    check_columns_of,
    check_no_judge_needed,
    find_metric,
)
from stages.evaluate.record import record_row, recorded_items
from stages.evaluate.reference import open_sampler, sample_answers
from stages.evaluate.selection import HeldOutMeasures
from stages.tasks.grading import GradingConfig
from stages.tasks.json_score import default_metric
from stages.tasks.rewards import first_ungradable, require_extra
from stages.tasks.rubric import RUBRIC
from stages.tasks.rubric_judge import RubricJudge
from stages.train.optim import summed_metrics
from stages.train.session import FinalWeights

UNSAMPLED = ("choice", "loss")  # metrics for which no answers are sampled
MAX_TOKENS = "evaluation.max_tokens"

log = structlog.get_logger("stages.evaluate")


@dataclass(frozen=True)
class Likelihood:
    """Negative log-likelihood of the trained-on tokens of each row of a set."""

    nats: tuple[float, ...]
    tokens: tuple[int, ...]  # number of trained-on tokens
    # UTF-8 bytes of these tokens, at least 1; a stop token costs nats and has no bytes
    num_bytes: tuple[int, ...]
    rows: tuple[int, ...] = ()  # index of each row in its set

    def scores(self) -> Mapping[int, Mapping[str, float]]:
        """Return the nats, tokens and bytes of each row, by its index."""
        counts = zip(self.rows, self.nats, self.tokens, self.num_bytes, strict=True)
        return {
            row: {"nats": nats, "tokens": tokens, "bytes": num_bytes}
            for row, nats, tokens, num_bytes in counts
        }

    def measures(self) -> Mapping[str, tuple[str, Array, Array]]:
        """Return, by metric name, a label, and numerator and denominator by row."""
        nats = np.array(self.nats)
        bits = nats / math.log(2)
        return {
            "loss": ("loss, nats per token", nats, np.array(self.tokens)),
            "bits_per_byte": ("bits per byte", bits, np.array(self.num_bytes, np.float64)),
        }


@dataclass(frozen=True)
class Evaluation:
    """Graded answers of some held-out sets, and likelihoods of the others, by set name."""

    answers: Mapping[str, tuple[GradedAnswer, ...]]
    losses: Mapping[str, Likelihood]
    choices: Mapping[str, tuple[ScoredChoices, ...]] = field(default_factory=dict)

    def right(self) -> Mapping[str, tuple[str, Sequence[float]]]:
        """Return whether each graded or chosen answer is right, by set, with the measure's label.

        For a metric function, these are its scores.
        """
        right: dict[str, tuple[str, Sequence[float]]] = {}
        for name, answers in self.answers.items():
            key, label = next(iter(measures_of(answers).items()))
            scores = [answer.scores[key] for answer in answers if not answer.failed]
            right[name] = label, scores
        for name, rows in self.choices.items():
            right[name] = "exact match", [float(row.chosen == row.expected) for row in rows]
        return right


@dataclass(frozen=True)
class EvaluationBefore(Evaluation):
    """The evaluation of the initial weights."""


@dataclass(frozen=True)
class EvaluationAfter(Evaluation):
    """The evaluation of the final weights."""


@dataclass(frozen=True)
class HeldOutData:
    """Held-out rows as datums, with weights that sum to 1."""

    data: tuple[Datum, ...]


@dataclass(frozen=True)
class EvalConfig(GradingConfig):
    """Options of an evaluation on held-out sets, by graded answers or by the loss."""

    # json compares the fields of JSON objects; text compares texts; math compares numbers or
    # formulas (after the last #### if there is one); choice takes the likeliest of the row's
    # choices; loss measures the loss of the reference answers; rubric asks a judge, in
    # recipes.evaluate alone; MODULE:function is a function of your own; auto is json if all
    # reference answers are JSON objects, and loss otherwise
    metric: str = "auto"
    max_tokens: PositiveInt = 64  # maximum tokens per answer; a truncated answer counts as wrong
    stop: StopTexts = ()  # texts that end an answer, as its last part
    # exact match, or mean of a metric of your own, required on the first held-out set; below it,
    # the run ends with exit code 5
    at_least: Annotated[float, Field(ge=0, le=1)] = 0.0

    def __post_init__(self) -> None:
        if is_function_name(self.metric):
            find_metric(self.metric)
        else:
            check_name("metric", self.metric, ("auto", *METRIC_REWARDS, "choice", "loss", RUBRIC))
        super().__post_init__()
        self.check_options(self.metric)
        if self.at_least > 0 and self.metric == "loss":
            raise ConfigError(
                f"evaluation.at_least={self.at_least} requires an exact match, which is not "
                "measured with evaluation.metric=loss: set the metric to json, text, math or "
                "choice, or leave at_least out"
            )
        if self.metric == "math":
            require_extra("math_verify", "evaluation.metric=math")

    def check_options(self, metric: str, name: str = "") -> None:
        """Raise ConfigError for options that have no effect on a metric; auto may become json."""
        unused = [] if metric == "text" else list(self.text_options())
        if metric in UNSAMPLED:
            unused += ["extract"] * (self.extract is not None) + ["stop"] * bool(self.stop)
        if unused:
            where = f" of {name}" if name else ""
            raise ConfigError(
                f"evaluation.{unused[0]} has no effect on the metric {metric}{where}: set "
                f"evaluation.metric=text to compare answers as text, or leave {unused[0]} out"
            )

    def metric_for(self, conversations: Sequence[Conversation]) -> str:
        """Choose the metric of a set; raises DataError for an answer that it cannot grade."""
        if self.metric == "choice":
            check_choices(conversations)
        if is_function_name(self.metric):
            check_columns_of(self.metric, conversations)
            return self.metric
        if self.metric in UNSAMPLED:
            return self.metric
        texts = [row for row in conversations if row.plain_text]
        if self.metric == "auto" and (texts or any(map(answers_by_tool_call, conversations))):
            return "loss"
        if texts:
            raise DataError(
                f"{texts[0].where}: evaluation.metric={self.metric} grades answers to prompts, and "
                "a row of plain text has none: set evaluation.metric=loss, or leave it at auto"
            )
        if self.metric == RUBRIC:
            return RUBRIC
        references = [reference_answers(conversation) for conversation in conversations]
        if self.metric == "auto":
            wanted = map(self.reference, chain.from_iterable(references))
            return "json" if default_metric(wanted) == "json" else "loss"
        if problem := first_ungradable(METRIC_REWARDS[self.metric], references, self):
            row, reason = problem
            where = conversations[row].where
            raise DataError(f"{where}: evaluation.metric={self.metric}: {reason}")
        return self.metric


@dataclass(frozen=True)
class DecodingConfig:
    """Options for sampling the answers of an evaluation."""

    temperature: NonNegativeFloat = 0.0  # sampling temperature; 0 for greedy decoding
    tries: Tries = 1  # answers sampled per problem; scores are means over them
    # values of k for pass@k, the probability that at least one of k answers is right
    pass_at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_tries(self.tries, self.temperature)
        invalid = [k for k in self.pass_at if not 1 <= k <= self.tries]
        if invalid:
            raise ConfigError(
                f"pass_at={invalid[0]} must be from 1 to tries={self.tries}: estimating pass@k "
                "takes at least k answers to each problem"
            )


def check_tries(tries: int, temperature: float) -> None:
    """Raise ConfigError for several greedy answers, which would all be the same."""
    if tries > 1 and temperature == 0:
        raise ConfigError(
            f"tries={tries} at temperature={temperature:g} gives the same answer each time: raise "
            "the temperature, or leave tries at 1"
        )


GREEDY = DecodingConfig()


@dataclass(frozen=True)
class _Evaluator:
    """Evaluates one sampler on held-out sets."""

    sampler: Sampler
    tokenizer: Tokenizer
    config: EvalConfig
    render: RenderDataset
    decoding: DecodingConfig
    seed: int
    judge: RubricJudge | None = None  # with metric=rubric

    async def evaluate(self, held_out: HeldOut) -> Evaluation:
        metrics = await asyncio.to_thread(metrics_by_set, held_out, self.config, self.decoding)
        check_scored(metrics, self.tokenizer)
        answers, losses, choices = {}, {}, {}
        for name, conversations in held_out.sets.items():
            if metrics[name] == "loss":
                losses[name] = await self._likelihood(conversations)
            elif metrics[name] == "choice":
                choices[name] = await score_choices(
                    self.sampler, self.tokenizer, self.render, conversations
                )
            else:
                answers[name] = await self._answers(name, conversations, metrics[name])
        return Evaluation(answers, losses, choices)

    async def _answers(
        self, name: str, conversations: Sequence[Conversation], metric: str
    ) -> tuple[GradedAnswer, ...]:
        prompts = prompts_with_room(
            conversations, self.tokenizer, self.render, self.config.max_tokens, MAX_TOKENS
        )
        report_left_out(name, len(conversations), len(prompts))
        sampled = await sample_answers(
            self.sampler,
            list(prompts.values()),
            # the set's name, so that answers do not depend on which other sets there are
            [self.seed, zlib.crc32(name.encode())],
            count=self.decoding.tries,
            max_tokens=self.config.max_tokens,
            temperature=self.decoding.temperature,
            stop=self.config.stop,
        )
        places: list[tuple[int, int]] = []
        pairs: list[tuple[Conversation, Sampled]] = []
        for row, tries in zip(prompts, sampled, strict=True):
            places += [(row, attempt) for attempt in range(len(tries))]
            pairs += [(conversations[row], answer) for answer in tries]
        answers = await grade_samples(
            metric, pairs, self.tokenizer, grading=self.config, judge=self.judge
        )
        return tuple(
            replace(answer, row=row, attempt=attempt)
            for answer, (row, attempt) in zip(answers, places, strict=True)
        )

    async def _likelihood(self, conversations: Sequence[Conversation]) -> Likelihood:
        """Measure the rows of a set, without those that are dropped because they are too long."""
        all_rows = counted(conversations, "rows")
        rendered = [(row.where, self.render.datums(row, self.tokenizer)) for row in all_rows]
        rows = [(where, data) for where, data in rendered if data]
        indices = tuple(at for at, (_, data) in enumerate(rendered) if data)
        if not rows:
            raise all_too_long(conversations, self.tokenizer, self.render)
        nats = await gather_counted((self._nats(data) for _, data in rows), "rows")
        for (where, _), row_nats in zip(rows, nats, strict=True):
            if not math.isfinite(row_nats):
                raise Diverged(f"{where}: the loss of this row is not finite: the weights diverged")
        tokens, num_bytes = [], []
        for _, data in rows:
            trained = [datum.targets[datum.loss_inputs["weights"] != 0] for datum in data]
            texts = [self.tokenizer.decode(targets) for targets in trained]
            tokens.append(sum(len(targets) for targets in trained))
            num_bytes.append(max(sum(len(text.encode()) for text in texts), 1))
        return Likelihood(tuple(nats), tuple(tokens), tuple(num_bytes), indices)

    async def _nats(self, row: Sequence[Datum]) -> float:
        """Return the summed negative log-likelihood of a row's trained-on tokens."""
        requests = [self.sampler.logprobs(np.append(d.tokens, d.targets[-1])) for d in row]
        logprobs = await asyncio.gather(*map(arrival, requests))
        return -sum(
            float(array[1:][datum.loss_inputs["weights"] != 0].astype(np.float64).sum())
            for array, datum in zip(logprobs, row, strict=True)
        )


def report_left_out(name: str, rows: int, prompts: int) -> None:
    """Log how many rows of a set are left out; raises DataError if all are."""
    if not prompts:
        raise DataError(
            f"held out ({name}): no prompt leaves room for an answer in the model's context, so "
            f"all {rows} rows are left out; lower {MAX_TOKENS}, or shorten the prompts"
        )
    if prompts < rows:
        log.warning(
            f"held out ({name}): {rows - prompts} of {rows} rows are left out of the evaluation, "
            f"because prompt and {MAX_TOKENS} do not fit into the model's context"
        )


def check_held_out(
    held_out: HeldOut,
    tokenizer: Tokenizer,
    config: EvalConfig,
    render: RenderDataset,
    decoding: DecodingConfig = GREEDY,
) -> None:
    """Raise the errors of an evaluation that the rows cause, without weights."""
    metrics = metrics_by_set(held_out, config, decoding)
    check_scored(metrics, tokenizer)
    for name, metric in metrics.items():
        rows = held_out.sets[name]
        if metric == "loss":
            render_all(rows, tokenizer, render)
        elif metric == "choice":
            for row in rows:
                choice_datums(row, tokenizer, render)
        else:
            prompts_with_room(rows, tokenizer, render, config.max_tokens, MAX_TOKENS)


def metrics_by_set(
    held_out: HeldOut, config: EvalConfig, decoding: DecodingConfig
) -> Mapping[str, str]:
    """Choose the metric of each set.

    Raises ConfigError if options of graded answers are set for sets evaluated by their loss.
    """
    metrics = {name: config.metric_for(rows) for name, rows in held_out.sets.items()}
    for name, metric in metrics.items():
        config.check_options(metric, name)
    by_loss = [name for name, metric in metrics.items() if metric == "loss"]
    first = next(iter(metrics), None)
    if config.at_least > 0 and first in by_loss:
        raise ConfigError(
            f"evaluation.at_least={config.at_least:g} requires an exact match on {first}, which is "
            "evaluated by its loss: set evaluation.metric=text to compare its answers as text, or "
            "leave at_least out"
        )
    unsampled = [name for name, metric in metrics.items() if metric in UNSAMPLED]
    if decoding != GREEDY and unsampled:
        by = "its loss" if by_loss else "the likelihood of choices"
        raise ConfigError(
            f"{unsampled[0]} is evaluated by {by}, for which no answers are sampled, so "
            "temperature, tries and pass_at have no effect: set evaluation.metric=text to compare "
            "answers as text, or choose other splits"
        )
    return metrics


def check_scored(metrics: Mapping[str, str], tokenizer: Tokenizer) -> None:
    """Raise ConfigError if a set needs log-probabilities of weights that give text only."""
    unsampled = [name for name, metric in metrics.items() if metric in UNSAMPLED]
    if unsampled and isinstance(tokenizer, TextTokenizer):
        name = unsampled[0]
        raise ConfigError(
            f"{name} is evaluated by the metric {metrics[name]}, which needs log-probabilities, "
            "and these weights give text only: set evaluation.metric=text to compare its answers "
            "as text, or another metric that grades answers"
        )


def render_all(
    conversations: Sequence[Conversation], tokenizer: Tokenizer, render: RenderDataset
) -> tuple[Datum, ...]:
    """Render conversations to all their datums."""
    return tuple(RenderedDatums(conversations, tokenizer, render))


def first_question(
    held_out: HeldOut,
    metrics: Mapping[str, str],
    tokenizer: Tokenizer,
    render: RenderDataset,
) -> Table:
    """Return the tokens of the first question of the first set, or those that are scored."""
    name, rows = next(iter(held_out.sets.items()))
    if metrics[name] == "loss":
        data = next(filter(None, (render.datums(row, tokenizer) for row in rows)), ())
        scored = [MarkedTokens.of_datum(datum) for datum in data[:1]]
        return token_table(f"The first answer of {name}", scored, tokenizer, mark="scored")
    if metrics[name] == "choice":
        data = next(filter(None, (choice_datums(row, tokenizer, render) for row in rows)), ())
        scored = [MarkedTokens.of_datum(datum, str(at)) for at, datum in enumerate(data, 1)]
        title = f"The choices of the first question of {name}"
        return token_table(title, scored, tokenizer, column="choice", mark="scored")
    prompt = MarkedTokens.of_prompt(prompt_tokens(rows[0], tokenizer, render))
    return token_table(f"The first question of {name}", [prompt], tokenizer)


class EvaluateBase(Stage):
    """Evaluate the initial weights, before training, on all held-out sets."""

    memoize = True
    model: str  # a name of weights
    config: EvalConfig
    render: RenderDataset

    def __post_init__(self) -> None:
        check_no_judge_needed(self.config.metric)

    async def run(
        self,
        client: TrainingClient,
        tokenizer: Tokenizer,
        held_out: HeldOut,
        blobs: BlobStore | None = None,
    ) -> tuple[EvaluationBefore, Samples]:
        sampler = open_sampler(self.model, client, blobs)
        result = await evaluate(sampler, tokenizer, self.config, self.render, held_out)
        evaluation = EvaluationBefore(result.answers, result.losses, result.choices)
        return evaluation, sample_records(result, held_out, "before")

    def preview(self, tokenizer: Tokenizer, held_out: HeldOut) -> Table:
        check_held_out(held_out, tokenizer, self.config, self.render)
        metrics = metrics_by_set(held_out, self.config, GREEDY)
        return first_question(held_out, metrics, tokenizer, self.render)


class EvaluateWeights(Stage):
    """Evaluate the final weights on all held-out sets."""

    memoize = True
    config: EvalConfig
    render: RenderDataset

    async def run(
        self, client: TrainingClient, tokenizer: Tokenizer, held_out: HeldOut, weights: FinalWeights
    ) -> tuple[EvaluationAfter, Samples]:
        sampler = client.sampler(weights)
        result = await evaluate(sampler, tokenizer, self.config, self.render, held_out)
        evaluation = EvaluationAfter(result.answers, result.losses, result.choices)
        return evaluation, sample_records(result, held_out, "after")


async def evaluate(
    sampler: Sampler,
    tokenizer: Tokenizer,
    config: EvalConfig,
    render: RenderDataset,
    held_out: HeldOut,
    decoding: DecodingConfig = GREEDY,
    seed: int = 0,
    judge: RubricJudge | None = None,
) -> Evaluation:
    """Evaluate a sampler on the held-out sets, and close it; metric=rubric needs a judge."""
    try:
        evaluator = _Evaluator(sampler, tokenizer, config, render, decoding, seed, judge)
        return await evaluator.evaluate(held_out)
    finally:
        sampler.close()


def sample_records(evaluation: Evaluation, held_out: HeldOut, when: str | None = None) -> Samples:
    """Return every answer, choice and loss as a line of samples.jsonl."""
    records: list[dict[str, Any]] = []
    for name, rows in held_out.sets.items():
        items = recorded_items(rows)
        for answer in evaluation.answers.get(name, ()):
            place = {"when": when, "attempt": answer.attempt, "failed": answer.failed}
            shown = {**place, **answer.record()}
            records.append(record_row(items[answer.row], name, answer.row, answer.scores, **shown))
        for choice in evaluation.choices.get(name, ()):
            shown = {"when": when, **choice.record()}
            records.append(record_row(items[choice.row], name, choice.row, choice.scores, **shown))
        if name in evaluation.losses:
            for row, scores in evaluation.losses[name].scores().items():
                records.append(record_row(items[row], name, row, scores, when=when))
    return Samples(tuple(records))


class RenderHeldOut(Stage):
    """Render all held-out rows, so that errors are found early, and keep the first of each set."""

    render: RenderDataset
    rows: int = 16  # rows of each set whose loss is measured during training

    def run(self, held_out: HeldOut, tokenizer: Tokenizer) -> HeldOutData:
        data: list[Datum] = []
        for name, rows in held_out.sets.items():
            data += self._render(name, rows, tokenizer)
        return HeldOutData(normalise_weights(data))

    preview = run

    def _render(
        self, name: str, rows: Sequence[Conversation], tokenizer: Tokenizer
    ) -> tuple[Datum, ...]:
        try:
            return render_all(rows, tokenizer, self.render)[: self.rows]
        except DataError as error:
            raise DataError(f"held out ({name}): {error}") from error


class MeasureHeldOut(Stage):
    """Submit the held-out data for its mean loss, without waiting for the result.

    The loss is the mean that training minimises; for cross-entropy, nats per trained-on token.
    """

    loss: str | Loss = "cross_entropy"

    def run(self, session: TrainingSession, data: HeldOutData) -> Future[HeldOutMeasures]:
        return start(_held_out_loss(session.forward(data.data, self.loss)))


async def _held_out_loss(future: Future[LossOutput]) -> HeldOutMeasures:
    return HeldOutMeasures(summed_metrics((await future).metrics))
