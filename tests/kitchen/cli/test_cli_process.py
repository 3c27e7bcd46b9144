"""The command line as a process: what it imports, how it is interrupted, and a folder of one's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "transformers", "peft", "datasets", "tinker", "huggingface_hub")
STAGES = '''"""Stir a pot."""
import time
from collections.abc import Iterable
from dataclasses import dataclass
from kitchen import Metrics, Stage
@dataclass(frozen=True)
class Minute:
    number: int
@dataclass(frozen=True)
class Pot:
    stirred: int = 0
class Fill(Stage):
    def run(self) -> Pot:
        return Pot()
class Minutes(Stage):
    count: int
    def run(self) -> Iterable[Minute]:
        return [Minute(number) for number in range(self.count)]
class Stir(Stage):
    seconds: float
    def run(self, pot: Pot, minute: Minute) -> tuple[Pot, Metrics]:
        time.sleep(self.seconds)
        return Pot(pot.stirred + 1), Metrics(stirred=pot.stirred + 1.0, tokens=10.0)
'''
RECIPE = '''"""Stew."""
from kitchen import Recipe, Step, for_each, sequence
from stages.stirring import Fill, Minutes, Stir
class Stew(Recipe):
    save: int = 1
    seconds: float = 0.05
    def workflow(self) -> Step:
        return sequence(Fill(), for_each(Minutes(40), save=self.save)(Stir(self.seconds)))
'''


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Someone's own folder, with a recipe and a stage in it."""
    for name, text in (("recipes/mine.py", RECIPE), ("stages/stirring.py", STAGES)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    return tmp_path


def kitchen(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kitchen.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def imported(folder: Path, *arguments: str) -> set[str]:
    """The modules in memory at the end of a command."""
    program = (
        "import atexit, sys; atexit.register(lambda: print('\\n' + ' '.join(sys.modules)));"
        f"sys.argv = ['kitchen', *{arguments!r}]; from kitchen.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_help_imports_nothing_heavy_nor_pydantic(tmp_path: Path) -> None:
    found = imported(tmp_path, "--help")
    assert "typer" in found
    assert found.isdisjoint({*HEAVY, "pydantic", "numpy", "rich.table"})


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "recipes.sl_basic"),
        ("list",),
        ("describe", "recipes.sl_basic"),
        ("runs",),
        (
            "run",
            "recipes.sl_basic",
            "--training",
            "fake",
            "reading.limit=40",
            "max_steps=2",
            "evaluation.max_tokens=4",
        ),
    ],
    ids=lambda arguments: arguments[0],
)
def test_what_needs_no_model_imports_nothing_heavy(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    found = imported(tmp_path, *arguments)
    assert "pydantic" in found
    assert found.isdisjoint(HEAVY)


def test_a_recipe_and_a_stage_of_one_s_own_run_beside_ours(mine: Path) -> None:
    done = kitchen(mine, "run", "recipes.mine", "--training", "fake", "seconds=0", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["stirred"] == 40
    assert "Minutes step 40/40  stirred 40" in done.stderr
    assert kitchen(mine, "check", "recipes.sl_basic").returncode == 0


def interrupted(
    folder: Path, *arguments: str, after: str, number: int = signal.SIGINT
) -> tuple[int, str]:
    """Signal a run once it has printed a line that begins so; its exit code and all of its output."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-u",
            "-m",
            "kitchen.cli",
            "run",
            "recipes.mine",
            "--training",
            "fake",
            *arguments,
        ],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(after):
            process.send_signal(number)
            break
    rest = process.stdout.read()
    return process.wait(60), rest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_saved_and_gone_on_with(mine: Path, number: int) -> None:
    code, told = interrupted(mine, after="Minutes step 5/40", number=number)
    assert code == 130, told
    assert "interrupted: stopped at step" in told
    assert "what it had reached is saved" in told
    command = told.split("kitchen resume ")[1].split()
    done = kitchen(mine, "resume", *command, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["stirred"] == 40
    lines = (mine / "runs" / command[0] / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["stirred"] for line in lines] == list(range(1, 41))


def test_without_save_points_an_interrupted_run_says_that_it_begins_again(mine: Path) -> None:
    code, told = interrupted(mine, "save=0", after="Minutes step 5/40")
    assert code == 130, told
    assert "interrupted" in told
    assert "it had not come to a save point, and begins again" in told
    assert "Traceback" not in told


def test_a_run_in_use_is_refused(mine: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "kitchen.cli", "run", "recipes.mine", "--training", "fake"],
        cwd=mine,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        run = process.stdout.readline().split()[1]
        done = kitchen(mine, "resume", run)
        process.send_signal(signal.SIGINT)
    assert done.returncode == 2
    assert f"run '{run}' is in use by process {process.pid}" in done.stderr


def test_output_that_nobody_can_show_does_not_end_a_run(mine: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kitchen.cli", "check", "recipes.mine"],
        cwd=mine,
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"Stir(seconds=0.05)" in done.stdout


def test_a_reader_that_has_seen_enough_is_no_error(mine: Path) -> None:
    command = (
        f"{sys.executable} -m kitchen.cli schema recipes.sl_basic | true; echo ${{PIPESTATUS[0]}}"
    )
    done = subprocess.run(
        ["bash", "-c", command], cwd=mine, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "141")


def test_the_version_is_told(mine: Path) -> None:
    assert kitchen(mine, "--version").stdout.startswith("crucible-kitchen 0.")
