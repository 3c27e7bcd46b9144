"""The command line as a process: its imports, its signals, and recipes in the current folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.commands import kitchen, python_process, shell
from tests.support.imports import HEAVY, imported_by
from tests.support.polling import LineReader

STAGE = '''"""Taste a pot."""
from kitchen import Stage
from tests.support.stew import Pot
class Taste(Stage):
    def run(self, pot: Pot) -> None:
        assert pot.stirred
'''
RECIPE = '''"""Stew."""
from kitchen import Step, sequence
from stages.tasting import Taste
from tests.support.stew import HeldStew
class Stew(HeldStew):
    minutes: int = 40
    def workflow(self) -> Step:
        return sequence(super().workflow(), Taste())
'''
RUN = ("run", "recipes.stew", "--training", "fake", "--name", "mine")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's folder with a recipe and a stage in it."""
    for name, text in (("recipes/stew.py", RECIPE), ("stages/tasting.py", STAGE)):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    return tmp_path


LIGHT = (
    "check recipes.sl_basic",
    "list",
    "describe recipes.sl_basic",
    "runs",
)
FAKE_RUN = (
    "run recipes.sl_basic --training fake reading.limit=40 max_steps=2 evaluation.max_tokens=4"
)


def imported(folder: Path, *commands: str) -> set[str]:
    """Run commands one after the other in a process; return the modules it has then imported."""
    program = f"""
from kitchen.cli import main
for command in {commands!r}:
    sys.argv = ["kitchen", *command.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, command
"""
    return imported_by(program, folder)[1]


def test_help_imports_little(tmp_path: Path) -> None:
    modules = imported(tmp_path, "--help")
    assert "typer" in modules
    assert modules.isdisjoint({*HEAVY, "pydantic", "numpy", "rich.table"})


def test_commands_without_a_model_import_nothing_heavy(tmp_path: Path) -> None:
    assert imported(tmp_path, *LIGHT).isdisjoint(HEAVY)


def test_a_run_on_the_fake_imports_scipy_only(tmp_path: Path) -> None:
    modules = imported(tmp_path, FAKE_RUN)
    assert modules & HEAVY == {"scipy"}, "for the intervals of its evaluation"


def test_custom_recipes_and_stages_run_beside_ours(folder: Path) -> None:
    done = kitchen(folder, *RUN, "hold=-1", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["stirred"] == 40
    assert "step 40/40  loss 0.025  stirred 40" in done.stderr
    assert kitchen(folder, "check", "recipes.sl_basic").returncode == 0


def signalled(
    folder: Path, *arguments: str, number: int = signal.SIGINT, until: str = ""
) -> tuple[int, str]:
    """Signal a run while it is held, and release it; return exit code and output.

    It is released after a line that has `until`.
    """
    command = ("-m", "kitchen.cli", *RUN, *arguments)
    with python_process(folder, *command, stderr=subprocess.STDOUT) as process:
        lines = LineReader(process.stdout)
        lines.wait_for("step 5/40")
        process.send_signal(number)
        if until:
            lines.wait_for(until)
        (folder / "go-mine").touch()
        return process.wait(60), lines.read_all()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_is_saved_and_resumed(folder: Path, number: int) -> None:
    if signal.getsignal(number) == signal.SIG_IGN:
        pytest.skip("ignored here, as under nohup, and so by the run")
    code, output = signalled(folder, number=number, until="Ctrl-C again stops at once")
    assert code == 130, output
    assert "interrupted: stopped at step" in output
    assert "its progress is saved" in output
    assert "kitchen resume mine" in output
    done = kitchen(folder, "resume", "mine", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["metrics"]["stirred"] == 40
    lines = (folder / "runs/mine/metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["stirred"] for line in lines] == list(range(1, 41))


def test_a_second_signal_stops_at_once(folder: Path) -> None:
    with python_process(folder, "-m", "kitchen.cli", *RUN, stderr=subprocess.STDOUT) as process:
        lines = LineReader(process.stdout)
        lines.wait_for("step 5/40")
        process.send_signal(signal.SIGINT)
        lines.wait_for("Ctrl-C again stops at once")
        process.send_signal(signal.SIGINT)
        code, output = process.wait(60), lines.read_all()
    assert code == 130, output
    assert "interrupted: stopped at once" in output
    assert "kitchen resume mine" in output
    assert "exception" not in output


COMPUTING = '''"""A recipe whose threads compute on when it is stopped."""
import asyncio, threading, torch
from kitchen import Recipe, Stage, Step, sequence

def compute() -> None:
    numbers = torch.rand(300, 300)
    while True:
        numbers @ numbers

class Compute(Stage):
    fails: bool
    async def run(self) -> None:
        for _ in range(2):
            threading.Thread(target=compute, daemon=True).start()
        print("computing", flush=True)
        if self.fails:
            raise ValueError("too hot")
        await asyncio.sleep(1000)

class Computing(Recipe):
    fails: bool = False
    def workflow(self) -> Step:
        return sequence(Compute(self.fails))
'''


@pytest.mark.parametrize(("fails", "code"), [(False, 130), (True, 1)])
def test_threads_that_compute_do_not_change_the_exit_code(
    tmp_path: Path, fails: bool, code: int
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/computing.py").write_text(COMPUTING)
    command = ("-m", "kitchen.cli", "run", "recipes.computing", "--training", "fake")
    settings = [f"fails={str(fails).lower()}"]
    with python_process(tmp_path, *command, *settings, stderr=subprocess.STDOUT) as process:
        lines = LineReader(process.stdout)
        lines.wait_for("computing")
        if not fails:
            process.send_signal(signal.SIGINT)
        found, output = process.wait(60), lines.read_all()
    assert found == code, output
    assert "terminate" not in output


def test_without_save_points_a_run_starts_over(folder: Path) -> None:
    code, output = signalled(folder, "save=0")
    assert code == 130, output
    assert "interrupted" in output
    assert "starts over): kitchen resume mine" in output
    assert "Traceback" not in output


def test_a_run_in_use_is_refused(folder: Path) -> None:
    with python_process(folder, "-m", "kitchen.cli", *RUN) as process:
        LineReader(process.stdout).wait_for("run mine")
        done = kitchen(folder, "resume", "mine")
    assert done.returncode == 2
    assert f"run 'mine' is in use by process {process.pid}" in done.stderr


def test_characters_that_cannot_be_shown_are_replaced(folder: Path) -> None:
    environment = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = kitchen(folder, "check", "recipes.stew", **environment)
    assert done.returncode == 0, done.stderr
    assert "Hold(minute=6)" in done.stdout


@pytest.mark.parametrize(
    "command", ["--help", "run --help", "--version", "list", "runs", "schema recipes.sl_basic"]
)
def test_a_reader_that_has_gone_ends_a_listing_quietly(folder: Path, command: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as pipe:
        arguments = [sys.executable, "-m", "kitchen.cli", *command.split()]
        done = subprocess.run(
            arguments, cwd=folder, stdout=pipe, stderr=subprocess.PIPE, check=False, timeout=120
        )
    assert done.stderr == b""
    assert done.returncode == 141


@pytest.mark.parametrize("stream", ["| true", ">&- 2>&- <&-", ">/dev/full 2>/dev/full"])
def test_a_run_goes_on_without_its_streams(folder: Path, stream: str) -> None:
    run = "kitchen run recipes.sl_basic --training fake --name mine"
    settings = "reading.limit=40 max_steps=2 evaluation.max_tokens=4"
    done = shell(folder, f"{run} {settings} {stream}; echo ${{PIPESTATUS[0]}}")
    assert done.stdout.strip() == "0"
    assert json.loads((folder / "runs/mine/run.json").read_bytes())["status"] == "completed"


@pytest.mark.parametrize("command", ["list", "runs", "describe recipes.sl_basic", "--help"])
def test_a_full_disk_is_named_where_output_goes(folder: Path, command: str) -> None:
    done = shell(folder, f"kitchen {command} >/dev/full; echo $?")
    assert done.stdout.strip() == "1"
    assert done.stderr.startswith("error: standard output: No space left on device; ")
    assert len(done.stderr.splitlines()) == 1


def test_a_listing_needs_no_standard_output(folder: Path) -> None:
    done = shell(folder, "kitchen list >&- <&-; echo $?")
    assert done.stderr == ""
    assert done.stdout.strip() == "0"


def test_the_version_is_shown(folder: Path) -> None:
    assert kitchen(folder, "--version").stdout.startswith("crucible-kitchen 0.")
