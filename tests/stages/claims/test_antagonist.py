"""Flags of the antagonist, and their precision and recall on spoiled answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.local.claims.spoil import COUNT, SPOILERS, outputs
from kitchen.statistics.intervals import clopper_pearson
from kitchen.types import RunId
from stages.claims.answer import parse_answer
from stages.claims.antagonist import (
    AntagonistConfig,
    FlagAnswers,
    find_issues,
)
from stages.claims.calibration import Calibration
from stages.claims.evaluation import ClaimEvaluation, scored_answer
from stages.claims.loading import HeldOutClaims
from stages.claims.scorers import EntailmentScorer, LexicalEntailment, TextPair, entailment_of
from stages.claims.semantics import Assertion, SemanticAnswer, SemanticScores, assertions_of
from tests.support.judged_claims import claim_row

C1, C2 = "CLAIM[c1]: Tea helps.", "CLAIM[c2] (Document 10): Tea lowers fever."
C3 = "CLAIM[c3] (Document 20): Rest lowers pain."
GOOD = f"{C1}\n{C2}\nRELATION: c2 supports c1"
CONFIG = AntagonistConfig()


def issues(text: str, assertions: Sequence[Assertion] | None = None) -> dict[str, Any]:
    found = find_issues(parse_answer(text), ["10", "20"], CONFIG, assertions)
    return {issue.type: dict(issue.details) for issue in found}


@pytest.mark.parametrize(
    "text, expected",
    [
        (GOOD, {}),
        (f"{GOOD}\nSo it is.", {"SCHEMA"}),
        (f"{C1}\n{C2}\n{C2}", {"DUPLICATE_ID"}),
        (f"{C2}\n{C2}", {"DUPLICATE_ID", "SCHEMA"}),
        (GOOD.replace("Document 10", "Document 70"), {"CITATION_INVALID"}),
        (f"{GOOD}\nRELATION: c2 refutes c1", {"POLARITY_CONFLICT", "POLARITY_CONTRADICTION"}),
        (f"{GOOD}\n{C3}\nRELATION: c3 refutes c1", {"POLARITY_CONTRADICTION"}),
        (f"{GOOD}\n{C3}\nRELATION: c3 supports c1", set()),
    ],
)
def test_each_issue_is_found(text: str, expected: set[str]) -> None:
    assert issues(text).keys() == set(expected)


def test_a_citation_beside_the_right_one_is_invalid() -> None:
    """In the ancestors, an answer was valid if the right ids were among those cited."""
    text = f"{GOOD}\nCLAIM[c3] (Document 99): Invented.\nRELATION: c3 supports c1"
    assert issues(text)["CITATION_INVALID"] == {"cited": ["99"], "in_prompt": ["10", "20"]}


def test_chirality_flags_by_the_threshold_and_does_not_saturate() -> None:
    """In the ancestors, chirality saturated at its threshold."""
    more = "\n".join(
        f"CLAIM[c{at}] (Document 20): Text {at}.\nRELATION: c{at} refutes c1" for at in (3, 4)
    )
    found = issues(f"{GOOD}\n{more}")["POLARITY_CONTRADICTION"]
    assert found == {"chirality": pytest.approx(2 / 3), "threshold": 0.55}
    high = AntagonistConfig(chirality=0.7)
    assert not find_issues(parse_answer(f"{GOOD}\n{more}"), ["10", "20"], high)


def test_weak_evidence_is_flagged_below_the_threshold() -> None:
    strong, weak = Assertion("c2", "10", "a", 0.5), Assertion("c2", "10", "b", 0.49)
    assert issues(GOOD, [strong]) == {}
    assert issues(GOOD, [strong, weak])["WEAK_ENTAILMENT"]["assertions"] == [vars(weak)]


def flag(calibration: Calibration) -> tuple[list[dict[str, Any]], dict[str, float], Any]:
    rows = (claim_row("7", answer=GOOD), claim_row("8", answer=GOOD), claim_row("9", answer=GOOD))
    texts = (GOOD, GOOD.replace("Document 10", "Document 70"), f"{GOOD}\nSo.")
    answers = tuple(
        replace(scored_answer(text, row), row=at)
        for at, (text, row) in enumerate(zip(texts, rows, strict=True))
    )
    weak = Assertion("c2", "10", "Tea helps.", 0.1)
    semantics = SemanticScores({"dev": tuple(SemanticAnswer(at, 0, (weak,)) for at in range(3))})
    blobs = FakeBlobs()
    _, metrics, table = FlagAnswers(CONFIG).run(
        ClaimEvaluation({"dev": answers}),
        HeldOutClaims({"dev": rows}),
        semantics,
        calibration,
        blobs,
        RunId("run"),
    )
    lines = (blobs.read("run/antagonist_flags.jsonl") or b"").decode().splitlines()
    return [json.loads(line) for line in lines], metrics, table


def test_flags_are_written_with_severity_issues_and_metrics() -> None:
    lines, metrics, table = flag(Calibration())
    assert [(line["claim_id"], line["severity"]) for line in lines] == [
        ("8", "HIGH"),
        ("9", "MEDIUM"),
    ]
    assert [each["issue_type"] for each in lines[0]["issues"]] == ["CITATION_INVALID"]
    assert lines[0]["metrics"]["citation_valid"] == 0.0
    assert metrics["dev/high_flags"] == metrics["dev/medium_flags"] == 1.0
    assert metrics["dev/coverage"] == 1.0
    [weak] = [row for row in table.rows if row[1] == "WEAK_ENTAILMENT"]
    assert weak[3:5] == ("0", "not measured")


@pytest.mark.parametrize("low, flagged", [(0.51, 3), (0.5, 2)])
def test_weak_evidence_needs_a_calibrated_scorer(low: float, flagged: int) -> None:
    area = replace(clopper_pearson(8, 10), low=low)
    lines, _, _ = flag(Calibration(area))
    assert len(lines) == flagged


def found_in(scorer: EntailmentScorer | None) -> list[tuple[dict[str, Any], set[str]]]:
    results = []
    for row in outputs():
        answer = parse_answer(row["output"])
        assertions = None
        if scorer is not None:
            made = assertions_of(answer)
            pairs = [TextPair(row["documents"].get(a.document, ""), a.text) for a in made]
            scores = asyncio.run(entailment_of(scorer, pairs))
            assertions = [
                replace(each, entailment=score) for each, score in zip(made, scores, strict=True)
            ]
        found = find_issues(answer, row["documents"], CONFIG, assertions)
        results.append((row, {issue.type for issue in found}))
    return results


def test_spoiled_answers_are_generated_the_same_each_time() -> None:
    rows = outputs()
    assert rows == outputs()
    assert [sum(bool(row["spoiled"]) == bad for row in rows) for bad in (False, True)] == [
        COUNT
    ] * 2
    assert {row["issue"] for row in rows if row["spoiled"]} == {issue for issue, _ in SPOILERS}


def test_precision_and_recall_of_flags_on_spoiled_answers() -> None:
    """The figures stand in docs/explanation/claim-measures.md."""
    results = found_in(None)
    for issue in ("CITATION_INVALID", "POLARITY_CONFLICT", "SCHEMA", "DUPLICATE_ID"):
        flagged = [row for row, found in results if issue in found]
        wanted = [row for row, _ in results if row["issue"] == issue]
        assert flagged == wanted, issue  # precision and recall are 1
    flags = [bool(row["spoiled"]) for row, found in results if found]
    assert (sum(flags), len(flags)) == (148, 165)  # the 17 others: documents do disagree
    good = [found for row, found in results if not row["spoiled"] and found]
    assert good == [{"POLARITY_CONTRADICTION"}] * 17


def test_a_scorer_finds_invented_evidence() -> None:
    results = found_in(LexicalEntailment())
    invented = [found for row, found in results if row["spoiled"] == "invented_text"]
    assert all("WEAK_ENTAILMENT" in found for found in invented)
    flags = [bool(row["spoiled"]) for row, found in results if found]
    assert (sum(flags), len(flags)) == (174, 194)
