"""rl on the fake: it learns what is rewarded, alone and with acting weights that lag behind."""

from __future__ import annotations

from typing import Any

import pytest

import kitchen
from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen.errors import KitchenError
from recipes.rl import Rl
from tests.recipes.seen import Seen

ROWS = [{"prompt": "?", "completion": "{}"}] * 4
DATA = FakeDatasets({"right": {"train": ROWS, "held": ROWS[:2]}})
pytestmark = pytest.mark.usefixtures("letters")


def cook(**settings: Any) -> Seen:
    seen, blobs = Seen(), FakeBlobs()
    defaults = {"dataset": "right", "batch_size": 4, "group": 16, "steps": 25, "learning_rate": 0.1,
                "reward": "letters", "playing": {"max_tokens": 3}}
    kitchen.run(Rl(**{**defaults, **settings}), training=FakeTraining(blobs), datasets=DATA, blobs=blobs, name="run",
                observers=[seen])
    return seen


@pytest.mark.parametrize("settings", [
    {}, {"advantages": "normalised"}, {"advantages": "leave_one_out"}, {"loss": "ppo"}, {"loss": "cispo"},
    {"updates": 2}, {"stale": 1}, {"stale": 2, "loss": "ppo"}, {"kl_penalty": 0.01}])
def test_it_learns_what_is_rewarded(settings: Any) -> None:
    seen = cook(**settings)
    rewards = seen.series("reward")
    assert len(rewards) == 25
    assert sum(rewards[-5:]) / 5 > rewards[0] + 0.2, rewards
    assert seen.series("held/reward_gain")[0] > 0.2


def test_a_fresh_copy_acts_each_time_unless_told() -> None:
    assert max(map(abs, cook(steps=4).series("kl_sampler_v1"))) < 1e-5
    assert max(map(abs, cook(steps=6, stale=2).series("kl_sampler_v1"))) > 1e-3


def test_constant_groups_teach_nothing_and_are_counted() -> None:
    seen = cook(reward="exact", steps=2)
    assert seen.series("constant_groups") == [1.0, 1.0]
    assert seen.series("loss") == []
    assert seen.series("reward/right") == [0.0, 0.0]


def test_clipping_is_by_the_thresholds_of_the_loss() -> None:
    plain, tight = cook(steps=4, updates=3), cook(steps=4, updates=3, loss="ppo", loss_options={
        "clip_low_threshold": 0.999, "clip_high_threshold": 1.001})
    assert max(plain.series("clip_fraction")) == 0.0
    assert max(tight.series("clip_fraction")) > 0.1
    with pytest.raises(KitchenError, match="clip_low_threshold"):
        cook(loss="ppo", loss_options={"clip_low": 0.9})
