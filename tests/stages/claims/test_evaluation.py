"""Evaluation of claims: scores by answer, intervals by claim, and metrics by name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from adapters.fake.training import FakeTraining
from kitchen.errors import ConfigError, RunFailed
from stages.chat.render import RenderDataset
from stages.claims.answer import parse_answer
from stages.claims.claim_metrics import bleu, checked_score, find_metrics
from stages.claims.evaluation import (
    SAMPLED_VALID,
    ClaimEvalConfig,
    ClaimEvaluation,
    EvaluateClaimWeights,
    ReportClaims,
    ScoredAnswer,
    scored_answer,
)
from stages.claims.loading import HeldOutClaims
from stages.claims.rows import ClaimRow

RIGHT = "CLAIM[c1]: a\nCLAIM[c2] (Document 7): It is a.\nRELATION: c2 supports c1"
ROW = ClaimRow("Document 7:\nIt is a.", {"7": "It is a."}, parse_answer(RIGHT), "1", "x:1")


def same_words(answer: str, reference: str) -> float:
    return float(set(answer.split()) == set(reference.split()))


def answer(row: int, right: float, supporting: float, attempt: int = 0) -> ScoredAnswer:
    scores = {"schema": 1.0, "relation_right": right}
    return ScoredAnswer(row, attempt, "", False, (), scores, supporting)


def test_a_right_answer_is_right_unless_it_is_truncated() -> None:
    whole, truncated = scored_answer(RIGHT, ROW), scored_answer(RIGHT, ROW, truncated=True)
    assert (whole.scores["answer_exact"], whole.scores["schema"], whole.supporting) == (1, 1, 1)
    assert (truncated.scores["answer_exact"], truncated.scores["schema"]) == (0, 0)
    assert truncated.scores["c1_exact"] == 1


def test_relations_are_compared_with_the_majority_share() -> None:
    answers = [answer(row, 1.0, float(row < 30)) for row in range(40)]
    answers += [answer(row, 0.0, 1.0) for row in range(40, 50)]
    metrics, table = ReportClaims().run(ClaimEvaluation({"new": tuple(answers)}))
    assert metrics["new/relation_majority"] == 0.8
    assert metrics["new/relation_right"] == 0.8
    assert metrics["new/relation_gain"] == 0
    assert metrics["new/relation_gain_low"] < 0 < metrics["new/relation_gain_high"]
    assert ("new", "50", "relation_majority") in [row[:3] for row in table.rows]


def test_intervals_are_of_claims_not_of_answers() -> None:
    tries = [answer(row, 1.0, 1.0, attempt) for row in range(5) for attempt in range(8)]
    metrics, table = ReportClaims().run(ClaimEvaluation({"new": tuple(tries)}))
    assert metrics["new/schema_low"] == pytest.approx(0.4782, abs=1e-3)
    assert {row[1] for row in table.rows} == {"5"}
    assert table.rows[-1][3] == "0 of 40 answers"


def evaluated(**options: Any) -> tuple[ClaimEvaluation, list[Any]]:
    stage = EvaluateClaimWeights("m", ClaimEvalConfig(max_tokens=9, **options), RenderDataset())
    client = FakeTraining()
    held_out = HeldOutClaims({"new": (ROW, ROW)})
    evaluation, samples = asyncio.run(stage.run(client, client, held_out))
    return evaluation, list(samples.rows)


def test_tries_draws_and_metrics_are_recorded_as_scores() -> None:
    name = f"{__name__}:same_words"
    evaluation, rows = evaluated(tries=2, temperature=1.0, draws=3, metrics=(name,))
    assert [(row["row"], row["try"]) for row in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len({row["text"] for row in rows}) == 4
    scores = rows[0]["scores"]
    assert scores[SAMPLED_VALID] == 1
    assert scores["same_words"] == 0
    assert scores == evaluation.sets["new"][0].scores
    again, _ = evaluated(tries=2, temperature=1.0, draws=3, metrics=(name,))
    assert again == evaluation


def test_a_row_without_a_right_answer_has_measures_of_form() -> None:
    unlabelled = ClaimRow("p", {}, None, "1", "x:1")
    stage = EvaluateClaimWeights("m", ClaimEvalConfig(max_tokens=4), RenderDataset())
    client = FakeTraining()
    held_out = HeldOutClaims({"new": (unlabelled,)})
    evaluation, samples = asyncio.run(stage.run(client, client, held_out))
    assert samples.rows[0]["wanted"] is None
    assert evaluation.sets["new"][0].scores.keys() == {"schema", "citation_valid"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.stages.claims.test_evaluation:same_word", "did you mean 'same_words'"),
        ("x:schema", "there is already a measure 'schema'"),
        ("blu", "there is no such metric"),
    ],
)
def test_wrong_names_of_metrics_are_errors(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_metrics((name,))


@pytest.mark.parametrize("score", [1.5, float("nan"), "1", None])
def test_a_metric_must_return_a_share(score: object) -> None:
    with pytest.raises(RunFailed, match="the metric m returned"):
        checked_score("m", score)


def test_several_greedy_answers_are_refused() -> None:
    with pytest.raises(ConfigError, match="tries=2"):
        ClaimEvalConfig(tries=2)


def test_bleu_is_1_for_equal_texts_and_less_for_others() -> None:
    pytest.importorskip("sacrebleu")
    assert bleu(RIGHT, RIGHT) == pytest.approx(1)
    assert 0 < bleu(RIGHT.replace("supports", "refutes"), RIGHT) < 0.95
