"""Runs in a notebook: a real kernel, with its event loop, executes cells of tests and docs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

PAGE = Path(__file__).parents[2] / "docs/python-api.md"
CELLS = [
    """
import asyncio
import kitchen
from recipes.sl_basic import SlBasic

asyncio.get_running_loop()
small = {"dataset": "greetings", "batch_size": 4, "evaluation.max_tokens": 4}
fakes = {"training": "fake", "datasets": "fake"}
""",
    """
class Mine(SlBasic):
    seed: int = 7

events = []
run = kitchen.submit(Mine, settings=small, **fakes, on_progress=events.append)
print(run.status().state in ("running", "completed"), run.id.split("-")[0])
""",
    """
awaited, waited = await run, run.result()
print(awaited == waited, run.status().state, [event.kind for event in events][::len(events) - 1])
""",
    """
runs = [kitchen.submit(Mine, settings={**small, "seed": seed}, **fakes) for seed in (7, 8)]
both = await asyncio.gather(*runs)
blocking = kitchen.run(Mine, settings=small, **fakes)
print(both[0].metrics == blocking.metrics == waited.metrics, both[0].loss != both[1].loss)
""",
    """
stopped = kitchen.submit(Mine, settings={**small, "save_every": 2}, **fakes, name="stopped")
stopped.cancel()
try:
    await stopped
except kitchen.errors.Interrupted as error:
    print(error.__notes__[0])
again = await kitchen.resume("stopped")
print(stopped.status().state, again.metrics == waited.metrics)
""",
]


def outputs(source: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Execute cells, and return the outputs of each; raises if a cell does."""
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(folder / "jupyter"))
    new: Any = nbformat.v4
    notebook = new.new_notebook(cells=[new.new_code_cell(cell) for cell in source])
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=where).execute()
    return [cell.outputs for cell in notebook.cells]


def printed(source: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Execute cells, and return what each prints to standard output."""
    return [stdout(cell) for cell in outputs(source, folder, monkeypatch)]


def stdout(cell: list[Any]) -> str:
    return "".join(output.text for output in cell if output.get("name") == "stdout")


@pytest.mark.slow
def test_notebook_submits_awaits_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert printed(CELLS, tmp_path, monkeypatch) == [
        "",
        "True mine\n",
        "True completed ['start', 'complete']\n",
        "True True\n",
        "to resume: kitchen.resume('stopped')\ninterrupted True\n",
    ]


INTERRUPTED = [
    """
import os, signal, threading
import kitchen
from kitchen.backend.logs import copy_log_to

stopping = threading.Event()

def press_stop(event):
    if event.step == 5 and not stopping.is_set():
        os.kill(os.getpid(), signal.SIGINT)  # as the stop button of a notebook does
        stopping.wait(60)

def watch(entry):
    if entry["event"].startswith("stopping"):
        stopping.set()
""",
    """
small = {"dataset": "greetings", "batch_size": 2, "evaluation.max_tokens": 4}
try:
    with copy_log_to(watch):
        kitchen.run("recipes.sl_basic", settings=small, training="fake", datasets="fake",
                    name="mine", on_progress=press_stop)
except KeyboardInterrupt as stopped:
    print(stopped)
""",
    """
print((await kitchen.resume("mine")).checkpoint.step)
""",
]


def test_stop_button_of_a_notebook_saves_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, interrupted, resumed = outputs(INTERRUPTED, tmp_path, monkeypatch)
    stopped, step = stdout(interrupted), stdout(resumed)
    assert re.match(
        r"stopped at step \d+, and saved; to resume: kitchen\.resume\('mine'\)\n", stopped
    )
    assert step == "30\n"
    (progress,) = [output.data for output in interrupted if output.output_type == "display_data"]
    assert re.match(
        r"run mine  interrupted  epoch 1  step \d+ of 30  loss [\d.]+  ", progress["text/plain"]
    )
    assert progress["text/html"].startswith('<progress max="1" value="0.')


@pytest.mark.slow
def test_examples_of_the_python_api_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = re.findall(
        r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", PAGE.read_text(), re.DOTALL
    )
    assert len(blocks) > 5
    assert printed([code for code, _ in blocks], tmp_path, monkeypatch) == [
        text for _, text in blocks
    ]
