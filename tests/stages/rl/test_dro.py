"""dro over chosen tokens, against the named one and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from adapters.fake.training import FakeTraining
from kitchen.backend.losses import value_and_logprob_grads
from kitchen.errors import ConfigError
from kitchen.types import Datum, Lora
from stages.rl.dro import Dro, loss_of
from stages.rl.policy_gradient import ComputeAdvantages, Minibatches
from stages.rl.rollouts import Episode, Rollout, Rollouts

BETA, SHARE = 0.3, 0.125
RNG = np.random.default_rng(0)


def datum(acted: Any) -> Datum:
    count = len(acted)
    return Datum(
        np.arange(count),
        {
            "target_tokens": np.arange(count),
            "logprobs": np.where(acted, RNG.normal(size=count), 0).astype(np.float32),
            "advantages": np.where(acted, RNG.normal(size=count) * SHARE, 0).astype(np.float32),
            "weights": np.where(acted, SHARE, 0).astype(np.float32),
        },
    )


def test_it_is_the_named_loss_where_there_is_no_prompt() -> None:
    data = [datum(np.ones(5, bool)), datum(np.ones(3, bool))]
    lps = [RNG.normal(size=len(one.tokens)).astype(np.float32) for one in data]
    value, gradients, _ = Dro(BETA)(data, lps)
    theirs = [
        value_and_logprob_grads("dro", {"beta": BETA * SHARE}, one, lp)
        for one, lp in zip(data, lps, strict=True)
    ]
    assert value == pytest.approx(sum(float(each.sum()) for each, _ in theirs), rel=1e-6)
    for gradient, (_, named) in zip(gradients, theirs, strict=True):
        np.testing.assert_allclose(gradient, named, rtol=1e-5)


def test_dro_gradients_equal_finite_differences() -> None:
    one = datum(np.array([False, False, True, True, True]))
    lp = RNG.normal(size=5)
    _, [slope], _ = Dro(BETA)([one], [lp])
    for at in range(5):
        there, back = (
            Dro(BETA)([one], [lp + sign * 1e-4 * (np.arange(5) == at)])[0] for sign in (1, -1)
        )
        assert slope[at] == pytest.approx((there - back) / 2e-4, abs=1e-6)
    assert slope[:2].tolist() == [0, 0]


def test_the_data_of_an_update_say_what_share_each_token_is() -> None:
    tokens = np.array([65, 66, 67, 68, 69])
    played = [
        Rollout(
            (Episode(tokens[:end], np.full(end, -3, np.float32), np.arange(end) >= 3),),
            reward,
            "t",
            "",
        )
        for end, reward in ((5, 1.0), (4, 0.0))
    ]
    [batch] = Minibatches(1).run(ComputeAdvantages(weighted=True).run(Rollouts((tuple(played),))))
    data = batch.data
    assert [one.loss_inputs["weights"].tolist() for one in data] == [
        pytest.approx([0, 0, 1 / 3, 1 / 3]),
        pytest.approx([0, 0, 1 / 3]),
    ]
    session: Any = FakeTraining().open("fake", Lora(seed=1))
    session.forward_backward(data, *loss_of("dro", {})).result()
    moved = np.flatnonzero(np.abs(session.gradient).sum(1)).tolist()
    assert moved == [67, 68], "what was read before each chosen token, and nothing of the prompt"


def test_losses_by_name() -> None:
    assert loss_of("ppo", {"clip_low_threshold": 0.9}) == ("ppo", {"clip_low_threshold": 0.9})
    assert loss_of("dro", {}) == (Dro(0.05), {})
    with pytest.raises(ConfigError, match="has no option 'betta'; did you mean 'beta'"):
        loss_of("dro", {"betta": 0.1})
