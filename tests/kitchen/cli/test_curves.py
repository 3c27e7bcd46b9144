"""Curves of metrics at the end of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
from kitchen.cli.curves import BestBy, curve_lines, overfitting_note, run_curves, sparkline
from kitchen.config.order import Order
from kitchen.runs.history import series_of
from kitchen.runs.store import write_run


def rows(name: str, values: Sequence[float], start: int = 0) -> list[dict[str, Any]]:
    return [{"n": at, "step": start + at, name: value} for at, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "width", "drawn"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], 40, "▁▂▃▄▅▆▇█"),
        ([7, 0], 40, "█▁"),
        ([2, 2, 2], 40, "▁▁▁"),
        ([0, 0, 1, 1, 2, 2], 3, "▁▅█"),
    ],
)
def test_values_are_drawn_as_blocks(values: list[float], width: int, drawn: str) -> None:
    assert sparkline(values, width) == drawn


def test_a_series_leaves_out_what_is_not_finite() -> None:
    assert series_of(rows("loss", [3.0, math.nan, 1.0]), "loss") == [(1, 3.0), (3, 1.0)]


def test_a_series_is_that_of_the_last_loop() -> None:
    twice = [*rows("loss", [9.0, 8.0]), *rows("loss", [3.0, 2.0])]
    assert series_of(twice, "loss") == [(1, 3.0), (2, 2.0)]


def test_a_line_has_first_and_last_value_and_the_lowest() -> None:
    held_out = rows("held_out_loss", [2.66, 2.5, 3.39])
    lines = list(
        curve_lines([*rows("loss", [3.0, 2.0, 1.0]), *held_out], ("loss", "held_out_loss"))
    )
    assert lines == [
        "loss           3 █▅▁ 1",
        "held out loss  2.66 ▂▁█ 3.39, lowest 2.5 at step 2",
    ]


def test_the_highest_value_of_the_selecting_metric_is_named() -> None:
    best_by = BestBy.of_record({"selects_by": "held_out_rewards/math", "greater_is_better": True})
    held_out = rows(best_by.metric, [0.1, 0.5, 0.2])
    [line] = curve_lines(held_out, [best_by.metric], best_by)
    assert line.endswith(", highest 0.5 at step 2")
    note = overfitting_note(held_out, "basil", best_by)
    assert note is not None
    assert note.startswith("The held-out rewards/math was highest at step 2 (0.5) and fell to 0.2:")


def test_the_curves_of_a_recorded_run_end_with_a_sentence() -> None:
    blobs = FakeBlobs()
    record: dict[str, Any] = {"run": "basil", "recipe": "recipes.soup:Soup"}
    record |= {"attempts": [], "facts": {}, "rendering": {}, "metrics": {}, "reason": ""}
    record["order"] = vars(Order("recipes.soup:Soup", {}))
    write_run(blobs, "basil", {**record, "status": "completed", "selects_by": "held_out_loss"})
    journal = [*rows("loss", [3.0, 2.0, 1.0]), *rows("held_out_loss", [2.6, 2.5, 3.4])]
    lines = [json.dumps({**row, "n": n}) + "\n" for n, row in enumerate(journal)]
    blobs.write("basil/metrics.jsonl", "".join(lines).encode())
    curves = run_curves(blobs, "basil", ("reward", "loss"), "utf-8")
    assert [line.split()[0] for line in curves] == ["loss", "held", "The"]


def test_curves_need_three_points_and_an_encoding() -> None:
    assert list(curve_lines(rows("loss", [2.0, 1.0]), ("loss",))) == []
    [line] = curve_lines(rows("loss", [3.0, 2.0, 1.0]), ("loss",), encoding="ascii")
    assert line == "loss  3 to 1"


@pytest.mark.parametrize(
    ("values", "rose"), [([2.6, 2.5, 3.4], True), ([3.0, 2.0, 1.0], False), ([1.0], False)]
)
def test_a_rising_held_out_loss_is_reported(values: list[float], rose: bool) -> None:
    note = overfitting_note(rows("held_out_loss", values), "basil")
    assert (note is not None) == rose
    if note is not None:
        assert "at step 2 (2.5)" in note
        assert "run:basil@best" in note


def test_weights_that_were_not_exported_are_not_named() -> None:
    best_by = BestBy.of_record({"status": "completed"})
    note = overfitting_note(rows("held_out_loss", [2.6, 2.5, 3.4]), "basil", best_by)
    assert note is not None
    assert "@best" not in note
    assert "exported no weights at that step: train for fewer steps" in note
