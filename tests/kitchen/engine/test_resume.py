"""Runs killed at stage calls and writes, resumed, and compared with an uninterrupted run."""

from __future__ import annotations

import io
import json
import re
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
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
from kitchen.backend.logs import configure
from kitchen.config.order import Order
from kitchen.engine.runner import run
from kitchen.errors import ConfigError, CorruptCheckpoint, Interrupted, RunFailed
from kitchen.ports import BlobStore, Done, Future
from kitchen.ports.blobs import seal, unseal
from kitchen.runs.execute import execute
from kitchen.runs.lock import lease
from kitchen.runs.record import LostRows
from kitchen.runs.store import list_runs, read_run
from kitchen.types import Result
from kitchen.workflow import Step
from recipes.sl_basic import SlBasic
from tests.support.killing import KillAt, Killed

CHATS = [
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": word}]}
    for word in ("hello", "hallo", "hey you", "good day", "moin", "salut", "ciao")
]
HELD = [
    {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": '{"a": 1}'}]}
]
ORDER = Order("recipes.sl_basic:SlBasic", {})
QUICK = ((0, 1), (1, 2), (3, 5))  # steps ahead, steps between saves
BASIC = SlBasic(
    dataset="chats", batch_size=2, epochs=3, learning_rate=0.1, eval_every=3, keep=1, warmup_steps=0
)


def make_kitchen(
    blobs: BlobStore, training: Any = None, chats: list[dict[str, Any]] = CHATS
) -> Kitchen:
    data = FakeDatasets({"chats": {"train": chats, "held": HELD}})
    return Kitchen(training or FakeTraining(blobs), data, None, blobs)


def cook(
    recipe: Recipe, blobs: BlobStore, observer: Observer | None = None, training: Any = None
) -> None:
    """Run or resume the recipe; a new FakeTraining stands for a new process."""
    observers = [observer] if observer else []
    execute(ORDER, recipe, make_kitchen(blobs, training), "run", observers)


def save_points(blobs: BlobStore) -> list[str]:
    """Return the files of the save points, oldest first."""
    names = blobs.list("run/save/")
    return [name for name in names if name.endswith(".json") and name.count("/") == 2]


def newest_checkpoint(blobs: BlobStore) -> str:
    """Return the folder of the one checkpoint that the newest save point refers to."""
    record = json.loads(json.loads(blobs.read(save_points(blobs)[-1]) or b"")["record"])
    [path] = {
        checkpoint["path"]
        for point in record["points"].values()
        for checkpoint in point["checkpoints"].values()
    }
    return str(path)


def outcome(blobs: BlobStore) -> dict[str, Any]:
    """Return what must be equal: metrics without seconds, samples, weights, the last checkpoint."""

    def lines(name: str) -> list[dict[str, Any]]:
        rows = [json.loads(line) for line in (blobs.read(f"run/{name}.jsonl") or b"").splitlines()]
        return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]

    weights = {name: blobs.read(name) for name in blobs.list("run/weights/")}
    checkpoints = [
        name for name in blobs.list("run/save/") if name.endswith("TrainingSession/checkpoint.json")
    ]
    return {
        "metrics": lines("metrics"),
        "samples": lines("samples"),
        "weights": weights,
        "state": blobs.read(checkpoints[-1]),
    }


@pytest.mark.parametrize(
    ("ahead", "save"),
    [
        pytest.param(ahead, save, marks=[] if (ahead, save) in QUICK else pytest.mark.slow)
        for ahead in (0, 1, 3)
        for save in (1, 2, 5)
    ],
)
def test_killed_at_any_stage_resumes_to_the_same_end(ahead: int, save: int) -> None:
    recipe = BASIC.model_copy(update={"ahead": ahead, "save_every": save})
    observer, whole = KillAt(), FakeBlobs()
    cook(recipe, whole, observer)
    expected = outcome(whole)
    assert [row["n"] for row in expected["metrics"]] == sorted(
        {row["n"] for row in expected["metrics"]}
    )
    for at in range(1, observer.calls + 1, 7 if save == 2 else 23):
        blobs = FakeBlobs()
        for second in (at, (at * 7) % observer.calls + 1, -1):
            try:
                cook(recipe, blobs, KillAt(second))
                break
            except Killed:  # the second attempt is killed too, somewhere else
                continue
        assert outcome(blobs) == expected, f"killed at {at}"
        folders = {name.split("/")[2] for name in blobs.list("run/save/") if name.count("/") > 2}
        assert len(folders) <= 4, "two points, each of an inner and an outer loop"


class KillingBlobs(FakeBlobs):
    """Kills the run just before, or just after, the n-th write or delete."""

    def __init__(self, at: int = -1, after: bool = False) -> None:
        super().__init__()
        self.left, self.after = at, after

    def _count(self, act: Callable[[], None]) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Killed
        act()
        if self.left == 0:
            raise Killed

    def write(self, name: str, data: bytes) -> None:
        self._count(lambda: super(KillingBlobs, self).write(name, data))

    def delete(self, name: str) -> None:
        self._count(lambda: super(KillingBlobs, self).delete(name))


@pytest.mark.parametrize("after", [False, True])
def test_killed_while_saving_resumes_to_the_same_end(after: bool) -> None:
    recipe = BASIC.model_copy(update={"save_every": 2})
    whole = KillingBlobs()
    cook(recipe, whole)
    expected, writes = outcome(whole), -whole.left
    # a slow machine writes journals more often, so a few of the last writes may not be reached
    assert writes > 60
    for at in range(2, writes, 11):
        blobs = KillingBlobs(at, after)
        killed = (Killed, RunFailed)  # the runner reports an exit inside a stage as a failure
        with pytest.raises(killed) if at < 60 else suppress(*killed):
            cook(recipe, blobs)
        blobs.left = -1
        cook(recipe, blobs)
        assert outcome(blobs) == expected, f"killed at write {at}"


@pytest.mark.parametrize(
    "ahead", [1, *(pytest.param(ahead, marks=pytest.mark.slow) for ahead in (0, 3))]
)
def test_stores_by_url_and_folder_resume_to_the_same_end(ahead: int, tmp_path: Path) -> None:
    recipe = BASIC.model_copy(update={"ahead": ahead, "save_every": 2})
    observer, whole = KillAt(), FsspecBlobs(f"memory://whole-{ahead}")
    cook(recipe, whole, observer)
    expected = outcome(whole)
    for at in range(5, observer.calls, 23):
        for blobs in (
            FsspecBlobs(f"memory://killed-{ahead}-{at}"),
            LocalBlobs(str(tmp_path / str(at))),
        ):
            with pytest.raises(Killed):
                cook(recipe, blobs, KillAt(at))
            cook(recipe, blobs)
            assert outcome(blobs) == expected, f"{type(blobs).__name__} killed at {at}"


def test_resume_does_not_repeat_saved_steps() -> None:
    recipe, blobs = BASIC.model_copy(update={"save_every": 1}), FakeBlobs()
    whole = KillAt()
    cook(recipe, FakeBlobs(), whole)
    with pytest.raises(Killed):
        cook(recipe, blobs, KillAt(whole.calls - 12))
    resumed = KillAt()
    cook(recipe, blobs, resumed)
    assert resumed.stages.count("OptimStep") <= 2 < whole.stages.count("OptimStep")


def test_memoized_results_are_not_computed_again() -> None:
    blobs = FakeBlobs()
    with pytest.raises(Killed):
        cook(BASIC, blobs, KillAt(8))
    training = CountingTraining(blobs)
    cook(BASIC, blobs, training=training)
    assert training.samplers == 1, "only the trained weights are sampled again"


def test_memoized_result_of_another_version_is_refused() -> None:
    blobs = FakeBlobs()
    with pytest.raises(Killed):
        cook(BASIC, blobs, KillAt(8))
    [name] = blobs.list("run/memo/")
    answer = json.loads(unseal(blobs.read(name) or b""))[name]
    for others in (['{"answers": 1}', *answer[1:]], [*answer, "{}"]):
        blobs.write(name, seal(json.dumps({name: others})))
        with pytest.raises(ResumeError, match="this version of EvaluateBase"):
            cook(BASIC, blobs)


def test_damaged_memoized_result_is_named() -> None:
    blobs = FakeBlobs()
    with pytest.raises(Killed):
        cook(BASIC, blobs, KillAt(8))
    [name] = blobs.list("run/memo/")
    whole = blobs.read(name) or b""
    for place in range(0, len(whole), len(whole) // 12):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 7)
        for data in (bytes(damaged), whole[:place]):
            blobs.write(name, data)
            with pytest.raises(RunFailed, match=f"{name}, the memoized result of EvaluateBase"):
                cook(BASIC, blobs)
    blobs.delete(name)
    cook(BASIC, blobs)


@pytest.mark.parametrize("journal", ["metrics", "samples", "tables"])
def test_lost_rows_are_refused_unless_accepted(journal: str) -> None:
    whole, blobs = FakeBlobs(), FakeBlobs()
    cook(BASIC, whole)
    with pytest.raises(Killed):
        cook(BASIC, blobs, KillAt(70))
    name = f"run/{journal}.jsonl"
    rows = blobs.read(name) or b""
    assert rows
    flipped = bytearray(rows)
    flipped[len(rows) // 2] ^= 1
    for damaged in (b"", rows[: len(rows) // 2], bytes(flipped)):
        blobs.write(name, damaged)
        with pytest.raises(LostRows, match=f"{name} no longer holds .*--accept-lost-metrics"):
            cook(BASIC, blobs)
    blobs.delete(name)
    with pytest.raises(LostRows):
        cook(BASIC, blobs)
    accepted = FakeBlobs()
    for other in blobs.list():
        accepted.write(other, blobs.read(other) or b"")
    execute(ORDER, BASIC, make_kitchen(accepted), "run", accept_lost_metrics=True)
    assert read_run(accepted, "run")["status"] == "completed"
    blobs.write(name, rows)
    cook(BASIC, blobs)
    assert outcome(blobs) == outcome(whole)


def test_checkpoints_of_another_run_are_not_deleted() -> None:
    recipe = BASIC.model_copy(update={"save_every": 1, "eval_every": 1})
    observer, whole = KillAt(), FakeBlobs()
    cook(recipe, whole, observer)
    blobs = FakeBlobs()
    with pytest.raises(Killed):
        cook(recipe, blobs, KillAt(observer.calls // 2))
    for name in blobs.list("run/"):
        blobs.write(name.replace("run/", "other/", 1), blobs.read(name) or b"")
    others = {name: blobs.read(name) for name in blobs.list("other/")}
    for name in save_points(blobs):
        text = unseal(blobs.read(name) or b"")
        assert '"run/save/' in text
        assert "run/weights/" in text
        changed = text.replace("run/save/", "other/save/").replace("run/weights/", "other/weights/")
        blobs.write(name, seal(changed))
    cook(recipe, blobs)
    assert read_run(blobs, "run")["status"] == "completed"
    assert {name: blobs.read(name) for name in blobs.list("other/")} == others


def test_another_plan_is_refused_before_a_save_point() -> None:
    blobs = FakeBlobs()
    with pytest.raises(Killed):
        cook(BASIC, blobs, KillAt(3))
    assert not [name for name in blobs.list("run/save/") if name.endswith(".json")]
    with pytest.raises(
        ResumeError, match="another recipe, another version of it, or other settings"
    ):
        cook(BASIC.model_copy(update={"eval_every": 1}), blobs)
    cook(BASIC, blobs)


def damaged_plans(plan: bytes) -> Iterator[bytes]:
    """Yield damaged contents of `save/plan`: empty, cut, one bit flipped, and of another type."""
    yield b""
    yield plan[: len(plan) // 2]
    for position in range(0, len(plan), 16):
        yield plan[:position] + bytes([plan[position] ^ 1]) + plan[position + 1 :]
    yield b'["a", 1]'
    yield b"[" * 100_000


def test_a_damaged_plan_is_named() -> None:
    blobs = FakeBlobs()
    with pytest.raises(Killed):
        cook(BASIC, blobs, KillAt(3))
    plan = blobs.read("run/save/plan") or b""
    for damaged in damaged_plans(plan):
        blobs.write("run/save/plan", damaged)
        with pytest.raises(CorruptCheckpoint, match=r"run/save/plan.* is damaged .*restore it"):
            cook(BASIC, blobs)
    blobs.delete("run/save/plan")
    with pytest.raises(CorruptCheckpoint, match=r"run/save/plan.* missing"):
        cook(BASIC, blobs)
    blobs.write("run/save/plan", plan)
    cook(BASIC, blobs)


class Publish(Stage):
    """Memoized by its address, so that another grouping would find another stage's result."""

    memoize = True
    metric: str

    def run(self) -> Metrics:
        return Metrics({self.metric: 1.0})


def test_other_grouping_of_steps_is_another_plan() -> None:
    blobs: dict[Any, Any] = {BlobStore: FakeBlobs()}
    first, second = Publish("first"), Publish("second")
    with pytest.raises(Killed):
        run(sequence(sequence(first, second)), blobs, (KillAt(2),))
    with pytest.raises(ResumeError, match="another recipe, another version of it"):
        run(sequence(first, second), blobs)
    run(sequence(sequence(first, second)), blobs)


class CountingTraining(FakeTraining):
    """Counts samplers, and refuses one of the base model."""

    samplers = 0

    def sampler(self, weights: Any) -> Any:
        self.samplers += 1
        assert not isinstance(weights, str), "the base model was evaluated again"
        return super().sampler(weights)


def damage(blobs: FakeBlobs, name: str) -> None:
    data = blobs.read(name)
    assert data
    blobs.write(name, data[: len(data) // 2])


@pytest.mark.parametrize("what", ["weights.npz", "optimiser.npz", "checkpoint.json", "point"])
def test_damaged_checkpoint_falls_back_to_the_one_before(
    what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, blobs, whole = BASIC.model_copy(update={"save_every": 2}), FakeBlobs(), FakeBlobs()
    cook(recipe, whole)
    with pytest.raises(Killed):
        cook(recipe, blobs, KillAt(60))
    path = newest_checkpoint(blobs)
    newest = save_points(blobs)[-1]
    damage(blobs, newest if what == "point" else f"{path}/{what}")
    resumed = KillAt()
    cook(recipe, blobs, resumed)
    assert outcome(blobs) == outcome(whole)
    log = (blobs.read("run/log.jsonl") or b"").decode() + "".join(capsys.readouterr())
    assert (newest if what == "point" else path) in log, "the damaged checkpoint is named"


def test_forged_save_points_delete_nothing_elsewhere() -> None:
    recipe, blobs = BASIC.model_copy(update={"save_every": 2}), FakeBlobs()
    with pytest.raises(Killed):
        cook(recipe, blobs, KillAt(60))
    older = save_points(blobs)[0]
    text = json.loads(blobs.read(older) or b"")["record"]
    forged = re.sub(r'"path":"[^"]*"', '"path":"other/weights/final"', text)
    assert forged != text
    blobs.write(older, seal(forged))
    for name in ("checkpoint.json", "weights.npz"):
        blobs.write(f"other/weights/final/{name}", b"precious")
    cook(recipe, blobs)
    assert len(blobs.list("other/weights/final/")) == 2


def test_a_run_without_an_intact_save_point_can_be_replayed() -> None:
    recipe, blobs, whole = BASIC.model_copy(update={"save_every": 2}), FakeBlobs(), FakeBlobs()
    with pytest.raises(Killed):
        cook(recipe, blobs, KillAt(60))
    for name in blobs.list("run/save/"):
        if name.endswith("weights.npz"):
            damage(blobs, name)
    with pytest.raises(
        RunFailed, match="to replay from the start, delete memory://run/save and resume"
    ) as error:
        cook(recipe, blobs)
    assert isinstance(error.value.__cause__, CorruptCheckpoint)
    assert read_run(blobs, "run")["status"] == "failed"
    for name in blobs.list("run/save/"):
        blobs.delete(name)
    cook(recipe, blobs)
    cook(recipe, whole)
    assert outcome(blobs) == outcome(whole)


@pytest.mark.parametrize(
    "update", [{"batch_size": 1}, {"save_every": 1}, {"ahead": 0}, {"seed": 5}, {"keep": 3}]
)
def test_changed_settings_are_refused(update: dict[str, Any]) -> None:
    recipe, blobs = BASIC.model_copy(update={"save_every": 2, "ahead": 1}), FakeBlobs()
    with pytest.raises(Killed):
        cook(recipe, blobs, KillAt(60))
    with pytest.raises(ResumeError, match=r"other settings|was started with"):
        cook(recipe.model_copy(update=update), blobs)


def test_changed_data_is_refused() -> None:
    recipe, blobs = BASIC.model_copy(update={"save_every": 2}), FakeBlobs()
    with pytest.raises(Killed):
        cook(recipe, blobs, KillAt(60))
    other = make_kitchen(blobs, chats=CHATS[::-1])
    with pytest.raises(ResumeError, match=r"data.train.sha256"):
        execute(ORDER, recipe, other, "run")


def test_another_machine_is_refused_unless_allowed() -> None:
    recipe, blobs = BASIC.model_copy(update={"save_every": 2}), FakeBlobs()
    with pytest.raises(Killed):
        cook(recipe, blobs, KillAt(60))
    record = json.loads(blobs.read("run/run.json") or b"")
    record["facts"]["machine.numpy"] = "0.1"
    blobs.write("run/run.json", json.dumps(record).encode())
    with pytest.raises(ResumeError, match=r"machine.numpy = '0.1'.*nevertheless"):
        cook(recipe, blobs)
    kitchen = make_kitchen(blobs)
    execute(ORDER, recipe, kitchen, "run", other_machine=True)
    assert read_run(blobs, "run")["status"] == "completed"


def test_run_in_use_is_refused() -> None:
    blobs = FakeBlobs()
    kitchen = make_kitchen(blobs)

    class Again(Observer):
        def stage_done(self, event: StageDone) -> None:
            with pytest.raises(ConfigError, match=r"run 'run' is in use by process \d+"):
                execute(ORDER, BASIC, kitchen, "run")
            raise Killed

    with pytest.raises(Killed):
        execute(ORDER, BASIC, kitchen, "run", [Again()])


def test_stopped_run_saves_and_resumes_to_the_same_end() -> None:
    recipe, blobs, whole = BASIC.model_copy(update={"save_every": 4}), FakeBlobs(), FakeBlobs()
    cook(recipe, whole)

    class CtrlC(Observer):
        def stage_done(self, event: StageDone) -> None:
            if event.stage.title() == "OptimStep" and event.progress.step == 5:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="stopped at step 6, and saved"):
        cook(recipe, blobs, CtrlC())
    assert read_run(blobs, "run")["status"] == "interrupted"
    resumed = KillAt()
    cook(recipe, blobs, resumed)
    assert resumed.stages.count("OptimStep") == 12 - 6
    assert outcome(blobs) == outcome(whole)


def test_stop_in_the_last_step_is_honoured() -> None:
    recipe, blobs, whole = BASIC.model_copy(update={"save_every": 5}), FakeBlobs(), FakeBlobs()
    cook(recipe, whole)

    class CtrlC(Observer):
        def stage_done(self, event: StageDone) -> None:
            if event.stage.title() == "ReportStep" and event.progress.step == 11:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="stopped after step 12, and saved"):
        cook(recipe, blobs, CtrlC())
    resumed = KillAt()
    cook(recipe, blobs, resumed)
    assert "OptimStep" not in resumed.stages
    assert outcome(blobs) == outcome(whole)


def test_ctrl_c_during_a_log_entry_saves_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class InterruptingStderr(io.StringIO):
        def write(self, text: str) -> int:
            if "slow" in text:
                signal.raise_signal(signal.SIGINT)
            return super().write(text)

    class Warn(Observer):
        def stage_done(self, event: StageDone) -> None:
            if event.stage.title() == "OptimStep" and event.progress.step == 5:
                structlog.get_logger("of a test").warning("slow")

    configure()
    stderr = InterruptingStderr()
    monkeypatch.setattr("sys.stderr", stderr)
    with pytest.raises(Interrupted, match="stopped at step 6, and saved"):
        cook(BASIC.model_copy(update={"save_every": 4}), FakeBlobs(), Warn())
    assert "stopping after this step is finished" in stderr.getvalue()


class KillingAtTheEnd(FakeBlobs):
    """Kills the run after a loop's last save point is written and before anything is deleted."""

    def delete(self, name: str) -> None:
        if "/save/" in name and any(
            '\\"ended\\":true' in (self.read(n) or b"").decode(errors="replace")
            for n in self.list("run/save/")
            if n.count("/") == 2
        ):
            raise Killed
        super().delete(name)


def test_fallback_survives_a_kill_before_deletion() -> None:
    recipe, blobs = (
        BASIC.model_copy(update={"save_every": 2, "epochs": 1, "eval_every": 0}),
        KillingAtTheEnd(),
    )
    whole = FakeBlobs()
    cook(recipe, whole)
    with pytest.raises(Killed):
        cook(recipe, blobs)
    path = newest_checkpoint(blobs)
    copy = FakeBlobs()
    for name in blobs.list():
        copy.write(name, blobs.read(name) or b"")
    damage(copy, f"{path}/weights.npz")
    cook(recipe, copy)
    assert outcome(copy) == outcome(whole)


def test_lease_of_another_host_holds_until_taken_over() -> None:
    blobs = FakeBlobs()
    blobs.write(
        "run/lease/other.json", json.dumps({"host": "elsewhere", "pid": 1, "born": "2"}).encode()
    )
    with pytest.raises(ConfigError, match=r"in use by process 1 on elsewhere.*take it over"):
        cook(BASIC, blobs)
    execute(ORDER, BASIC, make_kitchen(blobs), "run", take_over=True)
    assert not blobs.list("run/lease/")


def test_lease_goes_to_at_most_one_of_many() -> None:
    blobs = FakeBlobs()
    held, refused = list[int](), list[int]()
    others_refused = threading.Event()
    together = threading.Barrier(8)

    def hold() -> None:
        together.wait()
        try:
            with lease(blobs, "run"):
                held.append(1)
                others_refused.wait(10)  # until the others have tried, however slow the machine
        except ConfigError:
            refused.append(1)
        if len(refused) >= 7:
            others_refused.set()

    threads = [threading.Thread(target=hold) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) <= 1
    assert len(refused) == 8 - len(held)


# of an earlier version, which did not record how the data was rendered
OLD_RECORD = '{"run":"run","recipe":"","order":{},"attempts":[],"facts":{},"status":"completed"}'


@pytest.mark.parametrize("text", ["[]", "{}", "no json", '{"run": 1}', OLD_RECORD])
def test_unreadable_record_is_refused_and_listed(text: str) -> None:
    blobs = FakeBlobs()
    blobs.write("run/run.json", text.encode())
    with pytest.raises(ConfigError, match=r"run/run.json"):
        read_run(blobs, "run")
    [row] = list_runs(blobs)
    assert (row.status, row.id) == ("unreadable", "run")


def test_non_finite_gradient_stops_the_run() -> None:
    recipe, blobs = (
        BASIC.model_copy(update={"learning_rate": 1e308, "schedule": "constant"}),
        FakeBlobs(),
    )
    with pytest.raises(
        RunFailed, match=r"datum \d+ of 2: its loss or its gradient is not a finite number"
    ) as error:
        cook(recipe, blobs)
    where = r"in recipes.sl_basic > Epochs step 0 > ShuffledBatches step \d > ForwardBackward"
    assert re.search(where, error.value.__notes__[0])


@dataclass(frozen=True)
class Item:
    n: int


@dataclass(frozen=True)
class Best(Result):
    value: float


@dataclass(frozen=True)
class Reply:
    n: int


class Items(Stage):
    def run(self) -> Iterable[Item]:
        return [Item(n) for n in range(4)]


class Start(Stage):
    def run(self) -> Best:
        return Best(float("-inf"))


class Ask(Stage):
    def run(self, item: Item) -> Future[Reply]:
        return Done(Reply(item.n))


class KeepBest(Stage):
    def run(self, reply: Reply, best: Best) -> Best:
        return Best(max(best.value, reply.n)) if reply.n > 2 else best


class Report(Stage):
    def run(self, best: Best) -> Metrics:
        return Metrics(best=best.value)


def test_carried_infinite_values_survive_a_resume() -> None:
    blobs = FakeBlobs()
    work: Step = sequence(Start(), for_each(Items(), save=1)(Ask(), KeepBest(), Report()))

    class KillAtThird(Observer):
        def stage_done(self, event: StageDone) -> None:
            if isinstance(event.stage, KeepBest) and event.progress.step == 2:
                raise Killed

    with pytest.raises(Killed):
        run(work, {BlobStore: blobs}, (KillAtThird(),))
    resumed = KillAt()
    assert run(work, {BlobStore: blobs}, (resumed,))[Best] == Best(3.0)
    assert resumed.stages.count("Ask") == 2
