"""Generate the files of this data set: `python -m adapters.local.claims.make [FOLDER]`.

The files have SciFact's format: `corpus.jsonl` has documents, and the other files have claims.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from adapters.local.claims import words
from adapters.local.claims.words import Direction
from adapters.local.packaged_data import shuffle, write

SEED = 1747  # the year of James Lind's trial of scurvy
DIRECTIONS: Sequence[Direction] = ("lower", "higher", "same")
SAME = 0.2  # share of findings without an effect
CITED = 3  # maximum number of documents that a claim cites
ENDING = 0.3  # share of studies that end with a sentence without a finding
CLAIMS = {"claims_train": 400, "claims_held_out": 120, "claims_other_wording": 120}
T = TypeVar("T")


@dataclass(frozen=True)
class Wording:
    """Sentence patterns of documents and claims."""

    claims: Mapping[Direction, Sequence[str]]
    findings: Mapping[Direction, Sequence[str]]
    endings: Sequence[str]


USUAL = Wording(words.CLAIMS, words.FINDINGS, words.ENDINGS)
OTHER = Wording(words.OTHER_CLAIMS, words.OTHER_FINDINGS, words.OTHER_ENDINGS)


@dataclass(frozen=True)
class Study:
    """A document: its sentences, and for each outcome the index and direction of its finding."""

    id: int
    sentences: tuple[str, ...]
    findings: Mapping[str, tuple[int, Direction]]
    treatment: str


@dataclass
class Writer:
    """A source of studies and claims with ids that do not repeat."""

    rng: Random
    used_ids: set[int] = field(default_factory=set)

    def pick(self, items: Sequence[T]) -> T:
        """Return a random item; only `random()` is guaranteed to stay the same in later Pythons."""
        return items[int(self.rng.random() * len(items))]

    def new_id(self) -> int:
        """Return an unused id of 3 to 5 digits."""
        while True:
            digits = self.pick((3, 4, 4, 5))
            id = int(10 ** (digits - 1) * (1 + 9 * self.rng.random()))
            if id not in self.used_ids:
                self.used_ids.add(id)
                return id

    def direction(self) -> Direction:
        return "same" if self.rng.random() < SAME else self.pick(("lower", "higher"))

    def study(self, treatment: str, findings: Mapping[str, Direction], wording: Wording) -> Study:
        """Write a document that states these findings, one sentence each."""
        sentences: list[str] = []
        places: dict[str, tuple[int, Direction]] = {}
        for outcome, direction in findings.items():
            values = {
                "percent": str(3 + int(self.rng.random() * 40)),
                "months": str(2 + int(self.rng.random() * 22)),
            }
            pattern = self.pick(wording.findings[direction])
            places[outcome] = (len(sentences), direction)
            sentences.append(filled(pattern, treatment, outcome, values))
        if self.rng.random() < ENDING:
            sentences.append(self.pick(wording.endings))
        return Study(self.new_id(), tuple(sentences), places, treatment)

    def studies(
        self, treatment: str, outcomes: Sequence[str], wording: Wording
    ) -> tuple[list[Study], str]:
        """Write two or three studies of a treatment; return them and an outcome that none has."""
        names = list(outcomes)
        shuffle(names, self.rng)
        first, second, third, absent = names[:4]
        effects = {name: self.direction() for name in (first, second, third)}
        repeated = self.direction() if self.rng.random() < 0.4 else effects[first]
        plans: list[dict[str, Direction]] = [
            {first: effects[first], second: effects[second]},
            {first: repeated},
        ]
        if self.rng.random() < 0.6:
            plans.append({third: effects[third]})
        return [self.study(treatment, plan, wording) for plan in plans], absent


def filled(pattern: str, treatment: str, outcome: str, values: Mapping[str, str]) -> str:
    """Fill a pattern; {Treatment} and {Outcome} begin with a capital."""
    both = {"treatment": treatment, "outcome": outcome, **values}
    capitals = {name.capitalize(): text[:1].upper() + text[1:] for name, text in both.items()}
    return pattern.format(**both, **capitals)


def claims_of(
    writer: Writer, studies: Sequence[Study], absent: str, others: Sequence[Study], wording: Wording
) -> Iterator[dict[str, Any]]:
    """Yield claims on each outcome of some studies of one treatment, and on one that none has.

    A claim cites all studies on its outcome, and one or two others: of the same treatment, or of
    another treatment on the same outcome.
    """
    treatment = studies[0].treatment
    outcomes = dict.fromkeys(chain.from_iterable(study.findings for study in studies))
    for outcome in (*outcomes, absent):
        stated = [study for study in studies if outcome in study.findings]
        is_right = writer.rng.random() < 0.5
        found = stated[0].findings[outcome][1] if stated else writer.direction()
        wrong = [direction for direction in DIRECTIONS if direction != found]
        claimed = found if is_right else writer.pick(wrong)
        elsewhere = [study for study in others if outcome in study.findings]
        unrelated = [study for study in studies if study not in stated]
        cited = [*stated]
        for pool in (unrelated, elsewhere or others):
            if pool and len(cited) < CITED:
                cited.append(writer.pick(pool))
        shuffle(cited, writer.rng)
        evidence = {}
        for study in cited:
            if study in stated:
                at, direction = study.findings[outcome]
                label = "SUPPORT" if direction == claimed else "CONTRADICT"
                evidence[str(study.id)] = [{"sentences": [at], "label": label}]
        yield {
            "id": writer.new_id(),
            "claim": filled(writer.pick(wording.claims[claimed]), treatment, outcome, {}),
            "evidence": evidence,
            "cited_doc_ids": [study.id for study in cited],
        }


def make_set(
    writer: Writer, treatments: Sequence[str], outcomes: Sequence[str], wording: Wording
) -> tuple[list[Study], list[dict[str, Any]]]:
    """Write the studies of some treatments, and all claims on them, in random order."""
    groups = [writer.studies(treatment, outcomes, wording) for treatment in treatments]
    everything = list(chain.from_iterable(studies for studies, _ in groups))
    claims: list[dict[str, Any]] = []
    for studies, absent in groups:
        others = [study for study in everything if study.treatment != studies[0].treatment]
        claims += claims_of(writer, studies, absent, others, wording)
    shuffle(claims, writer.rng)
    return everything, claims


def files() -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each file."""
    writer = Writer(Random(SEED))
    corpus: list[Study] = []
    result: dict[str, list[dict[str, Any]]] = {}
    sets = (
        ("claims_train", (*words.TREATMENTS, *words.TREATMENTS), words.OUTCOMES, USUAL),
        ("claims_held_out", words.NEW_TREATMENTS, words.NEW_OUTCOMES, USUAL),
        ("claims_other_wording", words.NEW_TREATMENTS, words.NEW_OUTCOMES, OTHER),
    )
    for name, treatments, outcomes, wording in sets:
        studies, claims = make_set(writer, treatments, outcomes, wording)
        result[name] = claims[: CLAIMS[name]]
        corpus += studies
    every_claim = chain.from_iterable(result.values())
    cited = set(chain.from_iterable(claim["cited_doc_ids"] for claim in every_claim))
    documents = sorted((study for study in corpus if study.id in cited), key=lambda each: each.id)
    result["corpus"] = [
        {"doc_id": each.id, "title": "", "abstract": list(each.sentences)} for each in documents
    ]
    return result


def row(item: Mapping[str, Any]) -> str:
    return json.dumps(item, ensure_ascii=False)


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent, files(), row)
