"""`kitchen watch`: runs and sweeps followed until they end."""

from __future__ import annotations

import io
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

import kitchen
from adapters.local.blobs import LocalBlobs
from kitchen.cli.commands.watch import watch
from kitchen.cli.console import SafeConsole
from kitchen.config.adapter_choice import AdapterChoice
from kitchen.runs.lock import lease
from kitchen.runs.store import read_run, write_run
from recipes.sl_basic import SlBasic
from tests.support.commands import output, python_process
from tests.support.polling import LineReader
from tests.support.soup import SMALL

WATCH = ("-m", "kitchen.cli", "watch")


def terminal(width: int) -> tuple[SafeConsole, io.StringIO]:
    shown = io.StringIO()
    out = SafeConsole(
        file=shown, width=width, height=40, force_terminal=True, markup=False, highlight=False
    )
    return out, shown


def test_a_run_of_another_thread_is_watched_to_its_end(here: Path) -> None:
    recipe = SlBasic.model_validate({"reading": {"limit": 40}, "epochs": 10, "eval_every": 10})
    run = kitchen.submit(recipe, training="fake", blobs=LocalBlobs("runs"), name="basil")
    while not (here / "runs/basil/run.json").exists():  # until there is something to watch
        assert not run.done()
    shown = output(0, "watch", "basil", "--interval", "0.1")
    assert "step 30 of 30  loss " in shown
    assert "tokens/s" in shown
    assert "basil completed after" in shown
    assert run.result(30).run == "basil"


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_shows_curves_log_and_samples(here: Path, width: int) -> None:
    output(0, "run", *SMALL, "--name", "basil")
    with (here / "runs/basil/samples.jsonl").open("a") as samples:
        samples.write('{"n": 99, "stage": "E", "step": 0, "text": "\\u001b[2J\\u202egone"}\n')
    out, shown = terminal(width)
    assert watch("basil", AdapterChoice({}), 0.1, out) == 0
    text = re.sub(r"\x1b\[[0-9?;]*[A-Za-z]", "", shown.getvalue())
    for part in ("basil  ", "step 3 of 3", "100%", "loss ", "grad norm ", "log", "samples"):
        assert part in text, part
    assert "\\x1b[2J\\u202egone" in text  # control characters of a model's text are escaped
    assert max(map(len, text.splitlines())) <= width
    assert "basil completed after" in text


def test_a_terminal_may_be_narrow(here: Path) -> None:
    output(0, "run", *SMALL, "--name", "basil")
    assert watch("basil", AdapterChoice({}), 0.1, terminal(2)[0]) == 0


def test_a_failed_run_gives_its_exit_code_and_reason(soup: Path) -> None:
    output(1, "run", "recipes.soup", "wrong=disk", "--training", "fake", "--name", "burnt")
    shown = output(1, "watch", "burnt")
    assert "burnt failed after" in shown
    assert "No space left on device" in shown


def test_a_sweep_is_watched_as_a_table(here: Path) -> None:
    over = ("--over", "seed=0..1", "--name", "seeds")
    output(0, "sweep", *SMALL, *over)
    assert "2 of 2 points completed" in output(0, "watch", "seeds")
    shutil.rmtree(here / "runs/seeds-2")
    shown = output(1, "watch", "seeds")
    assert "1 of 2 points completed; to run the others: kitchen sweep resume seeds" in shown
    out, table = terminal(80)
    assert watch("seeds", AdapterChoice({}), 0.1, out) == 1
    assert "waiting" in table.getvalue()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_ctrl_c_ends_the_watching_only(here: Path) -> None:
    blobs = LocalBlobs("runs")
    output(0, "run", *SMALL, "--name", "basil")
    write_run(blobs, "basil", {**read_run(blobs, "basil"), "status": "running"})
    before = (here / "runs/basil/run.json").read_bytes()
    with lease(blobs, "basil"), python_process(here, *WATCH, "basil") as watching:
        LineReader(watching.stdout).wait_for("  loss ")
        watching.send_signal(signal.SIGINT)
        shown, errors = watching.communicate()
        assert watching.returncode == 130
    assert "stopped watching; basil is not affected" in shown
    assert not errors
    assert (here / "runs/basil/run.json").read_bytes() == before


def test_an_unknown_name_is_an_error(here: Path) -> None:
    output(0, "run", *SMALL, "--name", "basil")
    assert "did you mean 'basil'?" in output(2, "watch", "basl")
