"""The harness of results, on the fake."""

from __future__ import annotations

from pathlib import Path

from tests.results.__main__ import page
from tests.results.works import Cooking

SMALL = {"max_steps": 3, "reading.held_out_rows": 4, "evaluation.max_tokens": 4}


def test_a_run_that_is_there_is_not_cooked_again(tmp_path: Path) -> None:
    cooking = Cooking(tmp_path, 5, training="fake")
    name, first = cooking.cook("recipes.sl_basic", "half", SMALL)
    written = (tmp_path / name / "run.json").stat().st_mtime_ns
    assert (name, cooking.cook("recipes.sl_basic", "half", SMALL)[1]) == ("half-5", first)
    assert (tmp_path / name / "run.json").stat().st_mtime_ns == written
    assert "loss" in first


def test_the_page_has_each_seed_with_its_commit() -> None:
    rows = [{"work": "dpo", "seed": seed, "commit": "abc", "seconds": 7, "pair accuracy": 0.9 + seed / 100}
            for seed in range(3)]
    text = page(rows)
    assert "| pair accuracy | 0.910 [0.885, 0.935] | 0.900, 0.910, 0.920 |" in text
    assert "seed 2: abc, 7 s" in text
