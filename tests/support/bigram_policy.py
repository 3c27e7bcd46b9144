"""A bigram policy whose answers are one token, so that every possible answer can be enumerated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

import numpy as np

from adapters.fake.bigram import Bigram
from adapters.fake.training import FakeSession, FakeTraining
from kitchen.types import Array, Datum, Lora
from stages.rl.policy_gradient import PolicyData, mean_of
from stages.rl.rollouts import Episode, Rollout, Rollouts

PROMPT = np.array([65, 66])
LAST = 66  # the token that an answer follows


class BigramPolicy:
    """A session, the probability of each answer, and its derivative by a weight."""

    def __init__(self) -> None:
        session = FakeTraining().open("fake", Lora(seed=3))
        assert isinstance(session, FakeSession)
        self.session = session
        self.vocabulary: int = session.tokenizer().vocabulary

    def probabilities(self) -> Array:
        """(V,) float64, while a session reports log-probabilities in float32."""
        return self._probabilities(self.session.model)

    def _probabilities(self, model: Bigram) -> Array:
        answers = np.arange(self.vocabulary)
        return np.asarray(np.exp(model.score(np.full(self.vocabulary, LAST), answers)))

    def rollouts(self, rewards: Array | None = None) -> Rollouts:
        """One group that has every possible answer once."""
        acted = np.array([False, False, True])
        episodes = [
            Episode(np.array([*PROMPT, token]), np.log([1, 1, chance]).astype(np.float32), acted)
            for token, chance in enumerate(self.probabilities())
        ]
        if rewards is None:
            rewards = np.zeros(self.vocabulary)
        group = tuple(
            Rollout((episode,), float(reward), "t", "")
            for episode, reward in zip(episodes, rewards, strict=True)
        )
        return Rollouts((group,))

    def weighted_by_probability(self, data: PolicyData) -> list[Datum]:
        """Scale the advantages of `rollouts` so that their mean is the expectation over answers."""
        weighted = []
        for datum, chance in zip(datums_of(data), self.probabilities(), strict=True):
            advantages = datum.loss_inputs["advantages"] * self.vocabulary * chance
            weighted.append(Datum(datum.tokens, {**datum.loss_inputs, "advantages": advantages}))
        return weighted

    def gradient(self, token: int) -> float:
        """The accumulated gradient by the weight of an answer."""
        assert self.session.gradient is not None
        return float(self.session.gradient[LAST, token])

    def finite_difference(self, token: int, value: Callable[[Array], float]) -> float:
        """d value / d weight of an answer, where `value` maps (V,) probabilities to a number."""
        h = 1e-6
        values = []
        for change in (h, -h):
            adapter = copy(self.session.adapter)
            adapter.b = adapter.b.copy()
            adapter.b[LAST, token] += change
            model = adapter.apply(self.session.base)
            values.append(float(value(self._probabilities(model))))
        return (values[0] - values[1]) / (2 * h)


def datums_of(data: PolicyData) -> Sequence[Datum]:
    """All datums of policy data, as one optimiser step."""
    return mean_of(data.examples).data
