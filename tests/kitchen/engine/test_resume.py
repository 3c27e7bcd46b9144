"""Kill a run at every stage call and every write, go on, and compare with a run that was left
alone.
"""

from __future__ import annotations

import io
import json
import re
import signal
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from adapters.local.blobs import LocalBlobs
from adapters.local.fsspec import FsspecBlobs
from kitchen import (
    Kitchen,
    Metrics,
    Observer,
    Recipe,
    ResumeError,
    Stage,
    StageDone,
    for_each,
    sequence,
)
from kitchen.config.order import Order
from kitchen.engine.runner import run
from kitchen.errors import ConfigError, CorruptCheckpoint, Interrupted, RunFailed
from kitchen.ports import BlobStore, Done, Future
from kitchen.runs.execute import execute
from kitchen.runs.lock import lease
from kitchen.runs.logs import configure
from kitchen.runs.store import list_runs, read_run
from kitchen.types import Result
from kitchen.workflow import Step
from recipes.sl_basic import SlBasic

CHATS = [
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": word}]}
    for word in ("hello", "hallo", "hey you", "good day", "moin", "salut", "ciao")
]
HELD = [
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": '{"a": 1}'}]}
]
ORDER = Order("recipes.sl_basic:SlBasic", {})
BASIC = SlBasic(
    dataset="chats", batch_size=2, epochs=3, learning_rate=0.1, eval_every=3, keep=1, warmup_steps=0
)


class Killed(BaseException):
    """As a power cut: no one may catch it."""


class Fuse(Observer):
    """Burns at the n-th stage call."""

    def __init__(self, at: int = -1) -> None:
        self.calls, self.at = 0, at
        self.stages: list[str] = []

    def stage_done(self, event: StageDone) -> None:
        self.calls += 1
        self.stages.append(event.stage.title())
        if self.calls == self.at:
            raise Killed


def cooked(recipe: Recipe, blobs: BlobStore, fuse: Observer, training: Any = None) -> None:
    """A new FakeTraining stands for a new process."""
    data = FakeDatasets({"chats": {"train": CHATS, "held": HELD}})
    execute(
        ORDER, recipe, Kitchen(training or FakeTraining(blobs), data, None, blobs), "run", [fuse]
    )


def outcome(blobs: BlobStore) -> dict[str, Any]:
    """What must be equal: metrics without seconds, samples, exported weights, digests of the last
    save point.
    """

    def lines(name: str) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in (blobs.read(f"run/{name}.jsonl") or b"").splitlines()]
        return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]

    weights = {name: blobs.read(name) for name in blobs.list("run/weights/")}
    last = [
        name for name in blobs.list("run/save/") if name.endswith("TrainingSession/checkpoint.json")
    ][-1]
    return {
        "metrics": lines("metrics"),
        "samples": lines("samples"),
        "weights": weights,
        "state": blobs.read(last),
    }


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("save", [1, 2, 5])
def test_killed_at_any_stage_and_resumed_equals_left_alone(ahead: int, save: int) -> None:
    recipe = BASIC.model_copy(update={"ahead": ahead, "save_every": save})
    fuse, whole = Fuse(), FakeBlobs()
    cooked(recipe, whole, fuse)
    wanted = outcome(whole)
    assert [row["n"] for row in wanted["metrics"]] == sorted(
        {row["n"] for row in wanted["metrics"]}
    )
    for at in range(1, fuse.calls + 1, 7 if save == 2 else 23):
        blobs = FakeBlobs()
        for second in (at, (at * 7) % fuse.calls + 1, -1):
            try:
                cooked(recipe, blobs, Fuse(second))
                break
            except Killed:  # the second attempt is killed too, somewhere else
                continue
        assert outcome(blobs) == wanted, f"killed at {at}"
        leftovers = {name.split("/")[2] for name in blobs.list("run/save/") if name.count("/") > 2}
        assert len(leftovers) <= 4, "two points, each of an inner and an outer loop"


class Brittle(FakeBlobs):
    """The power goes just before, or just after, the n-th write or delete of a save point or of its
    files.
    """

    def __init__(self, at: int = -1, after: bool = False) -> None:
        super().__init__()
        self.left, self.after = at, after

    def _burn(self, act: Callable[[], None]) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Killed
        act()
        if self.left == 0:
            raise Killed

    def write(self, name: str, data: bytes) -> None:
        self._burn(lambda: super(Brittle, self).write(name, data))

    def delete(self, name: str) -> None:
        self._burn(lambda: super(Brittle, self).delete(name))


@pytest.mark.parametrize("after", [False, True])
def test_killed_in_the_middle_of_saving(after: bool) -> None:
    recipe = BASIC.model_copy(update={"save_every": 2})
    whole = Brittle()
    cooked(recipe, whole, Fuse())
    wanted, writes = outcome(whole), -whole.left
    assert writes > 60
    for at in range(2, writes, 11):
        blobs = Brittle(at, after)
        with pytest.raises(Killed):
            cooked(recipe, blobs, Fuse())
        blobs.left = -1
        cooked(recipe, blobs, Fuse())
        assert outcome(blobs) == wanted, f"killed at write {at}"


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_the_same_behind_a_url_and_in_a_folder(ahead: int, tmp_path: Path) -> None:
    recipe = BASIC.model_copy(update={"ahead": ahead, "save_every": 2})
    fuse, whole = Fuse(), FsspecBlobs(f"memory://whole-{ahead}")
    cooked(recipe, whole, fuse)
    wanted = outcome(whole)
    for at in range(5, fuse.calls, 23):
        for blobs in (
            FsspecBlobs(f"memory://killed-{ahead}-{at}"),
            LocalBlobs(str(tmp_path / str(at))),
        ):
            with pytest.raises(Killed):
                cooked(recipe, blobs, Fuse(at))
            cooked(recipe, blobs, Fuse())
            assert outcome(blobs) == wanted, f"{type(blobs).__name__} killed at {at}"


def test_it_resumes_rather_than_starts_again() -> None:
    recipe, blobs = BASIC.model_copy(update={"save_every": 1}), FakeBlobs()
    whole = Fuse()
    cooked(recipe, FakeBlobs(), whole)
    with pytest.raises(Killed):
        cooked(recipe, blobs, Fuse(whole.calls - 12))
    again = Fuse()
    cooked(recipe, blobs, again)
    assert again.stages.count("OptimStep") <= 2 < whole.stages.count("OptimStep")


def test_what_is_kept_is_not_computed_again() -> None:
    blobs = FakeBlobs()
    with pytest.raises(Killed):
        cooked(BASIC, blobs, Fuse(8))
    training = Refusing(blobs)
    cooked(BASIC, blobs, Fuse(), training)
    assert training.asked == 1, "only the trained weights are sampled: the base model was before"


def test_what_another_version_kept_is_refused_by_name() -> None:
    blobs = FakeBlobs()
    with pytest.raises(Killed):
        cooked(BASIC, blobs, Fuse(8))
    [name] = blobs.list("run/memo/")
    answer = json.loads(blobs.read(name) or b"")
    for others in (['{"answers": 1}', *answer[1:]], [*answer, "{}"]):
        blobs.write(name, json.dumps(others).encode())
        with pytest.raises(ResumeError, match="another version of EvaluateBase"):
            cooked(BASIC, blobs, Fuse())


def test_a_run_that_is_not_at_a_save_point_yet_is_not_gone_on_with_by_another_plan() -> None:
    blobs = FakeBlobs()
    with pytest.raises(Killed):
        cooked(BASIC, blobs, Fuse(3))
    assert not [name for name in blobs.list("run/save/") if name.endswith(".json")]
    with pytest.raises(
        ResumeError, match="another recipe, another version of it, or other settings"
    ):
        cooked(BASIC.model_copy(update={"eval_every": 1}), blobs, Fuse())
    plan = blobs.read("run/save/plan") or b""
    blobs.delete("run/save/plan")
    with pytest.raises(ResumeError, match="another version of it"):
        cooked(BASIC, blobs, Fuse())
    blobs.write("run/save/plan", plan)
    cooked(BASIC, blobs, Fuse())


class Note(Stage):
    """Kept by where it stands, so that another grouping would find another's answer."""

    memoize = True
    said: str

    def run(self) -> Metrics:
        return Metrics({self.said: 1.0})


def test_the_same_steps_in_other_groups_are_another_plan() -> None:
    blobs: dict[Any, Any] = {BlobStore: FakeBlobs()}
    one, two = Note("one"), Note("two")
    with pytest.raises(Killed):
        run(sequence(sequence(one, two)), blobs, (Fuse(2),))
    with pytest.raises(ResumeError, match="another recipe, another version of it"):
        run(sequence(one, two), blobs)
    run(sequence(sequence(one, two)), blobs)


class Refusing(FakeTraining):
    """Counts the samplers that it opens."""

    asked = 0

    def sampler(self, weights: Any) -> Any:
        self.asked += 1
        assert not isinstance(weights, str), "the base model was evaluated again"
        return super().sampler(weights)


def damage(blobs: FakeBlobs, name: str) -> None:
    data = blobs.read(name)
    assert data
    blobs.write(name, data[: len(data) // 2])


@pytest.mark.parametrize("what", ["weights.npz", "optimiser.npz", "checkpoint.json", "point"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_used(
    what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, blobs, whole = BASIC.model_copy(update={"save_every": 2}), FakeBlobs(), FakeBlobs()
    cooked(recipe, whole, Fuse())
    with pytest.raises(Killed):
        cooked(recipe, blobs, Fuse(60))
    points = [
        name for name in blobs.list("run/save/") if name.endswith(".json") and name.count("/") == 2
    ]
    newest = json.loads(json.loads(blobs.read(points[-1]) or b"")["record"])
    [path] = {c["path"] for p in newest["points"].values() for c in p["live"].values()}
    damage(blobs, points[-1] if what == "point" else f"{path}/{what}")
    again = Fuse()
    cooked(recipe, blobs, again)
    assert outcome(blobs) == outcome(whole)
    log = (blobs.read("run/log.jsonl") or b"").decode() + "".join(capsys.readouterr())
    assert (points[-1] if what == "point" else path) in log, "the damaged checkpoint is named"


def test_without_a_whole_save_point_the_run_says_so() -> None:
    recipe, blobs = BASIC.model_copy(update={"save_every": 2}), FakeBlobs()
    with pytest.raises(Killed):
        cooked(recipe, blobs, Fuse(60))
    for name in blobs.list("run/save/"):
        if name.endswith("weights.npz"):
            damage(blobs, name)
    with pytest.raises(
        RunFailed, match="there is no save point before it: start a new run"
    ) as error:
        cooked(recipe, blobs, Fuse())
    assert isinstance(error.value.__cause__, CorruptCheckpoint)
    assert read_run(blobs, "run")["status"] == "failed"


@pytest.mark.parametrize(
    "update", [{"batch_size": 1}, {"save_every": 1}, {"ahead": 0}, {"seed": 5}, {"keep": 3}]
)
def test_another_recipe_is_not_resumed(update: dict[str, Any]) -> None:
    recipe, blobs = BASIC.model_copy(update={"save_every": 2, "ahead": 1}), FakeBlobs()
    with pytest.raises(Killed):
        cooked(recipe, blobs, Fuse(60))
    with pytest.raises(ResumeError, match=r"other settings|began with"):
        cooked(recipe.model_copy(update=update), blobs, Fuse())


def test_other_data_is_not_resumed() -> None:
    recipe, blobs = BASIC.model_copy(update={"save_every": 2}), FakeBlobs()
    with pytest.raises(Killed):
        cooked(recipe, blobs, Fuse(60))
    other = FakeDatasets({"chats": {"train": CHATS[::-1], "held": HELD}})
    with pytest.raises(ResumeError, match=r"data.train.sha256"):
        execute(ORDER, recipe, Kitchen(FakeTraining(blobs), other, None, blobs), "run")


def test_another_machine_is_refused_unless_told() -> None:
    recipe, blobs = BASIC.model_copy(update={"save_every": 2}), FakeBlobs()
    with pytest.raises(Killed):
        cooked(recipe, blobs, Fuse(60))
    record = json.loads(blobs.read("run/run.json") or b"")
    record["facts"]["machine.numpy"] = "0.1"
    blobs.write("run/run.json", json.dumps(record).encode())
    with pytest.raises(ResumeError, match=r"machine.numpy = '0.1'.*nevertheless"):
        cooked(recipe, blobs, Fuse())
    kitchen = Kitchen(
        FakeTraining(blobs), FakeDatasets({"chats": {"train": CHATS, "held": HELD}}), None, blobs
    )
    execute(ORDER, recipe, kitchen, "run", other_machine=True)
    assert read_run(blobs, "run")["status"] == "completed"


def test_a_run_in_use_is_refused() -> None:
    blobs = FakeBlobs()
    kitchen = Kitchen(
        FakeTraining(blobs), FakeDatasets({"chats": {"train": CHATS, "held": HELD}}), None, blobs
    )

    class Again(Observer):
        def stage_done(self, event: StageDone) -> None:
            with pytest.raises(ConfigError, match=r"run 'run' is in use by process \d+"):
                execute(ORDER, BASIC, kitchen, "run")
            raise Killed

    with pytest.raises(Killed):
        execute(ORDER, BASIC, kitchen, "run", [Again()])


def test_a_stop_that_is_asked_for_saves_first_and_goes_on_to_the_same_end() -> None:
    recipe, blobs, whole = BASIC.model_copy(update={"save_every": 4}), FakeBlobs(), FakeBlobs()
    cooked(recipe, whole, Fuse())

    class CtrlC(Observer):
        def stage_done(self, event: StageDone) -> None:
            if event.stage.title() == "OptimStep" and event.progress.step == 5:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="stopped at step 6, and saved"):
        cooked(recipe, blobs, CtrlC())
    assert read_run(blobs, "run")["status"] == "interrupted"
    again = Fuse()
    cooked(recipe, blobs, again)
    assert again.stages.count("OptimStep") == 12 - 6
    assert outcome(blobs) == outcome(whole)


def test_a_stop_in_the_last_step_is_heeded_too() -> None:
    recipe, blobs, whole = BASIC.model_copy(update={"save_every": 5}), FakeBlobs(), FakeBlobs()
    cooked(recipe, whole, Fuse())

    class CtrlC(Observer):
        def stage_done(self, event: StageDone) -> None:
            if event.stage.title() == "ReportStep" and event.progress.step == 11:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="stopped after step 12, and saved"):
        cooked(recipe, blobs, CtrlC())
    again = Fuse()
    cooked(recipe, blobs, again)
    assert "OptimStep" not in again.stages
    assert outcome(blobs) == outcome(whole)


def test_ctrl_c_while_an_entry_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pressed(io.StringIO):
        def write(self, text: str) -> int:
            if "slow" in text:
                signal.raise_signal(signal.SIGINT)
            return super().write(text)

    class Telling(Observer):
        def stage_done(self, event: StageDone) -> None:
            if event.stage.title() == "OptimStep" and event.progress.step == 5:
                structlog.get_logger("of a test").warning("slow")

    configure()
    told = Pressed()
    monkeypatch.setattr("sys.stderr", told)
    with pytest.raises(Interrupted, match="stopped at step 6, and saved"):
        cooked(BASIC.model_copy(update={"save_every": 4}), FakeBlobs(), Telling())
    assert "stopping: this step is finished" in told.getvalue()


class Meddling(FakeBlobs):
    """The power goes after the last point of a loop was written and before anything was deleted."""

    def delete(self, name: str) -> None:
        if "/save/" in name and any(
            '\\"ended\\":true' in (self.read(n) or b"").decode(errors="replace")
            for n in self.list("run/save/")
            if n.count("/") == 2
        ):
            raise Killed
        super().delete(name)


def test_the_way_back_is_not_swept_away() -> None:
    recipe, blobs = (
        BASIC.model_copy(update={"save_every": 2, "epochs": 1, "eval_every": 0}),
        Meddling(),
    )
    whole = FakeBlobs()
    cooked(recipe, whole, Fuse())
    with pytest.raises(Killed):
        cooked(recipe, blobs, Fuse())
    points = [
        name for name in blobs.list("run/save/") if name.endswith(".json") and name.count("/") == 2
    ]
    newest = json.loads(json.loads(blobs.read(points[-1]) or b"")["record"])
    [path] = {c["path"] for p in newest["points"].values() for c in p["live"].values()}
    after = FakeBlobs()
    for name in blobs.list():
        after.write(name, blobs.read(name) or b"")
    damage(after, f"{path}/weights.npz")
    cooked(recipe, after, Fuse())
    assert outcome(after) == outcome(whole)


def test_claims_of_other_hosts_hold_until_taken_over() -> None:
    blobs = FakeBlobs()
    blobs.write(
        "run/lease/other.json", json.dumps({"host": "elsewhere", "pid": 1, "born": "2"}).encode()
    )
    with pytest.raises(ConfigError, match=r"in use by process 1 on elsewhere.*take it over"):
        cooked(BASIC, blobs, Fuse())
    data = FakeDatasets({"chats": {"train": CHATS, "held": HELD}})
    execute(ORDER, BASIC, Kitchen(FakeTraining(blobs), data, None, blobs), "run", take_over=True)
    assert not blobs.list("run/lease/")


def test_of_two_at_the_same_moment_at_most_one_goes_on() -> None:
    blobs, held, refused, others = FakeBlobs(), list[int](), list[int](), threading.Event()
    together = threading.Barrier(8)

    def hold() -> None:
        together.wait()
        try:
            with lease(blobs, "run"):
                held.append(1)
                others.wait(10)  # until they have tried, however slow the machine is
        except ConfigError:
            refused.append(1)
        if len(refused) >= 7:
            others.set()

    threads = [threading.Thread(target=hold) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) <= 1
    assert len(refused) == 8 - len(held)


@pytest.mark.parametrize("text", ["[]", "{}", "no json", '{"run": 1}'])
def test_a_record_that_is_none_is_refused_and_listed_as_unreadable(text: str) -> None:
    blobs = FakeBlobs()
    blobs.write("run/run.json", text.encode())
    with pytest.raises(ConfigError, match=r"run/run.json"):
        read_run(blobs, "run")
    [row] = list_runs(blobs)
    assert (row.status, row.id) == ("unreadable", "run")


def test_a_gradient_that_is_not_finite_stops_the_run_where_it_arose() -> None:
    recipe, blobs = (
        BASIC.model_copy(update={"learning_rate": 1e308, "schedule": "constant"}),
        FakeBlobs(),
    )
    with pytest.raises(
        RunFailed, match=r"datum \d+ of 2: its loss or its gradient is not a finite number"
    ) as error:
        cooked(recipe, blobs, Fuse())
    where = r"in recipes.sl_basic > Epochs step 0 > ShuffledBatches step \d > ForwardBackward"
    assert re.search(where, error.value.__notes__[0])


@dataclass(frozen=True)
class Item:
    n: int


@dataclass(frozen=True)
class Best(Result):
    value: float


@dataclass(frozen=True)
class Asked:
    n: int


class Items(Stage):
    def run(self) -> Iterable[Item]:
        return [Item(n) for n in range(4)]


class Start(Stage):
    def run(self) -> Best:
        return Best(float("-inf"))


class Ask(Stage):
    def run(self, item: Item) -> Future[Asked]:
        return Done(Asked(item.n))


class Keep(Stage):
    def run(self, asked: Asked, best: Best) -> Best:
        return Best(max(best.value, asked.n)) if asked.n > 2 else best


class Tell(Stage):
    def run(self, best: Best) -> Metrics:
        return Metrics(best=best.value)


def test_carried_values_survive_a_resume_even_infinite_ones() -> None:
    blobs = FakeBlobs()
    work: Step = sequence(Start(), for_each(Items(), save=1)(Ask(), Keep(), Tell()))

    class Off(Observer):
        def stage_done(self, event: StageDone) -> None:
            if isinstance(event.stage, Keep) and event.progress.step == 2:
                raise Killed

    with pytest.raises(Killed):
        run(work, {BlobStore: blobs}, (Off(),))
    again = Fuse()
    assert run(work, {BlobStore: blobs}, (again,))[Best] == Best(3.0)
    assert again.stages.count("Ask") == 2
