"""Prompts of several data sets for distillation: their shares, and which data sets fit."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from adapters.fake.datasets import FakeDatasets
from kitchen.errors import ConfigError
from stages.data.dataset import DEFAULT_DATASET, DataConfig
from stages.distill.on_policy import load_prompts
from stages.tasks.tasks import TaskBatches

ROWS = [{"prompt": f"say {n}", "completion": "a"} for n in range(8)]
STORE = FakeDatasets({"long": {"train": ROWS, "held": ROWS}, "short": {"train": ROWS[:2]}})
READING = DataConfig(held_out=0.5)


@pytest.mark.parametrize("teachers", [None, {"short": "one", "long": "two"}])
def test_prompts_have_the_shares_of_the_mixture(teachers: dict[str, str] | None) -> None:
    mixture = {"long": 1.0, "short": 3.0}
    stages: Any = load_prompts(DEFAULT_DATASET, mixture, teachers, READING, 0, 8)
    load, turn = stages
    tasks = turn.run(load.run(STORE)[0])
    for batch in TaskBatches(4, 3).run(tasks):
        assert Counter(task.tag for task in batch.tasks) == {"long": 1, "short": 3}


@pytest.mark.parametrize(
    ("dataset", "teachers", "message"),
    [
        ("long", None, "leave dataset=long out"),
        (DEFAULT_DATASET, {"long": "one"}, r"set teachers\.short=WEIGHTS"),
        (DEFAULT_DATASET, {"long": "a", "short": "b", "shrt": "c"}, "did you mean 'short'"),
    ],
)
def test_data_sets_that_do_not_fit(
    dataset: str, teachers: dict[str, str] | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_prompts(dataset, {"long": 1.0, "short": 1.0}, teachers, READING, 0, 8)
