"""rl on the fake: it learns what is rewarded, on-policy and with a policy lag."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pytest

import kitchen
from adapters.fake.blobs import FakeBlobs
from adapters.fake.datasets import FakeDatasets
from adapters.fake.training import FakeTraining
from kitchen import Observer, Recipe, Stage, Step, sequence
from kitchen.config.settings import resolve_settings
from kitchen.config.sources import from_mapping
from kitchen.engine.observers import StageStarted
from kitchen.errors import KitchenError
from kitchen.ports import Message
from kitchen.ports.environments import StepResult
from kitchen.types import Samples
from recipes.distillation import Distillation
from recipes.rl import Rl
from recipes.rlhf import Rlhf
from stages.tasks.tasks import Tasks
from tests.support.recording import RecordingObserver

ROWS = [{"prompt": "?", "completion": "{}"}] * 4
SUMS = [{"prompt": "1 + 1 =", "completion": "2"}] * 4
DATA = FakeDatasets(
    {"right": {"train": ROWS, "held": ROWS[:2]}, "sums": {"train": SUMS, "held": SUMS[:2]}}
)
pytestmark = pytest.mark.usefixtures("letters")


def cook(*observers: Observer, recipe: type[Rl] = Rl, **settings: Any) -> RecordingObserver:
    seen, blobs = RecordingObserver(), FakeBlobs()
    defaults = {
        "dataset": "right",
        "batch_size": 4,
        "group": 16,
        "steps": 25,
        "learning_rate": 0.1,
        "reward": "letters",
        "playing": {"max_tokens": 3},
    }
    kitchen.run(
        recipe(**{**defaults, **settings}),
        training=FakeTraining(blobs),
        datasets=DATA,
        blobs=blobs,
        name="run",
        observers=[seen, *observers],
    )
    return seen


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"advantages": "normalised"},
        {"advantages": "leave_one_out"},
        {"loss": "ppo"},
        {"loss": "cispo"},
        {"loss": "dro"},
        {"loss": "dro", "updates": 2, "loss_options": {"beta": 0.5}},
        {"updates": 2},
        {"policy_lag": 1},
        {"policy_lag": 2, "loss": "ppo", "group": 32},
        {"kl_penalty": 0.01},
    ],
)
def test_it_learns_what_is_rewarded(settings: Any) -> None:
    seen = cook(**settings)
    rewards = seen.series("reward")
    assert len(rewards) == 25
    assert sum(rewards[-5:]) / 5 > rewards[0] + 0.2, rewards
    assert seen.series("held/reward_gain")[0] > 0.2


def test_training_is_on_policy_by_default() -> None:
    assert max(map(abs, cook(steps=4).series("kl_sampler_v1"))) < 1e-5
    assert max(map(abs, cook(steps=6, policy_lag=2).series("kl_sampler_v1"))) > 1e-3


@pytest.mark.parametrize(
    "policy_lag, save_every, behind",
    [
        (0, 0, [0, 0, 0, 0, 0, 0, 0, 0]),
        (2, 0, [0, 1, 2, 2, 2, 2, 2, 2]),
        (2, 5, [0, 1, 2, 2, 2, 0, 1, 2]),
        (1, 3, [0, 1, 1, 0, 1, 1, 0, 1]),
    ],
)
def test_sampling_weights_lag_by_policy_lag_batches(
    policy_lag: int, save_every: int, behind: list[int]
) -> None:
    trained_at_snapshot: list[int] = []

    class TrainedBatches(Observer):
        count = 0

        def stage_started(self, event: StageStarted) -> None:
            self.count += event.stage.title() == "ReportRollouts"
            if event.stage.title() == "Snapshot":
                trained_at_snapshot.append(self.count)

    cook(TrainedBatches(), steps=8, policy_lag=policy_lag, save_every=save_every)
    assert [batch - trained for batch, trained in enumerate(trained_at_snapshot)] == behind


def test_policy_lag_must_be_less_than_save_every() -> None:
    with pytest.raises(KitchenError, match="policy_lag=2 cannot be reached with save_every=2"):
        cook(policy_lag=2, save_every=2)
    cook(policy_lag=2, save_every=3, steps=1)


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 10**25},
        {"batch_size": 2, "group": 10**6},
        {"steps": 10**9},
        {"lora_rank": 10**6},
        {"batch_size": 2**31, "steps": 1},
    ],
)
def test_sizes_beyond_any_memory_are_refused(settings: dict[str, int]) -> None:
    recipes: list[type[Recipe]] = [Rl, Rlhf, Distillation]
    for cls in recipes:
        problems = resolve_settings(cls, list(from_mapping(settings, "settings"))).problems
        assert len(problems) == 1
        assert re.search("lower one of them|less than or equal to", str(problems[0]))


def test_dro_keeps_the_policy_near_the_sampling_one() -> None:
    """On average over seeds: single updates vary widely."""

    def divergence(beta: float) -> float:
        runs = [
            cook(seed=seed, steps=1, updates=8, group=64, loss="dro", loss_options={"beta": beta})
            for seed in range(4)
        ]
        return sum(seen.series("kl_sampler_v2")[-1] for seen in runs)

    assert divergence(50.0) < divergence(0.0) / 2


def test_constant_groups_are_skipped_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    seen = cook(reward="exact", steps=2)
    assert seen.series("frac_constant_groups") == [1.0, 1.0]
    assert seen.series("loss") == []
    assert seen.series("reward/right") == [0.0, 0.0]
    assert "nothing was trained: the run took no optimiser step" in capsys.readouterr().err
    assert cook(group=1, kl_penalty=0.1, steps=1).series("loss")
    assert "nothing was trained" not in capsys.readouterr().err


def test_a_group_of_one_needs_a_kl_penalty() -> None:
    with pytest.raises(KitchenError, match="group=1"):
        cook(group=1)
    assert cook(group=1, kl_penalty=0.1, steps=1).series("loss")


@dataclass
class Dictation:
    """Asks for a letter, and once more if the answer was right."""

    turns_left: int = 2
    tag: str = "dictation"

    def env(self) -> Dictation:
        return Dictation()

    async def reset(self) -> Sequence[Message]:
        return [{"role": "user", "content": "a?"}]

    async def step(self, answer: str) -> StepResult:
        self.turns_left -= 1
        is_right = answer[:1] == "a"
        goes_further = is_right and self.turns_left
        return StepResult(is_right / 2, tuple(await self.reset() if goes_further else ()))


class MakeDictations(Stage):
    """Make the same task to train on and to hold out."""

    def run(self) -> Tasks:
        return Tasks((Dictation(),) * 4, {"held": (Dictation(),)})


class RlOnDictations(Rl):
    """The recipe rl on tasks of several turns."""

    def workflow(self) -> Step:
        return sequence(MakeDictations(), *super().workflow().steps[1:])


def test_it_learns_in_several_turns() -> None:
    seen = cook(
        recipe=RlOnDictations, playing={"max_tokens": 1}, group=64, steps=15, learning_rate=0.3
    )
    rewards, tokens = seen.series("reward/dictation"), seen.series("sampled_tokens")
    assert sum(rewards[-5:]) / 5 > rewards[0] + 0.4, rewards
    assert seen.series("held/reward_gain") == [1.0]
    assert tokens[0] < 1.5 * 4 * 64 < tokens[-1], "a second turn follows only a right answer"


def test_reasoning_gym_problems_are_loaded_by_name() -> None:
    seen = cook(
        dataset="reasoning-gym:chain_sum",
        reading={"held_out_rows": 2},
        reward=None,
        steps=2,
        group=2,
    )
    assert len(seen.series("reward/chain_sum")) == 2
    assert seen.series("failed") == [0.0, 0.0]


def test_math_is_graded_in_worker_processes() -> None:
    seen = cook(dataset="sums", reward="math", steps=2)
    assert seen.series("failed") == [0.0, 0.0]
    assert 0 < seen.series("parsed")[0] < 1, "some answers have a digit"


def long(answer: str) -> float | None:
    """A reward that abstains for answers without an "a"."""
    return len(answer) / 10 if "a" in answer else None


def test_each_of_several_rewards_is_reported() -> None:
    name = f"{__name__}:long"
    seen = cook(steps=2, reward={"letters": 1.0, name: 0})
    assert seen.series("rewards/letters") == seen.series("reward")
    assert all(0.1 <= mean <= 0.3 for mean in seen.series(f"rewards/{name}"))
    halved = cook(steps=2, reward={"letters": 0.5, name: 0})
    assert halved.series("reward")[0] == pytest.approx(seen.series("reward")[0] / 2)
    samples = chain.from_iterable(
        value.rows for value in seen.published if isinstance(value, Samples)
    )
    recorded = [row["rewards"] for row in samples]
    assert len(recorded) == 2 * 2 + 2 * 2, "two rollouts of each batch, and the held-out problems"
    assert all("letters" in rewards for rewards in recorded)


def test_truncated_answers_are_masked() -> None:
    seen, masked = cook(steps=1), cook(steps=1, mask_truncated=True)
    assert 0 < seen.series("truncated")[0] < 1
    [all_tokens], [complete] = seen.series("trained_tokens"), masked.series("trained_tokens")
    assert 0 < complete < all_tokens
    assert masked.series("frac_truncated_masked") == masked.series("truncated")
    assert not seen.series("frac_truncated_masked")


def test_clip_fraction_follows_the_thresholds_of_the_loss() -> None:
    unclipped = cook(steps=4, updates=3)
    thresholds = {"clip_low_threshold": 0.999, "clip_high_threshold": 1.001}
    clipped = cook(steps=4, updates=3, loss="ppo", loss_options=thresholds)
    assert max(unclipped.series("clip_fraction")) == 0.0
    assert max(clipped.series("clip_fraction")) > 0.1
    sequences = cook(steps=4, updates=3, loss="gspo", loss_options=thresholds)
    assert sequences.series("clip_fraction")[0] == 0.0, "the first update is on-policy"
    assert max(sequences.series("clip_fraction")) > 0.1
    with pytest.raises(KitchenError, match="clip_low_threshold"):
        cook(loss="ppo", loss_options={"clip_low": 0.9})
