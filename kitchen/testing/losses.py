"""Laws of losses: their values, their gradients, and masked positions."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from kitchen.ports.training import TrainingClient, TrainingSession
from kitchen.testing.closed_forms import CLOSED_FORMS, closed_form
from kitchen.testing.subject import Open, TrainingSubject
from kitchen.types import Array, Datum

CASES = [
    *((loss, {}) for loss in CLOSED_FORMS),
    ("ppo", {"clip_low_threshold": 0.95, "clip_high_threshold": 1.05}),
    ("cispo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}),
    ("gspo", {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}),
    ("dro", {"beta": 0.5}),
]
each_loss = pytest.mark.parametrize(
    "loss, options", CASES, ids=lambda case: str(case) if case else "defaults"
)


class LossLaws(TrainingSubject):
    """Every loss is a sum over tokens; its gradient goes through the log-probabilities alone."""

    def inputs(self, session: TrainingSession, loss: str) -> list[Datum]:
        """Return data for a loss, sampled near the current policy; advantages have any sign."""
        data, rng = self.data(session), np.random.default_rng(6)
        if loss == "cross_entropy":
            return data
        datums = []
        for datum, lp in zip(data, session.forward(data).result().logprobs, strict=True):
            advantages = rng.choice([-1.0, 0.0, 0.5, 2.0], len(lp))
            sampled = lp + rng.uniform(-0.5, 0.5, len(lp))
            inputs: dict[str, Array] = {
                "target_tokens": datum.targets,
                "logprobs": sampled.astype(np.float32),
                "advantages": advantages.astype(np.float32),
            }
            if loss == "gspo":
                inputs["sequence_ratio_mask"] = (rng.random(len(lp)) < 0.7).astype(np.float32)
                inputs["sequence_ratio_mask"][0] = 1.0
            datums.append(Datum(datum.tokens, inputs))
        return datums

    def skip_unless_offered(self, client: TrainingClient, loss: str) -> None:
        if f"loss {loss}" not in client.capabilities:
            pytest.skip(f"{type(client).__name__} does not offer the loss {loss}")

    @each_loss
    def test_the_value_is_the_closed_form_of_the_logprobs(
        self,
        training: TrainingClient,
        session: TrainingSession,
        loss: str,
        options: Mapping[str, float],
    ) -> None:
        self.skip_unless_offered(training, loss)
        data = self.inputs(session, loss)
        for output in (
            session.forward(data, loss, options).result(),
            session.forward_backward(data, loss, options).result(),
        ):
            values = [
                closed_form(loss, lp, d.loss_inputs, **options)[0]
                for d, lp in zip(data, output.logprobs, strict=True)
            ]
            assert output.metrics["loss:sum"] == pytest.approx(
                np.concatenate(values).sum(), rel=1e-4, abs=1e-4
            )

    @each_loss
    def test_the_gradient_is_that_of_its_logprob_grads(
        self, training: TrainingClient, opened: Open, loss: str, options: Mapping[str, float]
    ) -> None:
        """With d loss / d logprob = g, a loss has the gradient of cross-entropy with weights -g."""
        self.skip_unless_offered(training, loss)
        named, plain, adam = opened(), opened(), self.small_step(opened)
        data, scored = self.inputs(named, loss), named.forward(self.data(named)).result().logprobs
        weighted = [
            Datum(
                d.tokens,
                {
                    "target_tokens": d.targets,
                    "weights": -closed_form(loss, lp, d.loss_inputs, **options)[1].astype(
                        np.float32
                    ),
                },
            )
            for d, lp in zip(data, scored, strict=True)
        ]
        before = self.score(named)
        named.forward_backward(data, loss, options)
        named.optim_step(adam).result()
        self.assert_same_move(self.score(named) - before, self.moved(plain, adam, weighted))

    def test_a_small_step_lowers_the_loss_by_gradient_squared(self, opened: Open) -> None:
        """To first order, a step of rate e along g changes the loss by -e |g|^2 = -loss_drop."""
        session, adam = opened(), self.small_step(opened)
        data = self.data(session)
        before = session.forward_backward(data).result().metrics["loss:sum"]
        session.optim_step(adam).result()
        after = session.forward(data).result().metrics["loss:sum"]
        assert before - after == pytest.approx(self.loss_drop, rel=2 * self.curvature)

    def test_logprobs_have_the_shape_of_the_targets(self, session: TrainingSession) -> None:
        data = self.data(session)
        for output in (session.forward(data).result(), session.forward_backward(data).result()):
            for datum, lp in zip(data, output.logprobs, strict=True):
                assert lp.shape == datum.targets.shape
                assert lp.dtype == np.float32
                assert (lp <= 0).all()
            assert len(output.scored) in (0, len(output.logprobs))

    def test_forward_fills_every_position(self, session: TrainingSession) -> None:
        data = self.data(session)
        unweighted = [
            Datum(d.tokens, {**d.loss_inputs, "weights": np.zeros(len(d.tokens), np.float32)})
            for d in data
        ]
        expected = session.forward(data).result().logprobs
        actual = session.forward(unweighted).result().logprobs
        for weighted_logprobs, unweighted_logprobs in zip(expected, actual, strict=True):
            assert (weighted_logprobs < 0).all()
            np.testing.assert_allclose(unweighted_logprobs, weighted_logprobs, atol=self.agreement)

    def test_forward_backward_scores_as_forward_does(self, session: TrainingSession) -> None:
        data = self.data(session)
        full, output = session.forward(data).result(), session.forward_backward(data).result()
        for index, datum in enumerate(data):
            scored = output.scored[index] if output.scored else np.ones(len(datum.tokens), bool)
            assert scored[np.asarray(datum.loss_inputs["weights"]) != 0].all()
            np.testing.assert_allclose(
                output.logprobs[index][scored], full.logprobs[index][scored], atol=self.agreement
            )
            assert np.isfinite(output.logprobs[index]).all()

    def test_a_datum_scores_the_same_in_any_batch(self, session: TrainingSession) -> None:
        data = self.data(session)
        together = session.forward(data[::-1]).result().logprobs[::-1]
        for datum, lp in zip(data, together, strict=True):
            np.testing.assert_allclose(
                session.forward([datum]).result().logprobs[0], lp, atol=self.agreement
            )

    def test_k_targets_at_each_position(self, session: TrainingSession) -> None:
        datum = self.data(session)[0]
        targets = np.stack([datum.targets, np.roll(datum.targets, 1)], axis=1)
        weights = np.stack(
            [datum.loss_inputs["weights"], np.full(len(targets), 0.25)], axis=1
        ).astype(np.float32)
        two_targets = Datum(datum.tokens, {"target_tokens": targets, "weights": weights})
        output = session.forward_backward([two_targets]).result()
        second = Datum(datum.tokens, {"target_tokens": targets[:, 1], "weights": weights[:, 1]})
        single = session.forward([datum]).result(), session.forward([second]).result()
        assert output.logprobs[0].shape == targets.shape
        np.testing.assert_allclose(
            output.logprobs[0][:, 1], single[1].logprobs[0], atol=self.agreement
        )
        total = sum(result.metrics["loss:sum"] for result in single)
        assert output.metrics["loss:sum"] == pytest.approx(total, rel=1e-4, abs=1e-4)

    @pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo"])
    def test_a_masked_position_never_becomes_nan(
        self, training: TrainingClient, opened: Open, loss: str
    ) -> None:
        """A token of advantage 0 has loss 0, even if its ratio of probabilities is infinite."""
        self.skip_unless_offered(training, loss)
        plain, extreme, adam = opened(), opened(), self.small_step(opened)
        data = self.inputs(plain, loss)
        infinite_ratios = []
        for datum in data:
            inputs = datum.loss_inputs
            sampled = np.where(inputs["advantages"] == 0, -1e4, inputs["logprobs"])
            changed = {**inputs, "logprobs": sampled.astype(np.float32)}
            infinite_ratios.append(Datum(datum.tokens, changed))
        output = extreme.forward_backward(infinite_ratios, loss).result()
        assert np.isfinite(output.metrics["loss:sum"])
        assert all(np.isfinite(lp).all() for lp in output.logprobs)
        before = self.score(extreme)
        extreme.optim_step(adam).result()
        expected = self.moved(plain, adam, data, loss=loss)
        self.assert_same_move(self.score(extreme) - before, expected)
