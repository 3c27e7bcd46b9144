"""compare on the records that the other recipes write, with fakes."""

from __future__ import annotations

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import Kitchen
from kitchen.errors import DataError
from kitchen.runs.comparison import ReportCollector
from kitchen.runs.execute import execute
from kitchen.statistics.report import ComparisonReport
from recipes.compare import Compare
from tests.support.killed_runs import DATA, build_recipe, order_of

MEASURES = {
    "sl_basic": {"loss", "bits_per_byte"},
    "chat_sl": {"loss", "bits_per_byte"},
    "evaluate": {"exact_match", "field_f1"},
    "dpo": {"pair_accuracy", "loss", "bits_per_byte"},
    "kto": {"answer_accuracy", "loss", "bits_per_byte"},
    "rl": {"reward"},
    "distillation": {"loss", "bits_per_byte"},
}

SETTINGS = {"rl": {"reward": "exact"}}


def compare(blobs: FakeBlobs, *runs: str) -> ComparisonReport:
    recipe, collector = Compare(runs=runs), ReportCollector()
    execute(order_of(recipe), recipe, Kitchen(blobs=blobs), "comparison", (collector,))
    assert collector.report is not None
    return collector.report


def run_on_fakes(blobs: FakeBlobs, recipe_name: str, run: str, seed: int) -> None:
    recipe = build_recipe(
        recipe_name, "tiny", "other", 0, seed=seed, **SETTINGS.get(recipe_name, {})
    )
    kitchen = Kitchen(FakeTraining(), FakeDatasets(DATA), None, blobs)
    execute(order_of(recipe), recipe, kitchen, run)


@pytest.mark.parametrize("name", MEASURES)
def test_runs_of_a_recipe_can_be_compared(name: str) -> None:
    blobs = FakeBlobs()
    for seed in (0, 1):
        run_on_fakes(blobs, name, f"seed-{seed}", seed)
    report = compare(blobs, "seed-0", "seed-1")
    assert {pair.measure for pair in report.pairs} == MEASURES[name]
    for pair in report.pairs:
        assert pair.comparison is not None, pair.problem
        assert pair.items.only_first == pair.items.only_second == 0
        assert pair.comparison.first.n == pair.items.first


def test_runs_of_different_recipes_on_the_same_data_are_paired() -> None:
    blobs = FakeBlobs()
    run_on_fakes(blobs, "sl_basic", "imitated", 0)
    run_on_fakes(blobs, "distillation", "distilled", 0)
    report = compare(blobs, "imitated", "distilled")
    assert {pair.items.first for pair in report.pairs} == {2}


def test_a_comparison_cannot_be_compared() -> None:
    blobs = FakeBlobs()
    run_on_fakes(blobs, "sl_basic", "one", 0)
    run_on_fakes(blobs, "sl_basic", "two", 1)
    compare(blobs, "one", "two")
    recipe = Compare(runs=("one", "comparison"))
    with pytest.raises(DataError, match="'comparison' has no scores"):
        execute(order_of(recipe), recipe, Kitchen(blobs=blobs), "again")
