"""The packaged claims keep the promises of their README."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from adapters.local.claims import make, words
from adapters.local.packaged_data import write
from stages.claims import ScifactClaim, read_claims, read_corpus, scifact_row

FOLDER = Path(make.__file__).parent
NAMES = ("claims_train", "claims_held_out", "claims_other_wording")


@pytest.fixture(scope="module")
def claims() -> dict[str, list[ScifactClaim]]:
    corpus = read_corpus(FOLDER / "corpus.jsonl")
    return {name: read_claims(FOLDER / f"{name}.jsonl", corpus) for name in NAMES}


def test_script_reproduces_the_shipped_files(tmp_path: Path) -> None:
    write(tmp_path, make.files(), make.row)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        path.name for path in FOLDER.glob("*.jsonl")
    )
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (FOLDER / path.name).read_bytes()


def test_files_are_as_long_as_promised(claims: dict[str, list[ScifactClaim]]) -> None:
    assert {name: len(rows) for name, rows in claims.items()} == {
        "claims_train": 400,
        "claims_held_out": 110,
        "claims_other_wording": 105,
    }


def test_held_out_treatments_and_outcomes_are_new(claims: dict[str, list[ScifactClaim]]) -> None:
    assert not set(words.TREATMENTS) & set(words.NEW_TREATMENTS)
    assert not set(words.OUTCOMES) & set(words.NEW_OUTCOMES)
    cited = {name: set(chain(*(row.cited for row in rows))) for name, rows in claims.items()}
    assert not cited["claims_train"] & (cited["claims_held_out"] | cited["claims_other_wording"])


@pytest.mark.parametrize("name", NAMES)
def test_neither_label_nor_number_of_documents_is_a_shortcut(
    name: str, claims: dict[str, list[ScifactClaim]]
) -> None:
    evidence = [list(row.evidence or ()) for row in claims[name]]
    verbs = [item.verb for item in chain(*evidence)]
    assert 0.4 < verbs.count("supports") / len(verbs) < 0.6
    assert {len(items) for items in evidence} == {0, 1, 2}
    assert all(
        len(items) < len(row.cited) for items, row in zip(evidence, claims[name], strict=True)
    )


def test_every_answer_follows_the_schema(claims: dict[str, list[ScifactClaim]]) -> None:
    corpus = read_corpus(FOLDER / "corpus.jsonl")
    for row in chain(*claims.values()):
        answer = scifact_row(row, corpus).answer
        assert answer is not None
        assert not answer.problems
