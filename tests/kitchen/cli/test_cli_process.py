"""The command line as a process: its imports, its signals, and recipes in the current folder."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import kitchen, shell

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
RUN = ("run", "recipes.stew", "--training", "fake")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with a recipe and a stage in it."""
    for name, text in (("recipes/stew.py", RECIPE), ("stages/stirring.py", STAGES)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    return tmp_path


def imported(folder: Path, *arguments: str) -> set[str]:
    """Return the modules that are imported at the end of a command."""
    program = (
        "import atexit, sys; atexit.register(lambda: print('\\n' + ' '.join(sys.modules)));"
        f"sys.argv = ['kitchen', *{arguments!r}]; from kitchen.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True
    )
    return set(done.stdout.splitlines()[-1].split())


def test_help_imports_little(tmp_path: Path) -> None:
    modules = imported(tmp_path, "--help")
    assert "typer" in modules
    assert modules.isdisjoint({*HEAVY, "pydantic", "numpy", "rich.table"})


@pytest.mark.parametrize(
    "command",
    [
        "check recipes.sl_basic",
        "list",
        "describe recipes.sl_basic",
        "runs",
        "run recipes.sl_basic --training fake reading.limit=40 max_steps=2 evaluation.max_tokens=4",
    ],
    ids=lambda command: command.split()[0],
)
def test_commands_without_a_model_import_nothing_heavy(tmp_path: Path, command: str) -> None:
    modules = imported(tmp_path, *command.split())
    assert "pydantic" in modules
    assert modules.isdisjoint(HEAVY)


def test_custom_recipes_and_stages_run_beside_ours(folder: Path) -> None:
    done = kitchen(folder, *RUN, "seconds=0", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["stirred"] == 40
    assert "Minutes step 40/40  stirred 40" in done.stderr
    assert kitchen(folder, "check", "recipes.sl_basic").returncode == 0


def signalled(
    folder: Path, *arguments: str, after: str, number: int = signal.SIGINT
) -> tuple[int, str]:
    """Signal a run once it prints a line that starts with `after`; return exit code and output."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "kitchen.cli", *RUN, *arguments],
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
    output = process.stdout.read()
    return process.wait(60), output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_saved_and_resumed(folder: Path, number: int) -> None:
    code, output = signalled(folder, after="Minutes step 5/40", number=number)
    assert code == 130, output
    assert "interrupted: stopped at step" in output
    assert "its progress is saved" in output
    command = output.split("kitchen resume ")[1].split()
    done = kitchen(folder, "resume", *command, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["stirred"] == 40
    lines = (folder / "runs" / command[0] / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["stirred"] for line in lines] == list(range(1, 41))


def test_without_save_points_a_run_starts_over(folder: Path) -> None:
    code, output = signalled(folder, "save=0", after="Minutes step 5/40")
    assert code == 130, output
    assert "interrupted" in output
    assert "starts over): kitchen resume stew-" in output
    assert "Traceback" not in output


def test_a_run_in_use_is_refused(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "kitchen.cli", *RUN], cwd=folder, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        run = process.stdout.readline().split()[1]
        done = kitchen(folder, "resume", run)
        process.send_signal(signal.SIGINT)
    assert done.returncode == 2
    assert f"run '{run}' is in use by process {process.pid}" in done.stderr


def test_characters_that_cannot_be_shown_are_replaced(folder: Path) -> None:
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = kitchen(folder, "check", "recipes.stew", **environment)
    assert done.returncode == 0, done.stderr
    assert "Stir(seconds=0.05)" in done.stdout


def test_a_closed_pipe_is_not_an_error(folder: Path) -> None:
    done = shell(folder, "kitchen schema recipes.sl_basic | true; echo ${PIPESTATUS[0]}")
    assert done.stderr == ""
    assert done.stdout.strip() in ("0", "141")


def test_the_version_is_shown(folder: Path) -> None:
    assert kitchen(folder, "--version").stdout.startswith("crucible-kitchen 0.")
