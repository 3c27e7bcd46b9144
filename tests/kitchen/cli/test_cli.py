"""The command line, in process: what it prints, and every exit code."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kitchen.cli import app

FAKE = ("--training", "fake")
SMALL = ("recipes.sl_basic", *FAKE, "reading.limit=40", "max_steps=3", "evaluation.max_tokens=4")
MINE = '''"""A dish that goes wrong on request."""
import os
from typing import Literal
from kitchen import Metrics, Recipe, Stage, Step, Table, sequence
from kitchen.errors import RunFailed
class Boil(Stage):
    """Boil it."""
    wrong: str
    def run(self) -> tuple[Metrics, Table]:
        if self.wrong == "disk":
            raise OSError(28, "No space left on device", "/full")
        if self.wrong == "bug":
            raise ZeroDivisionError("half a pot")
        if self.wrong == "exit":
            raise SystemExit(0)
        if self.wrong == "secret":
            raise RunFailed("refused with " + os.environ["SOUP_API_KEY"])
        return Metrics(salt=float("nan"), heat=2.0), Table("Soup [bold]", ("pot", "taste"), (("1", "[red]good[/red]"),))
class Soup(Recipe):
    """Soup of the day."""
    wrong: Literal["no", "disk", "bug", "secret", "exit"] = "no"  # what goes wrong
    def workflow(self) -> Step:
        return sequence(Boil(self.wrong))
'''


@pytest.fixture(autouse=True)
def here(tmp_path: Path) -> Iterator[Path]:
    """A folder of one's own, outside of the clone."""
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "soup.py").write_text(MINE)
    path = sys.path[:]
    with contextlib.chdir(tmp_path):
        yield tmp_path
    sys.path[:] = path
    sys.modules.pop("recipes.soup", None)  # others would take it for theirs


def kitchen(*arguments: str) -> Result:
    return CliRunner(env={"SOUP_API_KEY": "s3cr3t-s3cr3t"}).invoke(app, arguments)


def told(code: int, *arguments: str) -> str:
    """Both streams of a command that ends with this code, and never with a traceback."""
    result = kitchen(*arguments)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.output


def answer(*arguments: str) -> dict[str, Any]:
    result = kitchen(*arguments, "--json")
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["exit_code"] == result.exit_code
    return found


def test_a_run_shows_its_steps_tables_and_where_its_record_is(here: Path) -> None:
    shown = told(0, "run", *SMALL)
    assert "ShuffledBatches step 3/3  loss 5." in shown
    assert "Held-out evaluation, 95 % intervals" in shown
    [run] = (here / "runs").iterdir()
    assert f"record   {run}\n" in shown
    assert f"weights  {run}/weights/final\n" in shown
    assert max(map(len, shown.splitlines())) <= max(100, len(f"weights  {run}/weights/final"))


def test_with_json_there_is_one_object_on_standard_output_and_nothing_else(here: Path) -> None:
    result = kitchen("run", "recipes.soup", *FAKE, "--json")
    found = json.loads(result.stdout)
    [run] = (here / "runs").iterdir()
    assert found | {"seconds": 0} == {
        "run": run.name,
        "status": "completed",
        "exit_code": 0,
        "seconds": 0,
        "where": str(run),
        "metrics": {"salt": None, "heat": 2.0},
    }
    assert "[red]good[/red]" in result.stderr


def test_a_refused_run_answers_in_json_too(here: Path) -> None:
    found = answer("run", "recipes.soup", *FAKE, "rwong=no", "wrong=never")
    assert found["status"] == "refused"
    assert found["exit_code"] == 2
    assert len(found["reasons"]) == 2
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("disk", "OSError: [Errno 28] No space left on device: '/full'"),
        ("bug", "ZeroDivisionError: half a pot"),
        ("secret", "refused with ***"),
    ],
)
def test_a_run_that_fails_says_where_why_and_how_to_go_on(here: Path, wrong: str, why: str) -> None:
    lines = told(1, "run", "recipes.soup", *FAKE, f"wrong={wrong}").splitlines()
    [run] = (here / "runs").iterdir()
    at = lines.index("failed in recipes.soup > Boil")
    assert lines[at + 1] == f"  why: {why}"
    assert lines[at + 2].endswith(f": kitchen resume {run.name}")
    assert ("for the frames, say it again with --debug" in "\n".join(lines)) == (wrong == "bug")


def test_frames_only_with_debug() -> None:
    result = kitchen("run", "recipes.soup", *FAKE, "wrong=bug", "--debug")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "recipes/soup.py" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("recipes.supe",), "did you mean 'recipes.soup'?"),
        (
            ("recipes.soup", "--training", "fak"),
            "there is no training adapter 'fak'; did you mean 'fake'?",
        ),
        (("recipes.soup", "wrong=3"), "wrong=3 is unknown; there are"),
        (("recipes.soup", "--set", "training.rank=3"), "has no setting 'rank'"),
        (("recipes.soup", "--set", "trainign.device=cpu"), "did you mean 'training'?"),
        (("recipes.soup", "--set", "training.device=gpu"), "device is 'gpu'"),
        (("recipes.soup", "--config", "none.yaml"), "none.yaml: No such file"),
        (("recipes.sl_basic", "lora_rank=0"), "lora_rank=0: input should be greater than 0"),
        (
            ("recipes.sl_basic", "learning_rate=0"),
            "learning_rate=0: input should be greater than 0",
        ),
        (
            (*SMALL, "learning_rate=.inf"),
            "command line: learning_rate=.inf: input should be a finite number",
        ),
        (
            (*SMALL, "batch_size=true"),
            "batch_size=true: input should be a number, not true or false",
        ),
        ((*SMALL, "reading.held_out=2"), "reading.held_out=2: input should be less than 1"),
        (("recipes.sl_basic", "--training", "fake", "--strict"), "lora_alpha is not honoured"),
    ],
)
@pytest.mark.parametrize("command", ["run", "check"])
def test_mistakes_of_configuration_end_with_2(
    here: Path, command: str, arguments: tuple[str, ...], why: str
) -> None:
    assert why in told(2, command, *arguments)
    assert not (here / "runs").exists()


@pytest.mark.parametrize("command", ["run", "check"])
def test_data_that_is_not_there_ends_with_3_before_anything_runs(here: Path, command: str) -> None:
    assert "did you mean 'ingredients'?" in told(3, command, *SMALL, "dataset=ingredint")
    assert "nope.jsonl: there is no such file" in told(3, command, *SMALL, "dataset=nope.jsonl")
    assert not (here / "runs").exists()


def test_data_that_cannot_be_read_ends_with_3_and_names_its_line(here: Path) -> None:
    rows = ['{"prompt": "a", "completion": "b"}'] * 20
    rows[6] = '{"prompt": "a", "completion": 3}'
    (here / "rows.jsonl").write_text("\n".join(rows))
    assert "why: rows.jsonl:7: completion is a number, not text" in told(
        3, "run", *SMALL, "dataset=rows.jsonl"
    )


@pytest.mark.parametrize(
    ("rows", "settings", "why"),
    [
        (
            ['{"prompt": "a", "completion": "b"}'] * 4,
            (),
            "reading.held_out=0.1 of 4 rows keeps 0 back; at least one row must be held out and "
            "one trained on: "
            "add rows, or set reading.held_out=0.25",
        ),
        (
            ['{"prompt": "a", "completion": "b"}'] * 4,
            ("reading.held_out=0.9",),
            "set reading.held_out=0.75",
        ),
        (
            ['{"prompt": "a", "completion": "b"}'],
            (),
            "of 1 rows keeps 0 back; at least one row must be held out and one",
        ),
        (
            ['{"question": "a"}'],
            (),
            "rows.jsonl:1: no known format in the row {question: 'a'}; there are: messages",
        ),
    ],
)
def test_data_that_is_too_little_says_what_to_set(
    here: Path, rows: list[str], settings: tuple[str, ...], why: str
) -> None:
    (here / "rows.jsonl").write_text("\n".join(rows))
    assert why in told(3, "run", *SMALL, "dataset=rows.jsonl", *settings)
    if "set " in why:
        mended = why.rsplit("set ", 1)[1]
        told(0, "run", *SMALL, "dataset=rows.jsonl", mended, "evaluation.metric=loss")


@pytest.mark.parametrize("command", ["run", "check"])
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            ("recipes.sl_basic", "model=packaged:smollm3-135m-instruct"),
            "did you mean 'smollm2-135m-instruct'?",
        ),
        (("recipes.sl_basic", "model=path:nowhere"), "there is no folder"),
        (("recipes.soup", "--runs", "nosuchscheme://bucket"), "nosuchscheme"),
    ],
)
def test_what_the_backend_lacks_ends_with_4(
    here: Path, command: str, arguments: tuple[str, ...], why: str
) -> None:
    assert why in told(4, command, *arguments)


def test_a_quality_target_that_is_missed_ends_with_5() -> None:
    shown = told(5, "run", *SMALL, "evaluation.at_least=0.9")
    assert "failed in recipes.sl_basic > QualityGate" in shown


def test_a_folder_that_cannot_be_written_ends_with_1(here: Path) -> None:
    (here / "file").write_text("")
    assert f"{here}/file" in told(1, "run", "recipes.soup", *FAKE, "--runs", "file")


def test_several_kinds_of_problem_are_told_at_once() -> None:
    shown = told(
        2,
        "check",
        "recipes.sl_basic",
        "lr=1",
        "--training",
        "fak",
        "--set",
        "hbu.x=1",
        "--config",
        "no.yaml",
    )
    assert "error: 4 problems" in shown
    assert all(f"  {number}. " in shown for number in range(1, 5))


def test_check_shows_the_plan_as_a_tree_and_the_adapters(here: Path) -> None:
    shown = told(0, "check", "recipes.sl_basic", "--training", "fake", "rendering.max_tokens=512")
    assert "├── RenderDataset(max_tokens=512)  TrainRows, Tokenizer → TrainData, Metrics\n" in shown
    assert "│       ├── ReportStep  Batch, LossOutput, Stepped, LearningRate → Metrics\n" in shown
    assert "rendering.max_tokens    512  command line" in shown
    assert "not honoured: lora_alpha" in shown
    assert "no problems" in shown
    assert not (here / "runs").exists()
    assert "not honoured" not in told(0, "check", "recipes.sl_basic")


def test_check_answers_in_json() -> None:
    found = answer("check", "recipes.sl_basic", "--training", "fake", "reading.limit=5")
    assert (found["sources"]["reading.limit"], found["settings"]["reading"]["limit"]) == (
        "command line",
        5,
    )
    assert found["not_honoured"] == ["lora_alpha"]
    assert found["problems"] == []
    assert answer("check", "recipes.sl_basic", "reading.limit=0")["problems"]


def test_a_preview_marks_what_is_trained_on(here: Path) -> None:
    (here / "rows.jsonl").write_text('{"prompt": "two", "completion": "deux"}\n' * 20)
    shown = told(
        0, "check", "recipes.sl_basic", *FAKE, "dataset=rows.jsonl", "batch_size=4", "--preview"
    )
    flat = "\n".join(line.rstrip() for line in shown.splitlines())
    assert "            <259>two<257><260>\nyes         deux<257>\n" in flat
    # 5 of the 10 tokens that the model reads of a row
    assert "share of tokens trained on  50.0%" in shown
    assert "optimiser steps in all      5" in flat  # 18 rows, 2 of 20 held out
    assert re.search(r"^set +0\.001 +the highest of the schedule$", flat, re.MULTILINE)
    assert re.search(
        r"^suggested for supervised fine-tuning +not known +.*is called neither", flat, re.MULTILINE
    )
    assert "tokens read in all        180" in flat
    priced = told(
        0, "check", "recipes.sl_basic", *FAKE, "dataset=rows.jsonl", "epochs=2", "--price", "5"
    )
    assert "tokens read in all                  360" in priced
    assert "what these cost, at 5 a million  0.0018" in priced
    assert "--price" in told(2, "check", "recipes.sl_basic", *FAKE, "--price", "-1")
    assert not (here / "runs").exists()


def test_a_preview_of_bad_rows_ends_with_3(here: Path) -> None:
    (here / "rows.jsonl").write_text('{"question": "two"}\n' * 20)
    shown = told(3, "check", *SMALL, "dataset=rows.jsonl", "--preview")
    assert re.search(
        r"error: rows\.jsonl:\d+: no known format in the row \{question: 'two'\}", shown
    )


def test_recipes_and_adapters_are_listed() -> None:
    shown = told(0, "list")
    assert "recipes.sl_basic" in shown
    assert "A dish that goes wrong on request." in shown
    found = json.loads(kitchen("list", "--json").stdout)
    adapters = {(each["port"], each["name"]): each for each in found["adapters"]}
    assert adapters["training", "peft"]["needs"] == "crucible-kitchen[local]"
    assert adapters["training", "peft"]["default"]
    assert adapters["training", "fake"]["needs"] == "the core"


def test_a_recipe_is_described() -> None:
    shown = told(0, "describe", "recipes.sl_basic")
    assert "int > 0; conversations per optimiser step" in shown
    assert "Ports: training, datasets, blobs" in shown
    found = json.loads(kitchen("describe", "recipes.soup", "--json").stdout)
    assert found["settings"] == [
        {
            "name": "wrong",
            "type": "no or disk or bug or secret or exit",
            "default": "no",
            "about": "what goes wrong",
        }
    ]
    assert found["stages"] == ["Boil"]


def test_runs_are_listed_shown_and_gone_on_with(here: Path) -> None:
    assert "there are no runs here" in told(0, "runs")
    told(1, "run", "recipes.soup", *FAKE, "wrong=bug", "--runs", "kept")
    [run] = (here / "kept").iterdir()
    [listed] = json.loads(kitchen("runs", "list", "--runs", "kept", "--json").stdout)
    assert (listed["id"], listed["status"]) == (run.name, "failed")
    shown = told(0, "runs", "show", run.name, "--runs", "kept")
    assert "wrong    bug    command line" in shown
    assert "ZeroDivisionError: half a pot" in shown
    assert f"kitchen resume {run.name} --runs kept" in told(1, "resume", run.name, "--runs", "kept")
    assert "attempts  2" in told(0, "runs", "show", run.name, "--runs", "kept")
    assert f"did you mean '{run.name}'?" in told(2, "runs", "show", run.name[:-1], "--runs", "kept")
    assert "there is no run" in told(2, "resume", run.name)


@pytest.mark.parametrize("name", ["../x", "", ".", "a/b", "a/../b", "a\\b"])
@pytest.mark.parametrize("command", [("resume",), ("runs", "show")])
def test_the_name_of_a_run_is_one_part_of_a_path(
    here: Path, command: tuple[str, ...], name: str
) -> None:
    assert f"{name!r} cannot be the name of a run" in told(2, *command, name)
    assert not (here / "runs").exists()


@pytest.mark.parametrize("written", ["[]", "{}", '{"status": "completed"}', "not JSON"])
def test_a_run_that_cannot_be_read_is_listed_beside_the_others(here: Path, written: str) -> None:
    told(0, "run", "recipes.soup", *FAKE)
    (here / "runs" / "odd").mkdir()
    (here / "runs" / "odd" / "run.json").write_text(written)
    shown = told(0, "runs", "list")
    assert re.search(r"^odd +unreadable ", shown, re.MULTILINE)
    assert re.search(r"^soup-\S+ +completed ", shown, re.MULTILINE)
    assert "run.json" in told(2, "runs", "show", "odd")
    assert "run.json" in told(2, "resume", "odd")
    [odd] = [
        each for each in json.loads(kitchen("runs", "list", "--json").stdout) if each["id"] == "odd"
    ]
    assert "run.json" in odd["reason"]


@pytest.mark.parametrize(
    ("where", "options"),
    [
        (("--set", "blobs.root=my pots"), "--runs 'my pots'"),
        (("--set", "blobs.root=there", "--runs", "elsewhere"), "--runs there"),
        (("--set", "blobs.root=there", "--blobs", "local"), "--runs there --blobs local"),
    ],
)
def test_the_command_to_go_on_with_finds_the_run(
    here: Path, where: tuple[str, ...], options: str
) -> None:
    (here / "rows.jsonl").write_text('{"prompt": "a"}\n' * 20)
    shown = told(3, "run", *SMALL, "dataset=rows.jsonl", *where)
    command = shown.split("begins again): kitchen ")[1].splitlines()[0]
    assert command.endswith(options)
    assert "why: rows.jsonl:" in told(3, *shlex.split(command))


def test_a_stage_that_exits_is_a_run_that_failed() -> None:
    shown = told(1, "run", "recipes.soup", *FAKE, "wrong=exit")
    assert "SystemExit: 0" in shown
    assert "kitchen resume soup-" in shown


def test_a_completed_run_is_not_run_again(here: Path) -> None:
    told(0, "run", "recipes.soup", *FAKE)
    [run] = (here / "runs").iterdir()
    assert f"run {run.name} is completed" in told(0, "resume", run.name)


def test_a_run_in_memory_is_run_and_gone() -> None:
    command = ("run", "recipes.soup", *FAKE, "--runs", "memory://soup")
    assert "record   memory://soup/soup-" in told(0, *command)
    assert "kept in memory" in told(1, *command, "wrong=bug")


def test_runs_may_lie_with_an_adapter_by_name(here: Path) -> None:
    told(0, "run", "recipes.soup", *FAKE, "--blobs", "local", "--set", "blobs.root=there")
    assert list((here / "there").iterdir())


def test_a_run_that_another_host_holds_can_be_taken_over(here: Path) -> None:
    told(1, "run", "recipes.soup", *FAKE, "wrong=bug")
    [run] = (here / "runs").iterdir()
    (run / "lease").mkdir(exist_ok=True)
    (run / "lease/other.json").write_text('{"host": "elsewhere", "pid": 1, "born": "2"}')
    shown = told(2, "resume", run.name)
    assert "in use by process 1 on elsewhere" in shown
    assert f"to go on all the same: kitchen resume {run.name} --take-over" in shown
    assert "half a pot" in told(1, "resume", run.name, "--take-over")


def test_a_run_can_be_given_a_name_and_only_once(here: Path) -> None:
    told(0, "run", *SMALL, "--name", "soup.1")
    assert (here / "runs/soup.1/run.json").is_file()
    assert "there is a run 'soup.1' already; resume it" in told(
        2, "run", *SMALL, "--name", "soup.1"
    )
    for name in ("soup@1", "a/b", "../up", ""):
        assert "cannot be the name of a run" in told(2, "run", *SMALL, "--name", name)


def test_the_name_of_a_run_that_came_to_nothing_can_be_used_again(here: Path) -> None:
    (here / "rows.jsonl").write_text('{"prompt": "a", "completion"')
    again = ("run", *SMALL, "dataset=rows.jsonl", "reading.held_out=0.5", "--name", "mended")
    told(3, *again)
    (here / "rows.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 4)
    told(0, *again)
    assert "there is a run 'mended' already" in told(2, *again)


def test_weights_are_opened_by_the_adapter_that_made_them(here: Path) -> None:
    told(0, "run", *SMALL, "--name", "soup")
    for command in ("sample soup hi", "export soup out", "eval soup --dataset ingredients"):
        assert "made by the training adapter 'fake', and only that can open them" in told(
            2, *command.split(), "--training", "peft"
        )
