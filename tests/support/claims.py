"""A small data set of claims in SciFact's format, for runs on the fake."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kitchen.ports import Row

_SENTENCES = ("Tea lowers fever.", "Tea has no effect on sleep.", "Rest lowers pain.")
_CLAIMS: Sequence[tuple[str, Mapping[str, str], Sequence[int]]] = (
    ("Tea helps fever.", {"10": "SUPPORT"}, (10, 30)),
    ("Tea helps sleep.", {"20": "CONTRADICT"}, (20,)),
    ("Rest helps pain.", {"30": "SUPPORT"}, (30, 10)),
    ("Rest helps fever.", {}, (10,)),
    ("Tea harms fever.", {"10": "REFUTES"}, (10, 20)),
    ("Rest harms pain.", {"30": "CONTRADICT"}, (30,)),
)


def _claim(number: int) -> Row:
    text, labels, cited = _CLAIMS[number]
    evidence: dict[str, Any] = {
        document: [{"sentences": [0], "label": label}] for document, label in labels.items()
    }
    return {"id": number, "claim": text, "evidence": evidence, "cited_doc_ids": list(cited)}


CORPUS: Sequence[Row] = [
    {"doc_id": 10 * number, "title": "", "abstract": [sentence]}
    for number, sentence in enumerate(_SENTENCES, 1)
]
CLAIMS: Sequence[Row] = [_claim(number) for number in range(len(_CLAIMS))]
CLAIM_SPLITS: Mapping[str, Sequence[Row]] = {
    "claims_train": CLAIMS,
    "claims_dev": CLAIMS[:3],
    "corpus": CORPUS,
}
