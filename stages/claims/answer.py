"""Answers of claim extraction: lines that state claims, cite documents and relate claims.

CLAIM[c1]: Vitamin D lowers the risk of fractures.
CLAIM[c2] (Document 123): Fractures were rarer with vitamin D.
RELATION: c2 supports c1
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Verb = Literal["supports", "refutes"]
MAIN_CLAIM = "c1"  # id of the hypothesis, the claim that the others support or refute

_CLAIM = re.compile(
    r"CLAIM\[(?P<id>[^\]\s]+)\]\s*(?:\((?:document|citing)\s+(?P<document>[^()\s]+)\))?\s*"
    r":\s*(?P<text>.*)",
    re.I,
)
_RELATION = re.compile(
    r"RELATION\s*:\s*(?P<source>[^\s]+)\s+(?P<verb>[a-z]+)\s+(?P<target>[^\s]+?)\.?", re.I
)
_VERBS: dict[str, Verb] = {
    "supports": "supports",
    "support": "supports",
    "refutes": "refutes",
    "refute": "refutes",
    "contradicts": "refutes",
    "contradict": "refutes",
}


@dataclass(frozen=True)
class Claim:
    """One claim line: an id, a text and, for evidence, the id of the cited document."""

    id: str
    text: str
    document: str | None = None


@dataclass(frozen=True)
class Relation:
    """One relation line: the source claim supports or refutes the target claim."""

    source: str
    verb: Verb
    target: str


@dataclass(frozen=True)
class ClaimAnswer:
    """A parsed answer: its claims and relations in order, and what is wrong with its form."""

    claims: tuple[Claim, ...] = ()
    relations: tuple[Relation, ...] = ()
    problems: tuple[str, ...] = ()  # one sentence each; empty if the answer follows the schema

    @property
    def main(self) -> Claim | None:
        """The first claim with the id c1, or None."""
        return next((claim for claim in self.claims if claim.id == MAIN_CLAIM), None)

    @property
    def evidence(self) -> tuple[Claim, ...]:
        """The claims that cite a document, in order."""
        return tuple(claim for claim in self.claims if claim.document is not None)

    @property
    def cited(self) -> frozenset[str]:
        """The ids of the cited documents."""
        return frozenset(claim.document for claim in self.claims if claim.document is not None)

    @property
    def duplicates(self) -> tuple[str, ...]:
        """The ids that more than one claim line has, in order of appearance."""
        counts = Counter(claim.id for claim in self.claims)
        return tuple(id for id, count in counts.items() if count > 1)

    def text(self) -> str:
        """Return the answer as text; relations follow the claim that is their source."""
        relations = list(self.relations)
        lines = []
        for claim in self.claims:
            lines.append(claim_line(claim))
            own = [relation for relation in relations if relation.source == claim.id]
            lines += [relation_line(relation) for relation in own]
            relations = [relation for relation in relations if relation.source != claim.id]
        return "\n".join([*lines, *map(relation_line, relations)])


def claim_line(claim: Claim) -> str:
    """Return `CLAIM[c2] (Document 123): text`, on one line."""
    cited = f" (Document {claim.document})" if claim.document is not None else ""
    return f"CLAIM[{claim.id}]{cited}: {' '.join(claim.text.split())}"


def relation_line(relation: Relation) -> str:
    """Return `RELATION: c2 supports c1`."""
    return f"RELATION: {relation.source} {relation.verb} {relation.target}"


def parse_answer(text: str) -> ClaimAnswer:
    """Read an answer line by line; lines that cannot be read become problems, never errors.

    `(citing 123)` is read as `(Document 123)`, and `contradicts` as `refutes`. Claims with an id
    that occurred before are all returned, and reported as a problem.
    """
    claims: list[Claim] = []
    relations: list[Relation] = []
    problems: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line:
            continue
        if found := _CLAIM.fullmatch(line):
            claims.append(Claim(found["id"], found["text"].strip(), found["document"]))
        elif (found := _RELATION.fullmatch(line)) and found["verb"].lower() in _VERBS:
            verb = _VERBS[found["verb"].lower()]
            relations.append(Relation(found["source"], verb, found["target"]))
        else:
            problems.append(f"line {number} is neither a claim nor a relation: {line[:60]!r}")
    answer = ClaimAnswer(tuple(claims), tuple(relations))
    return ClaimAnswer(answer.claims, answer.relations, (*problems, *_schema_problems(answer)))


def _schema_problems(answer: ClaimAnswer) -> Sequence[str]:
    """Return what is wrong with the lines taken together."""
    problems = [f"several claims have the id {id}" for id in answer.duplicates]
    if answer.main is None:
        problems.append(f"there is no CLAIM[{MAIN_CLAIM}]")
    for claim in answer.claims:
        if not claim.text:
            problems.append(f"CLAIM[{claim.id}] has no text")
        if claim.id != MAIN_CLAIM and claim.document is None:
            problems.append(f"CLAIM[{claim.id}] cites no document")
    ids = {claim.id for claim in answer.claims}
    for relation in answer.relations:
        missing = [id for id in (relation.source, relation.target) if id not in ids]
        problems += [f"a relation names {id}, which is no claim" for id in missing]
        if relation.source == relation.target:
            problems.append(f"a relation has {relation.source} on both sides")
    return problems
