"""The words in which a comparison is reported."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
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
    assert sentence.endswith(("].", "] (90 %)."))


def test_details_count_the_items() -> None:
    runs = {"a": [*HALF, 1.0, 1.0], "b": [*MOST[:-1], None]}
    _, _, details = tables(runs, CompareOptions())
    assert dict(details.rows)["  items"] == "n = 59, 2 only in a, 1 failed in b"


def test_different_items_are_counted_apart() -> None:
    _, _, details = tables({"a": HALF, "b": MOST[:50]}, CompareOptions(unpaired=True))
    assert dict(details.rows)["  items"] == "n = 60 and 50"


def test_metrics_have_the_difference_and_its_p_value() -> None:
    metrics, _, _ = tables({"a": HALF, "b": MOST}, CompareOptions(alpha=0.1))
    key = "test/exact_match/b vs a"
    assert metrics[f"{key}/difference"] == 0.25
    assert metrics[f"{key}/low"] < 0.25 < metrics[f"{key}/high"]
    assert metrics[f"{key}/p"] == metrics[f"{key}/p_corrected"]


@pytest.mark.parametrize("names", [("x", "x_p", "y"), ("x", "x_low", "y"), ("a", "a-b", "b-a")])
def test_metrics_of_similar_names_do_not_collide(names: tuple[str, ...]) -> None:
    scores = dict(zip(names, (HALF, MOST, MOST[1:] + MOST[:1]), strict=True))
    metrics, _, _ = tables(scores, CompareOptions())
    assert len(metrics) == 3 * 5
    for first, second in combinations(names, 2):
        difference = metrics[f"test/exact_match/{second} vs {first}/difference"]
        assert difference == pytest.approx(np.mean(scores[second]) - np.mean(scores[first]))


def test_the_number_of_corrected_comparisons_is_shown() -> None:
    grades = np.random.default_rng(0).random((3, 40))
    parts = {}
    for name, of_run in zip("abc", grades, strict=True):
        pairs = zip(of_run, of_run * 9, strict=True)
        parts[name] = [{"f1": f, "nats": nats, "tokens": 9.0} for f, nats in pairs]
    _, _, details = tables(parts, CompareOptions(unpaired=True))
    shown = [text.partition("(")[2] for name, text in details.rows if name == "  corrected"]
    assert shown == ["holm, 3 comparisons)"] * 3 + ["Tukey for all pairs, times 2 measures)"] * 3


def test_the_test_of_all_runs_is_reported_once() -> None:
    _, verdicts, _ = tables({"a": HALF, "b": MOST, "c": HALF}, CompareOptions())
    assert len(verdicts.rows) == 4
    assert verdicts.rows[-1][2].startswith("At least two of a, b, c differ: p = ")
