"""`kitchen runs` and `kitchen resume`: recorded runs, whole, damaged and in use."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from kitchen.cli.commands.runs import print_runs
from kitchen.runs.store import RunSummary
from tests.support.commands import invoke, output
from tests.support.soup import FAKE

pytestmark = pytest.mark.usefixtures("soup")
FAILING = ("run", "recipes.soup", *FAKE, "wrong=bug")


def only_run(folder: Path) -> Path:
    [run] = folder.iterdir()
    return run


def test_runs_are_listed_shown_and_resumed(here: Path) -> None:
    assert "there are no runs in runs" in output(0, "runs")
    assert "there are no runs in typo" in output(0, "runs", "--runs", "typo")
    where = ("--runs", "pots")
    output(1, *FAILING, *where)
    run = only_run(here / "pots").name
    [listed] = json.loads(invoke("runs", "list", *where, "--json").stdout)
    assert (listed["id"], listed["status"]) == (run, "failed")
    shown = output(0, "runs", "show", run, *where)
    assert "wrong    bug    command line" in shown
    assert "ZeroDivisionError: half a pot" in shown
    assert "ZeroDivisionError: half a pot" in output(1, "resume", run, *where)
    assert "attempts  2" in output(0, "runs", "show", run, *where)
    assert f"did you mean '{run}'?" in output(2, "runs", "show", run[:-1], *where)
    assert f"there is no run '{run}'" in output(2, "resume", run)


@pytest.mark.parametrize("command", [("resume",), ("runs", "show")])
def test_the_name_of_a_run_has_no_slash(here: Path, command: tuple[str, ...]) -> None:
    for name in ("../x", "", ".", "a/b", "a/../b", "a\\b"):
        assert repr(name) in output(2, *command, name)
    assert not (here / "runs").exists()


def test_an_unreadable_run_is_listed_beside_the_others(here: Path) -> None:
    output(0, "run", "recipes.soup", *FAKE)
    record = here / "runs/odd/run.json"
    record.parent.mkdir()
    for text in ("[]", "{}", '{"status": "completed"}', "not JSON"):
        record.write_text(text)
        shown = output(0, "runs", "list")
        assert re.search(r"^odd .* unreadable ", shown, re.MULTILINE)
        assert re.search(r"^soup-\S+ +soup +completed ", shown, re.MULTILINE)
        assert "run.json" in output(2, "runs", "show", "odd")
        assert "run.json" in output(2, "resume", "odd")
        runs = json.loads(invoke("runs", "list", "--json").stdout)
        [odd] = [run for run in runs if run["id"] == "odd"]
        assert "run.json" in odd["reason"]


def test_a_completed_run_is_not_run_again(here: Path) -> None:
    output(0, "run", "recipes.soup", *FAKE)
    run = only_run(here / "runs").name
    assert f"run {run} is completed" in output(0, "resume", run)


def test_a_run_held_by_another_host_can_be_taken_over(here: Path) -> None:
    output(1, *FAILING)
    run = only_run(here / "runs")
    (run / "lease").mkdir(exist_ok=True)
    (run / "lease/other.json").write_text('{"host": "elsewhere", "pid": 1, "born": "2"}')
    shown = output(2, "resume", run.name)
    assert "process 1 on elsewhere" in shown
    assert f"kitchen resume {run.name} --take-over" in shown
    assert "half a pot" in output(1, "resume", run.name, "--take-over")


@pytest.mark.parametrize(
    ("width", "columns"),
    [
        (76, "run recipe status result"),
        (100, "run recipe status started, UTC took result"),
        (None, "run recipe status started, UTC took result"),
    ],
)
def test_the_list_of_runs_drops_columns_that_do_not_fit(width: int | None, columns: str) -> None:
    file = io.StringIO()
    out = Console(file=file, width=width or 20, force_terminal=width is not None, color_system=None)
    started = "2026-11-28T09:05:52Z"
    metrics = {"data/rows": 8, "loss": 2.5, "held_out_loss": 3.25}
    runs = [
        RunSummary("dpo-20261128-090552-3d0d", "recipes.dpo:Dpo", "completed", started, 3, metrics),
        RunSummary("odd", "my.own:Own", "unreadable", "", 0, {}, "run.json is not " + "JSON " * 20),
    ]
    print_runs(out, runs)
    _, header, _, first, second = (line.rstrip() for line in file.getvalue().splitlines())
    assert " ".join(header.split()) == columns
    assert first.endswith("held out loss 3.25")
    assert second.split()[:3] == ["odd", "my.own", "unreadable"]
    assert second.endswith("…" if width else "JSON")
    assert ("2026-11-28 09:05" in first) == (width is None)
