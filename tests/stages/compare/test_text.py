"""The words in which a comparison is reported."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from adapters.fake.blobs import FakeBlobs
from kitchen.types import Metrics, Table
from stages.compare.compare_runs import CompareRuns
from stages.compare.comparing import CompareOptions
from tests.support.evaluated_runs import Scores, scored_rows, write_evaluated_run

HALF = [1.0, 0.0] * 30
MOST = [1.0, 1.0, 1.0, 0.0] * 15


def tables(
    runs: Mapping[str, list[Scores | float | None]], options: CompareOptions
) -> tuple[Metrics, Table, Table]:
    blobs = FakeBlobs()
    for run, scores in runs.items():
        write_evaluated_run(blobs, run, scored_rows(scores))
    _, _, metrics, verdicts, details = CompareRuns(tuple(runs), options).run(blobs)
    return metrics, verdicts, details


@pytest.mark.parametrize(
    ("first", "second", "margin", "words"),
    [
        (HALF, MOST, None, "b is better than a: 0.750 against 0.500, a difference of +0.250 ["),
        (MOST, HALF, None, "b is worse than a: "),
        (HALF, HALF, None, "Cannot tell whether b is better or worse than a: "),
        (HALF, HALF, 0.2, "b and a are the same within the margin of 0.2: "),
    ],
)
def test_a_verdict_is_one_sentence(
    first: list[float], second: list[float], margin: float | None, words: str
) -> None:
    _, verdicts, _ = tables({"a": first, "b": second}, CompareOptions(margin=margin))
    [(name, measure, sentence)] = verdicts.rows
    assert (name, measure) == ("test", "exact_match")
    assert sentence.startswith(words)
    assert sentence.endswith("].")


def test_details_count_the_items() -> None:
    runs = {"a": [*HALF, 1.0, 1.0], "b": [*MOST[:-1], None]}
    _, _, details = tables(runs, CompareOptions())
    assert dict(details.rows)["  items"] == "n = 59, 2 only in a, 1 failed in b"


def test_different_items_are_counted_apart() -> None:
    _, _, details = tables({"a": HALF, "b": MOST[:50]}, CompareOptions(unpaired=True))
    assert dict(details.rows)["  items"] == "n = 60 and 50"


def test_metrics_have_the_difference_and_its_p_value() -> None:
    metrics, _, _ = tables({"a": HALF, "b": MOST}, CompareOptions(alpha=0.1))
    key = "test/exact_match/b-a"
    assert metrics[key] == 0.25
    assert metrics[f"{key}_low"] < 0.25 < metrics[f"{key}_high"]
    assert metrics[f"{key}_p"] == metrics[f"{key}_p_corrected"]


def test_the_test_of_all_runs_is_reported_once() -> None:
    _, verdicts, _ = tables({"a": HALF, "b": MOST, "c": HALF}, CompareOptions())
    assert len(verdicts.rows) == 4
    assert verdicts.rows[-1][2].startswith("At least two of a, b, c differ: p = ")
