"""Evaluation of an ensemble on held-out sets: its problems, answers and votes."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from kitchen.artifacts.weights import find_weights
from kitchen.config.user_functions import is_function_name
from kitchen.errors import ConfigError, RunFailed
from kitchen.ports import BlobStore, ModelCatalog, Tokenizer, TrainingClient
from kitchen.types import Price, Samples, Table
from stages.chat.prompts import graded_prefill, prompts_with_room
from stages.chat.render import RenderDataset
from stages.chat.token_cost import AT_MOST, answer_cost_rows
from stages.data.dataset import HeldOut
from stages.ensemble.asking import Ensemble, Problem
from stages.ensemble.config import EnsembleConfig
from stages.ensemble.grouping import AnswerGroups
from stages.ensemble.members import RequestLimits, find_members
from stages.ensemble.voted import VotedAnswers, VotedProblem, grade_votes
from stages.evaluate.evaluation import (
    GREEDY,
    MAX_TOKENS,
    UNSAMPLED,
    EvalConfig,
    metrics_by_set,
    report_left_out,
)
from stages.evaluate.metric_functions import check_no_judge_needed
from stages.evaluate.record import record_row, recorded_items


@dataclass(frozen=True)
class EnsembleEvaluation:
    """Settings of an evaluation of an ensemble: sampling, votes, metric and rendering."""

    ensemble: EnsembleConfig
    config: EvalConfig
    render: RenderDataset
    seed: int

    def __post_init__(self) -> None:
        check_no_judge_needed(self.config.metric)
        if self.config.metric in UNSAMPLED:
            raise _nothing_sampled(f"evaluation.metric={self.config.metric}")

    def metrics(self, held_out: HeldOut) -> Mapping[str, str]:
        """Choose the metric of each set; raises ConfigError for one that samples no answers."""
        metrics = metrics_by_set(held_out, self.config, GREEDY)
        for name, metric in metrics.items():
            if metric in UNSAMPLED:
                raise _nothing_sampled(f"{name} is evaluated by {metric}, which")
        return metrics

    def problems(
        self, name: str, metric: str, held_out: HeldOut, tokenizers: Sequence[Tokenizer]
    ) -> dict[int, Problem]:
        """Return the problems of a set by row, without rows that fit into no member's context.

        Raises DataError as `prompts_with_room` does.
        """
        rows, limit = held_out.sets[name], self.config.max_tokens
        prompts = [
            prompts_with_room(rows, tokenizer, self.render, limit, MAX_TOKENS)
            for tokenizer in tokenizers
        ]
        groups = AnswerGroups(metric, self.config)
        problems: dict[int, Problem] = {}
        for row, conversation in enumerate(rows):
            of_row = {at: found[row] for at, found in enumerate(prompts) if row in found}
            if of_row:
                entropy = self.seed, zlib.crc32(name.encode()), row
                prefill = graded_prefill(conversation)
                is_function = is_function_name(metric)
                problems[row] = Problem(of_row, groups, entropy, prefill, is_function)
        report_left_out(name, len(rows), len(problems))
        return problems

    def tokenizers(
        self, client: TrainingClient, models: ModelCatalog, blobs: BlobStore | None
    ) -> list[Tokenizer]:
        """Return the tokenizers of the members."""
        found = [find_weights(name, client, blobs) for name in self.ensemble.members]
        return [weights.tokenizer(models) for weights in found]

    async def answer(
        self,
        held_out: HeldOut,
        weights: Sequence[float],
        client: TrainingClient,
        models: ModelCatalog,
        blobs: BlobStore | None,
    ) -> VotedAnswers:
        """Ask the members, and grade the votes; raises RunFailed if there are none at all."""
        needs_logprobs = self.ensemble.vote == "confidence"
        limits = RequestLimits(self.ensemble.seconds, self.ensemble.concurrency, needs_logprobs)
        members = find_members(self.ensemble.members, limits, client, models, blobs)
        tokenizers = [member.tokenizer for member in members]
        metrics = await asyncio.to_thread(self.metrics, held_out)
        problems = {
            name: self.problems(name, metric, held_out, tokenizers)
            for name, metric in metrics.items()
        }
        config = self.config
        ensemble = Ensemble(self.ensemble, members, weights, config.max_tokens, config.stop)
        every = list(chain.from_iterable(of_set.values() for of_set in problems.values()))
        await ensemble.answer(every, client, blobs)
        _check_answered(every)
        voted: dict[str, tuple[VotedProblem, ...]] = {}
        for name, of_set in problems.items():
            rows = held_out.sets[name]
            voted[name] = await grade_votes(metrics[name], of_set, rows, tokenizers, config)
        return VotedAnswers(tuple(self.ensemble.labels), voted, self.ensemble.mode == "cascade")


def question_counts(
    title: str,
    evaluation: EnsembleEvaluation,
    held_out: HeldOut,
    tokenizers: Sequence[Tokenizer],
    price: Price | None,
) -> Table:
    """Return a table of the numbers of answers and tokens, in all and by member."""
    ensemble = evaluation.ensemble
    requests, read = [0] * len(tokenizers), [0] * len(tokenizers)
    for name, metric in evaluation.metrics(held_out).items():
        for problem in evaluation.problems(name, metric, held_out, tokenizers).values():
            for at, prompt in problem.prompts.items():
                times = ensemble.draws if ensemble.mode == "cascade" else 1
                requests[at] += 1
                read[at] += len(prompt) * times
    answers = [count * ensemble.draws for count in requests]
    of_answers = [count * evaluation.config.max_tokens for count in answers]
    bound = AT_MOST if ensemble.mode == "cascade" else ""
    counts = [*answer_cost_rows(sum(answers), sum(read), sum(of_answers), bound, price)]
    for label, tokens, most in zip(ensemble.labels, read, of_answers, strict=True):
        text = f"{bound}{tokens:,} read, {AT_MOST}{most:,} of answers"
        counts.append((f"tokens of {label}", text))
    return Table(title, ("quantity", "count"), tuple(counts))


def _nothing_sampled(metric: str) -> ConfigError:
    return ConfigError(
        f"{metric} samples no answers that could vote: set evaluation.metric=text to compare "
        "answers as text, or to json, math or a function of your own"
    )


def _check_answered(problems: Sequence[Problem]) -> None:
    """Raise RunFailed, with the first reason, if no member has answered any problem."""
    if any(problem.answered for problem in problems):
        return
    replies = chain.from_iterable(problem.replies for problem in problems)
    reasons = [reply.no_answer.reason for reply in replies if reply.no_answer is not None]
    others = ", so the others were not asked" if any(each.skipped for each in problems) else ""
    raise RunFailed(
        f"no member that was asked answered any of {len(problems)} problems{others}. The first "
        f"reason: {reasons[0]}"
    )


def vote_records(voted: VotedAnswers, held_out: HeldOut) -> Samples:
    """Return a line of samples.jsonl for each problem, with its votes."""
    records = []
    for name, problems in voted.sets.items():
        items = recorded_items(held_out.sets[name])
        for problem in problems:
            answer = problem.answer
            shown = {"failed": answer.failed, **problem.record(voted.members)}
            records.append(record_row(items[answer.row], name, answer.row, answer.scores, **shown))
    return Samples(tuple(records))
