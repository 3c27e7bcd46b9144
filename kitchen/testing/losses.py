"""Laws of losses: their values, their gradients, and positions that must not count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from kitchen.errors import KitchenError
from kitchen.ports.training import TrainingClient, TrainingSession
from kitchen.testing.closed_forms import FORMS, closed_form
from kitchen.testing.subject import Open, TrainingSubject
from kitchen.types import Datum, Floats

CASES = [
    *((loss, {}) for loss in FORMS),
    ("ppo", {"clip_low_threshold": 0.95, "clip_high_threshold": 1.05}),
    ("cispo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.1}), ("dro", {"beta": 0.5}),
]
named = pytest.mark.parametrize("loss, options", CASES, ids=lambda case: str(case) if case else "defaults")


class LossLaws(TrainingSubject):
    """Every loss is a sum over tokens; its gradient goes through the log-probabilities alone."""

    def inputs(self, session: TrainingSession, loss: str) -> list[Datum]:
        """Data for a named loss: as sampled near where the weights stand, praised and blamed and neither."""
        data, rng = self.data(session), np.random.default_rng(6)
        if loss == "cross_entropy":
            return data
        made = []
        for datum, lp in zip(data, session.forward(data).result().logprobs, strict=True):
            advantages = rng.choice([-1.0, 0.0, 0.5, 2.0], len(lp))
            sampled = lp + rng.uniform(-0.5, 0.5, len(lp))
            made.append(Datum(datum.tokens, {
                "target_tokens": datum.targets, "logprobs": sampled.astype(np.float32),
                "advantages": advantages.astype(np.float32),
            }))
        return made

    def offered(self, client: TrainingClient, loss: str) -> None:
        if f"loss {loss}" not in client.capabilities:
            pytest.skip(f"{type(client).__name__} does not offer the loss {loss}")

    @named
    def test_the_value_is_the_closed_form_of_the_logprobs(
        self, training: TrainingClient, session: TrainingSession, loss: str, options: Mapping[str, float]
    ) -> None:
        self.offered(training, loss)
        data = self.inputs(session, loss)
        for output in (session.forward(data, loss, options).result(),
                       session.forward_backward(data, loss, options).result()):
            values = [closed_form(loss, lp, d.loss_inputs, **options)[0]
                      for d, lp in zip(data, output.logprobs, strict=True)]
            assert output.metrics["loss:sum"] == pytest.approx(np.concatenate(values).sum(), rel=1e-4, abs=1e-4)

    @named
    def test_the_gradient_is_that_of_its_slopes(
        self, training: TrainingClient, opened: Open, loss: str, options: Mapping[str, float]
    ) -> None:
        """With slopes s, a loss has the gradient of a cross-entropy with weights -s."""
        self.offered(training, loss)
        mine, plain, adam = opened(), opened(), self.small_step(opened)
        data, scored = self.inputs(mine, loss), mine.forward(self.data(mine)).result().logprobs
        weighted = [
            Datum(d.tokens, {"target_tokens": d.targets,
                             "weights": -closed_form(loss, lp, d.loss_inputs, **options)[1].astype(np.float32)})
            for d, lp in zip(data, scored, strict=True)
        ]
        before = self.score(mine)
        mine.forward_backward(data, loss, options)
        mine.optim_step(adam).result()
        self.assert_same_move(self.score(mine) - before, self.moved(plain, adam, weighted))

    def test_a_small_step_lowers_cross_entropy_by_its_gradient_squared(self, opened: Open) -> None:
        """To first order a step of rate e along g changes the loss by -e |g|^2; `small_step` chose e so."""
        session, adam = opened(), self.small_step(opened)
        data = self.data(session)
        before = session.forward_backward(data).result().metrics["loss:sum"]
        session.optim_step(adam).result()
        after = session.forward(data).result().metrics["loss:sum"]
        assert before - after == pytest.approx(self.fall, rel=2 * self.curvature)

    def test_logprobs_have_the_shape_of_the_targets(self, session: TrainingSession) -> None:
        for output in (session.forward(self.data(session)).result(), session.forward_backward(self.data(session)).result()):
            for datum, lp in zip(self.data(session), output.logprobs, strict=True):
                assert lp.shape == datum.targets.shape
                assert lp.dtype == np.float32
                assert (lp <= 0).all()
            assert len(output.scored) in (0, len(output.logprobs))

    def test_forward_fills_every_position(self, session: TrainingSession) -> None:
        data = self.data(session)
        idle = [Datum(d.tokens, {**d.loss_inputs, "weights": np.zeros(len(d.tokens), np.float32)}) for d in data]
        for some, none in zip(session.forward(data).result().logprobs, session.forward(idle).result().logprobs, strict=True):
            assert (some < 0).all()
            np.testing.assert_allclose(none, some, atol=self.agreement)

    def test_forward_backward_scores_as_forward_does(self, session: TrainingSession) -> None:
        data = self.data(session)
        full, output = session.forward(data).result(), session.forward_backward(data).result()
        for index, datum in enumerate(data):
            live = output.scored[index] if output.scored else np.ones(len(datum.tokens), bool)
            assert live[np.asarray(datum.loss_inputs["weights"]) != 0].all()
            np.testing.assert_allclose(
                output.logprobs[index][live], full.logprobs[index][live], atol=self.agreement)
            assert np.isfinite(output.logprobs[index]).all()

    def test_a_datum_scores_the_same_in_any_company(self, session: TrainingSession) -> None:
        data = self.data(session)
        together = session.forward(data[::-1]).result().logprobs[::-1]
        for datum, lp in zip(data, together, strict=True):
            np.testing.assert_allclose(session.forward([datum]).result().logprobs[0], lp, atol=self.agreement)

    def test_k_targets_at_each_position(self, session: TrainingSession) -> None:
        datum = self.data(session)[0]
        targets = np.stack([datum.targets, np.roll(datum.targets, 1)], axis=1)
        weights = np.stack([datum.loss_inputs["weights"], np.full(len(targets), 0.25)], axis=1).astype(np.float32)
        output = session.forward_backward([Datum(datum.tokens, {"target_tokens": targets, "weights": weights})]).result()
        other = Datum(datum.tokens, {"target_tokens": targets[:, 1], "weights": weights[:, 1]})
        single = session.forward([datum]).result(), session.forward([other]).result()
        assert output.logprobs[0].shape == targets.shape
        np.testing.assert_allclose(output.logprobs[0][:, 1], single[1].logprobs[0], atol=self.agreement)
        total = sum(one.metrics["loss:sum"] for one in single)
        assert output.metrics["loss:sum"] == pytest.approx(total, rel=1e-4, abs=1e-4)

    @pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo"])
    def test_an_idle_position_never_turns_into_nan(self, training: TrainingClient, opened: Open, loss: str) -> None:
        """A token of advantage 0 and absurd log-probability when sampled: its ratio is infinite, its loss 0."""
        self.offered(training, loss)
        sane, wild, adam = opened(), opened(), self.small_step(opened)
        data = self.inputs(sane, loss)
        absurd = [Datum(d.tokens, {**d.loss_inputs, "logprobs": np.where(
            d.loss_inputs["advantages"] == 0, -1e4, d.loss_inputs["logprobs"]).astype(np.float32)}) for d in data]
        output = wild.forward_backward(absurd, loss).result()
        assert np.isfinite(output.metrics["loss:sum"])
        assert all(np.isfinite(lp).all() for lp in output.logprobs)
        before = self.score(wild)
        wild.optim_step(adam).result()
        self.assert_same_move(self.score(wild) - before, self.moved(sane, adam, data, loss=loss))


class OwnLossLaws(TrainingSubject):
    """A loss of one's own says its value and its slopes, and is trained like any other."""

    @pytest.fixture(autouse=True)
    def _offered(self, training: TrainingClient) -> None:
        if "loss of one's own" not in training.capabilities:
            pytest.skip(f"{type(training).__name__} takes no loss of one's own")

    def test_it_steps_like_the_named_one(self, opened: Open) -> None:
        mine, named, adam = opened(), opened(), self.small_step(opened)
        data = self.data(mine)
        self.assert_same_move(self.moved(mine, adam, data, loss=CrossEntropy()), self.moved(named, adam, data))

    def test_its_value_and_metrics_come_back(self, session: TrainingSession) -> None:
        data = self.data(session)
        expected = session.forward(data).result().metrics["loss:sum"]
        for output in (session.forward(data, CrossEntropy()).result(),
                       session.forward_backward(data, CrossEntropy()).result()):
            assert output.metrics["loss:sum"] == pytest.approx(expected, rel=1e-4)
            assert output.metrics["data:sum"] == len(data)

    def test_it_sees_the_data_in_order_with_their_logprobs(self, session: TrainingSession) -> None:
        data, own = self.data(session), CrossEntropy()
        output = session.forward_backward(data, own).result()
        assert [list(d.tokens) for d in own.seen] == [list(d.tokens) for d in data]
        for datum, seen, lp in zip(data, own.logprobs, output.logprobs, strict=True):
            live = datum.loss_inputs["weights"] != 0
            np.testing.assert_allclose(seen[live], lp[live], atol=self.agreement)

    def test_slopes_at_idle_positions_count_for_nothing(self, opened: Open) -> None:
        mine, named, adam = opened(), opened(), self.small_step(opened)
        data = self.data(mine)
        self.assert_same_move(self.moved(mine, adam, data, loss=CrossEntropy(idle=7.0)), self.moved(named, adam, data))

    def test_groups_of_adjacent_data_change_nothing(self, opened: Open) -> None:
        grouped, whole, adam = opened(), opened(), self.small_step(opened)
        data, own = self.data(grouped), CrossEntropy()
        own.group = 2
        move = self.moved(grouped, adam, data, loss=own)
        self.assert_same_move(move, self.moved(whole, adam, data, loss=CrossEntropy()))

    def test_an_error_inside_it_surfaces_on_the_future(self, session: TrainingSession) -> None:
        def broken(data: Sequence[Datum], logprobs: Sequence[Floats]) -> tuple[float, list[Floats], dict[str, float]]:
            raise ZeroDivisionError("in a loss of one's own")

        future = session.forward_backward(self.data(session), broken)
        with pytest.raises((ZeroDivisionError, KitchenError), match="in a loss of one's own"):
            future.result()


class CrossEntropy:
    """Cross-entropy, as somebody would write it himself; `idle` is the slope it gives where weights are 0."""

    group: int

    def __init__(self, idle: float = 0.0) -> None:
        self.idle = idle
        self.seen: list[Datum] = []
        self.logprobs: list[Floats] = []

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats], /
    ) -> tuple[float, list[Floats], dict[str, float]]:
        self.seen, self.logprobs = list(data), list(logprobs)
        weights = [np.asarray(d.loss_inputs["weights"]) for d in data]
        value = -sum(float((lp * w).sum()) for lp, w in zip(logprobs, weights, strict=True))
        slopes = [np.where(w == 0, self.idle, -w).astype(np.float32) for w in weights]
        return value, slopes, {"data:sum": float(len(data))}
