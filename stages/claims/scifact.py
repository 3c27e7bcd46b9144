"""SciFact's format: a file of claims with their evidence, and a corpus of abstracts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kitchen.errors import DataError
from kitchen.safe_text import read_json
from stages.claims.answer import MAIN_CLAIM, Claim, ClaimAnswer, Relation, Verb

_VERBS: Mapping[str, Verb] = {
    "SUPPORT": "supports",
    "SUPPORTS": "supports",
    "CONTRADICT": "refutes",
    "CONTRADICTS": "refutes",
    "REFUTE": "refutes",
    "REFUTES": "refutes",
}


@dataclass(frozen=True)
class Document:
    """One abstract of the corpus."""

    id: str
    title: str  # may be empty
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class EvidenceSet:
    """Sentences of one document that together support or refute a claim."""

    document: str
    verb: Verb
    sentences: tuple[int, ...]  # indices into the sentences of the document, from 0


@dataclass(frozen=True)
class ScifactClaim:
    """One claim with its evidence; `evidence` is None in test files, which do not have it."""

    id: str
    text: str
    evidence: tuple[EvidenceSet, ...] | None
    cited: tuple[str, ...]  # ids of the documents to read
    where: str  # "claims_dev.jsonl:12"

    def answer(self, corpus: Mapping[str, Document]) -> ClaimAnswer:
        """Return the right answer: the claim, then one cited claim for each evidence set."""
        claims, relations = [Claim(MAIN_CLAIM, self.text)], []
        for number, evidence in enumerate(self.evidence or (), start=2):
            sentences = corpus[evidence.document].sentences
            text = " ".join(sentences[at].strip() for at in evidence.sentences)
            claims.append(Claim(f"c{number}", text, evidence.document))
            relations.append(Relation(f"c{number}", evidence.verb, MAIN_CLAIM))
        return ClaimAnswer(tuple(claims), tuple(relations))


def read_corpus(path: Path) -> dict[str, Document]:
    """Read a corpus, one document a line, by id.

    Raises DataError naming file, line and field.
    """
    return documents_by_id(_rows(path), str(path))


def documents_by_id(
    rows: Iterable[tuple[str, Mapping[str, Any]]], name: str
) -> dict[str, Document]:
    """Return documents by id from rows and their places; `name` is that of the corpus.

    Raises DataError naming place and field.
    """
    documents: dict[str, Document] = {}
    for where, row in rows:
        document = parse_document(row, where)
        if document.id in documents:
            raise DataError(
                f"{where}: doc_id {document.id} occurs twice; every document needs its own id"
            )
        documents[document.id] = document
    if not documents:
        raise DataError(f"{name}: the corpus has no documents")
    return documents


def parse_document(row: Mapping[str, Any], where: str) -> Document:
    """Parse a row of a corpus; raises DataError naming place and field."""
    id = _id(row, "doc_id", where)
    sentences = row.get("abstract")
    if not isinstance(sentences, list) or not _all_text(sentences):
        raise DataError(f"{where}: abstract must be a list of sentences")
    title = row.get("title") or ""
    if not isinstance(title, str):
        raise DataError(f"{where}: title must be text")
    return Document(id, title, tuple(sentences))


def read_claims(path: Path, corpus: Mapping[str, Document]) -> list[ScifactClaim]:
    """Read claims, and check their evidence against the corpus.

    Raises DataError naming file, line and field: unknown documents and labels, and sentences that
    a document does not have.
    """
    claims: dict[str, ScifactClaim] = {}
    for where, row in _rows(path):
        claim = parse_claim(row, where, corpus)
        if claim.id in claims:
            raise DataError(f"{where}: id {claim.id} occurs twice; every claim needs its own id")
        claims[claim.id] = claim
    if not claims:
        raise DataError(f"{path}: there are no claims")
    return list(claims.values())


def parse_claim(row: Mapping[str, Any], where: str, corpus: Mapping[str, Document]) -> ScifactClaim:
    """Parse a row of claims; raises DataError as `read_claims` does."""
    id = _id(row, "id", where)
    text = row.get("claim")
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{where}: claim must be a text that is not empty")
    evidence = _evidence(row["evidence"], corpus, where) if "evidence" in row else None
    return ScifactClaim(id, text.strip(), evidence, _cited(row, evidence, corpus, where), where)


def _evidence(value: Any, corpus: Mapping[str, Document], where: str) -> tuple[EvidenceSet, ...]:
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: evidence must be a mapping of document ids; {{}} where there is none"
        )
    found: dict[EvidenceSet, None] = {}  # in order, without repetitions
    for document, sets in value.items():
        place = f"{where}: evidence of document {document}"
        _check_document(document, corpus, place)
        if not isinstance(sets, list):
            raise DataError(f"{place} must be a list of objects with sentences and label")
        for entry in sets:
            found[_evidence_set(entry, corpus[document], place)] = None
    return tuple(found)


def _evidence_set(entry: Any, document: Document, place: str) -> EvidenceSet:
    if not isinstance(entry, dict) or not {"sentences", "label"} <= entry.keys():
        raise DataError(f"{place} must be a list of objects with sentences and label")
    label = str(entry["label"]).upper()
    if label not in _VERBS:
        raise DataError(
            f"{place}: unknown label {entry['label']!r}; known are {', '.join(_VERBS)}. A claim "
            "without information has the evidence {}"
        )
    sentences = entry["sentences"]
    whole = isinstance(sentences, list) and sentences and all(type(at) is int for at in sentences)
    if not whole:
        raise DataError(f"{place}: sentences must be a list of sentence numbers that is not empty")
    count = len(document.sentences)
    outside = [at for at in sentences if not 0 <= at < count]
    if outside:
        raise DataError(
            f"{place}: there is no sentence {outside[0]}; the document has {count}, counted from 0"
        )
    return EvidenceSet(document.id, _VERBS[label], tuple(sentences))


def _cited(
    row: Mapping[str, Any],
    evidence: Sequence[EvidenceSet] | None,
    corpus: Mapping[str, Document],
    where: str,
) -> tuple[str, ...]:
    """Return the documents to read: cited_doc_ids, then those of the evidence."""
    value = row.get("cited_doc_ids", [])
    if not isinstance(value, list) or not all(type(id) in (int, str) for id in value):
        raise DataError(f"{where}: cited_doc_ids must be a list of document ids")
    ids = [str(id) for id in value] + [item.document for item in evidence or ()]
    for id in ids:
        _check_document(id, corpus, f"{where}: cited_doc_ids")
    return tuple(dict.fromkeys(ids))


def _check_document(id: str, corpus: Mapping[str, Document], place: str) -> None:
    if id not in corpus:
        raise DataError(f"{place}: document {id} is not in the corpus")


def _id(row: Mapping[str, Any], field: str, where: str) -> str:
    """Return an integer or text id as text."""
    value = row.get(field)
    if type(value) is int or (isinstance(value, str) and value.strip()):
        return str(value).strip()
    raise DataError(f"{where}: {field} must be a number or a text that is not empty")


def _all_text(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects of a JSONL file, each with its place."""
    try:
        file = path.open(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    with file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path.name}:{number}"
            try:
                row = read_json(line)
            except ValueError as error:
                raise DataError(f"{where}: not JSON ({error})") from error
            if not isinstance(row, dict):
                raise DataError(f"{where}: must be an object, and is a {type(row).__name__}")
            yield where, row
