"""Claim lines are written and read back, and problems of form are reported."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.claims.answer import Claim, ClaimAnswer, Relation, parse_answer

ANSWER = """CLAIM[c1]: Vitamin D lowers the risk of fractures.
CLAIM[c2] (Document 123): Fractures were rarer with vitamin D.
RELATION: c2 supports c1
CLAIM[c3] (Document 77): Vitamin D had no effect.
RELATION: c3 refutes c1"""


def test_an_answer_is_read_and_written_back() -> None:
    answer = parse_answer(ANSWER)
    assert answer.claims[1] == Claim("c2", "Fractures were rarer with vitamin D.", "123")
    assert answer.relations == (Relation("c2", "supports", "c1"), Relation("c3", "refutes", "c1"))
    assert answer.cited == {"123", "77"}
    assert answer.problems == ()
    assert answer.text() == ANSWER


@pytest.mark.parametrize(
    "line, expected",
    [
        ("CLAIM[c2] (citing 123): a", Claim("c2", "a", "123")),
        ("claim[c2](document 123):a", Claim("c2", "a", "123")),
        ("  CLAIM[c2] (Document MED-10) : a: b", Claim("c2", "a: b", "MED-10")),
        ("CLAIM[c2]: (Document 123) a", Claim("c2", "(Document 123) a", None)),
    ],
)
def test_other_spellings_of_claims_are_read(line: str, expected: Claim) -> None:
    assert parse_answer(line).claims == (expected,)


@pytest.mark.parametrize("verb", ["refutes", "contradicts", "Refute", "CONTRADICT"])
def test_other_spellings_of_refutes_are_read(verb: str) -> None:
    answer = parse_answer(f"CLAIM[c1]: a\nCLAIM[c2] (Document 1): b\nRELATION: c2 {verb} c1.")
    assert answer.relations == (Relation("c2", "refutes", "c1"),)
    assert answer.problems == ()


@pytest.mark.parametrize(
    "text, problem",
    [
        ("", "there is no CLAIM[c1]"),
        ("The claim is true.", "line 1 is neither a claim nor a relation: 'The claim is true.'"),
        ("CLAIM[c1]:", "CLAIM[c1] has no text"),
        ("CLAIM[c1]: a\nCLAIM[c2]: b", "CLAIM[c2] cites no document"),
        ("CLAIM[c1]: a\nCLAIM[c1]: b", "several claims have the id c1"),
        ("CLAIM[c1]: a\nRELATION: c2 supports c1", "a relation names c2, which is no claim"),
        ("CLAIM[c1]: a\nRELATION: c1 supports c1", "a relation has c1 on both sides"),
        (
            "CLAIM[c1]: a\nRELATION: c1 mentions c1",
            "line 2 is neither a claim nor a relation: 'RELATION: c1 mentions c1'",
        ),
    ],
)
def test_problems_of_form_are_reported(text: str, problem: str) -> None:
    assert problem in parse_answer(text).problems


def test_claims_of_one_id_are_all_returned() -> None:
    answer = parse_answer("CLAIM[c1]: a\nCLAIM[c2] (Document 1): b\nCLAIM[c2] (Document 2): c")
    assert [claim.text for claim in answer.claims] == ["a", "b", "c"]
    assert answer.duplicates == ("c2",)
    assert answer.cited == {"1", "2"}


@given(st.text())
def test_any_text_is_read_without_an_error(text: str) -> None:
    assert isinstance(parse_answer(text), ClaimAnswer)


@given(st.lists(st.sampled_from(["supports", "refutes"]), max_size=4))
def test_written_answers_are_read_the_same(verbs: list[str]) -> None:
    lines = ["CLAIM[c1]: a"]
    for number, verb in enumerate(verbs, start=2):
        lines.append(f"CLAIM[c{number}] (Document {number * 100}): text {number}")
        lines.append(f"RELATION: c{number} {verb} c1")
    answer = parse_answer("\n".join(lines))
    assert answer.problems == ()
    assert parse_answer(answer.text()) == answer
