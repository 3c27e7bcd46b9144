"""Scores that are read from the records of runs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
from kitchen.errors import ConfigError, DataError
from stages.compare.recorded import RecordedEvaluation, read_evaluation
from tests.support.evaluated_runs import scored_rows, write_evaluated_run


def evaluation(rows: list[dict[str, Any]], **options: Any) -> RecordedEvaluation:
    blobs = FakeBlobs()
    write_evaluated_run(blobs, "one", rows, **options)
    return read_evaluation(blobs, "one")


def test_only_the_final_evaluation_counts() -> None:
    before = scored_rows([0.0, 0.0], when="before")
    after = scored_rows([1.0, 0.0], when="after")
    rollout = {"n": 3, "stage": "Rollout", "reward": 1.0}
    values = evaluation([*before, rollout, *after]).sets["test"]["exact_match"].values
    assert list(values.values()) == [1.0, 0.0]


def test_the_last_of_several_evaluations_counts() -> None:
    rows = [*scored_rows([0.0, 0.0], n=1), *scored_rows([1.0, 1.0], n=2)]
    assert set(evaluation(rows).sets["test"]["exact_match"].values.values()) == {1.0}


def test_tries_of_an_item_are_averaged() -> None:
    rows = scored_rows([1.0, 0.0, 0.0, None], item="same")
    scored = evaluation(rows).sets["test"]["exact_match"]
    assert scored.values == {"same": pytest.approx(1 / 3)}
    assert scored.failed == 0


def test_items_without_a_score_are_counted() -> None:
    rows = scored_rows([1.0, None, {"exact_match": None}, {}, math.nan])
    scored = evaluation([*rows]).sets["test"]["exact_match"]
    assert len(scored.values) == 1
    assert (scored.failed, scored.unscored) == (3, 1)


def test_losses_are_ratios_of_sums() -> None:
    row = {"nats": 6.0, "tokens": 4, "bytes": 10}
    empty = {"nats": 0.0, "tokens": 0, "bytes": 1}
    sets = evaluation(scored_rows([row, empty])).sets["test"]
    assert sets.keys() == {"loss", "bits_per_byte"}
    assert sets["loss"].values == {"0" * 16: 6.0}
    assert sets["loss"].sizes == {"0" * 16: 4.0}
    assert sets["bits_per_byte"].values["0" * 16] == pytest.approx(6 / math.log(2))


@pytest.mark.parametrize(
    ("name", "facts", "digest"),
    [
        ("test", {"data.test.sha256": "x"}, "x"),
        ("org/chats/test", {"data.org/chats.test.sha256": "x"}, "x"),
        ("held_out", {"data.train.sha256": "x", "data.train.dataset": "chats"}, "x"),
        ("a/held_out", {"data.a.train.sha256": "x", "data.a.train.dataset": "a"}, "x"),
        ("calculator", {"weights.model": "tiny"}, None),
    ],
)
def test_the_digest_of_a_set_is_found(name: str, facts: dict[str, str], digest: str | None) -> None:
    assert evaluation(scored_rows([1.0]), facts=facts).data_digest(name) == digest


@pytest.mark.parametrize(
    ("status", "words"),
    [("running", "was killed"), ("failed", "failed"), ("interrupted", "was interrupted before")],
)
def test_a_run_that_has_not_finished_is_refused(status: str, words: str) -> None:
    rows = scored_rows([1.0], when="before")
    with pytest.raises(DataError, match=f"run 'one' {words}.*resume"):
        evaluation(rows, status=status)


def test_a_missed_quality_target_is_only_noted() -> None:
    found = evaluation(scored_rows([1.0]), status="failed", reason="below the target")
    assert "below the target" in found.note


def test_a_run_without_scores_names_the_command() -> None:
    with pytest.raises(DataError, match="kitchen eval one"):
        evaluation([{"n": 0, "text": "hello"}])


@pytest.mark.parametrize(
    "change", [{"scores": [1.0]}, {"set": None}, {"scores": {"exact_match": "1"}}, {"columns": 3}]
)
def test_a_damaged_row_names_the_file(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"one/samples\.jsonl"):
        evaluation(scored_rows([1.0], **change))
