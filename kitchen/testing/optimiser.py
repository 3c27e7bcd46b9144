"""Laws of the optimiser: AdamW as in torch, seen through small steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kitchen.ports.training import TrainingSession
from kitchen.testing.subject import Open, TrainingSubject
from kitchen.types import Adam, Array, Lora


class OptimiserLaws(TrainingSubject):
    """Every step has its own hyper-parameters; moments, bias correction and decay are AdamW's."""

    def test_learning_rate_zero_changes_nothing(self, session: TrainingSession) -> None:
        before = self.score(session)
        self.norm(session, self.data(session))
        np.testing.assert_array_equal(self.score(session), before)

    def test_a_first_step_ignores_the_scale_of_the_gradient(self, opened: Open) -> None:
        """After a single gradient, m / sqrt(v) is its sign."""
        plain, scaled = opened(), opened()
        adam = self.sign_step(opened)
        expected = self.moved(plain, adam, self.data(plain))
        self.assert_same_move(self.moved(scaled, adam, self.data(scaled, scale=8.0)), expected)

    def test_the_moments_are_averaged_and_corrected(self, opened: Open) -> None:
        """After gradients g and 0, bias-corrected: m = b1 / (1 + b1) g, v = b2 / (1 + b2) g^2."""
        for adam, second in ((self.small_step(opened), 1.0), (self.sign_step(opened), 0.95 / 1.95)):
            assert (adam.beta1, adam.beta2) == (0.9, 0.95)
            once, later = opened(), opened()
            first = self.moved(once, adam, self.data(once))
            self.norm(later, self.data(later))
            trailing = self.moved(later, adam, self.data(later, scale=1e-7))
            self.assert_same_move(trailing, first * 0.9 / 1.9 / np.sqrt(second), 2 * self.curvature)

    def test_the_betas_come_with_the_step(self, opened: Open) -> None:
        adam, forgetful = self.small_step(opened), opened()
        self.norm(forgetful, self.data(forgetful))
        second = self.data(forgetful, scale=0.5)
        move = self.moved(forgetful, replace(adam, beta1=0.0), second)
        once = opened()
        self.assert_same_move(
            move, 0.5 * self.moved(once, adam, self.data(once)), 2 * self.curvature
        )

    def test_the_global_norm_is_clipped(self, opened: Open) -> None:
        adam, session = self.small_step(opened), opened()
        norm = self.norm(session, self.data(session))
        free = self._clipped(opened(), adam, 0.0)
        self.assert_same_move(self._clipped(opened(), adam, 2 * norm), free)
        self.assert_same_move(self._clipped(opened(), adam, norm / 2), free / 2)

    def _clipped(self, session: TrainingSession, adam: Adam, limit: float) -> Array:
        return self.moved(session, replace(adam, grad_clip_norm=limit), self.data(session))

    def test_the_norm_reported_is_that_before_clipping(self, session: TrainingSession) -> None:
        norm = self.norm(session, self.data(session))
        session.forward_backward(self.data(session))
        clipped = session.optim_step(Adam(learning_rate=0.0, grad_clip_norm=norm / 10)).result()
        assert clipped.metrics["grad_norm"] == pytest.approx(norm, rel=self.rounding)

    def test_weight_decay_is_decoupled(self, opened: Open) -> None:
        """With learning_rate * weight_decay = 1 all weights become 0, whatever the moments.

        LoRA weights of 0 change nothing; a model whose weights are all 0 finds all tokens equal.
        """
        session = opened()
        untrained = self.score(session)
        move = self.moved(session, self.small_step(opened), self.data(session))
        session.forward_backward(self.data(session))
        session.optim_step(Adam(learning_rate=0.5, weight_decay=2.0, eps=1e30)).result()
        decayed = self.score(session)
        expected = untrained if isinstance(self.lora, Lora) else decayed.mean()
        distance = np.abs(decayed - expected).max()
        assert distance <= 0.01 * np.abs(move).max() + self.logprob_noise

    def sign_step(self, opened: Open) -> Adam:
        """Return a first step of AdamW (eps 1e-12) that moves about as far as `small_step`."""
        return Adam(learning_rate=self.once_per_class("sign_rate", lambda: self._sign_rate(opened)))

    def _sign_rate(self, opened: Open) -> float:
        adam, plain = self.small_step(opened), opened()
        target = np.abs(self.moved(plain, adam, self.data(plain))).max()
        change, rate = 0.0, 1e-6
        noise = 1e-3 * target + 3 * self.logprob_noise
        while change <= noise:
            rate, trial = 8 * rate, opened()
            change = np.abs(self.moved(trial, Adam(rate), self.data(trial))).max()
        return float(rate * target / change)
