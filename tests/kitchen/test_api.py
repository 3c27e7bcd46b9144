"""Runs from Python: asked, listened to, waited for, stopped and gone on with, several at once and
from any thread.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import kitchen
from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import (
    Event,
    Metrics,
    Outcome,
    Recipe,
    ResumeError,
    Run,
    Stage,
    Step,
    for_each,
    sequence,
)
from kitchen.cli import app
from kitchen.config.request import Problems
from kitchen.errors import ApiError, ConfigError, Interrupted, RunFailed
from kitchen.runs.store import read_run
from recipes.sl_basic import SlBasic

SMALL = {
    "dataset": "greetings",
    "batch_size": 4,
    "evaluation": {"max_tokens": 4},
    "save_every": 4,
    "warmup_steps": 0,
}
GREETINGS: dict[str, Any] = {"settings": SMALL, "training": "fake", "datasets": "fake"}


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
    def run(self, pot: Pot, minute: Minute) -> tuple[Pot, Metrics]:
        return Pot(pot.stirred + 1), Metrics(stirred=pot.stirred + 1.0, loss=1 / (pot.stirred + 1))


class Taste(Stage):
    def run(self, pot: Pot) -> None:
        assert pot.stirred


class Simmer(Stage):
    seconds: float

    async def run(self) -> Metrics:
        await asyncio.sleep(self.seconds)
        return Metrics(simmered=self.seconds)


class Spoil(Stage):
    how: str

    def run(self) -> Metrics:
        if self.how == "api":
            raise ApiError("the server refused", status=503, body='{"error": "busy"}')
        raise ZeroDivisionError("no salt left" if self.how == "salt" else self.how)


class Stew(Recipe):
    minutes: int = 10
    save: int = 3
    simmer: float = 0.0
    spoil: str = ""

    def workflow(self) -> Step:
        steps = (
            Fill(),
            for_each(Minutes(self.minutes), save=self.save)(Stir(), Taste()),
            Simmer(self.simmer),
        )
        return sequence(*steps, Spoil(self.spoil)) if self.spoil else sequence(*steps)


class Gate:
    """A listener that holds a run at a step until it is opened."""

    def __init__(self, step: int = 0) -> None:
        self.step, self.reached, self.open = step, threading.Event(), threading.Event()

    def __call__(self, event: Event) -> None:
        if event.step == self.step:
            self.reached.set()
            assert self.open.wait(60)


def cancelled_at(step: int, recipe: Any, *, at_once: bool = False, **asked: Any) -> Run:
    """A run that is asked to stop by the first event of a step."""
    runs: list[Run] = []
    known = threading.Event()

    def listen(event: Event) -> None:
        if event.step == step and known.wait(60):
            runs[0].cancel(at_once=at_once)

    runs.append(kitchen.submit(recipe, on_progress=listen, **asked))
    known.set()
    return runs[0]


def rows(outcome: Outcome, name: str = "metrics") -> list[dict[str, Any]]:
    """Lines of the record, without what clocks say."""
    lines = Path(outcome.where, f"{name}.jsonl").read_text().splitlines()
    return [
        {
            key: value
            for key, value in json.loads(line).items()
            if key not in ("seconds", "timestamp")
        }
        for line in lines
    ]


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

def tell(event: kitchen.Event) -> None:
    print(f"{event.run} {event.step}\\n", end="", flush=True)  # one piece, for several runs tell at the same time
"""


def started(here: Path, last: str) -> subprocess.Popen[str]:
    """A script that has come to step 5 of a run."""
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


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_recipe_as_name_class_or_instance_comes_to_the_same() -> None:
    by_name = kitchen.run("recipes.sl_basic", **GREETINGS)
    by_class = kitchen.run(
        SlBasic, **{**GREETINGS, "settings": {**SMALL, "evaluation.max_tokens": 4}}
    )
    made = SlBasic.model_validate(SMALL)
    by_instance = kitchen.run(made, training="fake", datasets="fake", runs="elsewhere", name="mine")
    assert rows(by_name) == rows(by_class) == rows(by_instance)
    assert by_name.metrics["loss"] == by_name.loss is not None
    assert by_instance.where.endswith("/elsewhere/mine")
    assert by_instance.checkpoint is not None
    assert (Path(by_instance.where).parent / by_instance.checkpoint.path).exists()
    sources = json.loads(Path(by_instance.where, "run.json").read_text())["order"]["sources"]
    assert (sources["batch_size"], sources["seed"]) == ("recipe", "default")


def test_everything_wrong_is_raised_at_once_and_nothing_starts(here: Path) -> None:
    with pytest.raises(Problems) as found:
        kitchen.submit(
            "recipes.sl_basic",
            settings={"max_step": 1, "rendering": {"max_token": 2}, "batch_size": 0},
            training="fak",
            adapter_settings={"hubb": {}},
        )
    assert str(found.value).splitlines() == [
        "settings: recipes.sl_basic has no setting 'max_step'; did you mean 'max_steps' or "
        "'warmup_steps'?",
        "settings: recipes.sl_basic has no setting 'rendering.max_token'; did you mean "
        "'max_tokens'?",
        "settings: batch_size=0: input should be greater than 0",
        "there is no training adapter 'fak'; did you mean 'fake'?",
        "adapter_settings: there is no port 'hubb'; did you mean 'hub'?",
    ]
    assert found.value.exit_code == 2
    with pytest.raises(ConfigError, match=r"did you mean 'recipes\.sl_basic'"):
        kitchen.submit("recipes.sl_basik")
    with pytest.raises(ConfigError, match="Recipe is not a recipe"):
        kitchen.submit(Recipe, training="fake")
    with pytest.raises(Problems, match=r"data set 'nowhere' is unknown"):
        kitchen.submit(SlBasic(dataset="nowhere"), training="fake", datasets="fake")
    with pytest.raises(
        Problems, match=r"the recipe is an instance already.*or pass the class SlBasic"
    ):
        kitchen.submit(SlBasic(), settings={"seed": 1}, training="fake")
    with pytest.raises(Problems, match="the blobs adapter is an object that is set up already"):
        kitchen.submit(SlBasic, training="fake", blobs=FakeBlobs(), runs="elsewhere")
    assert not (here / "runs").exists()


def test_a_name_that_is_taken_is_refused() -> None:
    kitchen.run(Stew, training="fake", name="mine")
    with pytest.raises(Problems, match="there is a run 'mine' already"):
        kitchen.submit(Stew, training="fake", name="mine")


def test_adapters_can_be_objects_and_named_ones_are_given_them() -> None:
    blobs, data = FakeBlobs(), FakeDatasets()
    outcome = kitchen.run(SlBasic, settings=SMALL, training="fake", datasets=data, blobs=blobs)
    assert outcome.checkpoint is not None
    assert blobs.list(outcome.checkpoint.path), "the training adapter keeps its weights there too"
    adapters = read_run(blobs, outcome.run)["order"]["adapters"]
    assert adapters["blobs"] == "adapters.fake.blobs:FakeBlobs"
    assert kitchen.resume(outcome.run, blobs=blobs).result() == outcome, (
        "it is completed: nothing is done again"
    )


def test_an_object_that_was_set_up_is_asked_for_again_and_never_built_by_name() -> None:
    chats = FakeDatasets({"greetings": {"train": [{"prompt": "hi", "completion": "ho"}] * 20}})
    run = cancelled_at(2, SlBasic, settings=SMALL, training="fake", datasets=chats, name="mine")
    with pytest.raises(Interrupted) as stopped:
        run.result()
    assert stopped.value.__notes__[-1] == "to resume: kitchen.resume('mine', datasets=...)"
    why = r"run 'mine': the datasets adapter was an object of adapters\.fake\.datasets:FakeDatasets, and the"
    with pytest.raises(
        Problems,
        match=rf"{why} arguments that it was built with are not recorded; pass the object again, datasets=\.\.\.",
    ):
        kitchen.resume("mine")
    told = CliRunner().invoke(app, ["resume", "mine"])
    assert told.exit_code == 2
    assert re.search(
        rf"{why}.*go on with it in Python, kitchen\.resume\('mine', datasets=\.\.\.\)", told.output
    )
    assert kitchen.resume("mine", datasets=chats).result().loss is not None


class Plain(FakeDatasets):
    """It takes no settings, so that a name says all of it."""

    def __init__(self) -> None:
        super().__init__()


def test_an_object_that_takes_nothing_is_built_again() -> None:
    run = cancelled_at(2, SlBasic, settings=SMALL, training="fake", datasets=Plain())
    with pytest.raises(Interrupted):
        run.result()
    assert kitchen.resume(run.id).result().loss is not None


@pytest.mark.parametrize(
    "asked, note",
    [
        (
            {"adapter_settings": {"blobs": {"root": "there"}}},
            "kitchen.resume('mine', runs='there')",
        ),
        (
            {"runs": "there", "blobs": "local"},
            "kitchen.resume('mine', runs='there', blobs='local')",
        ),
        ({"blobs": FakeBlobs()}, "kitchen.resume('mine', blobs=...)"),
        ({"blobs": "fake"}, None),
        ({"runs": "memory://me:hunter22@there"}, None),
    ],
)
def test_the_way_on_is_one_that_leads_there(asked: dict[str, Any], note: str | None) -> None:
    run = kitchen.submit(Stew(spoil="salt"), training="fake", name="mine", **asked)
    with pytest.raises(RunFailed) as error:
        run.result()
    assert error.value.__notes__[1:] == ([f"to resume: {note}"] if note else [])
    if note and "..." not in note:
        with pytest.raises(RunFailed, match="no salt left"):
            eval(note, {"kitchen": kitchen}).result()


def test_errors_show_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "s3cr3t-s3cr3t")
    with pytest.raises(RunFailed) as failed:
        kitchen.submit(Stew(spoil="s3cr3t-s3cr3t"), training="fake", blobs=FakeBlobs()).result()
    assert "s3cr3t" not in "".join(traceback.format_exception(failed.value)).replace(
        'spoil="s3cr3t-s3cr3t"', ""
    )
    with pytest.raises(ConfigError) as refused:
        kitchen.resume("s3://me:s3cr3t@host/mine")
    assert "s3cr3t" not in str(refused.value)
    with pytest.raises(Problems) as problems:
        kitchen.submit(Stew, training="s3cr3t-s3cr3t")
    assert "s3cr3t" not in str(problems.value) + str(problems.value.problems)


def test_a_run_that_another_host_may_be_at_is_gone_on_with_if_told(here: Path) -> None:
    with pytest.raises(RunFailed):
        kitchen.run(Stew(spoil="salt"), training="fake", name="mine")
    (here / "runs/mine/lease").mkdir(exist_ok=True)
    (here / "runs/mine/lease/a.json").write_text(
        json.dumps({"host": "elsewhere", "pid": 1, "born": "2"})
    )
    with pytest.raises(ConfigError, match=r"in use by process 1 on elsewhere") as error:
        kitchen.resume("mine").result()
    assert error.value.__notes__ == [
        "to resume nevertheless: kitchen.resume('mine', take_over=True)"
    ]
    with pytest.raises(RunFailed, match="no salt left"):
        kitchen.resume("mine", take_over=True).result()


@pytest.mark.parametrize(
    "columns",
    [
        {"reading": {"columns": {"meta.q": "prompt"}}},
        {"reading.columns": {"meta.q": "prompt"}},
        {"reading.columns.meta.q": "prompt"},
    ],
)
def test_a_column_may_have_a_dot_in_its_name(columns: dict[str, Any]) -> None:
    rows = FakeDatasets(
        {"menu": {"train": [{"meta.q": f"{number}?", "completion": "ho"} for number in range(20)]}}
    )
    settings = {**SMALL, "dataset": "menu", "max_steps": 1, **columns}
    outcome = kitchen.run(
        SlBasic, settings=settings, training="fake", datasets=rows, blobs=(blobs := FakeBlobs())
    )
    assert read_run(blobs, outcome.run)["order"]["settings"]["reading"]["columns"] == {
        "meta.q": "prompt"
    }


def test_events_are_counted_and_come_in_order() -> None:
    events: list[Event] = []
    run = kitchen.submit(SlBasic, **GREETINGS, on_progress=events.append)
    outcome = run.result()
    assert [event.kind for event in events] == [
        "start",
        *["progress"] * len(rows(outcome)),
        "complete",
    ]
    steps = [event for event in events if "grad_norm" in event.metrics and event.kind == "progress"]
    assert [event.step for event in steps] == list(range(1, 16))
    assert {event.epoch for event in steps} == {1}
    assert [event.loss for event in steps] == [
        row["loss"] for row in rows(outcome) if "grad_norm" in row
    ]
    assert events[-1].metrics == outcome.metrics
    assert {event.run for event in events} == {run.id}
    late: list[Event] = []
    run.on_progress(late.append)
    assert late == [events[0], events[-1]]


def test_a_late_listener_that_waits_does_not_hold_the_run() -> None:
    gate, heard = Gate(4), list[str]()
    run = kitchen.submit(Stew, training="fake", on_progress=gate)
    assert gate.reached.wait(60)

    def late(event: Event) -> None:
        heard.append(event.kind)
        if event.kind == "start":
            gate.open.set()
            assert run.result(60).metrics["stirred"] == 10

    run.on_progress(late)
    assert heard == ["start", "complete"]


def test_a_run_gone_on_with_tells_the_numbers_of_all_attempts() -> None:
    run = cancelled_at(9, SlBasic, **GREETINGS, name="mine")
    with pytest.raises(Interrupted):
        run.result()
    for _ in range(2):  # the second time it is completed: nothing is done again
        events: list[Event] = []
        again = kitchen.resume("mine", on_progress=events.append)
        outcome = again.result()
        assert [events[0].kind, events[-1].kind] == ["start", "complete"]
        assert events[-1].metrics == outcome.metrics
        assert outcome.metrics["data/rows"] > 0, "published in the first attempt alone"
        assert (again.status().loss, again.status().done) == (outcome.loss, 1.0)
    assert len(events) == 2


def test_status_tells_where_a_run_stands() -> None:
    gate = Gate(4)
    run = kitchen.submit(Stew, training="fake", on_progress=gate)
    assert gate.reached.wait(60)
    now = run.status()
    assert (now.state, now.step, now.steps, now.loss, now.done, now.epoch) == (
        "running",
        4,
        10,
        0.25,
        0.4,
        None,
    )
    assert now.stage == "Stir", "the last that began"
    assert not run.done()
    gate.open.set()
    run.result()
    after = run.status()
    assert (after.state, after.step, after.done) == ("completed", 10, pytest.approx(1))
    assert after == run.status(), "its clock stands still"
    assert run.done()


def test_a_result_that_does_not_come_in_time_leaves_the_run_going() -> None:
    gate = Gate(4)
    run = kitchen.submit(Stew, training="fake", on_progress=gate)
    with pytest.raises(TimeoutError, match=f"run '{run.id}' is not over after 0.05 s"):
        run.result(timeout=0.05)
    assert run.status().state == "running"
    gate.open.set()
    assert run.result(timeout=60).metrics["stirred"] == 10


def test_a_run_is_awaited_in_an_event_loop_and_giving_up_leaves_it_going() -> None:
    async def wait() -> Outcome:
        gate = Gate(4)
        run = kitchen.submit(Stew, training="fake", on_progress=gate)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run, 0.05)
        gate.open.set()
        return await run

    assert asyncio.run(wait()).metrics["stirred"] == 10


def test_a_kitchen_in_an_event_loop_says_what_to_call() -> None:
    async def cook() -> None:
        kitchen.Kitchen(FakeTraining(), FakeDatasets(), None, FakeBlobs()).cook(Stew())

    with pytest.raises(
        ConfigError, match=r"an event loop is running here.*kitchen\.run or kitchen\.submit"
    ):
        asyncio.run(cook())


def test_a_run_does_not_wait_for_itself() -> None:
    runs: list[Run] = []
    known = threading.Event()
    runs.append(
        kitchen.submit(
            Stew, training="fake", on_progress=lambda event: known.wait(60) and runs[0].result()
        )
    )
    known.set()
    with pytest.raises(ConfigError, match="would wait for itself"):
        runs[0].result()


def test_a_stage_that_fails_keeps_its_error_place_and_way_on() -> None:
    run = kitchen.submit(Stew(spoil="salt"), training="fake")
    with pytest.raises(RunFailed) as error:
        run.result()
    assert str(error.value) == "ZeroDivisionError: no salt left"
    assert isinstance(error.value.__cause__, ZeroDivisionError)
    assert error.value.exit_code == 1
    assert error.value.__notes__ == [
        f"in {__name__} > Spoil",
        f"to resume: kitchen.resume('{run.id}')",
    ]
    assert run.status().state == "failed"


def test_an_error_of_a_server_passes_with_status_and_body() -> None:
    with pytest.raises(ApiError) as error:
        kitchen.run(Stew(spoil="api"), training="fake", runs="elsewhere", name="mine")
    assert (error.value.status, error.value.body, error.value.exit_code) == (
        503,
        '{"error": "busy"}',
        4,
    )
    assert error.value.__notes__[-1] == "to resume: kitchen.resume('mine', runs='elsewhere')"


@pytest.mark.parametrize("kind", ["start", "progress", "complete"])
def test_a_listener_that_raises_fails_the_run(kind: str) -> None:
    def fall(event: Event) -> None:
        if event.kind == kind:
            raise KeyError("colour")

    run = kitchen.submit(Stew, training="fake", name="mine", on_progress=fall)
    with pytest.raises(RunFailed, match="KeyError: 'colour'"):
        run.result()
    assert json.loads(Path("runs/mine/run.json").read_text())["status"] == "failed"
    assert kitchen.resume("mine").result().metrics["stirred"] == 10


def test_cancelled_in_a_loop_that_saves_and_gone_on_with_equals_left_alone() -> None:
    alone = kitchen.run(SlBasic, **GREETINGS, name="alone")
    run = cancelled_at(6, SlBasic, **GREETINGS, name="stopped")
    with pytest.raises(Interrupted, match="stopped at step 7, and saved") as error:
        run.result()
    assert error.value.exit_code == 130
    assert (
        run.status().state
        == json.loads(Path("runs/stopped/run.json").read_text())["status"]
        == "interrupted"
    )
    events: list[Event] = []
    again = kitchen.resume("stopped", on_progress=events.append).result()
    assert next(event.step for event in events if "grad_norm" in event.metrics) == 8
    assert rows(again) == rows(alone)
    assert again.metrics == alone.metrics
    assert alone.checkpoint is not None
    assert again.checkpoint is not None
    assert again.checkpoint.sha256 == alone.checkpoint.sha256


def test_cancelled_outside_of_loops_lets_go_of_what_it_waits_for() -> None:
    run = kitchen.submit(Stew(simmer=600.0), training="fake")
    while run.status().stage != "Simmer":
        time.sleep(0.01)
    run.cancel()
    with pytest.raises(Interrupted, match="abandoned"):
        run.result(60)
    assert run.status().state == "interrupted"


def test_a_cancel_from_elsewhere_is_no_ctrl_c() -> None:
    with pytest.raises(Interrupted, match="and saved"):
        cancelled_at(3, Stew, training="fake").finish()


def test_cancelled_before_a_stage_does_not_begin_it() -> None:
    run = cancelled_at(3, Stew(save=0), training="fake")
    with pytest.raises(Interrupted, match="stopped before Taste"):
        run.result(60)
    assert run.status().step == 3


def test_cancelled_at_once_does_not_save_first() -> None:
    run = cancelled_at(4, Stew(), training="fake", name="mine", at_once=True)
    with pytest.raises(Interrupted):
        run.result(60)
    events: list[Event] = []
    assert kitchen.resume("mine", on_progress=events.append).result().metrics["stirred"] == 10
    assert next(event.step for event in events if event.metrics) == 4, (
        "from the save point after step 3"
    )
    over = kitchen.resume("mine", on_progress=events.append)
    over.cancel()
    assert over.result().metrics["stirred"] == 10, "it was completed before"


@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_ctrl_c_saves_first_and_the_script_can_go_on(here: Path, number: int) -> None:
    process = started(here, "kitchen.run(Stew(), training='fake', name='mine', on_progress=tell)")
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, told
    found = re.search(
        r"KeyboardInterrupt: stopped at step (\d+), and saved; .*kitchen\.resume\('mine'\)", told
    )
    assert found, told
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
    return kitchen.{call}(Stew(), training='fake', name=name, on_progress=tell, **how)
"""


def test_ctrl_c_saves_all_that_were_submitted(here: Path) -> None:
    last = "runs = [cook('mine'), cook('other')]\n[run.finish() for run in runs]"
    process = started(here, SEVERAL.format(call="submit") + last)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, told
    for name in ("mine", "other"):
        assert json.loads((here / f"runs/{name}/run.json").read_text())["reason"].startswith(
            "Interrupted: stopped at"
        )


@pytest.mark.slow
def test_ctrl_c_does_not_reach_runs_in_a_pool_of_threads(here: Path) -> None:
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
    _, told = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGINT, told
    assert stirred(here) == list(range(1, 21))


def test_a_second_ctrl_c_does_not_wait(here: Path) -> None:
    process = started(
        here, "kitchen.run(Stew(seconds=600), training='fake', name='mine', on_progress=tell)"
    )
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    assert any("Ctrl-C again stops at once" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == -signal.SIGINT
    assert status(here) == "interrupted"


def test_ctrl_c_while_a_result_is_waited_for_ends_the_waiting_alone(here: Path) -> None:
    process = started(
        here,
        """
run = kitchen.submit(Stew(), training='fake', name='mine', on_progress=tell)
try:
    run.result()
except KeyboardInterrupt:
    print("state", run.status().state, flush=True)
run.result()
""",
    )
    process.send_signal(signal.SIGINT)
    out, told = process.communicate(timeout=60)
    assert process.returncode == 0, told
    assert "state running" in out
    assert stirred(here) == list(range(1, 21))


@pytest.mark.parametrize(
    "last, code", [pytest.param("", 0, marks=pytest.mark.slow), ("sys.exit(3)", 3)]
)
def test_a_run_under_way_when_the_process_ends_is_saved(here: Path, last: str, code: int) -> None:
    process = started(
        here,
        f"""
reached = threading.Event()
kitchen.submit(Stew(), training='fake', name='mine', on_progress=lambda e: (tell(e), e.step == 5 and reached.set()))
reached.wait()
{last}
""",
    )
    _, told = process.communicate(timeout=60)
    assert process.returncode == code, told
    assert "the process ends before the run" in told
    assert "Traceback" not in told
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
    settings = {"model": f"path:{tiny_model(Path('model').absolute())}", "dataset": "greetings", "batch_size": 4,
                "rendering.max_tokens": 128, "evaluation.max_tokens": 4, "save_every": 2}
    run = kitchen.submit("recipes.sl_basic", settings=settings, training="peft", datasets="fake", name=sys.argv[1],
                         adapter_settings={"training": {"device": "cpu"}}, on_progress=listen)
    if sys.argv[1] == "stopped":
        reached.wait()
        sys.exit()
    print(run.result().checkpoint.sha256)
"""


@pytest.mark.slow
def test_local_training_is_saved_when_the_process_ends_and_ends_as_left_alone(here: Path) -> None:
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


def test_spans_of_two_runs_at_once_are_two_trees(here: Path) -> None:
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


def test_four_at_once_equal_one_after_the_other() -> None:
    orders: list[tuple[Any, dict[str, Any]]] = [
        (SlBasic, {**GREETINGS, "settings": {**SMALL, "seed": 1}}),
        (
            SlBasic,
            {**GREETINGS, "settings": {**SMALL, "seed": 2, "learning_rate": 0.1, "ahead": 2}},
        ),
        ("recipes.sl_basic", {**GREETINGS, "settings": {**SMALL, "dataset": "sums"}}),
        (Stew, {"training": "fake", "settings": {"minutes": 30}}),
    ]
    barrier = threading.Barrier(4)

    def cook(number: int, together: bool) -> tuple[Outcome, list[Event]]:
        events: list[Event] = []

        def listen(event: Event) -> None:
            events.append(event)
            if together and (
                event.kind == "start" or (event.step == 3 and "loss" in event.metrics)
            ):
                barrier.wait(60)

        recipe, asked = orders[number]
        return kitchen.run(recipe, **asked, on_progress=listen, name=f"{number}-{together}"), events

    alone = [cook(number, False) for number in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda number: cook(number, True), range(4)))
    for (one, told), (other, told_together) in zip(alone, together, strict=True):
        assert one.metrics == other.metrics
        assert rows(one) == rows(other)
        assert log(one) == log(other)
        assert (one.checkpoint and one.checkpoint.sha256) == (
            other.checkpoint and other.checkpoint.sha256
        )
        assert [(e.kind, e.step, e.metrics) for e in told] == [
            (e.kind, e.step, e.metrics) for e in told_together
        ]
        assert {event.run for event in told_together} == {other.run}


def log(outcome: Outcome) -> list[tuple[str, ...]]:
    return [
        tuple(
            str(row.get(key)).replace(outcome.run, "") for key in ("event", "stage", "step", "run")
        )
        for row in rows(outcome, "log")
    ]
