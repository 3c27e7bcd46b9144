"""SciFact files are read as they are, and errors name file, line and field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kitchen.errors import DataError
from stages.claims.answer import Claim, Relation
from stages.claims.scifact import ScifactClaim, read_claims, read_corpus

CORPUS = [
    {"doc_id": 4983, "title": "Water", "abstract": ["Water is wet.", "It flows.\n"]},
    {"doc_id": "77", "title": "", "abstract": ["Ice floats."], "structured": False},
]


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def claims_of(folder: Path, *rows: Any) -> list[ScifactClaim]:
    corpus = read_corpus(write(folder / "corpus.jsonl", CORPUS))
    return read_claims(write(folder / "claims.jsonl", list(rows)), corpus)


def claim(**fields: Any) -> dict[str, Any]:
    return {"id": 1, "claim": "Water flows.", **fields}


def test_a_corpus_is_read_by_document_id(tmp_path: Path) -> None:
    corpus = read_corpus(write(tmp_path / "corpus.jsonl", CORPUS))
    assert list(corpus) == ["4983", "77"]
    assert corpus["4983"].sentences == ("Water is wet.", "It flows.\n")
    assert corpus["77"].title == ""


@pytest.mark.parametrize(
    "label, verb",
    [
        ("SUPPORT", "supports"),
        ("SUPPORTS", "supports"),
        ("CONTRADICT", "refutes"),
        ("REFUTE", "refutes"),
        ("REFUTES", "refutes"),
    ],
)
def test_labels_of_all_versions_are_read(label: str, verb: str, tmp_path: Path) -> None:
    evidence = {"4983": [{"sentences": [1], "label": label}]}
    [found] = claims_of(tmp_path, claim(evidence=evidence, cited_doc_ids=[77, 4983]))
    assert [item.verb for item in found.evidence or ()] == [verb]
    assert found.cited == ("77", "4983")
    assert found.where == "claims.jsonl:1"


def test_every_evidence_set_is_a_claim_of_the_answer(tmp_path: Path) -> None:
    evidence = {
        "4983": [
            {"sentences": [0, 1], "label": "SUPPORT"},
            {"sentences": [1], "label": "SUPPORT"},
            {"sentences": [1], "label": "SUPPORT"},
        ],
        "77": [{"sentences": [0], "label": "CONTRADICT"}],
    }
    [found] = claims_of(tmp_path, claim(evidence=evidence, cited_doc_ids=[]))
    assert found.cited == ("4983", "77")
    answer = found.answer(read_corpus(tmp_path / "corpus.jsonl"))
    assert answer.claims == (
        Claim("c1", "Water flows."),
        Claim("c2", "Water is wet. It flows.", "4983"),
        Claim("c3", "It flows.", "4983"),
        Claim("c4", "Ice floats.", "77"),
    )
    assert answer.relations[2] == Relation("c4", "refutes", "c1")


def test_missing_evidence_differs_from_no_information(tmp_path: Path) -> None:
    test, nothing = claims_of(tmp_path, claim(), claim(id="2", evidence={}))
    assert test.evidence is None
    assert nothing.evidence == ()


@pytest.mark.parametrize(
    "row, message",
    [
        ({"claim": "a"}, "claims.jsonl:1: id must be a number or a text"),
        (claim(claim=" "), "claims.jsonl:1: claim must be a text that is not empty"),
        (claim(evidence=[]), "claims.jsonl:1: evidence must be a mapping of document ids"),
        (
            claim(evidence={"5": []}),
            "claims.jsonl:1: evidence of document 5: document 5 is not in the corpus",
        ),
        (
            claim(evidence={"77": [{"sentences": [0], "label": "MAYBE"}]}),
            "evidence of document 77: unknown label 'MAYBE'; known are SUPPORT,",
        ),
        (
            claim(evidence={"77": [{"sentences": [1], "label": "SUPPORT"}]}),
            "there is no sentence 1; the document has 1, counted from 0",
        ),
        (
            claim(evidence={"77": [{"sentences": [True], "label": "SUPPORT"}]}),
            "sentences must be a list of sentence numbers",
        ),
        (claim(cited_doc_ids=[1]), "cited_doc_ids: document 1 is not in the corpus"),
        ([1], "claims.jsonl:1: must be an object, and is a list"),
    ],
)
def test_wrong_claims_are_errors(row: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        claims_of(tmp_path, row)
    assert message in str(caught.value)


def test_two_claims_of_one_id_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"claims.jsonl:2: id 1 occurs twice"):
        claims_of(tmp_path, claim(), claim(id="1"))


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "has no documents"),
        ("{", "corpus.jsonl:1: not JSON"),
        ('{"doc_id": 1, "abstract": "a"}', "corpus.jsonl:1: abstract must be a list"),
        ('{"doc_id": 1.5, "abstract": []}', "corpus.jsonl:1: doc_id must be a number or"),
    ],
)
def test_wrong_corpora_are_errors(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_corpus(path)
    assert message in str(caught.value)


def test_missing_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.jsonl: cannot be read"):
        read_corpus(tmp_path / "none.jsonl")
