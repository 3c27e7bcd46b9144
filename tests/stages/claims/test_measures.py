"""Measures of answers, each computed whatever the others are."""

from __future__ import annotations

import pytest

from stages.claims.answer import parse_answer
from stages.claims.measures import MEASURES, score_answer, token_f1
from stages.claims.rows import ClaimRow

RIGHT = """CLAIM[c1]: Water is wet.
CLAIM[c2] (Document 10): It is wet.
RELATION: c2 supports c1
CLAIM[c3] (Document 20): It is dry.
RELATION: c3 refutes c1"""
ROW = ClaimRow(
    "prompt",
    {"10": "It is wet. Really.", "20": "It is dry.", "30": "It is blue."},
    parse_answer(RIGHT),
    "1",
    "claims.jsonl:1",
)


def scores(text: str, row: ClaimRow = ROW) -> dict[str, float]:
    return score_answer(parse_answer(text), row)


def test_the_right_answer_scores_1_in_every_measure() -> None:
    assert scores(RIGHT) == dict.fromkeys(MEASURES, 1.0)


def test_an_extra_citation_is_not_precise() -> None:
    found = scores(RIGHT + "\nCLAIM[c4] (Document 30): It is blue.\nRELATION: c4 supports c1")
    assert found["citation_precision"] == pytest.approx(2 / 3)
    assert found["citation_recall"] == 1.0
    assert found["citation_valid"] == 1.0
    assert found["documents_exact"] == found["answer_exact"] == found["evidence_exact"] == 0.0
    assert found["evidence_verbatim"] == found["relation_right"] == 1.0


def test_a_document_that_the_prompt_lacks_is_invalid() -> None:
    found = scores(RIGHT.replace("Document 20", "Document 99"))
    assert found["citation_valid"] == 0.0
    assert found["citation_recall"] == found["evidence_verbatim"] == 0.5
    assert found["relation_right"] == 1.0


def test_a_wrong_relation_leaves_the_citations_right() -> None:
    found = scores(RIGHT.replace("c3 refutes", "c3 supports"))
    assert found["relation_right"] == 0.5
    assert found["documents_exact"] == found["schema"] == 1.0
    assert found["answer_exact"] == 0.0


def test_measures_are_computed_though_the_schema_is_broken() -> None:
    found = scores("Sure!\n" + RIGHT.replace("Water is wet.", "Water is very wet."))
    assert found["schema"] == found["c1_exact"] == found["answer_exact"] == 0.0
    assert found["c1_f1"] == pytest.approx(2 * 3 / 7)
    assert found["citation_precision"] == found["relation_right"] == 1.0


def test_measures_without_a_denominator_are_left_out() -> None:
    found = scores("CLAIM[c1]: Water is wet.")
    assert "citation_precision" not in found
    assert "evidence_verbatim" not in found
    assert found["citation_recall"] == 0.0
    nothing = ClaimRow("prompt", {"10": "text"}, parse_answer("CLAIM[c1]: a"), "2", "x:2")
    assert scores("CLAIM[c1]: a", nothing)["answer_exact"] == 1.0
    assert "citation_recall" not in scores("CLAIM[c1]: a", nothing)


def test_rows_without_an_answer_have_measures_of_form_only() -> None:
    row = ClaimRow("prompt", {"10": "It is wet."}, None, "3", "x:3")
    found = scores("CLAIM[c1]: a\nCLAIM[c2] (Document 10): it is  WET.", row)
    assert found == {"schema": 1.0, "citation_valid": 1.0, "evidence_verbatim": 1.0}


@pytest.mark.parametrize(
    "text, reference, expected",
    [("", "", 1.0), ("a", "", 0.0), ("a a b", "a b b", 2 / 3), ("A  b", "a B", 1.0)],
)
def test_token_f1_counts_each_word_once(text: str, reference: str, expected: float) -> None:
    assert token_f1(text, reference) == pytest.approx(expected)
