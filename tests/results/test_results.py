"""Experiments behind the results page, on the fake adapter."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from adapters.local.blobs import LocalBlobs
from kitchen.config.discovery import find_recipe
from kitchen.config.settings import resolve_settings
from kitchen.config.sources import from_mapping
from kitchen.runs.store import RunSummary, read_run
from tests.results.__main__ import PAGE, commit_of, current, date_of, page, rows
from tests.results.works import WORKS, Cooking, parts_of, settings_of
from tests.support.commit import commit

SMALL = {"max_steps": 3, "reading.held_out_rows": 4, "evaluation.max_tokens": 4}


def test_a_finished_run_is_reused(tmp_path: Path) -> None:
    cooking = Cooking(tmp_path, 5, training="fake")
    first = cooking.cook("recipes.sl_basic", "half", SMALL)
    written = (tmp_path / first.id / "run.json").stat().st_mtime_ns
    assert cooking.cook("recipes.sl_basic", "half", SMALL) == first
    assert (tmp_path / first.id / "run.json").stat().st_mtime_ns == written
    assert first.id.startswith("half-5-")
    assert "loss" in first.metrics
    assert cooking.cook("recipes.sl_basic", "half", {**SMALL, "max_steps": 2}).id != first.id
    assert commit_of(read_run(LocalBlobs(str(tmp_path)), first.id)["attempts"]) == commit()


def test_the_page_has_each_seed_with_its_commit() -> None:
    rows = [
        {
            "work": "dpo",
            "seed": seed,
            "settings": "x",
            "commit": "abc",
            "seconds": 7,
            "pair accuracy": 0.9 + seed / 100,
        }
        for seed in range(3)
    ]
    text = page(rows)
    assert "| pair accuracy | 0.910 | 0.900, 0.910, 0.920 | at least 0.9: reached |" in text
    assert "| seconds |  | 7.000, 7.000, 7.000 | at most 360: reached |" in text
    assert "seed 1: abc, seed 2: abc" in text


def test_the_page_has_the_date_of_each_commit() -> None:
    row = {"work": "dpo", "seed": 0, "commit": "abc", "date": "2026-11-25", "pair accuracy": 0.9}
    assert "Commits: seed 0: abc (2026-11-25)." in page([row])


def test_recorded_dates_are_those_of_the_commits() -> None:
    for row in rows():
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"]), row
        assert date_of(row["commit"]) in ("", row["date"]), row  # "": not in this repository


def test_a_summary_leaves_out_empty_columns() -> None:
    row = {"work": "dpo_gsm8k", "seed": 0, "commit": "abc", "pair accuracy": 0.9}
    assert "| task and measure | after | outcome |\n| --- | --- | --- |" in page([row])


def test_targets_use_the_mean_or_the_largest_p_value() -> None:
    rows = [
        {
            "work": "rl",
            "seed": seed,
            "commit": "abc",
            "seconds": 7,
            "mean reward before": 0.6,
            "p of the gain": p,
        }
        for seed, p in enumerate((0.001, 0.02))
    ]
    text = page(rows)
    assert (
        "| mean reward before | 0.600 | 0.600, 0.600 | at least 0.2, at most 0.5: missed |" in text
    )
    assert "| p-value of the gain |  | 0.001, 0.020 | at most 0.01: missed |" in text


def test_an_interrupted_run_has_no_seconds() -> None:
    rows = [
        {"work": "dpo", "seed": seed, "settings": "x", "commit": "abc", "pair accuracy": 0.9}
        for seed in (1, 0)
    ]
    text = page([{**rows[0], "seconds": 7}, rows[1]])
    assert "| seconds |  | 7.000 | at most 360: reached by the 1 of 2 seeds that have it |" in text
    assert "seed 0: abc, seed 1: abc" in text


def test_rows_with_other_settings_are_measured_again() -> None:
    row = {"work": "rl", "seed": 0, "settings": settings_of("rl"), "commit": "abc"}
    stamps = {name: settings_of(name) for name in WORKS}
    older = {key: value for key, value in row.items() if key != "settings"}
    assert current(
        [row, {**row, "settings": stamps["dpo"]}, {**row, "work": "gone"}, older], stamps
    ) == [row]
    assert len(set(stamps.values())) == len(WORKS)


def test_a_stamp_covers_all_settings_of_an_experiment() -> None:
    assert {"guessing", "guessed", "GAME", "problems", "rewards", "shown", "cook"} <= parts_of(
        "guessing"
    ).keys()
    assert "problems" in parts_of("tools")
    assert "guessed" not in parts_of("rl")


def test_the_page_matches_the_recorded_rows() -> None:
    stamps = {name: settings_of(name) for name in WORKS}
    assert PAGE.read_text() == page(current(rows(), stamps))


def test_the_summary_of_a_recipe_has_at_most_ten_lines() -> None:
    summaries = PAGE.read_text().partition("## Details")[0].split("\n## ")[1:]
    lines = [[line for line in text.splitlines() if line[:1] == "|"] for text in summaries]
    assert {work.recipe for work in WORKS.values()} == {text.split("`")[1] for text in summaries}
    assert all(len(table) <= 10 for table in lines)


def test_seeds_are_shown_as_numbers_without_an_interval() -> None:
    rows = [
        {"work": "dpo_gsm8k", "seed": seed, "commit": "abc", "pair accuracy": accuracy}
        for seed, accuracy in enumerate((0.9, 0.95, 1.0))
    ]
    assert "| 0.950 (0.900, 0.950, 1.000) |" in page(rows)
    tables = [text for text in PAGE.read_text().splitlines() if text[:1] == "|"]
    assert not [text for text in tables if re.search(r"\[-?\d", text)]


def test_an_interval_around_no_effect_is_a_null_result() -> None:
    rows = [
        {"work": "dpo_gsm8k", "seed": seed, "commit": "abc", "pair accuracy": accuracy}
        for seed, accuracy in enumerate((0.45, 0.5, 0.55))
    ]
    assert "| null result: the interval includes 0.5 |" in page(rows)


class AlwaysHalf(dict[str, float]):
    """Metrics that are all 0.5 unless they are set."""

    def __missing__(self, key: str) -> float:
        return 0.5


class SettingsCheck(Cooking):
    """Checks that recipes accept the settings, without running them."""

    def cook(
        self, recipe: str, name: str, settings: Mapping[str, Any], seed: int | None = None
    ) -> RunSummary:
        resolved = resolve_settings(
            find_recipe(recipe), list(from_mapping({**settings, "seed": self.seed}, "works"))
        ).recipe
        assert resolved is not None
        return RunSummary(
            f"{name}-{self.seed}",
            recipe,
            "completed",
            "",
            1.0,
            AlwaysHalf({"data/held_out_pairs": 50.0}),
        )

    def scores(self, run: RunSummary, measure: str) -> Mapping[str, float]:
        return {"one": 0.5, "other": 0.75}

    def right_ids(self, run: RunSummary) -> list[float]:
        return [0.5]


@pytest.mark.parametrize("name", WORKS)
def test_recipes_accept_the_settings_of_an_experiment(name: str, tmp_path: Path) -> None:
    run, measures = WORKS[name].measure(
        SettingsCheck(tmp_path, 1, preferences=tmp_path / "pairs.jsonl")
    )
    assert run.id.endswith("-1")
    assert all(-1.0 <= measure <= 1.0 for measure in measures.values())
    assert measures.keys() >= WORKS[name].goals.keys()


@pytest.mark.parametrize(
    ("accuracy", "outcome"),
    [(0.5, "null result: every seed has 0.5"), (1.0, "no target")],
)
def test_equal_seeds_are_a_null_result_only_without_effect(accuracy: float, outcome: str) -> None:
    rows = [
        {"work": "dpo_gsm8k", "seed": seed, "commit": "abc", "pair accuracy": accuracy}
        for seed in range(3)
    ]
    assert f"| {outcome} |" in page(rows)
