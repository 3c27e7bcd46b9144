"""Entailment and similarity of answers, answer by answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from kitchen.errors import RunFailed
from kitchen.stage import Stage
from kitchen.statistics.intervals import interval
from kitchen.types import Metrics, Samples, Table
from stages.claims.answer import MAIN_CLAIM, ClaimAnswer, parse_answer
from stages.claims.calibration import NOT_MEASURED, Calibration
from stages.claims.evaluation import (
    ClaimEvaluation,
    ScoredAnswer,
    interval_metrics,
    scores_by_measure,
)
from stages.claims.loading import HeldOutClaims
from stages.claims.open_scorers import ScorerConfig, Scorers
from stages.claims.rows import ClaimRow
from stages.claims.scorers import TextPair, entailment_of, similarity_of
from stages.evaluate.record import RecordedItem, record_row

# the measures of meaning; all are in 0..1
SEMANTIC_MEASURES: Mapping[str, str] = {
    "entailment": "mean probability that cited documents entail what the answer says they do",
    "entailment_pass": "entailment is high enough (scorers.entailment_pass)",
    "similarity": "mean similarity of the right answer's claims to the closest ones of the answer",
    "similarity_pass": "similarity is high enough (scorers.similarity_pass)",
    "overall_pass": "entailment and similarity are high enough",
}


@dataclass(frozen=True)
class Assertion:
    """One statement of an answer that its cited document must entail."""

    claim: str  # id of the claim line that cites the document
    document: str
    text: str  # the hypothesis: the line's own text, or the claim that it supports
    entailment: float = 0.0  # probability, 0..1; 0 for a document that the prompt lacks


@dataclass(frozen=True)
class SemanticAnswer:
    """The measures of meaning of one answer."""

    row: int  # index of the claim in its set
    attempt: int  # index among the answers to this claim
    assertions: tuple[Assertion, ...] = ()  # with their entailment, if it is measured
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SemanticScores:
    """The measures of meaning of all answers, in the order of the evaluation, by set."""

    sets: Mapping[str, tuple[SemanticAnswer, ...]]


def assertions_of(answer: ClaimAnswer) -> list[Assertion]:
    """Return what an answer asserts of the documents it cites, without empty texts.

    A document must entail the text of the line that cites it, and the claim that this line
    supports. A document cited to refute a claim need not entail that claim.
    """
    texts = {claim.id: claim.text for claim in answer.claims}
    supported: dict[str, list[str]] = {}
    for relation in answer.relations:
        if relation.verb == "supports" and relation.target in texts:
            supported.setdefault(relation.source, []).append(texts[relation.target])
    found: dict[Assertion, None] = {}  # in order, without repetitions
    for claim in answer.evidence:
        for text in (claim.text, *supported.get(claim.id, [])):
            if text.strip():
                found[Assertion(claim.id, claim.document or "", text)] = None
    return list(found)


def matched_claims(answer: ClaimAnswer, right: ClaimAnswer) -> list[list[TextPair]]:
    """Return, for each claim of the right answer, its pairs with claims of the same kind.

    c1 is compared with c1, and evidence with evidence. A claim without a counterpart has no pairs.
    """

    by_kind: dict[bool, list[str]] = {True: [], False: []}
    for claim in answer.claims:
        by_kind[claim.id == MAIN_CLAIM].append(claim.text)
    matched = []
    for claim in right.claims:
        texts = by_kind[claim.id == MAIN_CLAIM]
        matched.append([TextPair(text, claim.text) for text in texts])
    return matched


@dataclass(frozen=True)
class _Scorer:
    """Scores all answers of one set at once, so that a model reads them in batches."""

    scorers: Scorers
    calibration: Calibration
    config: ScorerConfig

    async def score(
        self, answers: Sequence[ScoredAnswer], rows: Sequence[ClaimRow]
    ) -> tuple[SemanticAnswer, ...]:
        parsed = [parse_answer(answer.text) for answer in answers]
        of_answer = [rows[answer.row] for answer in answers]
        entailments = await self._entailments(parsed, of_answer)
        similarities = await self._similarities(parsed, of_answer)
        found = []
        for at, answer in enumerate(answers):
            assertions = entailments[at] if entailments is not None else ()
            scores = self._scores(assertions, similarities[at])
            found.append(SemanticAnswer(answer.row, answer.attempt, assertions, scores))
        return tuple(found)

    async def _entailments(
        self, answers: Sequence[ClaimAnswer], rows: Sequence[ClaimRow]
    ) -> list[tuple[Assertion, ...]] | None:
        """Return the assertions of each answer with their entailment; None without a scorer."""
        if self.scorers.entailment is None:
            return None
        by_answer = [assertions_of(answer) for answer in answers]
        pairs: dict[tuple[int, Assertion], TextPair] = {}
        for at, (row, assertions) in enumerate(zip(rows, by_answer, strict=True)):
            for assertion in assertions:
                if premise := row.documents.get(assertion.document, "").strip():
                    pairs[at, assertion] = TextPair(premise, assertion.text)
        scores = await entailment_of(self.scorers.entailment, list(pairs.values()))
        known = dict(zip(pairs, scores, strict=True))
        found = []
        for at, assertions in enumerate(by_answer):
            scored = (replace(each, entailment=known.get((at, each), 0.0)) for each in assertions)
            found.append(tuple(scored))
        return found

    async def _similarities(
        self, answers: Sequence[ClaimAnswer], rows: Sequence[ClaimRow]
    ) -> list[float | None]:
        """Return the similarity of each answer to the right one; None where it is not measured."""
        if self.scorers.similarity is None:
            return [None] * len(answers)
        matched = [
            matched_claims(answer, row.answer) if row.answer is not None else []
            for answer, row in zip(answers, rows, strict=True)
        ]
        pairs = list(chain.from_iterable(chain.from_iterable(matched)))
        scores = dict(zip(pairs, await similarity_of(self.scorers.similarity, pairs), strict=True))
        return [_mean_of_best(claims, scores) for claims in matched]

    def _scores(
        self, assertions: Sequence[Assertion], similarity: float | None
    ) -> dict[str, float]:
        """Return the scores of one answer; thresholds of entailment need a calibrated scorer."""
        scores: dict[str, float] = {}
        supported = True  # an answer that cites nothing asserts nothing
        if assertions:
            scores["entailment"] = sum(each.entailment for each in assertions) / len(assertions)
            supported = scores["entailment"] >= self.config.entailment_pass
            if self.calibration.trusted:
                scores["entailment_pass"] = float(supported)
        if similarity is not None:
            similar = similarity >= self.config.similarity_pass
            scores |= {"similarity": similarity, "similarity_pass": float(similar)}
            if self.calibration.trusted:
                scores["overall_pass"] = float(supported and similar)
        return scores


def _mean_of_best(
    claims: Sequence[Sequence[TextPair]], scores: Mapping[TextPair, float]
) -> float | None:
    """Return the mean over claims of the best score among their pairs; 0 for a missing claim."""
    if not claims:
        return None
    best = [max(map(scores.__getitem__, pairs), default=0.0) for pairs in claims]
    return sum(best) / len(best)


class ScoreSemantics(Stage):
    """Score the entailment and similarity of every answer, as far as there are scorers.

    Each measure is computed whatever the other measures of the answer are.
    """

    memoize = True
    config: ScorerConfig

    async def run(
        self,
        evaluation: ClaimEvaluation,
        held_out: HeldOutClaims,
        scorers: Scorers,
        calibration: Calibration,
    ) -> tuple[SemanticScores, Metrics, Table, Samples]:
        scorer = _Scorer(scorers, calibration, self.config)
        sets: dict[str, tuple[SemanticAnswer, ...]] = {}
        for name, answers in evaluation.sets.items():
            sets[name] = await scorer.score(answers, held_out.sets[name])
        scores = SemanticScores(sets)
        metrics, table = semantic_report(scores)
        return scores, metrics, table, _records(evaluation, held_out, scores)


def semantic_report(semantics: SemanticScores) -> tuple[Metrics, Table]:
    """Return each measure of each set with its interval; a measure without scores as not measured.

    Intervals are of means over claims.
    """
    metrics, rows = Metrics(), list[tuple[str, ...]]()
    for name, answers in semantics.sets.items():
        measured = scores_by_measure(answers)
        for measure, label in SEMANTIC_MEASURES.items():
            scores = measured.get(measure, [])
            value = NOT_MEASURED
            if scores:
                mean = interval(scores)
                metrics |= interval_metrics(f"{name}/{measure}", mean)
                value = mean.format()
            rows.append((name, str(len(scores)), measure, value, label))
    columns = ("set", "claims", "measure", "value", "meaning")
    return metrics, Table("Entailment and similarity, 95 % intervals", columns, tuple(rows))


def _records(
    evaluation: ClaimEvaluation, held_out: HeldOutClaims, semantics: SemanticScores
) -> Samples:
    """Return the answers that have a score as lines of samples.jsonl."""
    records: list[dict[str, Any]] = []
    for name, answers in semantics.sets.items():
        if len(answers) != len(evaluation.sets[name]):
            raise RunFailed(f"{name}: there are not as many scores of meaning as answers")
        for answer in filter(lambda answer: answer.scores, answers):
            row = held_out.sets[name][answer.row]
            assertions = [vars(assertion) for assertion in answer.assertions]
            shown: dict[str, Any] = {"claim": row.id, "assertions": assertions}
            item = RecordedItem.of(row.question())
            attempt = answer.attempt
            records.append(
                record_row(item, name, answer.row, answer.scores, attempt=attempt, **shown)
            )
    return Samples(tuple(records))
