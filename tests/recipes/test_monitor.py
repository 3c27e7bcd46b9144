"""The monitor on the fake: what is checked when, warnings, and stops that keep the weights."""

from __future__ import annotations

from typing import Any

import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import Kitchen
from kitchen.errors import ConfigError, QualityError
from kitchen.recipe import Recipe
from kitchen.runs.execute import execute
from kitchen.runs.store import read_journal
from kitchen.statistics.intervals import Interval
from recipes.claim_extraction import ClaimExtraction
from recipes.dpo import Dpo
from recipes.kto import Kto
from recipes.sl_basic import SlBasic
from stages.claims.evaluation import ClaimEvalConfig
from stages.claims.monitor import MonitorClaims
from stages.evaluate.evaluation import EvalConfig
from stages.evaluate.monitor import (
    ActOnMonitor,
    MonitorConfig,
    Monitored,
    MonitoredWeights,
    MonitorHeldOut,
)
from stages.evaluate.targets import Targets
from tests.support.claims import CLAIM_SPLITS
from tests.support.killed_runs import DATA, order_of
from tests.support.recording import RecordingObserver


def cook(recipe: Recipe) -> tuple[RecordingObserver, FakeBlobs, str]:
    """Run a recipe; return what it published, its record, and the text of a QualityError."""
    seen, blobs = RecordingObserver(), FakeBlobs()
    data = FakeDatasets({**DATA, "claims": CLAIM_SPLITS})
    kitchen = Kitchen(FakeTraining(blobs), data, None, blobs)
    try:
        execute(order_of(recipe), recipe, kitchen, "run", [seen])
    except QualityError as error:
        return seen, blobs, str(error)
    return seen, blobs, ""


def sl_basic(every: int | str, **limits: Any) -> tuple[RecordingObserver, FakeBlobs, str]:
    recipe = SlBasic(
        model="tiny",
        dataset="chats",
        batch_size=4,
        epochs=2,
        eval_every=4,
        warmup_steps=0,
        monitor={"every": every, **limits},
        evaluation={"metric": "loss"},
    )
    return cook(recipe)


def saved(blobs: FakeBlobs) -> list[tuple[str, int]]:
    rows = read_journal(blobs, "run", "checkpoints")
    return [(row["path"], row["step"]) for row in rows if "monitor" in row["path"]]


@pytest.mark.parametrize("every, steps", [(2, [2, 4, 6]), ("epoch", [3, 6])])
def test_it_measures_every_n_steps_or_epoch(every: int | str, steps: list[int]) -> None:
    seen, blobs, error = sl_basic(every)
    assert error == ""
    assert [step for _, step in saved(blobs)] == steps
    losses = seen.series("monitor/loss")
    assert len(losses) == len(steps)
    assert losses[-1] < losses[0]
    assert not blobs.list("run/weights/monitor")  # deleted, as no check stopped the run


def test_an_epoch_cut_short_ends_with_the_run() -> None:
    recipe = SlBasic(
        model="tiny",
        dataset="chats",
        batch_size=4,
        epochs=2,
        max_steps=5,
        eval_every=0,
        monitor={"every": "epoch"},
        evaluation={"metric": "loss"},
    )
    _, blobs, _ = cook(recipe)
    assert [step for _, step in saved(blobs)] == [3, 5]


def test_training_is_the_same_with_and_without_it() -> None:
    with_monitor, without = sl_basic(1)[0], sl_basic(0)[0]
    assert with_monitor.series("loss") == without.series("loss")


def test_a_limit_of_a_value_warns() -> None:
    seen, _, error = sl_basic("epoch", warn={"at_most": {"loss": 0.1}})
    assert error == ""
    assert seen.series("monitor/warnings") == [1.0, 1.0]


def test_an_interval_beyond_its_limit_stops_and_keeps_weights() -> None:
    seen, blobs, error = sl_basic(2, stop={"at_most": {"loss": 0.001}})
    assert "after step 2: loss is" in error
    assert "run/weights/monitor-000002" in error
    assert saved(blobs) == [("run/weights/monitor-000002", 2)]
    assert blobs.list("run/weights/monitor-000002")
    assert len(seen.series("loss")) < 6


def test_an_interval_across_its_limit_only_warns() -> None:
    estimate = sl_basic(6)[0].series("monitor/loss")[0]
    seen, _, error = sl_basic(6, stop={"at_most": {"loss": estimate - 1e-6}})
    assert error == ""
    assert seen.series("monitor/warnings") == [1.0]


def monitor(**limits: Any) -> MonitorConfig:
    return MonitorConfig(1, **{name: Targets({"loss": bound}) for name, bound in limits.items()})


@pytest.mark.parametrize(
    "limits, measures, warnings",
    [
        ({"stop": 0.5}, {}, 1),
        ({"warn": 0.9, "stop": 0.5}, {"loss": Interval(0.4, 0.1, 0.7, 0.95, "t", 9)}, 1),
        ({"warn": 0.9, "stop": 0.5}, {"loss": Interval(0.6, 0.1, 0.7, 0.95, "t", 9)}, 1),
        ({"warn": 0.9, "stop": 0.5}, {"loss": Interval(0.9, 0.1, 0.9, 0.95, "t", 9)}, 0),
    ],
)
def test_a_measure_beyond_its_limits_or_missing_is_one_warning(
    limits: dict[str, float], measures: dict[str, Interval], warnings: int
) -> None:
    act = ActOnMonitor(monitor(**limits))
    weights = MonitoredWeights("run/weights/monitor-000001", 1)
    assert act.run(Monitored(measures), weights)["monitor/warnings"] == warnings


def test_claims_are_monitored_by_their_own_measures() -> None:
    recipe = ClaimExtraction(
        model="tiny",
        batch_size=2,
        epochs=1,
        evaluation={"max_tokens": 20},
        monitor={"every": 1, "rows": 2, "warn": {"at_least": {"schema": 1.0}}},
    )
    seen, _, error = cook(recipe)
    assert error == ""
    assert len(seen.series("monitor/schema")) == len(seen.series("monitor/citation_valid")) == 3
    assert seen.series("monitor/warnings")[0] == 1.0


@pytest.mark.parametrize("recipe, dataset", [(Dpo, "pairs"), (Kto, "pairs")])
def test_preferences_are_monitored_by_the_held_out_loss(recipe: type[Recipe], dataset: str) -> None:
    settings: dict[str, Any] = {"reading": {"held_out_rows": 2}, "evaluation": {"metric": "loss"}}
    seen, _, error = cook(
        recipe(
            model="tiny",
            dataset=dataset,
            batch_size=4,
            max_steps=2,
            eval_every=0,
            monitor={"every": 2},
            **settings,
        )
    )
    assert error == ""
    assert len(seen.series("monitor/loss")) == 1


def test_limits_without_checks_and_unknown_measures_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"monitor\.every=0"):
        MonitorConfig(warn=Targets({"exact_match": 0.5}))
    recipe = SlBasic(monitor={"every": 5, "stop": {"at_least": {"exact_mach": 0.5}}})
    stage = MonitorHeldOut(recipe.evaluation, recipe.rendering, 32, ("exact_mach",))
    with pytest.raises(ConfigError, match="did you mean 'exact_match'"):
        stage.verify()


@pytest.mark.parametrize(
    "metric, name", [("loss", "exact_match"), ("text", "loss"), ("choice", "loss"), ("auto", "acc")]
)
def test_limits_that_can_never_be_measured_are_refused(metric: Any, name: str) -> None:
    stage = MonitorHeldOut(EvalConfig(metric=metric), SlBasic().rendering, 32, (name,))
    with pytest.raises(ConfigError, match=f"{name} is not measured with evaluation.metric="):
        stage.verify()


def test_limits_of_claims_know_own_metrics_and_draws() -> None:
    own = ClaimEvalConfig(metrics=("tests.stages.claims.test_evaluation:same_words",), draws=1)
    names = ("same_words", "citation_valid_sampled", "schema")
    rendering = SlBasic().rendering
    MonitorClaims(own, rendering, names=names).verify()
    with pytest.raises(ConfigError, match="there is no measure 'same_words'"):
        MonitorClaims(ClaimEvalConfig(), rendering, names=names[:1]).verify()
    with pytest.raises(ConfigError, match=r"with evaluation\.draws=0"):
        MonitorClaims(ClaimEvalConfig(), rendering, names=names[1:]).verify()
