"""Laws of a custom loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from kitchen.errors import KitchenError
from kitchen.ports.training import TrainingClient, TrainingSession
from kitchen.testing.subject import Open, TrainingSubject
from kitchen.types import Datum, Floats


class CustomLossLaws(TrainingSubject):
    """A custom loss says its value and its slopes, and is trained like any other."""

    @pytest.fixture(autouse=True)
    def _offered(self, training: TrainingClient, request: pytest.FixtureRequest) -> None:
        offered = "custom loss" in training.capabilities
        # a subclass has other laws beside these
        if not offered and request.function.__name__ in vars(CustomLossLaws):
            pytest.skip(f"{type(training).__name__} takes no custom loss")

    def test_it_steps_like_the_named_one(self, opened: Open) -> None:
        mine, named, adam = opened(), opened(), self.small_step(opened)
        data = self.data(mine)
        self.assert_same_move(
            self.moved(mine, adam, data, loss=CrossEntropy()), self.moved(named, adam, data)
        )

    def test_its_value_and_metrics_come_back(self, session: TrainingSession) -> None:
        data = self.data(session)
        expected = session.forward(data).result().metrics["loss:sum"]
        for output in (
            session.forward(data, CrossEntropy()).result(),
            session.forward_backward(data, CrossEntropy()).result(),
        ):
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
        self.assert_same_move(
            self.moved(mine, adam, data, loss=CrossEntropy(idle=7.0)), self.moved(named, adam, data)
        )

    @pytest.mark.parametrize("group", [2, None])
    def test_groups_of_adjacent_data_change_nothing(self, opened: Open, group: int | None) -> None:
        grouped, whole, adam = opened(), opened(), self.small_step(opened)
        data, own = self.data(grouped), CrossEntropy()
        own.group = group
        move = self.moved(grouped, adam, data, loss=own)
        self.assert_same_move(move, self.moved(whole, adam, data, loss=CrossEntropy()))

    def test_an_error_inside_it_surfaces_on_the_future(self, session: TrainingSession) -> None:
        def broken(
            data: Sequence[Datum], logprobs: Sequence[Floats]
        ) -> tuple[float, list[Floats], dict[str, float]]:
            raise ZeroDivisionError("in a custom loss")

        future = session.forward_backward(self.data(session), broken)
        with pytest.raises((ZeroDivisionError, KitchenError), match="in a custom loss"):
            future.result()


class CrossEntropy:
    """Cross-entropy, as somebody would write it himself; `idle` is the slope it gives where weights
    are 0.
    """

    group: int | None

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
