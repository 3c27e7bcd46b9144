"""Sampled answers, graded by comparison with reference answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from kitchen.config.user_functions import is_function_name
from kitchen.ports import Tokenizer
from kitchen.ports.environments import StepResult
from kitchen.statistics.samples import SHARE, Bounds
from kitchen.types import Sampled
from stages.chat.conversations import Conversation
from stages.chat.prompts import graded_prefill, prompt_text, reference_answers
from stages.evaluate.metric_functions import (
    check_no_judge_needed,
    find_metric,
    measure_of,
    score_answers,
)
from stages.evaluate.rubric_metric import judged_answers
from stages.tasks.asked_model import Judgement
from stages.tasks.grading import GradingConfig
from stages.tasks.judge_records import recorded_judgements
from stages.tasks.rewards import AS_IS, GRADING_TIMEOUT, grade_answers
from stages.tasks.rubric import RUBRIC
from stages.tasks.rubric_judge import RubricJudge, Verdict

# the reward that computes each metric
METRIC_REWARDS: Mapping[str, str] = MappingProxyType(
    {"json": "field_f1", "text": "exact", "math": "math"}
)

# label of each measure of a graded answer
ANSWER_MEASURES: Mapping[str, str] = MappingProxyType(
    {"exact_match": "exact match", "field_f1": "field F1"}
)


@dataclass(frozen=True)
class GradedAnswer:
    """One answer to a held-out problem, with its grade."""

    prompt: str
    expected: str  # several right answers are joined by " | "
    text: str
    exact: bool  # whether it matches the expected answer, and was not truncated
    f1: float  # 0..1, over JSON fields; for other answers 1 if exact
    parsed: bool  # whether it could be read in the expected format
    truncated: bool  # whether it was truncated at max_tokens, which counts as wrong
    row: int = 0  # index of the row in its set
    attempt: int = 0  # index among the answers to this row
    where: str = ""  # the row's place in the data: "chats.jsonl:12"
    failed: str = ""  # why it could not be graded, so that it has no score; empty if it was
    answered: bool = True  # whether there was an answer to grade
    measure: str = ""  # name of the metric function that scored it; empty for other metrics
    score: float = 0.0  # by the metric function
    bounds: Bounds = SHARE  # range of its scores
    parts: Mapping[str, float] = field(default_factory=dict)  # of the score, by criterion
    judgements: tuple[Judgement, ...] = ()  # of a judge that is asked

    @property
    def scores(self) -> Mapping[str, float]:
        """The scores by measure; none if it failed."""
        if self.failed:
            return {}
        if self.measure:
            parts = {f"{self.measure}/{name}": value for name, value in self.parts.items()}
            return {self.measure: self.score, **parts}
        return {"exact_match": float(self.exact), "field_f1": self.f1}

    def record(self) -> Mapping[str, Any]:
        """Return what a line of samples.jsonl shows besides item and scores."""
        graded = not self.failed
        grades = {} if self.measure else {"exact": self.exact, "f1": self.f1}
        return {
            "prompt": self.prompt,
            "wanted": self.expected,
            "text": self.text,
            **(grades if graded else dict.fromkeys(grades)),
            "parsed": self.parsed,
            "truncated": self.truncated,
            **recorded_judgements(self.judgements),
        }


async def grade_samples(
    metric: str,
    samples: Sequence[tuple[Conversation, Sampled]],
    tokenizer: Tokenizer,
    timeout: float = GRADING_TIMEOUT,
    grading: GradingConfig = AS_IS,
    judge: RubricJudge | None = None,
) -> list[GradedAnswer]:
    """Grade sampled answers by one of METRIC_REWARDS, by a metric function, or by a judge.

    A truncated answer scores 0, except by a metric function or a judge, which grade it like any
    other.
    """
    texts = [tokenizer.decode(sampled.tokens) for _, sampled in samples]
    if judge is not None and metric == RUBRIC:
        asked = [
            (conversation, text) for (conversation, _), text in zip(samples, texts, strict=True)
        ]
        verdicts = await judged_answers(judge, asked, grading)
        return [
            _judged(*sample, text, verdict)
            for sample, text, verdict in zip(samples, texts, verdicts, strict=True)
        ]
    if is_function_name(metric):
        rows = [conversation for conversation, _ in samples]
        scores = await score_answers(metric, list(zip(rows, texts, strict=True)), grading)
        return [
            _scored(metric, *sample, text, score)
            for sample, text, score in zip(samples, texts, scores, strict=True)
        ]
    check_no_judge_needed(metric)
    complete = [at for at, (_, sampled) in enumerate(samples) if sampled.stop_reason != "length"]
    pairs = [_compared(samples[at][0], texts[at]) for at in complete]
    results = await grade_answers(METRIC_REWARDS[metric], pairs, timeout, grading)
    grades = dict(zip(complete, results, strict=True))
    return [
        _graded(conversation, texts[at], grades.get(at))
        for at, (conversation, _) in enumerate(samples)
    ]


def _compared(conversation: Conversation, text: str) -> tuple[str, tuple[str, ...]]:
    """Return the text that is graded, and the right answers."""
    return graded_prefill(conversation) + text, reference_answers(conversation)


def _graded(conversation: Conversation, text: str, grade: StepResult | str | None) -> GradedAnswer:
    """Build an answer from its grade, the reason why there is none, or None if it was truncated."""
    result = grade if isinstance(grade, StepResult) else StepResult(0.0, parsed=False)
    return GradedAnswer(
        prompt=prompt_text(conversation),
        expected=" | ".join(reference_answers(conversation)),
        text=text,
        exact=result.reward == 1,
        f1=result.reward or 0.0,
        parsed=result.parsed,
        truncated=grade is None,
        where=conversation.where,
        failed=grade if isinstance(grade, str) else "",
    )


def _scored(
    metric: str, conversation: Conversation, sampled: Sampled, text: str, score: StepResult | str
) -> GradedAnswer:
    """Build an answer from its score by a metric function, or the reason why it has none."""
    graded = _graded(conversation, text, score)
    no_score = isinstance(score, StepResult) and score.reward is None
    return replace(
        graded,
        truncated=sampled.stop_reason == "length",
        failed=f"{metric} returned None" if no_score else graded.failed,
        f1=float(graded.exact),
        measure=measure_of(metric),
        score=graded.f1,
        bounds=find_metric(metric).bounds,
    )


def _judged(
    conversation: Conversation, sampled: Sampled, text: str, verdict: Verdict
) -> GradedAnswer:
    """Build an answer from the scores of a judge, or the reason why there are none."""
    return replace(
        _graded(conversation, text, verdict.problem or StepResult(verdict.reward)),
        parsed=verdict.parsed,
        truncated=sampled.stop_reason == "length",
        measure=RUBRIC,
        score=verdict.reward or 0.0,
        parts=verdict.scores if len(verdict.scores) > 1 else {},
        judgements=verdict.judgements,
    )


def unanswered(metric: str, conversation: Conversation, reason: str) -> GradedAnswer:
    """Return the place of an answer that there is none of, which has no score."""
    graded = replace(_graded(conversation, "", reason), answered=False)
    if not is_function_name(metric):
        return graded
    return replace(graded, measure=measure_of(metric), bounds=find_metric(metric).bounds)


def measures_of(answers: Sequence[GradedAnswer]) -> Mapping[str, str]:
    """Return the label of each measure that the answers to a set have."""
    own = {answer.measure: answer.measure for answer in answers if answer.measure}
    for answer in answers:
        own |= {name: name for name in answer.scores if answer.measure}
    return own or ANSWER_MEASURES


def score_bounds(answers: Sequence[GradedAnswer], measure: str) -> Bounds:
    """Return the range of a measure: that which a metric function states, or 0 to 1."""
    return next((each.bounds for each in answers if each.measure == measure), SHARE)


def failure_counts(answers: Sequence[GradedAnswer]) -> Mapping[tuple[str, str], int]:
    """Count truncated, ungraded and missing answers, by label and metric key."""
    counts = {("truncated", "truncated"): sum(answer.truncated for answer in answers)}
    failed = sum(bool(answer.failed) and answer.answered for answer in answers)
    if failed:
        counts["could not be compared", "uncompared"] = failed
    if missing := sum(not answer.answered for answer in answers):
        counts["no answer", "unanswered"] = missing
    return counts
