"""Warm-ups that are longer than the run, and max_steps beyond the epochs."""

import pytest

from kitchen.types import Price
from stages.chat.token_cost import EpochSize
from stages.data.dataset import Epochs
from stages.train.optim import OptimStep
from stages.train.schedules import Constant, Cosine, Linear, PlannedSteps, unreached_peak
from stages.train.suggested_lr import TrainedModel

MODEL = TrainedModel("tiny", None, None)


@pytest.mark.parametrize("schedule", [Constant(0.001, 10), Linear(0.001, 10), Cosine(0.001, 10)])
def test_a_warm_up_beyond_the_run_is_named(schedule):
    assert "reaches only 0.0003" in unreached_peak(schedule, 3)
    table = OptimStep(schedule).preview(MODEL, PlannedSteps(3))
    assert table.rows[0][1] == "0.0003"
    assert "warmup_steps=10" in table.rows[-1][-1]


@pytest.mark.parametrize("steps", [10, 11, 1000])
def test_a_warm_up_within_the_run_is_not_named(steps):
    assert not unreached_peak(Linear(0.001, 10), steps)
    assert len(OptimStep(Linear(0.001, 10)).preview(MODEL, PlannedSteps(steps)).rows) == 1


@pytest.mark.parametrize(
    ("epochs", "max_steps", "steps"), [(1, 100, 3), (2, 7, 6), (1, None, 3), (1, 3, 3), (2, 1, 1)]
)
def test_max_steps_beyond_the_epochs_is_named(epochs, max_steps, steps):
    size = EpochSize(9, "datums", 90)
    planned, table = Epochs(epochs, 4, max_steps).preview(size, Price(1.0))
    assert planned.count == steps
    beyond = max_steps is not None and max_steps > steps
    assert any(f"max_steps={max_steps}" in value for _, value in table.rows) == beyond
