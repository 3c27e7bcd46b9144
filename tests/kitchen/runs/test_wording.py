"""Durations and names of stages as people read them."""

from __future__ import annotations

import pytest

from kitchen.runs.wording import activity, clock, words


@pytest.mark.parametrize(("seconds", "shown"), [(3.21, "3.2 s"), (245, "4:05"), (3845, "1:04:05")])
def test_durations_read_like_a_clock(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


@pytest.mark.parametrize(
    ("title", "shown"),
    [("EvaluateBase", "Evaluate base"), ("MeasureKLBefore", "Measure KL before"), ("Mix", "Mix")],
)
def test_stages_are_named_in_words(title: str, shown: str) -> None:
    assert words(title) == shown


@pytest.mark.parametrize(
    ("title", "shown"),
    [
        ("EvaluateBase", "Evaluating the base model"),
        ("RenderPairs", "Rendering pairs"),
        ("DropBadRows", "Dropping bad rows"),
        ("Publish", "Publishing"),
        ("TaskBatches", "Task batches"),
    ],
)
def test_activities_of_stages_are_in_the_present(title: str, shown: str) -> None:
    assert activity(title) == shown
