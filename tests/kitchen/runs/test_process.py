"""Runs in scripts of their own: Ctrl-C, the end of the process, and traces."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import kitchen
from kitchen import ResumeError
from tests.support.commands import python_process
from tests.support.polling import LineReader

pytestmark = pytest.mark.usefixtures("here")

STOPPING = "Ctrl-C again stops at once"
ENDING = "the process ends before the run"
# every run is held in its sixth step until the folder has a file go-NAME
SCRIPT = """
import sys, threading
import kitchen
from tests.support.stew import HeldStew

class Stew(HeldStew):
    save: int = 2
    hold: int = 5

def show(event: kitchen.Event) -> None:
    # in one piece, for several runs print at the same time
    print(f"{event.run} {event.step}\\n", end="", flush=True)
"""


@contextmanager
def script(here: Path, last: str) -> Iterator[tuple[subprocess.Popen[str], LineReader, LineReader]]:
    """Start a script and wait until run `mine` has finished step 5; yield it and its streams."""
    (here / "script.py").write_text(SCRIPT + last)
    with python_process(here, "script.py") as process:
        out = LineReader(process.stdout)
        errors = LineReader(process.stderr)
        out.wait_for("mine 5")
        yield process, out, errors


def release(here: Path, run: str = "mine") -> None:
    """Let a held run continue."""
    (here / f"go-{run}").touch()


def stirred(here: Path) -> list[float]:
    return [
        json.loads(line)["stirred"]
        for line in (here / "runs/mine/metrics.jsonl").read_text().splitlines()
    ]


def status(here: Path, run: str = "mine") -> str:
    return str(json.loads((here / f"runs/{run}/run.json").read_text())["status"])


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_ctrl_c_saves_and_the_script_can_resume(here: Path, number: int) -> None:
    last = "kitchen.run(Stew(), training='fake', name='mine', on_progress=show)"
    with script(here, last) as (process, _, errors):
        process.send_signal(number)
        errors.wait_for(STOPPING)
        release(here)
        assert process.wait(60) == -signal.SIGINT
        text = errors.read_all()
    interrupt = re.search(
        r"KeyboardInterrupt: stopped at step (\d+), and saved; .*kitchen\.resume\('mine'\)", text
    )
    assert interrupt, text
    assert status(here) == "interrupted"
    assert stirred(here) == list(range(1, int(interrupt[1]) + 1))
    with pytest.raises(
        ResumeError,
        match=r"run 'mine', __main__:Stew, was defined in a notebook",
    ):
        kitchen.resume("mine")
    (here / "again.py").write_text(SCRIPT + "kitchen.resume('mine').finish()")
    subprocess.run([sys.executable, "again.py"], cwd=here, check=True, timeout=60)
    assert stirred(here) == list(range(1, 21))


SEVERAL = """
def cook(name, **how):
    return kitchen.{call}(Stew(), training='fake', name=name, on_progress=show, **how)
"""


def test_ctrl_c_saves_all_submitted_runs(here: Path) -> None:
    last = "runs = [cook('mine'), cook('other')]\n[run.finish() for run in runs]"
    with script(here, SEVERAL.format(call="submit") + last) as (process, _, errors):
        process.send_signal(signal.SIGINT)
        errors.wait_for(STOPPING)
        release(here)
        errors.wait_for(ENDING)
        release(here, "other")
        assert process.wait(60) == -signal.SIGINT
    for name in ("mine", "other"):
        assert json.loads((here / f"runs/{name}/run.json").read_text())["reason"].startswith(
            "Interrupted: stopped at"
        )


@pytest.mark.slow
def test_ctrl_c_does_not_reach_runs_in_a_thread_pool(here: Path) -> None:
    last = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(2) as pool:
    try:
        list(pool.map(cook, ["mine", "other"]))
    except KeyboardInterrupt:
        print("interrupted\\n", end="", flush=True)
        raise
"""
    with script(here, SEVERAL.format(call="run") + last) as (process, out, _):
        process.send_signal(signal.SIGINT)
        out.wait_for("interrupted")
        release(here)
        release(here, "other")
        assert process.wait(60) == -signal.SIGINT
    assert stirred(here) == list(range(1, 21))


def test_second_ctrl_c_stops_at_once(here: Path) -> None:
    last = "kitchen.run(Stew(), training='fake', name='mine', on_progress=show)"
    with script(here, last) as (process, _, errors):
        process.send_signal(signal.SIGINT)
        errors.wait_for(STOPPING)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
    assert status(here) == "interrupted"


def test_ctrl_c_in_result_ends_only_the_wait(here: Path) -> None:
    last = """
run = kitchen.submit(Stew(), training='fake', name='mine', on_progress=show)
try:
    run.result()
except KeyboardInterrupt:
    print(f"state {run.status().state}\\n", end="", flush=True)
run.result()
"""
    with script(here, last) as (process, out, errors):
        process.send_signal(signal.SIGINT)
        out.wait_for("state running")
        release(here)
        assert process.wait(60) == 0, errors.read_all()
    assert stirred(here) == list(range(1, 21))


@pytest.mark.parametrize(
    "last, code", [pytest.param("", 0, marks=pytest.mark.slow), ("sys.exit(3)", 3)]
)
def test_exit_of_the_process_saves_the_run(here: Path, last: str, code: int) -> None:
    lines = f"""
reached = threading.Event()

def listen(event):
    show(event)
    if event.step == 5:
        reached.set()

kitchen.submit(Stew(), training='fake', name='mine', on_progress=listen)
reached.wait()
{last}
"""
    with script(here, lines) as (process, _, errors):
        errors.wait_for(ENDING)
        release(here)
        assert process.wait(60) == code
        assert "Traceback" not in errors.read_all()
    assert status(here) == "interrupted"
    assert stirred(here) == list(range(1, 7))
    assert list((here / "runs/mine/save").glob("*.json"))


LOCAL = """
import sys, threading
import kitchen
from tests.support.polling import wait_until
from tests.support.tiny_model import tiny_model
from pathlib import Path

reached = threading.Event()

def listen(event: kitchen.Event) -> None:
    if event.step == 3 and sys.argv[1] == "stopped":
        reached.set()
        wait_until(Path("go-stopped").exists)

if __name__ == "__main__":
    model = f"path:{tiny_model(Path('model').absolute())}"
    settings = {"model": model, "dataset": "greetings", "batch_size": 4, "save_every": 2,
                "rendering.max_tokens": 128, "evaluation.max_tokens": 4}
    run = kitchen.submit("recipes.sl_basic", settings=settings, training="peft", datasets="fake",
                         adapter_settings={"training": {"device": "cpu"}}, name=sys.argv[1],
                         on_progress=listen)
    if sys.argv[1] == "stopped":
        reached.wait()
        sys.exit()
    print(run.result().checkpoint.sha256)
"""


@pytest.mark.slow
def test_local_training_saved_at_exit_resumes_bit_equal(here: Path) -> None:
    (here / "local.py").write_text(LOCAL)
    with python_process(here, "local.py", "stopped") as process:
        errors = LineReader(process.stderr)
        errors.wait_for(ENDING)
        release(here, "stopped")
        code = process.wait(300)
        text = errors.read_all()
    assert code == 0, text
    for word in ("Traceback", "terminate called", "Fatal"):
        assert word not in text
    assert json.loads((here / "runs/stopped/run.json").read_text())["reason"].startswith(
        "Interrupted: stopped at step"
    )
    program = "import kitchen; print(kitchen.resume('stopped').result().checkpoint.sha256)"
    resumed = printed(here, "-c", program)
    assert resumed == printed(here, "local.py", "alone")


def printed(here: Path, *arguments: str) -> str:
    """Return what a Python program prints; it must succeed."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=here,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout


TRACED = """
import json
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
with trace.get_tracer("mine").start_as_current_span("outer"):
    inside = kitchen.submit(Stew(), training="fake", name="inside")
beside = kitchen.submit("recipes.sl_basic", training="fake", datasets="fake", name="beside",
                        settings={"dataset": "greetings", "evaluation.max_tokens": 4})
inside.result(), beside.result()
print(json.dumps([[s.name, s.context.trace_id, s.attributes.get("kitchen.recipe")]
                  for s in exporter.get_finished_spans()]))
"""


def test_spans_of_concurrent_runs_are_separate_trees(here: Path) -> None:
    (here / "script.py").write_text(SCRIPT + TRACED)
    release(here, "inside")
    spans = json.loads(printed(here, "script.py").splitlines()[-1])
    trees: dict[int, set[str | None]] = {}
    for _, tree, recipe in spans:
        trees.setdefault(tree, set()).add(recipe)
    assert len(trees) == 2
    assert {None, "__main__"} in trees.values(), "one is inside of the span of the caller"
    assert {"recipes.sl_basic"} in trees.values()
