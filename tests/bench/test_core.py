"""The core benchmarks at a small size: both sides compute the same values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import Field
from rich.console import Console

from adapters.local.blobs import LocalBlobs
from kitchen import Step
from kitchen.config.order import Order as RunOrder
from kitchen.errors import RunFailed
from kitchen.runs.execute import execute
from kitchen.runs.store import read_journal
from recipes.sl_basic import SlBasic
from tests.bench.core_calls import KINDS, IterationTimes, StageCalls
from tests.bench.core_growth import run_few_rows
from tests.bench.core_loop import BothLoops
from tests.bench.core_plan import OPERATIONS, Checks
from tests.bench.turns import Setup
from tests.support.peak_memory import jsonl_rows


def test_the_bare_loop_computes_the_losses_of_the_run(tmp_path: Path) -> None:
    pairs = list(BothLoops(Setup(tmp_path, steps=6), "fake").pairs())
    assert len(pairs) == 6
    assert all(run["loss"] == bare["loss"] for run, bare in pairs)
    assert pairs[0][0]["loss"] > pairs[-1][0]["loss"]
    assert all(run["seconds"] > 0 < bare["seconds"] for run, bare in pairs)


def test_a_failed_run_raises_its_error(tmp_path: Path) -> None:
    (tmp_path / "runs-fake").write_text("a file where a folder should be")
    with pytest.raises(RunFailed, match="runs-fake"):
        list(BothLoops(Setup(tmp_path, steps=2), "fake").pairs())


def test_dropped_steps_are_not_counted() -> None:
    assert IterationTimes([0.0, 7.0, 8.0, 10.0]).mean() == pytest.approx(1.5)


def test_stage_calls_of_all_kinds_are_recorded(tmp_path: Path) -> None:
    with (tmp_path / "console").open("w") as file:
        seconds = StageCalls(tmp_path, count=100).measure("0", Console(file=file))
    assert seconds.keys() == {"by hand", *KINDS}
    assert min(seconds.values()) > 0
    record = json.loads((tmp_path / "calls" / "plain-0" / "run.json").read_text())
    assert record["status"] == "completed"


def test_a_check_reports_the_time_of_each_operation() -> None:
    seconds, problems = Checks((("training", "fake"), ("hub", "local"))).measure()
    assert not problems
    assert seconds.keys() == OPERATIONS.keys()
    assert min(seconds.values()) > 0


def test_a_run_on_few_rows_reports_speed_and_memory(tmp_path: Path) -> None:
    (tmp_path / "rows-100.jsonl").write_text(jsonl_rows(100))
    cost = run_few_rows(tmp_path, 100, "run", steps=5)
    assert cost.steps == 5
    assert cost.rate > 0
    assert cost.peak > 10


class CountingRecipe(SlBasic):
    """A recipe that counts how often its workflow is built."""

    builds: list[int] = Field(default_factory=list)  # one entry per build

    def workflow(self) -> Step:
        self.builds.append(1)
        return super().workflow()


def test_a_given_plan_is_not_computed_again(tmp_path: Path) -> None:
    loops = BothLoops(Setup(tmp_path, steps=2), "fake")
    recipe, kitchen, blobs = (
        CountingRecipe(**dict(loops.recipe())),
        loops.kitchen(),
        LocalBlobs(str(tmp_path / "runs-fake")),
    )
    execute(
        RunOrder("recipes.sl_basic:SlBasic", {}), recipe, kitchen, "run", plan=kitchen.check(recipe)
    )
    assert len(recipe.builds) == 1
    assert [
        row["step"] for row in read_journal(blobs, "run", "metrics") if row["stage"] == "ReportStep"
    ] == [0, 1]
