"""Problems of several data sets: shares, rewards and held-out sets of each."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from adapters.fake.datasets import FakeDatasets
from kitchen.errors import ConfigError, DataError
from stages.data.splits import DataConfig
from stages.tasks.grading import GradingConfig
from stages.tasks.rewards import REWARDS, Question
from stages.tasks.sources import ProblemSources
from stages.tasks.tasks import TaskBatches, Tasks

SUMS = [{"prompt": f"{n} + 1", "completion": str(n + 1)} for n in range(9)]
DISHES = [{"prompt": f"dish {n}", "completion": f'{{"n": {n}}}'} for n in range(4)]
STORE = FakeDatasets(
    {
        "sums": {"train": SUMS, "test": SUMS[:2]},
        "dishes": {"train": DISHES, "held": DISHES[:1]},
        "leak": {"train": DISHES[:2], "copy": SUMS},
    }
)


def sources(mixture: dict[str, float] | None, **settings: Any) -> ProblemSources:
    return ProblemSources(
        **{"dataset": "ingredients", "reading": DataConfig(), "mixture": mixture, **settings}
    )


def load(mixture: dict[str, float], **settings: Any) -> Tasks:
    stage: Any = sources(mixture, **settings).stage()
    stage.verify(STORE)
    return stage.run(STORE)[0]


def test_each_data_set_has_its_share_reward_and_held_out_sets() -> None:
    tasks = load({"sums": 2, "dishes": 1})
    batches = list(TaskBatches(3, 6).run(tasks))
    for batch in batches:
        assert Counter(task.tag for task in batch.tasks) == {"sums": 2, "dishes": 1}
    used = [task for batch in batches for task in batch.tasks]
    assert len({id(task) for task in used if task.tag == "sums"}) == 9, "a pass has each once"
    assert Counter(Counter(id(task) for task in used if task.tag == "dishes").values()) == {
        1: 2,
        2: 2,
    }
    rewards = {task.tag: task.reward for task in used if isinstance(task, Question)}
    assert rewards == {"sums": REWARDS["exact"], "dishes": REWARDS["field_f1"]}
    assert {name: len(rows) for name, rows in tasks.held_out.items()} == {
        "sums/test": 2,
        "dishes/held": 1,
    }


def test_order_depends_on_the_seed_alone() -> None:
    orders = [
        [
            task.messages
            for batch in TaskBatches(4, 5, seed).run(load({"sums": 1, "dishes": 1}))
            for task in batch.tasks
            if isinstance(task, Question)
        ]
        for seed in (0, 0, 1)
    ]
    assert orders[0] == orders[1] != orders[2]


def test_rewards_by_data_set_take_precedence() -> None:
    tasks = load({"sums": 1, "dishes": 1}, reward="exact", rewards={"dishes": "field_f1"})
    rewards = {task.tag: task.reward for task in tasks.train if isinstance(task, Question)}
    assert rewards == {"sums": REWARDS["exact"], "dishes": REWARDS["field_f1"]}


def test_generated_problems_may_be_part_of_a_mixture() -> None:
    reading = DataConfig(bad_rows="drop", held_out_rows=2)
    tasks = load({"sums": 1, "game:guess": 3}, reading=reading, max_rows=8, reward="exact")
    assert Counter(task.tag for task in tasks.train) == {"sums": 9, "game:guess": 6}
    assert set(tasks.held_out) == {"sums/test", "game:guess/held_out"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mixture": {}}, "mixture.ingredients=1"),
        ({"mixture": {"sums": 1}, "dataset": "sums"}, "leave dataset=sums out"),
        ({"mixture": {"sums": 1}, "rewards": {"sum": "exact"}}, "did you mean 'sums'"),
        ({"mixture": None, "rewards": {"sums": "exact"}}, "set reward"),
        ({"mixture": {"game:guess": 1}, "rewards": {"game:guess": "exact"}}, "its own reward"),
        ({"mixture": {"game:guess": 1}, "reward": "exact"}, "leave out reward and grading"),
        (
            {"mixture": {"game:guess": 1}, "grading": GradingConfig(ignore_case=True)},
            "leave out reward and grading",
        ),
        ({"mixture": {"sums": 1}, "rewards": {"sums": "exat"}}, r"rewards\.sums: .*'exact'"),
        ({"mixture": None, "gym_options": {"chain_sum": {}}}, "dataset=reasoning-gym:chain_sum"),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sources(**settings).stage()


def test_problems_of_a_held_out_split_are_not_trained_on() -> None:
    with pytest.raises(DataError, match=r"sums would be trained on.*split 'copy' of leak"):
        load({"sums": 1, "leak": 1})
