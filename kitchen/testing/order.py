"""Laws of order: one queue per session, gradients that accumulate, and futures with results."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from kitchen.errors import KitchenError
from kitchen.ports.future import arrival
from kitchen.ports.training import TrainingSession
from kitchen.testing.subject import Open, TrainingSubject
from kitchen.types import Adam, Array


class OrderLaws(TrainingSubject):
    """Calls take effect in the order they are made; gradients accumulate until a step uses them."""

    def test_submitting_without_waiting_equals_waiting(self, opened: Open) -> None:
        waiting_session, hasty_session = opened(), opened()
        data = self.data(waiting_session)
        for _ in range(3):
            waiting_session.forward_backward(data[:2]).result()
            waiting_session.forward_backward(data[2:]).result()
            waiting_session.optim_step(Adam(0.01)).result()
        for _ in range(3):
            hasty_session.forward_backward(data[:2])
            hasty_session.forward_backward(data[2:])
            hasty_session.optim_step(Adam(0.01))
        np.testing.assert_array_equal(self.score(hasty_session), self.score(waiting_session))

    def test_the_order_of_calls_holds_across_threads(self, opened: Open) -> None:
        alone, shared = opened(), opened()
        data = self.data(alone)
        for datum in data:
            alone.forward_backward([datum])
            alone.optim_step(Adam(0.01))
        turns = [threading.Event() for _ in range(len(data) + 1)]

        def submit(index: int) -> None:
            turns[index].wait(timeout=30)
            shared.forward_backward([data[index]])
            shared.optim_step(Adam(0.01))
            turns[index + 1].set()

        threads = [
            threading.Thread(target=submit, args=(index,)) for index in reversed(range(len(data)))
        ]
        for thread in threads:
            thread.start()
        turns[0].set()
        for thread in threads:
            thread.join(timeout=30)
        np.testing.assert_array_equal(self.score(shared), self.score(alone))

    def test_threads_that_call_at_once_lose_no_gradient(self, opened: Open) -> None:
        alone, shared = opened(), opened()
        data, adam = self.data(alone), self.small_step(opened)
        expected = self.moved(alone, adam, data)
        before = self.score(shared)
        threads = [
            threading.Thread(target=shared.forward_backward, args=([datum],)) for datum in data
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=30)
        shared.optim_step(adam).result()
        self.assert_same_move(self.score(shared) - before, expected)

    def test_k_calls_equal_one_call_on_the_concatenation(self, opened: Open) -> None:
        whole, parts = opened(), opened()
        data, adam = self.data(whole), self.small_step(opened)
        expected = self.moved(whole, adam, data)
        self.assert_same_move(self.moved(parts, adam, *([datum] for datum in data)), expected)
        np.testing.assert_allclose(
            self.norm(opened(), data), self._norm_in_parts(opened()), rtol=self.rounding
        )

    def _norm_in_parts(self, session: TrainingSession) -> float:
        for datum in self.data(session):
            session.forward_backward([datum])
        return session.optim_step(Adam(learning_rate=0.0)).result().metrics["grad_norm"]

    def test_gradients_sum_and_are_not_averaged(self, opened: Open) -> None:
        session = opened()
        data = self.data(session)
        norm_once = self.norm(session, data)
        norm_twice = self.norm(session, [*data, *data])
        np.testing.assert_allclose(norm_twice, 2 * norm_once, rtol=self.rounding)

    def test_a_step_clears_the_gradient(self, session: TrainingSession) -> None:
        data = self.data(session)
        np.testing.assert_allclose(
            self.norm(session, data), self.norm(session, data), rtol=self.rounding
        )

    def test_forward_leaves_gradients_untouched(self, opened: Open) -> None:
        plain, peeking = opened(), opened()
        data = self.data(plain)
        plain.forward_backward(data[:2])
        peeking.forward(data)
        peeking.forward_backward(data[:2])
        peeking.forward(data)
        for session in (plain, peeking):
            session.optim_step(Adam(0.01)).result()
        np.testing.assert_array_equal(self.score(peeking), self.score(plain))

    def test_repeating_a_batch_lowers_its_loss(self, opened: Open) -> None:
        session, adam = opened(), self.small_step(opened)
        losses = [self._train(session, adam) for _ in range(5)]
        assert losses == sorted(losses, reverse=True)
        assert losses[0] - losses[-1] > 2 * self.loss_drop

    def _train(self, session: TrainingSession, adam: Adam) -> float:
        total = session.forward_backward(self.data(session)).result().metrics["loss:sum"]
        session.optim_step(adam).result()
        return total

    def test_sessions_do_not_move_each_other(self, opened: Open) -> None:
        still, moving = opened(), opened()
        before = self.score(still)
        assert not np.array_equal(
            self.moved(moving, Adam(0.01), self.data(moving)), np.zeros_like(before)
        )
        np.testing.assert_array_equal(self.score(still), before)

    @pytest.mark.parametrize("method", ["forward", "forward_backward"])
    def test_an_empty_batch_is_an_error_on_the_future(
        self, session: TrainingSession, method: str
    ) -> None:
        future = getattr(session, method)([])
        with pytest.raises(KitchenError, match="empty"):
            future.result()

    def test_a_cancelled_wait_cancels_no_call(self, opened: Open) -> None:
        """The gradient of a call that nobody waits for any more is still accumulated."""
        waiting_session, hasty_session = opened(), opened()
        data = self.data(waiting_session)

        async def give_up() -> None:
            waiting = [
                asyncio.ensure_future(arrival(hasty_session.forward_backward([datum])))
                for datum in data
            ]
            await asyncio.sleep(0)
            for wait in waiting:
                wait.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

        asyncio.run(give_up())
        for datum in data:
            waiting_session.forward_backward([datum])
        for session in (hasty_session, waiting_session):
            session.optim_step(Adam(0.01)).result()
        np.testing.assert_array_equal(self.score(hasty_session), self.score(waiting_session))

    def test_a_future_returns_twice_and_can_be_awaited(self, session: TrainingSession) -> None:
        future = session.forward(self.data(session))

        async def wait() -> Array:
            return np.concatenate((await future).logprobs)

        np.testing.assert_array_equal(asyncio.run(wait()), np.concatenate(future.result().logprobs))
        np.testing.assert_array_equal(asyncio.run(wait()), np.concatenate(future.result().logprobs))
