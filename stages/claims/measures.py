"""Measures of one claim-extraction answer against the documents and the right answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from stages.claims.answer import ClaimAnswer, Relation
from stages.claims.rows import ClaimRow

# every measure that an answer can have; all are in 0..1
MEASURES: Mapping[str, str] = {
    "schema": "follows the schema",
    "citation_valid": "cites only documents of the prompt",
    "citation_precision": "share of cited documents that are evidence",
    "citation_recall": "share of evidence documents that are cited",
    "documents_exact": "cites exactly the evidence documents",
    "c1_exact": "CLAIM[c1] is the hypothesis",
    "c1_f1": "token F1 of CLAIM[c1] against the hypothesis",
    "evidence_verbatim": "share of evidence lines whose text is in the cited document",
    "evidence_exact": "the evidence lines are the right ones",
    "relation_right": "share of matched documents whose relation is right",
    "answer_exact": "claims, documents and relations are all right",
}


def score_answer(answer: ClaimAnswer, row: ClaimRow) -> dict[str, float]:
    """Return the measures that this answer has; those that need a right answer, only with one.

    Every measure is computed whatever the others are. Left out are citation_precision and
    evidence_verbatim of an answer without citations, citation_recall of a row without evidence,
    and relation_right where no evidence document is cited.
    """
    scores = {
        "schema": float(not answer.problems),
        "citation_valid": float(answer.cited <= row.documents.keys()),
    }
    verbatim = [
        _normal(claim.text) in _normal(row.documents.get(claim.document or "", ""))
        for claim in answer.evidence
    ]
    if verbatim:
        scores["evidence_verbatim"] = sum(verbatim) / len(verbatim)
    if row.answer is not None:
        scores |= _against(answer, row.answer)
    return scores


def _against(answer: ClaimAnswer, right: ClaimAnswer) -> dict[str, float]:
    """Return the measures that compare an answer with the right one."""
    claim = answer.main.text if answer.main is not None else ""
    expected = right.main.text if right.main is not None else ""
    scores = {
        "documents_exact": float(answer.cited == right.cited),
        "c1_exact": float(_normal(claim) == _normal(expected)),
        "c1_f1": token_f1(claim, expected),
        "evidence_exact": float(_evidence(answer) == _evidence(right)),
    }
    hits = len(answer.cited & right.cited)
    if answer.cited:
        scores["citation_precision"] = hits / len(answer.cited)
    if right.cited:
        scores["citation_recall"] = hits / len(right.cited)
    found, wanted = relations_by_document(answer), relations_by_document(right)
    matched = [document for document in wanted if document in answer.cited]
    if matched:
        are_right = [found.get(document) == wanted[document] for document in matched]
        scores["relation_right"] = sum(are_right) / len(matched)
    is_right = scores["c1_exact"] and scores["documents_exact"] and found == wanted
    scores["answer_exact"] = float(bool(is_right) and not answer.problems)
    return scores


def relations_by_document(answer: ClaimAnswer) -> dict[str, frozenset[str]]:
    """Return, for each cited document, how its claims relate to other claims."""
    verbs: dict[str, set[str]] = {}
    for claim in answer.evidence:
        own = [relation for relation in answer.relations if relation.source == claim.id]
        verbs.setdefault(claim.document or "", set()).update(map(_signed, own))
    return {document: frozenset(found) for document, found in verbs.items()}


def _signed(relation: Relation) -> str:
    return f"{relation.verb} {relation.target}"


def _evidence(answer: ClaimAnswer) -> Counter[tuple[str, str]]:
    return Counter((claim.document or "", _normal(claim.text)) for claim in answer.evidence)


def token_f1(text: str, reference: str) -> float:
    """Return F1 = 2 hits / (words + words of the reference) over words, ignoring case.

    Hits are counted as in SQuAD (Rajpurkar et al. 2016): each word of the reference counts once.
    Two empty texts are equal: 1.
    """
    words, expected = Counter(_normal(text).split()), Counter(_normal(reference).split())
    total = words.total() + expected.total()
    return 2 * (words & expected).total() / total if total else 1.0


def _normal(text: str) -> str:
    """Fold case and white space."""
    return " ".join(text.casefold().split())
