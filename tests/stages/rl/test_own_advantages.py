"""Advantages by a function of the user, MODULE:function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kitchen.errors import ConfigError, RunFailed
from recipes.rl import Rl
from stages.rl.policy_gradient import ComputeAdvantages
from stages.rl.rollouts import Episode, Rollout, Rollouts, StopReason

OWN = "tests.support.own_functions"


def rollout(reward: float, *, fails: bool = False) -> Rollout:
    if fails:
        return Rollout.failure("t", "broken")
    tokens = np.array([1, 2, 3])
    episode = Episode(tokens, np.full(3, -1.0, np.float32), np.array([False, True, True]))
    return Rollout((episode,), reward, "t", "text", stop_reason=StopReason.DONE)


def computed(function: str, *groups: tuple[Rollout, ...]) -> list[float]:
    """Return the advantage of the sampled tokens of each example."""
    data = ComputeAdvantages(f"{OWN}:{function}").run(Rollouts(groups))
    return [float(datum.loss_inputs["advantages"][-1]) for datum, _ in data.examples]


def test_function_gets_the_rewards_of_each_group() -> None:
    mixed = rollout(1.0), rollout(0.0), rollout(0.0, fails=True)
    assert computed("above_half", mixed) == [0.5, -0.5]
    assert computed("as_list", mixed) == [1.0, -1.0]


def test_constant_groups_count_unless_their_advantages_are_0() -> None:
    right, even = (rollout(1.0), rollout(1.0)), (rollout(0.5), rollout(0.5))
    failed = (rollout(0.0, fails=True),)
    assert computed("above_half", right, even, failed) == [0.5, 0.5]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("too_few", r"too_few returned array\(\[0\.\]\) for .*\[1\.0, 0\.0\]; .* 2 finite numbers"),
        ("not_finite", r"not_finite returned array\(\[nan, nan\]\)"),
        ("nothing", "nothing returned None"),
        ("unknown_key", r"unknown_key: KeyError: 2 \(.*own_functions.py:\d+ in unknown_key"),
    ],
)
def test_wrong_advantages_end_the_run(function: str, text: str) -> None:
    with pytest.raises(RunFailed, match=f"^advantages={OWN}:{text}"):
        computed(function, (rollout(1.0), rollout(0.0)))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("centered", r"did you mean 'centred'\? \(or a MODULE:function\)"),
        (f"{OWN}:above_hlf", "has no function 'above_hlf'; did you mean 'above_half'"),
        (f"{OWN}:falls", r"is called as f\(rewards\); its signature is \(step: "),
        ("no_such_module:f", "there is no module 'no_such_module'"),
    ],
)
def test_other_names_are_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Rl(advantages=name).workflow()


@pytest.mark.parametrize("settings", [{"group": 1}, {"group": 1, "advantages": "normalised"}])
def test_groups_of_one_need_a_function(settings: dict[str, Any]) -> None:
    Rl(group=1, advantages=f"{OWN}:above_half").workflow()
    with pytest.raises(ConfigError, match="group=1 gives every rollout an advantage of 0"):
        Rl(**settings).workflow()
