"""Laws of custom losses."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kitchen.errors import KitchenError
from kitchen.ports.training import TrainingClient, TrainingSession
from kitchen.testing.subject import Open, TrainingSubject
from kitchen.types import Datum, Floats


class CustomLossLaws(TrainingSubject):
    """A custom loss returns its value and d loss / d logprob, and is trained like any other."""

    @pytest.fixture(autouse=True)
    def _skip_without_custom_loss(
        self, training: TrainingClient, request: pytest.FixtureRequest
    ) -> None:
        offered = "custom loss" in training.capabilities
        # a subclass has other laws beside these
        if not offered and request.function.__name__ in vars(CustomLossLaws):
            pytest.skip(f"{type(training).__name__} takes no custom loss")

    def test_it_steps_like_the_named_one(self, opened: Open) -> None:
        custom, named, adam = opened(), opened(), self.small_step(opened)
        data = self.data(custom)
        self.assert_same_move(
            self.moved(custom, adam, data, loss=CrossEntropy()), self.moved(named, adam, data)
        )

    def test_its_value_and_metrics_are_returned(self, session: TrainingSession) -> None:
        data = self.data(session)
        expected = session.forward(data).result().metrics["loss:sum"]
        for output in (
            session.forward(data, CrossEntropy()).result(),
            session.forward_backward(data, CrossEntropy()).result(),
        ):
            assert output.metrics["loss:sum"] == pytest.approx(expected, rel=1e-4)
            assert output.metrics["data:sum"] == len(data)

    def test_it_sees_the_data_in_order_with_their_logprobs(self, session: TrainingSession) -> None:
        data, loss = self.data(session), CrossEntropy()
        output = session.forward_backward(data, loss).result()
        assert [list(d.tokens) for d in loss.data] == [list(d.tokens) for d in data]
        for datum, received, lp in zip(data, loss.logprobs, output.logprobs, strict=True):
            scored = datum.loss_inputs["weights"] != 0
            np.testing.assert_allclose(received[scored], lp[scored], atol=self.agreement)

    def test_gradients_at_masked_positions_are_dropped(self, opened: Open) -> None:
        custom, named, adam = opened(), opened(), self.small_step(opened)
        data = self.data(custom)
        self.assert_same_move(
            self.moved(custom, adam, data, loss=CrossEntropy(masked_grad=7.0)),
            self.moved(named, adam, data),
        )

    @pytest.mark.parametrize("group", [2, None])
    def test_groups_of_adjacent_data_change_nothing(self, opened: Open, group: int | None) -> None:
        grouped, whole, adam = opened(), opened(), self.small_step(opened)
        data, loss = self.data(grouped), CrossEntropy()
        loss.group = group
        move = self.moved(grouped, adam, data, loss=loss)
        self.assert_same_move(move, self.moved(whole, adam, data, loss=CrossEntropy()))

    def test_an_error_inside_it_surfaces_on_the_future(self, session: TrainingSession) -> None:
        def broken(
            data: Sequence[Datum], logprobs: Sequence[Floats]
        ) -> tuple[float, list[Floats], dict[str, float]]:
            raise ZeroDivisionError("inside the custom loss")

        future = session.forward_backward(self.data(session), broken)
        with pytest.raises((ZeroDivisionError, KitchenError), match="inside the custom loss"):
            future.result()


class CrossEntropy:
    """Cross-entropy as a user would write it; `masked_grad` is its gradient where weights are 0."""

    group: int | None

    def __init__(self, masked_grad: float = 0.0) -> None:
        self.masked_grad = masked_grad
        self.data: list[Datum] = []
        self.logprobs: list[Floats] = []

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats], /
    ) -> tuple[float, list[Floats], dict[str, float]]:
        self.data, self.logprobs = list(data), list(logprobs)
        weights = [np.asarray(d.loss_inputs["weights"]) for d in data]
        value = -sum(float((lp * w).sum()) for lp, w in zip(logprobs, weights, strict=True))
        grads = [np.where(w == 0, self.masked_grad, -w).astype(np.float32) for w in weights]
        return value, grads, {"data:sum": float(len(data))}
