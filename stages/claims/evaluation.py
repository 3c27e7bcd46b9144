"""Evaluation of claim extraction: sampled answers, their measures, and a report with intervals."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Any, Protocol

from pydantic import Field, NonNegativeFloat, PositiveInt

from kitchen.artifacts.weights import find_weights
from kitchen.errors import ConfigError
from kitchen.ports import BlobStore, ModelCatalog, Sampler, Tokenizer, TrainingClient
from kitchen.stage import Stage
from kitchen.statistics.intervals import Interval, interval, paired_interval
from kitchen.types import Metrics, Sampled, Samples, Table, Tokens, Tries
from stages.chat.prompts import prompts_with_room
from stages.chat.render import RenderDataset
from stages.claims.answer import MAIN_CLAIM, ClaimAnswer, parse_answer
from stages.claims.claim_metrics import checked_score, find_metrics
from stages.claims.loading import HeldOutClaims
from stages.claims.measures import MEASURES, relations_by_document, score_answer
from stages.claims.rows import ClaimRow
from stages.evaluate.evaluation import MAX_TOKENS, check_tries, report_left_out
from stages.evaluate.record import RecordedItem, record_row
from stages.evaluate.reference import sample_answers
from stages.train.session import FinalWeights

SAMPLED_VALID = "citation_valid_sampled"


@dataclass(frozen=True)
class ClaimEvalConfig:
    """Options of an evaluation of claim extraction."""

    max_tokens: PositiveInt = 512  # maximum tokens per answer; a truncated one breaks the schema
    temperature: NonNegativeFloat = 0.0  # sampling temperature; 0 for greedy decoding
    tries: Tries = 1  # answers sampled per claim; scores are means over them
    # more answers per claim, sampled at temperature 1, whose citations alone are scored
    # (citation_valid_sampled); 0 for none
    draws: Annotated[int, Field(ge=0, le=10_000)] = 0
    # further metrics of answers with a right answer: names of installed ones, such as bleu, or
    # MODULE:FUNCTION for your own
    metrics: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_tries(self.tries, self.temperature)

    @property
    def measures(self) -> tuple[str, ...]:
        """The names of the measures of an answer; raises ConfigError for an unknown metric."""
        sampled = (SAMPLED_VALID,) if self.draws else ()
        return (*MEASURES, *sampled, *find_metrics(self.metrics))

    def check_sampled(self, setting: str, names: Iterable[str]) -> None:
        """Raise ConfigError if a bound needs answers at temperature 1, and none are drawn."""
        if SAMPLED_VALID in names and not self.draws:
            raise ConfigError(
                f"{setting}: {SAMPLED_VALID} is not measured with evaluation.draws=0: set "
                "evaluation.draws above 0, or leave the bound out"
            )


@dataclass(frozen=True)
class ScoredAnswer:
    """One answer to a claim, with its scores by measure."""

    row: int  # index of the claim in its set
    attempt: int  # index among the answers to this claim
    text: str
    truncated: bool  # whether it was truncated at max_tokens
    problems: tuple[str, ...]  # what is wrong with its form
    scores: Mapping[str, float]
    # share of the cited evidence documents that support the claim; None if there are none
    supporting: float | None = None


@dataclass(frozen=True)
class ClaimEvaluation:
    """Scored answers by the name of their set."""

    sets: Mapping[str, tuple[ScoredAnswer, ...]]


def scored_answer(text: str, row: ClaimRow, truncated: bool = False) -> ScoredAnswer:
    """Parse and score one answer; a truncated one has a problem of form."""
    answer = parse_answer(text)
    if truncated:
        problems = (*answer.problems, "the answer is truncated at max_tokens")
        answer = replace(answer, problems=problems)
    scores = score_answer(answer, row)
    return ScoredAnswer(
        0, 0, text, truncated, answer.problems, scores, _supporting(answer, row.answer)
    )


def _supporting(answer: ClaimAnswer, right: ClaimAnswer | None) -> float | None:
    """Return the share of the cited evidence documents that support the claim, or None."""
    wanted = relations_by_document(right) if right is not None else {}
    matched = [wanted[document] for document in answer.cited if document in wanted]
    if not matched:
        return None
    supports = frozenset({f"supports {MAIN_CLAIM}"})
    return sum(relations == supports for relations in matched) / len(matched)


@dataclass(frozen=True)
class _Evaluator:
    """Evaluates one sampler on sets of claims."""

    sampler: Sampler
    tokenizer: Tokenizer
    config: ClaimEvalConfig
    render: RenderDataset
    seed: int

    async def evaluate(self, name: str, rows: Sequence[ClaimRow]) -> tuple[ScoredAnswer, ...]:
        questions = [row.question() for row in rows]
        prompts = prompts_with_room(
            questions, self.tokenizer, self.render, self.config.max_tokens, MAX_TOKENS
        )
        report_left_out(name, len(rows), len(prompts))
        count, temperature = self.config.tries, self.config.temperature
        # the set's name, so that answers do not depend on which other sets there are
        entropy = [self.seed, zlib.crc32(name.encode())]
        sampled = await self._sample(prompts.values(), entropy, count, temperature)
        scored = [
            self._scored(at, rows[at], tries) for at, tries in zip(prompts, sampled, strict=True)
        ]
        if self.config.draws:
            entropy = [*entropy, 1]
            drawn = await self._sample(prompts.values(), entropy, self.config.draws, 1.0)
            scored = [
                self._with_draws(answers, rows[at], draws)
                for at, answers, draws in zip(prompts, scored, drawn, strict=True)
            ]
        return tuple(chain.from_iterable(scored))

    async def _sample(
        self, prompts: Any, entropy: Sequence[int], count: int, temperature: float
    ) -> list[Sequence[Sampled]]:
        tokens: list[Tokens] = list(prompts)
        return await sample_answers(
            self.sampler,
            tokens,
            entropy,
            count=count,
            max_tokens=self.config.max_tokens,
            temperature=temperature,
        )

    def _scored(self, at: int, row: ClaimRow, tries: Sequence[Sampled]) -> list[ScoredAnswer]:
        answers = []
        for attempt, sampled in enumerate(tries):
            answer = scored_answer(self._text(sampled), row, sampled.stop_reason == "length")
            scores = {**answer.scores, **self._metrics(answer.text, row)}
            answers.append(replace(answer, row=at, attempt=attempt, scores=scores))
        return answers

    def _with_draws(
        self, answers: Sequence[ScoredAnswer], row: ClaimRow, draws: Sequence[Sampled]
    ) -> list[ScoredAnswer]:
        """Add the share of drawn answers whose citations are valid to the scores."""
        drawn = [scored_answer(self._text(sampled), row).scores for sampled in draws]
        share = sum(scores["citation_valid"] for scores in drawn) / len(drawn)
        return [
            replace(answer, scores={**answer.scores, SAMPLED_VALID: share}) for answer in answers
        ]

    def _metrics(self, text: str, row: ClaimRow) -> dict[str, float]:
        if row.answer is None:
            return {}
        metrics, right = find_metrics(self.config.metrics), row.answer.text()
        return {name: checked_score(name, metric(text, right)) for name, metric in metrics.items()}

    def _text(self, sampled: Sampled) -> str:
        text = self.tokenizer.decode(sampled.tokens)
        return self.render.answer_text(text, self.tokenizer)


class EvaluateClaims(Stage):
    """Evaluate the final weights on all held-out sets of claims."""

    memoize = True
    config: ClaimEvalConfig
    render: RenderDataset
    seed: int = 0  # of sampled answers

    async def run(
        self,
        client: TrainingClient,
        tokenizer: Tokenizer,
        held_out: HeldOutClaims,
        weights: FinalWeights,
    ) -> tuple[ClaimEvaluation, Samples]:
        sampler = client.sampler(weights)
        return await evaluate_claims(
            sampler, tokenizer, held_out, self.config, self.render, self.seed
        )

    def verify(self) -> None:
        find_metrics(self.config.metrics)


class EvaluateClaimWeights(Stage):
    """Evaluate weights of any name, such as a base model, on sets of claims."""

    memoize = True
    weights: str  # a name of weights
    config: ClaimEvalConfig
    render: RenderDataset
    seed: int = 0  # of sampled answers

    async def run(
        self,
        client: TrainingClient,
        models: ModelCatalog,
        held_out: HeldOutClaims,
        blobs: BlobStore | None = None,
    ) -> tuple[ClaimEvaluation, Samples]:
        weights = find_weights(self.weights, client, blobs)
        tokenizer = weights.tokenizer(models)
        sampler = client.sampler(weights.source)
        return await evaluate_claims(
            sampler, tokenizer, held_out, self.config, self.render, self.seed
        )

    def verify(self, client: TrainingClient, blobs: BlobStore | None = None) -> None:
        find_metrics(self.config.metrics)
        find_weights(self.weights, client, blobs)


async def evaluate_claims(
    sampler: Sampler,
    tokenizer: Tokenizer,
    held_out: HeldOutClaims,
    config: ClaimEvalConfig,
    render: RenderDataset,
    seed: int,
) -> tuple[ClaimEvaluation, Samples]:
    """Evaluate a sampler on the held-out sets, and close it."""
    evaluator = _Evaluator(sampler, tokenizer, config, render, seed)
    sets: dict[str, tuple[ScoredAnswer, ...]] = {}
    try:
        for name, rows in held_out.sets.items():
            sets[name] = await evaluator.evaluate(name, rows)
    finally:
        sampler.close()
    evaluation = ClaimEvaluation(sets)
    return evaluation, claim_records(evaluation, held_out)


def claim_records(evaluation: ClaimEvaluation, held_out: HeldOutClaims) -> Samples:
    """Return every answer as a line of samples.jsonl."""
    records: list[dict[str, Any]] = []
    for name, answers in evaluation.sets.items():
        for answer in answers:
            row = held_out.sets[name][answer.row]
            item = RecordedItem.of(row.question())
            shown: dict[str, Any] = {
                "claim": row.id,
                "prompt": row.prompt,
                "wanted": row.answer.text() if row.answer is not None else None,
                "text": answer.text,
                "problems": list(answer.problems),
                "truncated": answer.truncated,
            }
            attempt = answer.attempt
            record = record_row(item, name, answer.row, answer.scores, attempt=attempt, **shown)
            records.append(record)
    return Samples(tuple(records))


class ReportClaims(Stage):
    """Report each measure of each set with its interval, and relations against the majority.

    Intervals are of means over claims: several answers to one claim are not independent.
    """

    def run(self, evaluation: ClaimEvaluation) -> tuple[Metrics, Table]:
        metrics, rows = Metrics(), list[tuple[str, ...]]()
        for name, answers in evaluation.sets.items():
            for measure, scores in scores_by_measure(answers).items():
                mean = interval(scores)
                metrics |= interval_metrics(f"{name}/{measure}", mean)
                label = MEASURES.get(measure, measure)
                rows.append((name, str(len(scores)), measure, mean.format(), label))
            for measure, label, mean, count in _against_majority(answers):
                metrics |= interval_metrics(f"{name}/{measure}", mean)
                is_gain = measure == "relation_gain"
                rows.append((name, str(count), measure, mean.format(sign=is_gain), label))
            truncated = sum(answer.truncated for answer in answers)
            metrics[f"{name}/truncated"] = float(truncated)
            shown = f"{truncated} of {len(answers)} answers"
            claims = str(len({answer.row for answer in answers}))
            rows.append((name, claims, "truncated", shown, "cut off at max_tokens"))
        columns = ("set", "claims", "measure", "value", "meaning")
        return metrics, Table("Claims, 95 % intervals", columns, tuple(rows))


def interval_metrics(key: str, mean: Interval) -> dict[str, float]:
    metrics = {key: mean.estimate}
    if mean.known:
        metrics |= {f"{key}_low": mean.low, f"{key}_high": mean.high}
    return metrics


class _WithScores(Protocol):
    """An answer with scores by measure; `row` is the index of its claim."""

    @property
    def row(self) -> int: ...
    @property
    def scores(self) -> Mapping[str, float]: ...


def scores_by_measure(answers: Sequence[_WithScores]) -> dict[str, list[float]]:
    """Return the mean score of each claim that has one over its answers, by measure."""
    scores: dict[str, dict[int, list[float]]] = {}
    for answer in answers:
        for measure, score in answer.scores.items():
            scores.setdefault(measure, {}).setdefault(answer.row, []).append(score)
    others = sorted(scores.keys() - MEASURES.keys())
    names = [*(measure for measure in MEASURES if measure in scores), *others]
    return {name: _means(scores[name]) for name in names}


def _means(by_row: Mapping[int, Sequence[float]]) -> list[float]:
    return [sum(tries) / len(tries) for tries in by_row.values()]


def _against_majority(
    answers: Sequence[ScoredAnswer],
) -> list[tuple[str, str, Interval, int]]:
    """Compare relations with always giving the relation that is most frequent in this set."""
    rights: dict[int, list[float]] = {}
    supports: dict[int, list[float]] = {}
    for answer in answers:
        if answer.supporting is not None:
            rights.setdefault(answer.row, []).append(answer.scores["relation_right"])
            supports.setdefault(answer.row, []).append(answer.supporting)
    if not rights:
        return []
    right, supporting = _means(rights), _means(supports)
    verb = "supports" if sum(supporting) >= len(supporting) / 2 else "refutes"
    majority = [share if verb == "supports" else 1 - share for share in supporting]
    gain = paired_interval(majority, right)
    baseline = f"share right if every relation were {verb!r}"
    return [
        ("relation_majority", baseline, interval(majority), len(right)),
        ("relation_gain", "relation_right minus relation_majority", gain, len(right)),
    ]
