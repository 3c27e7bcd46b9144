"""Entailment and similarity of answers, calibration of the scorer, and thresholds."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kitchen.errors import ConfigError
from kitchen.statistics.intervals import clopper_pearson
from stages.claims.answer import parse_answer
from stages.claims.calibration import CalibrateEntailment, Calibration, calibrate, gold_pairs
from stages.claims.evaluation import ClaimEvaluation, scored_answer
from stages.claims.loading import HeldOutClaims
from stages.claims.open_scorers import ScorerConfig, Scorers
from stages.claims.scorers import TextPair
from stages.claims.semantics import ScoreSemantics, assertions_of
from tests.support.judged_claims import TableScorer, claim_row

GOOD = (
    "CLAIM[c1]: Tea helps fever.\nCLAIM[c2] (Document 10): Tea lowers fever.\n"
    "RELATION: c2 supports c1"
)
TRUSTED = Calibration(replace(clopper_pearson(9, 10), low=0.9))
DOCUMENT = "Tea lowers fever."


def score(
    text: str,
    *,
    entailment: TableScorer | None = None,
    similarity: TableScorer | None = None,
    calibration: Calibration = TRUSTED,
) -> tuple[dict[str, float], Any, Any]:
    row = claim_row(answer=GOOD)
    evaluation = ClaimEvaluation({"dev": (scored_answer(text, row),)})
    stage = ScoreSemantics(ScorerConfig())
    held_out, scorers = HeldOutClaims({"dev": (row,)}), Scorers(entailment, similarity)
    semantics, _, table, samples = asyncio.run(
        stage.run(evaluation, held_out, scorers, calibration)
    )
    return dict(semantics.sets["dev"][0].scores), table, samples


def test_documents_must_entail_lines_and_what_they_support() -> None:
    text = f"{GOOD}\nCLAIM[c3] (Document 20): Rest lowers pain.\nRELATION: c3 refutes c1"
    found = [(each.claim, each.document, each.text) for each in assertions_of(parse_answer(text))]
    assert found == [
        ("c2", "10", "Tea lowers fever."),
        ("c2", "10", "Tea helps fever."),
        ("c3", "20", "Rest lowers pain."),
    ]


def test_entailment_is_the_mean_over_assertions() -> None:
    scorer = TableScorer({(DOCUMENT, DOCUMENT): 1.0, (DOCUMENT, "Tea helps fever."): 0.6})
    scores, _, samples = score(GOOD, entailment=scorer)
    assert scores == {"entailment": pytest.approx(0.8), "entailment_pass": 1.0}
    [row] = samples.rows
    assert row["scores"] == scores
    assert [each["entailment"] for each in row["assertions"]] == [1.0, 0.6]


def test_nothing_is_measured_without_scorers() -> None:
    scores, table, samples = score(GOOD)
    assert scores == {}
    assert samples.rows == ()
    assert {row[3] for row in table.rows} == {"not measured"}


def test_a_document_that_the_prompt_lacks_entails_nothing() -> None:
    scorer = TableScorer({}, otherwise=0.9)
    scores, _, _ = score(GOOD.replace("Document 10", "Document 70"), entailment=scorer)
    assert scores["entailment"] == 0.0


def test_similarity_is_measured_whatever_else_is_wrong() -> None:
    """In the ancestors, similarity was 0 if an earlier check had failed."""
    same = TableScorer({("Tea helps fever.", "Tea helps fever."): 1.0, (DOCUMENT, DOCUMENT): 1.0})
    broken = GOOD.replace("Document 10", "Document 70") + "\nNo claim at all."
    scores, _, _ = score(broken, entailment=TableScorer({}), similarity=same)
    assert scores["similarity"] == 1.0
    assert scores["overall_pass"] == 0.0


def test_evidence_that_is_left_out_has_no_similarity() -> None:
    same = TableScorer({("Tea helps fever.", "Tea helps fever."): 1.0})
    scores, _, _ = score("CLAIM[c1]: Tea helps fever.", similarity=same)
    assert scores["similarity"] == 0.5
    assert scores["similarity_pass"] == 0.0


@pytest.mark.parametrize(
    "entailment, similarity, passes",
    [(0.75, 0.70, 1.0), (0.74, 0.99, 0.0), (0.99, 0.69, 0.0)],
)
def test_overall_needs_both(entailment: float, similarity: float, passes: float) -> None:
    scores, _, _ = score(
        GOOD,
        entailment=TableScorer({}, otherwise=entailment),
        similarity=TableScorer({}, otherwise=similarity),
    )
    assert scores["overall_pass"] == passes


@pytest.mark.parametrize("low", [0.5, 0.2])
def test_thresholds_need_a_calibrated_scorer(low: float) -> None:
    area = replace(clopper_pearson(5, 10), low=low)
    scores, _, _ = score(
        GOOD,
        entailment=TableScorer({}, otherwise=0.9),
        similarity=TableScorer({}, otherwise=0.9),
        calibration=Calibration(area),
    )
    assert scores.keys() == {"entailment", "similarity", "similarity_pass"}


REFUTED = GOOD.replace("supports", "refutes")


def test_gold_pairs_are_documents_of_rows_with_an_answer() -> None:
    pairs = gold_pairs(
        [claim_row("1", answer=GOOD), claim_row("2", answer=REFUTED), claim_row("3")]
    )
    assert [(pair.pair, pair.supports) for pair in pairs] == [
        (TextPair(DOCUMENT, "Tea helps fever."), True),
        (TextPair("Rest lowers pain.", "Tea helps fever."), False),
        (TextPair(DOCUMENT, "Tea helps fever."), False),
        (TextPair("Rest lowers pain.", "Tea helps fever."), False),
    ]


def rows(count: int = 12) -> list[Any]:
    """Rows whose document says "yes" where it supports the claim."""
    made = []
    for at in range(count):
        supports = at % 2 == 0
        documents = {"10": f"{'yes' if supports else 'no'} {at}"}
        answer = GOOD if supports else REFUTED
        made.append(claim_row(str(at), answer=answer, documents=documents))
    return made


def scorer_of(word: str) -> TableScorer:
    pairs = {(row.documents["10"], "Tea helps fever.") for row in rows()}
    return TableScorer({pair: float(pair[0].startswith(word)) for pair in pairs})


def test_a_scorer_that_ranks_evidence_rightly_is_trusted() -> None:
    found = asyncio.run(calibrate(scorer_of("yes"), rows(), 100, "x"))
    assert found.auc is not None
    assert found.auc.estimate == 1.0
    assert found.trusted


def test_labels_read_wrongly_are_an_error() -> None:
    with pytest.raises(ConfigError, match=r"entailment=hub:x: .*labels.*id2label"):
        asyncio.run(calibrate(scorer_of("no"), rows(), 100, "hub:x"))


def test_a_scorer_that_cannot_tell_is_not_trusted() -> None:
    found = asyncio.run(calibrate(TableScorer({}), rows(), 100, "x"))
    assert found.auc is not None
    assert not found.trusted


def test_data_without_evidence_cannot_calibrate() -> None:
    stage = CalibrateEntailment("x")
    held_out = HeldOutClaims({"dev": (claim_row("1"), claim_row("2"))})
    found, metrics, table = asyncio.run(stage.run(Scorers(TableScorer({})), held_out))
    assert not found.trusted
    assert metrics == {}
    assert table.rows[0][:2] == ("x", "not measured")


def test_at_most_so_many_pairs_are_scored() -> None:
    found = asyncio.run(calibrate(scorer_of("yes"), rows(), 5, "x"))
    assert found.auc is not None
    assert found.auc.n <= 5
