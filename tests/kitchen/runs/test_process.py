"""Runs in scripts of their own: Ctrl-C, the end of the process, and traces."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kitchen
from kitchen import ResumeError

pytestmark = pytest.mark.usefixtures("here")

SCRIPT = """
import asyncio, sys, threading, time
from collections.abc import Iterable
from dataclasses import dataclass
import kitchen
from kitchen import Metrics, Recipe, Stage, Step, for_each, sequence

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
    def run(self) -> Iterable[Minute]:
        return [Minute(number) for number in range(20)]

class Stir(Stage):
    def run(self, pot: Pot, minute: Minute) -> tuple[Pot, Metrics]:
        time.sleep(0.05)
        return Pot(pot.stirred + 1), Metrics(stirred=pot.stirred + 1.0)

class Simmer(Stage):
    seconds: float
    async def run(self, minute: Minute) -> None:
        await asyncio.sleep(self.seconds if minute.number == 4 else 0)

class Stew(Recipe):
    seconds: float = 0.0
    def workflow(self) -> Step:
        return sequence(Fill(), for_each(Minutes(), save=2)(Stir(), Simmer(self.seconds)))

def show(event: kitchen.Event) -> None:
    # in one piece, for several runs print at the same time
    print(f"{event.run} {event.step}\\n", end="", flush=True)
"""


def started(here: Path, last: str) -> subprocess.Popen[str]:
    """Start a script, and wait until its run has reached step 5."""
    (here / "script.py").write_text(SCRIPT + last)
    process = subprocess.Popen(
        [sys.executable, "script.py"],
        cwd=here,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert any(line.endswith(" 5\n") for line in process.stdout), process.communicate(timeout=60)[1]
    return process


def stirred(here: Path) -> list[float]:
    return [
        json.loads(line)["stirred"]
        for line in (here / "runs/mine/metrics.jsonl").read_text().splitlines()
    ]


def status(here: Path) -> str:
    found: str = json.loads((here / "runs/mine/run.json").read_text())["status"]
    return found


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_ctrl_c_saves_and_the_script_can_resume(here: Path, number: int) -> None:
    process = started(here, "kitchen.run(Stew(), training='fake', name='mine', on_progress=show)")
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, errors
    found = re.search(
        r"KeyboardInterrupt: stopped at step (\d+), and saved; .*kitchen\.resume\('mine'\)", errors
    )
    assert found, errors
    assert status(here) == "interrupted"
    assert stirred(here) == list(range(1, int(found[1]) + 1))
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
    process = started(here, SEVERAL.format(call="submit") + last)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, errors
    for name in ("mine", "other"):
        assert json.loads((here / f"runs/{name}/run.json").read_text())["reason"].startswith(
            "Interrupted: stopped at"
        )


@pytest.mark.slow
def test_ctrl_c_does_not_reach_runs_in_a_thread_pool(here: Path) -> None:
    process = started(
        here,
        "from concurrent.futures import ThreadPoolExecutor\n"
        + SEVERAL.format(call="run")
        + """
with ThreadPoolExecutor(2) as pool:
    list(pool.map(cook, ["mine", "other"]))
""",
    )
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, errors
    assert stirred(here) == list(range(1, 21))


def test_second_ctrl_c_stops_at_once(here: Path) -> None:
    process = started(
        here, "kitchen.run(Stew(seconds=600), training='fake', name='mine', on_progress=show)"
    )
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert any("Ctrl-C again stops at once" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == -signal.SIGINT
    assert status(here) == "interrupted"


def test_ctrl_c_in_result_ends_only_the_wait(here: Path) -> None:
    process = started(
        here,
        """
run = kitchen.submit(Stew(), training='fake', name='mine', on_progress=show)
try:
    run.result()
except KeyboardInterrupt:
    print("state", run.status().state, flush=True)
run.result()
""",
    )
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    assert "state running" in out
    assert stirred(here) == list(range(1, 21))


@pytest.mark.parametrize(
    "last, code", [pytest.param("", 0, marks=pytest.mark.slow), ("sys.exit(3)", 3)]
)
def test_exit_of_the_process_saves_the_run(here: Path, last: str, code: int) -> None:
    process = started(
        here,
        f"""
reached = threading.Event()

def listen(event):
    show(event)
    if event.step == 5:
        reached.set()

kitchen.submit(Stew(), training='fake', name='mine', on_progress=listen)
reached.wait()
{last}
""",
    )
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert "the process ends before the run" in errors
    assert "Traceback" not in errors
    assert status(here) == "interrupted"
    before = stirred(here)
    assert 5 <= len(before) < 20
    assert list((here / "runs/mine/save").glob("*.json"))


LOCAL = """
import sys, threading, time
import kitchen
from tests.support.tiny_model import tiny_model
from pathlib import Path

reached = threading.Event()

def listen(event: kitchen.Event) -> None:
    if event.step >= 3 and sys.argv[1] == "stopped":
        reached.set()
        time.sleep(0.2)  # else a tiny model's run is over before the process is

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
    stopped, alone = (
        subprocess.run(
            [sys.executable, "local.py", name],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        for name in ("stopped", "alone")
    )
    assert (stopped.returncode, alone.returncode) == (0, 0), stopped.stderr + alone.stderr
    assert "the process ends before the run" in stopped.stderr
    for word in ("Traceback", "terminate called", "Fatal"):
        assert word not in stopped.stderr
    assert json.loads((here / "runs/stopped/run.json").read_text())["reason"].startswith(
        "Interrupted: stopped at step"
    )
    code = "import kitchen; print(kitchen.resume('stopped').result().checkpoint.sha256)"
    again = subprocess.run(
        [sys.executable, "-c", code],
        cwd=here,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert again.stdout == alone.stdout


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
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=here,
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    spans = json.loads(done.stdout.splitlines()[-1])
    trees = {tree: {recipe for _, other, recipe in spans if other == tree} for _, tree, _ in spans}
    assert len(trees) == 2
    assert {None, "__main__"} in trees.values(), "one is inside of the span of the caller"
    assert {"recipes.sl_basic"} in trees.values()
