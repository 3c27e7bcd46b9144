"""Early stopping on the fake: when recipes stop, what they keep, and the best by other metrics."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from adapters.local.blobs import LocalBlobs
from kitchen import Kitchen, Observer, StageDone
from kitchen.artifacts.weights import find_weights
from kitchen.engine.stop import StopSignal
from kitchen.errors import ConfigError, CorruptCheckpoint, DataError, Interrupted
from kitchen.runs.execute import execute
from kitchen.runs.store import read_journal, read_run
from kitchen.types import Checkpoint
from recipes.sl_basic import SlBasic
from stages.evaluate.selection import BestConfig
from stages.rl.held_out_reward import first_problems
from stages.tasks.tasks import Tasks
from stages.train.early_stopping import EarlyStopper, StopState
from tests.support.killed_runs import DATA, build_recipe, order_of, outcome
from tests.support.recording import RecordingObserver

pytestmark = pytest.mark.usefixtures("letters")
STOPPING = ("sl_basic", "chat_sl", "dpo", "kto", "claim_extraction", "distillation_off_policy")
PATIENCE: dict[str, Any] = {"eval_every": 2, "early_stopping": {"patience": 2, "min_delta": 100.0}}


def cook(name: str, ahead: int = 1, **settings: Any) -> tuple[RecordingObserver, FakeBlobs]:
    """Run a recipe of killed_runs; return what it published, and its record."""
    seen, blobs = RecordingObserver(), FakeBlobs()
    recipe = build_recipe(name, "model", "teacher", ahead, **settings)
    kitchen = Kitchen(FakeTraining(blobs), FakeDatasets(DATA), None, blobs)
    execute(order_of(recipe), recipe, kitchen, "run", [seen])
    return seen, blobs


def best_step(blobs: FakeBlobs) -> int:
    found = find_weights("run:run@best", FakeTraining(blobs), blobs).source
    assert isinstance(found, Checkpoint)
    return found.step


@pytest.mark.parametrize("ahead", [0, 1, 2])
@pytest.mark.parametrize("recipe", STOPPING)
def test_it_stops_after_patience_evaluations(recipe: str, ahead: int) -> None:
    seen, blobs = cook(recipe, ahead, **PATIENCE)
    final = [row for row in read_journal(blobs, "run", "checkpoints") if row["final"]]
    assert [row["step"] for row in final] == [6]
    [line] = [
        row["event"] for row in read_journal(blobs, "run", "log") if "stopped early" in row["event"]
    ]
    assert line == f"stopped early {read_run(blobs, 'run')['facts']['stopped_early']}"
    metric = "held_out_loss has not improved by more than 100 for 2 evaluations"
    assert line.startswith(f"stopped early at step 6: {metric} (best ")
    losses = seen.series("held_out_loss")
    assert len(losses) == 3
    assert best_step(blobs) == 2 * (losses.index(min(losses)) + 1)


def test_without_patience_the_plan_has_no_trace_of_it() -> None:
    off = build_recipe("sl_basic", "model", "teacher", 1)
    assert "topped" not in str(Kitchen(FakeTraining(), FakeDatasets(DATA)).check(off))


def test_the_plan_says_that_the_loop_may_end_early() -> None:
    recipe = build_recipe("sl_basic", "model", "teacher", 1, **PATIENCE)
    plan = str(Kitchen(FakeTraining(), FakeDatasets(DATA), None, FakeBlobs()).check(recipe))
    assert plan.count("until stopped early") == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"early_stopping": {"patience": 3}, "eval_every": 0}, "set eval_every"),
        ({"best": {"metric": "held_out_margin"}, "eval_every": 0}, "set eval_every"),
        ({"early_stopping": {"min_delta": 0.1}}, "set early_stopping.patience"),
    ],
)
def test_settings_without_effect_are_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SlBasic(**settings)


class StopAfter(Observer):
    """Asks for a graceful stop after the n-th call of a stage."""

    def __init__(self, signal: StopSignal, stage: str, call: int) -> None:
        self.signal, self.stage, self.left = signal, stage, call

    def stage_done(self, event: StageDone) -> None:
        self.left -= event.stage.title() == self.stage
        if self.left == 0:
            self.signal.request()


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize("call", range(1, 8))
def test_a_run_stopped_by_ctrl_c_resumes_to_the_same(call: int, ahead: int, tmp_path: Path) -> None:
    recipe = build_recipe("sl_basic_stopped", "model", "teacher", ahead, save_every=3)
    for root, calls in (("whole", 0), ("stopped", call)):
        blobs = LocalBlobs(str(tmp_path / root))
        kitchen = Kitchen(FakeTraining(blobs), FakeDatasets(DATA), None, blobs)
        signal = StopSignal()
        observer = StopAfter(signal, "ForwardBackward", calls)
        try:
            execute(order_of(recipe), recipe, kitchen, "run", [observer], stop_signal=signal)
            assert not 0 < calls <= 6
        except Interrupted:
            execute(order_of(recipe), recipe, kitchen, "run")
    newest = {"newest_save_point": True}
    assert outcome(tmp_path / "stopped", **newest) == outcome(tmp_path / "whole", **newest)


def test_the_best_by_another_metric_is_kept() -> None:
    best = {"metric": "held_out_chosen_reward", "greater_is_better": False}
    seen, blobs = cook("dpo", best=best, eval_every=1, learning_rate=0.3)
    rewards, losses = seen.series(best["metric"]), seen.series("held_out_loss")
    lowest = rewards.index(min(rewards))
    assert best_step(blobs) == lowest + 1
    assert seen.series(f"best_{best['metric']}")[-1] == min(rewards)
    assert losses.index(min(losses)) != lowest, "else the loss would have selected the same"
    assert find_weights("run:run@best", FakeTraining(blobs), blobs).source


def test_an_unknown_metric_names_the_nearest_one() -> None:
    """Before the run: the recipe cannot be built."""
    recipe = build_recipe("dpo", "model", "teacher", 1, best={"metric": "held_out_margn"})
    with pytest.raises(ConfigError, match=r"best.metric='held_out_margn'.*held_out_margin"):
        recipe.workflow()


@pytest.mark.parametrize("name", ["dpo", "kto", "rl", "rlhf_answer", "distillation_teachers"])
def test_everything_that_is_measured_can_be_selected_by(name: str) -> None:
    seen, _ = cook(name, 0, eval_every=2)
    measured = {each for each in seen.metric_names() if each.startswith("held_out_")}
    assert len(measured) > 1
    for metric in measured:
        best = {"metric": metric}
        build_recipe(name, "model", "teacher", 0, eval_every=2, best=best).workflow()


@pytest.mark.parametrize("lag", [0, 2])
@pytest.mark.parametrize(
    ("recipe", "metric"),
    [
        ("rl", "held_out_reward"),
        ("rlhf_answer", "held_out_preferred"),
        ("distillation", "held_out_kl"),
        ("distillation_teachers", "held_out_kl"),
    ],
)
def test_rollouts_stop_after_patience_evaluations(recipe: str, metric: str, lag: int) -> None:
    settings = {"eval_every": 1, "early_stopping": {"patience": 2, "min_delta": 100.0}}
    seen, blobs = cook(recipe, lag, **settings, keep=1, steps=6)
    values = seen.series(metric)
    assert len(values) == 3 + lag
    assert (
        f"at step 3: {metric} has not improved" in read_run(blobs, "run")["facts"]["stopped_early"]
    )
    better = min if metric == "held_out_kl" else max
    rows = [row for row in read_journal(blobs, "run", "checkpoints") if row["policy"]]
    exports = {row["iteration"]: row["path"] for row in rows if not row["final"]}
    found = find_weights("run:run@best", FakeTraining(blobs), blobs).source
    assert isinstance(found, Checkpoint)
    assert found.path == exports[values.index(better(values))]


def test_nan_is_never_the_best() -> None:
    best = BestConfig()
    assert best.gain(math.nan, None) == best.gain(math.nan, 1.0) == -math.inf
    assert best.gain(1.0, None) == math.inf


def test_the_best_by_a_part_of_the_reward_is_kept() -> None:
    best = {"metric": "held_out_rewards/letters"}
    reward = {"letters": 1.0, "exact": 2.0}
    seen, blobs = cook("rl", 0, reward=reward, best=best, eval_every=1)
    parts, rewards = seen.series("held_out_rewards/letters"), seen.series("held_out_reward")
    exact = seen.series("held_out_rewards/exact")
    assert rewards == pytest.approx([a + 2 * b for a, b in zip(parts, exact, strict=True)])
    assert seen.series("best_held_out_rewards/letters")[-1] == max(parts)
    assert read_run(blobs, "run")["selects_by"] == "held_out_rewards/letters"


def test_a_policy_without_held_out_problems_is_refused() -> None:
    with pytest.raises(DataError, match="set eval_every=0"):
        first_problems(Tasks((), {}), 8)


def test_the_last_step_is_not_early() -> None:
    seen, blobs = cook("sl_basic", **PATIENCE, max_steps=6)
    assert len(seen.series("loss")) == 6
    assert "stopped_early" not in read_run(blobs, "run")["facts"]


@pytest.mark.parametrize("lag", [0, 1, 2])
def test_evaluations_do_not_change_the_training(lag: int) -> None:
    with_them, without = cook("rl", lag, eval_every=2)[0], cook("rl", lag)[0]
    assert len(with_them.series("held_out_reward")) == 3
    assert with_them.series("reward") == without.series("reward")
    assert with_them.series("grad_norm") == without.series("grad_norm")


def test_a_damaged_or_repeated_state_is_an_error() -> None:
    blobs = FakeBlobs()
    stopper = EarlyStopper(blobs)
    stopper.state = StopState(0.5, 4, 1)
    checkpoint = stopper.save("run/save/1/EarlyStopper").result()
    with pytest.raises(ConfigError, match="exists already"):
        stopper.save(checkpoint.path).result()
    restored = EarlyStopper(blobs)
    restored.load(checkpoint).result()
    assert restored.state == stopper.state
    [file] = blobs.list(checkpoint.path)
    blobs.write(file, (blobs.read(file) or b"").replace(b"0.5", b"0.6"))
    with pytest.raises(CorruptCheckpoint, match="is damaged"):
        restored.load(checkpoint).result()
    stopper.delete(checkpoint).result()
    assert not blobs.list("run/save")
