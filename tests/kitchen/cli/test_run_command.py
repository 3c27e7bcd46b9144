"""`kitchen run`: its output, its exit codes, and the hints after a failure."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import invoke, output
from tests.support.soup import FAKE, SECRET, SMALL

pytestmark = pytest.mark.usefixtures("soup")
ROW = '{"prompt": "a", "completion": "b"}'

FADING_STORE = """
from adapters.local.blobs import LocalBlobs
from kitchen.errors import BackendError


class FadingBlobs(LocalBlobs):
    def read(self, name):
        data = super().read(name)
        if data is not None and b'"status": "completed"' in data:
            raise BackendError("the disk is gone")
        return data
"""


def answer(*arguments: str) -> dict[str, Any]:
    """Return the JSON object of a command; its exit code is the real one."""
    result = invoke(*arguments, "--json")
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["exit_code"] == result.exit_code
    return found


def only_run(folder: Path) -> Path:
    [run] = (folder / "runs").iterdir()
    return run


def test_a_run_shows_steps_tables_and_its_record(here: Path) -> None:
    shown = output(0, "run", *SMALL, "warmup_steps=1")
    assert "step 3/3  loss 5." in shown
    assert "Held-out evaluation, 95 % intervals" in shown
    run = only_run(here)
    assert f"record   {run}\n" in shown
    assert f"weights  {run}/weights/final\n" in shown
    assert max(map(len, shown.splitlines())) <= max(100, len(f"weights  {run}/weights/final"))


def test_json_is_one_object_on_standard_output(here: Path) -> None:
    result = invoke("run", "recipes.soup", *FAKE, "--json")
    found = json.loads(result.stdout)
    run = only_run(here)
    assert found | {"seconds": 0} == {
        "run": run.name,
        "status": "completed",
        "exit_code": 0,
        "seconds": 0,
        "where": str(run),
        "metrics": {"salt": None, "heat": 2.0},
    }
    assert "[red]good[/red]" in result.stderr


def test_json_has_metrics_even_if_they_cannot_be_read(here: Path) -> None:
    (here / "stores.py").write_text(FADING_STORE)
    found = answer("run", "recipes.soup", *FAKE, "--blobs", "stores:FadingBlobs")
    assert found["status"] == "completed"
    assert found["metrics"] == {}
    assert found["metrics_missing"] == ["the disk is gone"]


def test_a_refused_run_answers_in_json(here: Path) -> None:
    found = answer("run", "recipes.soup", *FAKE, "rwong=no", "wrong=never")
    assert found["status"] == "refused"
    assert found["exit_code"] == 2
    assert len(found["reasons"]) == 2
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ("disk", "OSError: [Errno 28] No space left on device: '/full'"),
        ("bug", "ZeroDivisionError: half a pot"),
        ("secret", "refused with ***"),
    ],
)
def test_a_failed_run_names_stage_reason_and_command(here: Path, wrong: str, reason: str) -> None:
    arguments = ("run", "recipes.soup", *FAKE, f"wrong={wrong}")
    shown = output(1, *arguments, SOUP_API_KEY=SECRET)
    lines = shown.splitlines()
    at = lines.index("failed in recipes.soup > Boil")
    assert lines[at + 1].startswith(f"  why: {reason}")
    # a mistake of the stage's code, unlike a refusal of ours, has its line
    assert ("(recipes/soup.py:" in lines[at + 1]) == (wrong in ("disk", "bug"))
    # with the same code, only a cause outside of it can be gone
    resume = f": kitchen resume {only_run(here).name}"
    resumable = [line.endswith(resume) for line in lines[at + 2 :]]
    assert any(resumable[:1]) == any(resumable) == (wrong == "disk")
    assert ("--debug" in shown) == (wrong == "bug")


def test_a_stage_that_exits_fails_its_run() -> None:
    shown = output(1, "run", "recipes.soup", *FAKE, "wrong=exit")
    assert "SystemExit: 0" in shown
    assert "failed in recipes.soup > Boil" in shown


def test_a_traceback_is_shown_with_debug_only() -> None:
    result = invoke("run", "recipes.soup", *FAKE, "wrong=bug", "--debug", traceback=True)
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert "recipes/soup.py" in result.stderr


@pytest.mark.parametrize("command", ["run", "check"])
def test_mistakes_of_configuration_end_with_2(here: Path, command: str) -> None:
    mistakes = {
        ("recipes.supe",): "recipes.soup",
        ("recipes.soup", "--training", "fak"): "'fak'",
        ("recipes.soup", "wrong=3"): "wrong=3",
        ("recipes.soup", "--set", "training.rank=3"): "'rank'",
        ("recipes.soup", "--set", "trainign.device=cpu"): "'training'",
        ("recipes.soup", "--set", "training.device=gpu"): "'gpu'",
        ("recipes.soup", "--config", "none.yaml"): "none.yaml",
        ("recipes.sl_basic", "lora_rank=0"): "lora_rank=0",
        ("recipes.sl_basic", "learning_rate=0"): "learning_rate=0",
        (*SMALL, "learning_rate=.inf"): "learning_rate=.inf",
        (*SMALL, "batch_size=true"): "batch_size=true",
        (*SMALL, "reading.held_out=2"): "reading.held_out=2",
        ("recipes.sl_basic", *FAKE, "lora_rank=8", "--strict"): "lora_alpha",
        ("recipes.dpo", *FAKE, "rendering.train_on=all_tokens"): "rendering.train_on=all_tokens",
        (
            "recipes.kto",
            *FAKE,
            "rendering.train_on=all_messages",
        ): "rendering.train_on=all_messages",
        ("recipes.rl", *FAKE, "policy_lag=3", "save_every=2"): "policy_lag=3",
    }
    for arguments, named in mistakes.items():
        assert named in output(2, command, *arguments)
    assert not (here / "runs").exists()


@pytest.mark.parametrize("command", ["run", "check"])
def test_missing_data_ends_with_3_before_the_run(here: Path, command: str) -> None:
    assert "'ingredients'" in output(3, command, *SMALL, "dataset=ingredint")
    assert "nope.jsonl" in output(3, command, *SMALL, "dataset=nope.jsonl")
    assert not (here / "runs").exists()


def test_malformed_data_ends_with_3_and_names_its_line(here: Path) -> None:
    rows = [ROW] * 20
    rows[6] = '{"prompt": "a", "completion": 3}'
    (here / "rows.jsonl").write_text("\n".join(rows))
    assert "why: rows.jsonl:7: completion" in output(3, "run", *SMALL, "dataset=rows.jsonl")


@pytest.mark.parametrize(
    ("settings", "fix"),
    [((), "reading.held_out=0.25"), (("reading.held_out=0.9",), "reading.held_out=0.75")],
)
def test_too_little_data_names_a_setting_that_works(
    here: Path, settings: tuple[str, ...], fix: str
) -> None:
    (here / "rows.jsonl").write_text("\n".join([ROW] * 4))
    arguments = ("run", *SMALL, "dataset=rows.jsonl")
    assert f"set {fix}" in output(3, *arguments, *settings)
    output(0, *arguments, fix, "evaluation.metric=loss")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (ROW, "of 1 rows holds 0 out; at least one row must be held out and one trained on"),
        ('{"question": "a"}', "rows.jsonl:1: no known format in the row {question: 'a'}"),
    ],
)
def test_a_single_row_cannot_be_split(here: Path, row: str, reason: str) -> None:
    (here / "rows.jsonl").write_text(row)
    assert reason in output(3, "run", *SMALL, "dataset=rows.jsonl")


@pytest.mark.parametrize("command", ["run", "check"])
def test_problems_of_the_backend_end_with_4(command: str) -> None:
    problems = {
        ("recipes.sl_basic", "model=packaged:smollm3-135m-instruct"): "'smollm2-135m-instruct'",
        ("recipes.sl_basic", "model=path:nowhere"): "nowhere",
        ("recipes.soup", "--runs", "nosuchscheme://bucket"): "nosuchscheme",
    }
    for arguments, named in problems.items():
        assert named in output(4, command, *arguments)


def test_a_missed_quality_target_ends_with_5() -> None:
    shown = output(5, "run", *SMALL, "evaluation.at_least=0.9")
    assert "failed in recipes.sl_basic > QualityGate" in shown


def test_a_folder_that_cannot_be_written_ends_with_1(here: Path) -> None:
    (here / "file").write_text("")
    assert f"{here}/file" in output(1, "run", "recipes.soup", *FAKE, "--runs", "file")


@pytest.mark.parametrize(
    ("where", "options"),
    [
        (("--set", "blobs.root=my pots"), "--runs 'my pots'"),
        (("--set", "blobs.root=there", "--runs", "elsewhere"), "--runs there"),
        (("--set", "blobs.root=there", "--blobs", "local"), "--runs there --blobs local"),
    ],
)
def test_the_suggested_resume_command_works(
    here: Path, where: tuple[str, ...], options: str
) -> None:
    shown = output(1, "run", "recipes.soup", *FAKE, "wrong=disk", *where)
    [command] = [line for line in shown.splitlines() if "kitchen resume" in line]
    assert command.endswith(options)
    words = shlex.split(command.split(": kitchen ")[1])
    assert "No space left on device" in output(1, *words)


@pytest.mark.parametrize(
    ("row", "settings"),
    [
        ('{"prompt": "a"}', ()),
        (ROW, ("rendering.max_tokens=3",)),
        (f'{{"prompt": "{"a" * 5000}", "completion": "b"}}', ("rendering.max_tokens=9999",)),
    ],
)
def test_errors_that_a_resume_repeats_suggest_none(
    here: Path, row: str, settings: tuple[str, ...]
) -> None:
    (here / "rows.jsonl").write_text(f"{row}\n" * 20)
    shown = output(3, "run", *SMALL, "dataset=rows.jsonl", *settings)
    assert "why: rows.jsonl:" in shown
    assert "kitchen resume" not in shown


def test_a_run_in_memory_is_not_resumable() -> None:
    command = ("run", "recipes.soup", *FAKE, "--runs", "memory://soup")
    assert "record   memory://soup/soup-" in output(0, *command)
    shown = output(1, *command, "wrong=disk")
    assert "stored in memory" in shown
    assert "kitchen resume" not in shown


def test_the_root_of_a_named_adapter_is_used(here: Path) -> None:
    output(0, "run", "recipes.soup", *FAKE, "--blobs", "local", "--set", "blobs.root=there")
    assert list((here / "there").iterdir())


def test_a_name_is_given_to_one_run_only(here: Path) -> None:
    output(0, "run", *SMALL, "--name", "soup.1")
    assert (here / "runs/soup.1/run.json").is_file()
    assert "'soup.1'" in output(2, "run", *SMALL, "--name", "soup.1")
    for name in ("soup@1", "a/b", "../up", ""):
        assert repr(name) in output(2, "run", *SMALL, "--name", name)


def test_the_name_of_a_run_without_progress_is_free(here: Path) -> None:
    (here / "rows.jsonl").write_text('{"prompt": "a", "completion"')
    command = ("run", *SMALL, "dataset=rows.jsonl", "reading.held_out=0.5", "--name", "mended")
    output(3, *command)
    (here / "rows.jsonl").write_text(f"{ROW}\n" * 4)
    output(0, *command)
    assert "'mended'" in output(2, *command)


def test_weights_open_with_their_own_adapter_only() -> None:
    output(0, "run", *SMALL, "--name", "soup")
    for command in ("sample soup hi", "export soup out", "eval soup --dataset ingredients"):
        assert "'fake'" in output(2, *command.split(), "--training", "peft")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("--epochs", "3"), "without dashes: epochs=3"),
        (("--learning-rate=1e-4",), "without dashes: learning_rate=1e-4"),
        (("--seed", "7"), "without dashes: seed=7"),
        (("--max-steps",), "without dashes: max_steps=VALUE"),
    ],
)
def test_an_option_that_is_a_setting_is_explained(arguments: tuple[str, ...], shown: str) -> None:
    for command in ("run", "check"):
        assert shown in output(2, command, "recipes.sl_basic", *arguments)


def test_a_mistyped_option_is_not_called_a_setting() -> None:
    shown = output(2, "run", "recipes.sl_basic", "--trainin", "fake")
    assert "--training" in shown
    assert "without dashes" not in shown


def test_an_option_without_its_value_is_not_called_a_setting() -> None:
    shown = output(2, "run", "recipes.sl_basic", "--name")
    assert "--name" in shown
    assert "without dashes" not in shown
