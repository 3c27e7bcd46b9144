"""The core benchmarks at a small size: both sides compute the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import Field
from rich.console import Console

from adapters.local.blobs import LocalBlobs
from kitchen import Step
from kitchen.config.order import Order as Cooked
from kitchen.errors import RunFailed
from kitchen.runs.execute import execute
from kitchen.runs.store import read_journal
from recipes.sl_basic import SlBasic
from tests.bench.core_calls import KINDS, Calls, Ends
from tests.bench.core_growth import run_slice
from tests.bench.core_loop import Loops
from tests.bench.core_plan import ABOUT, Checks
from tests.bench.turns import Setup
from tests.support.peak_memory import jsonl_rows


def test_the_loop_by_hand_computes_what_the_kitchen_does(tmp_path: Path) -> None:
    pairs = list(Loops(Setup(tmp_path, steps=6), "fake").pairs())
    assert len(pairs) == 6
    assert all(cooked["loss"] == bare["loss"] for cooked, bare in pairs)
    assert pairs[0][0]["loss"] > pairs[-1][0]["loss"]
    assert all(cooked["seconds"] > 0 < bare["seconds"] for cooked, bare in pairs)


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "runs-fake").write_text("a file where a folder should be")
    with pytest.raises(RunFailed, match="runs-fake"):
        list(Loops(Setup(tmp_path, steps=2), "fake").pairs())


def test_dropped_steps_are_not_counted() -> None:
    assert Ends([0.0, 7.0, 8.0, 10.0]).mean() == pytest.approx(1.5)


def test_stage_calls_of_all_kinds_are_recorded(tmp_path: Path) -> None:
    with (tmp_path / "console").open("w") as file:
        found = Calls(tmp_path, count=100).measured("0", Console(file=file))
    assert found.keys() == {"by hand", *KINDS}
    assert min(found.values()) > 0
    record = json.loads((tmp_path / "calls" / "plain-0" / "run.json").read_text())
    assert record["status"] == "completed"


def test_a_check_reports_its_parts() -> None:
    seconds, problems = Checks((("training", "fake"), ("hub", "local"))).measured()
    assert not problems
    assert seconds.keys() == ABOUT.keys()
    assert min(seconds.values()) > 0


def test_a_slice_has_its_steps_and_its_tokens(tmp_path: Path) -> None:
    (tmp_path / "rows-100.jsonl").write_text(jsonl_rows(100))
    taken = run_slice(tmp_path, 100, "slice", steps=5)
    assert taken.steps == 5
    assert taken.rate > 0
    assert taken.peak > 10


class Counted(SlBasic):
    """A recipe that counts how often its workflow is built."""

    laid: list[int] = Field(default_factory=list)  # one entry each time

    def workflow(self) -> Step:
        self.laid.append(1)
        return super().workflow()


def test_a_given_plan_is_not_computed_again(tmp_path: Path) -> None:
    loops = Loops(Setup(tmp_path, steps=2), "fake")
    recipe, kitchen, blobs = (
        Counted(**dict(loops.recipe())),
        loops.kitchen(),
        LocalBlobs(str(tmp_path / "runs-fake")),
    )
    execute(
        Cooked("recipes.sl_basic:SlBasic", {}), recipe, kitchen, "run", plan=kitchen.check(recipe)
    )
    assert len(recipe.laid) == 1
    assert [
        row["step"] for row in read_journal(blobs, "run", "metrics") if row["stage"] == "ReportStep"
    ] == [0, 1]
