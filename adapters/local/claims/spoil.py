"""Good and spoiled answers to the packaged claims: `python -m adapters.local.claims.spoil`.

The spoiled ones test whether the antagonist finds what is wrong. They are generated, not stored.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from adapters.local.packaged_data import shuffle

SEED = 1753  # the year of James Lind's treatise
COUNT = 200  # answers of each kind, good and spoiled
VERBS = {"SUPPORT": "supports", "CONTRADICT": "refutes"}
OPPOSITE = {"supports": "refutes", "refutes": "supports"}


@dataclass(frozen=True)
class Evidence:
    """One claim line of an answer that cites a document, with its relation to c1."""

    document: str
    text: str
    verb: str
    id: str = ""  # empty for the next free one: c2, c3, ...


@dataclass(frozen=True)
class Question:
    """A packaged claim: the documents to read, and the right evidence."""

    id: str
    claim: str
    documents: Mapping[str, Sequence[str]]  # sentences by document id
    evidence: tuple[Evidence, ...]

    def answer(self, evidence: Sequence[Evidence], *more: str) -> str:
        """Return an answer with this evidence, and more lines behind it."""
        lines = [f"CLAIM[c1]: {self.claim}"]
        for number, each in enumerate(evidence, start=2):
            id = each.id or f"c{number}"
            lines.append(f"CLAIM[{id}] (Document {each.document}): {each.text}")
            lines.append(f"RELATION: {id} {each.verb} c1")
        return "\n".join([*lines, *more])


def questions(folder: Path) -> list[Question]:
    """Return the packaged claims that have evidence, in order of the files."""
    corpus = {str(row["doc_id"]): row["abstract"] for row in _rows(folder / "corpus.jsonl")}
    found = []
    for name in ("claims_held_out", "claims_other_wording", "claims_train"):
        for row in _rows(folder / f"{name}.jsonl"):
            evidence = tuple(_evidence(row["evidence"], corpus))
            if evidence:
                documents = {str(id): corpus[str(id)] for id in row["cited_doc_ids"]}
                found.append(Question(str(row["id"]), row["claim"], documents, evidence))
    return found


def _evidence(
    evidence: Mapping[str, Any], corpus: Mapping[str, Sequence[str]]
) -> Iterator[Evidence]:
    for document, sets in evidence.items():
        for each in sets:
            text = " ".join(corpus[document][at] for at in each["sentences"])
            yield Evidence(document, text, VERBS[each["label"]])


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text("utf-8").splitlines():
        yield json.loads(line)


def wrong_document(question: Question, rng: Random) -> str:
    """Cite a document that the prompt lacks, whose id differs in its first digit."""
    first, *others = question.evidence
    digits = [
        digit for digit in "123456789" if digit + first.document[1:] not in question.documents
    ]
    wrong = digits[int(rng.random() * len(digits))] + first.document[1:]
    return question.answer([replace(first, document=wrong), *others])


def both_relations(question: Question, rng: Random) -> str:
    """Say that the same document supports and refutes the claim."""
    verb = OPPOSITE[question.evidence[0].verb]
    return question.answer(question.evidence, f"RELATION: c2 {verb} c1")


def split_evidence(question: Question, rng: Random) -> str:
    """Give as much evidence for the claim as against it, from different documents."""
    first = question.evidence[0]
    other = next((id for id in question.documents if id != first.document), first.document + "0")
    text = " ".join(question.documents.get(other, ["No other study was found."]))
    return question.answer([first, Evidence(other, text, OPPOSITE[first.verb])])


def broken_form(question: Question, rng: Random) -> str:
    """Leave out c1, add a sentence that is no claim, or relate a claim that does not exist."""
    answer = question.answer(question.evidence)
    ways = (
        answer.partition("\n")[2],
        f"{answer}\nTherefore the hypothesis holds.",
        f"{answer}\nRELATION: c9 supports c1",
    )
    return ways[int(rng.random() * len(ways))]


def repeated_id(question: Question, rng: Random) -> str:
    """Give two claims the same id."""
    first = question.evidence[0]
    return question.answer([replace(first, id="c2"), replace(first, id="c2")])


def invented_text(question: Question, rng: Random) -> str:
    """State evidence that the cited document does not have."""
    texts = (
        "A survey of ferry passengers found no such thing.",
        "Most volunteers preferred the second questionnaire.",
        "Rainfall was heavier in the northern districts that year.",
    )
    first, *others = question.evidence
    return question.answer([replace(first, text=texts[int(rng.random() * 3)]), *others])


def flipped_relations(question: Question, rng: Random) -> str:
    """Turn every relation round; the form of the answer stays right."""
    return question.answer([replace(each, verb=OPPOSITE[each.verb]) for each in question.evidence])


# what a spoiled answer should be flagged as, and how it is made
SPOILERS: Sequence[tuple[str, Callable[[Question, Random], str]]] = (
    ("CITATION_INVALID", wrong_document),
    ("POLARITY_CONFLICT", both_relations),
    ("POLARITY_CONTRADICTION", split_evidence),
    ("SCHEMA", broken_form),
    ("DUPLICATE_ID", repeated_id),
    ("WEAK_ENTAILMENT", invented_text),
    ("", flipped_relations),
)


def outputs(folder: Path = Path(__file__).parent) -> list[dict[str, Any]]:
    """Return COUNT good and COUNT spoiled answers, each to another claim.

    A row has `id`, `claim`, `documents` (text by id), `output`, `spoiled` (how it was made; "" for
    a good answer) and `issue` (what it should be flagged as; "" for a good answer, and for a
    spoiled one whose form is right).
    """
    rng = Random(SEED)
    pool = questions(folder)
    shuffle(pool, rng)
    rows = []
    for number, question in enumerate(pool[: 2 * COUNT]):
        issue, spoil = SPOILERS[number // 2 % len(SPOILERS)]
        is_good = number % 2 == 0
        rows.append(
            {
                "id": question.id,
                "claim": question.claim,
                "documents": {id: " ".join(text) for id, text in question.documents.items()},
                "output": question.answer(question.evidence) if is_good else spoil(question, rng),
                "spoiled": "" if is_good else spoil.__name__,
                "issue": "" if is_good else issue,
            }
        )
    return rows


if __name__ == "__main__":
    for line in outputs():
        sys.stdout.write(json.dumps(line, ensure_ascii=False) + "\n")
