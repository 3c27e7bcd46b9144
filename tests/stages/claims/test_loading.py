"""Claims are read by split, from one data set or several, in SciFact's format or as texts."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from adapters.fake.datasets import FakeDatasets
from adapters.local.datasets import LocalDatasets
from kitchen.errors import DataError
from kitchen.ports import Row
from stages.claims.loading import LoadClaims, LoadHeldOutClaims
from stages.claims.rows import row_of_texts
from stages.data.splits import DataConfig
from tests.support.claims import CLAIM_SPLITS, CLAIMS, CORPUS

TEXT: Row = {
    "prompt": "Hypothesis: a\nDocument 7: t\nIt is a.",
    "completion": "CLAIM[c1]: a\nCLAIM[c2] (citing 7): It is a.\nRELATION: c2 supports c1",
}


def store(**data: Any) -> FakeDatasets:
    return FakeDatasets({"claims": CLAIM_SPLITS, **data})


def test_the_packaged_claims_have_two_held_out_sets() -> None:
    train, held_out, facts, _ = LoadClaims("claims").run(LocalDatasets())
    counts = {name: len(rows) for name, rows in held_out.sets.items()}
    assert len(train.rows) == 400
    assert counts == {"claims_held_out": 110, "claims_other_wording": 105}
    assert {"data.corpus.sha256", "data.claims_train.sha256"} <= facts.keys()


def test_a_split_without_evidence_has_no_right_answers() -> None:
    unlabelled = [{"id": 1, "claim": "Tea helps.", "cited_doc_ids": [10]}]
    splits = {**CLAIM_SPLITS, "claims_test": unlabelled}
    _, held_out, _, _ = LoadClaims("claims").run(store(claims=splits))
    [row] = held_out.sets["claims_test"]
    assert row.answer is None
    assert row.question().messages[0].content.startswith("State the hypothesis")
    assert len(held_out.sets["claims_dev"]) == 3


def test_rows_of_prompt_and_completion_need_no_corpus() -> None:
    train, held_out, _, _ = LoadClaims("texts").run(store(texts={"train": [TEXT], "dev": [TEXT]}))
    assert [row.id for row in train.rows] == ["fake:texts:train:0"]
    assert dict(train.rows[0].documents) == {"7": "It is a."}
    assert held_out.sets["dev"][0].answer == train.rows[0].answer


def test_a_prompt_without_documents_is_a_row() -> None:
    row = row_of_texts("hyp", "CLAIM[c1]: x", "1", "x:1")
    assert (row.prompt, dict(row.documents)) == ("hyp", {})


def test_prompts_may_leave_the_hypothesis_out() -> None:
    train, _, _, _ = LoadClaims("claims", hypothesis=False).run(store())
    assert "Tea helps fever" not in train.rows[0].prompt
    assert train.rows[0].answer is not None


def test_a_split_without_claims_is_an_error() -> None:
    splits = {**CLAIM_SPLITS, "claims_dev": []}
    with pytest.raises(DataError, match="the split 'claims_dev' has no claims"):
        LoadClaims("claims").run(store(claims=splits))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"id": 1, "words": "a"}], "there is neither 'claim'"),
        ([CLAIMS[0], CLAIMS[0]], r"fake:d:train:1: id 0 occurs twice, first at fake:d:train:0"),
        ([{**CLAIMS[0], "cited_doc_ids": [99]}], "document 99 is not in the corpus"),
        ([{**TEXT, "completion": " "}], "completion must be a text"),
        ([{**TEXT, "system": "Be brief."}], "fake:d:train:0: the column 'system' is not supported"),
        ([{**TEXT, "weight": 0.5}], "the column 'weight' is not supported"),
        ([{**CLAIMS[0], "tools": [{"name": "a"}]}], "the column 'tools' is not supported"),
        ([{**TEXT, "rejected": "CLAIM[c1]: b"}], "the column 'rejected' is not supported"),
        ([{**TEXT, "label": False}], "label is false, which marks a bad answer"),
        ([{**TEXT, "prompt": "Document 7:\na\nDocument 7:\nb"}], "two documents have the id 7"),
        ([{**TEXT, "completion": "Yes."}], "line 1 is neither a claim nor a relation"),
    ],
)
def test_bad_rows_are_named_by_their_place(rows: list[Row], message: str) -> None:
    data = store(d={"train": rows, "corpus": CORPUS, "dev": CLAIMS[:1]})
    with pytest.raises(DataError, match=message):
        LoadClaims("d").run(data)


def test_bad_rows_are_left_out_if_asked_for() -> None:
    bad = {**CLAIMS[1], "claim": ""}
    data = store(d={"train": [*CLAIMS[3:], bad], "corpus": CORPUS, "dev": CLAIMS[:1]})
    train, _, _, _ = LoadClaims("d", DataConfig(bad_rows="drop")).run(data)
    assert [row.id for row in train.rows] == ["3", "4", "5"]


def test_a_held_out_file_is_read_as_the_training_data() -> None:
    rows = [{"hyp" if key == "claim" else key: row[key] for key in row} for row in CLAIMS]
    bad = {**rows[0], "id": 9, "hyp": ""}
    data = store(d={"train": rows[3:], "corpus": CORPUS}, h={"train": [*rows[:3], bad]})
    corpus = {"corpus": "d", "held_out": "h"}
    reading = DataConfig(columns={"hyp": "claim"}, bad_rows="drop")
    _, held_out, _, _ = LoadClaims("d", reading, **corpus).run(data)
    assert [row.id for row in held_out.sets["held_out"]] == ["0", "1", "2"]
    with pytest.raises(DataError, match="fake:h:train:3"):
        LoadClaims("d", DataConfig(columns={"hyp": "claim"}), **corpus).run(data)


@pytest.mark.parametrize("hypothesis", [True, False])
def test_held_out_claims_that_are_trained_on_are_refused(hypothesis: bool) -> None:
    data = store(d={"train": CLAIMS, "corpus": CORPUS}, h={"train": CLAIMS[4:]})
    load = LoadClaims("d", corpus="d", held_out="h", hypothesis=hypothesis)
    with pytest.raises(DataError, match=r"2 of 2 claims .* fake:h:train:0 and fake:d:train:4"):
        load.run(data)
    apart = LoadClaims("d", DataConfig(limit=4), corpus="d", held_out="h", hypothesis=hypothesis)
    assert len(apart.run(data)[0].rows) == 4


@pytest.mark.parametrize("first, warnings", [(0, 1), (3, 0)])
def test_claims_in_two_splits_are_a_warning(first: int, warnings: int) -> None:
    splits = {**CLAIM_SPLITS, "claims_train": CLAIMS[first:]}
    with capture_logs() as logs:
        LoadClaims("claims").run(store(claims=splits))
    assert [log["event"][:40] for log in logs] == [
        "3 of 3 claims to evaluate on are trained"
    ] * warnings


def test_a_corpus_of_several_files_is_ambiguous() -> None:
    data = store(d={"train": CORPUS, "dev": CORPUS})
    with pytest.raises(DataError, match="corpus=d: no split is called 'corpus'"):
        LoadClaims("claims", corpus="d").run(data)


@pytest.mark.parametrize(
    ("splits", "names"),
    [(None, ["claims_dev"]), (("claims_train",), ["claims_train"])],
)
def test_held_out_splits_are_evaluated_by_default(
    splits: tuple[str, ...] | None, names: list[str]
) -> None:
    held_out, _, _ = LoadHeldOutClaims("claims", splits=splits).run(store())
    assert list(held_out.sets) == names


def test_an_unknown_split_gets_a_suggestion() -> None:
    with pytest.raises(DataError, match="did you mean 'claims_dev'"):
        LoadHeldOutClaims("claims", splits=("claims_de",)).verify(store())
