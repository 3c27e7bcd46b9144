"""A bigram policy whose answers are one token, so that every answer there can be may be looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adapters.fake.training import FakeTraining
from kitchen.types import Array, Datum, Lora
from stages.rl.policy_gradient import PolicyData, mean_of
from stages.rl.rollouts import Episode, Rollout, Rollouts

READ = np.array([65, 66])


class Bigrams:
    """A session, the chances of each answer, and how they change with a logit."""

    def __init__(self) -> None:
        self.session: Any = FakeTraining().open("fake", Lora(seed=3))
        self.vocabulary: int = self.session.tokenizer().vocabulary

    def chances(self) -> Array:
        """In float64, which log-probabilities are not handed out in."""
        every = np.arange(self.vocabulary)
        found: Array = np.exp(self.session._model.score(np.full(self.vocabulary, 66), every))
        return found

    def rollouts(self, rewards: Array | None = None) -> Rollouts:
        """Every answer there can be, once, as one group."""
        acted = np.array([False, False, True])
        episodes = [
            Episode(np.array([*READ, token]), np.log([1, 1, chance]).astype(np.float32), acted)
            for token, chance in enumerate(self.chances())
        ]
        worth = np.zeros(self.vocabulary) if rewards is None else rewards
        return Rollouts(
            (
                tuple(
                    Rollout((one,), float(each), "t", "")
                    for one, each in zip(episodes, worth, strict=True)
                ),
            )
        )

    def as_often_as_drawn(self, found: PolicyData) -> list[Datum]:
        """Data of `rollouts`, each weighing as much as the policy gives its answer."""
        return [
            Datum(
                one.tokens,
                {
                    **one.loss_inputs,
                    "advantages": one.loss_inputs["advantages"] * self.vocabulary * chance,
                },
            )
            for one, chance in zip(learnt(found), self.chances(), strict=True)
        ]

    def gradient(self, token: int) -> float:
        """Of all that went forward and backward so far, by the logit of that answer."""
        return float(self.session._gradient[66, token])

    def slope(self, token: int, value: Callable[[Array], Any]) -> float:
        """d value / d logit, by finite differences."""
        was, values = self.session._adapter.b.copy(), []
        for sign in (1, -1):
            self.session._adapter.b = was.copy()
            self.session._adapter.b[66, token] += sign * 1e-6
            self.session._model = self.session._adapter.over(self.session._base)
            values.append(float(value(self.chances())))
        self.session._adapter.b = was
        self.session._model = self.session._adapter.over(self.session._base)
        return (values[0] - values[1]) / 2e-6


def learnt(found: PolicyData) -> Sequence[Datum]:
    """All in one step."""
    return mean_of(found.lessons).data
