"""Custom losses that fail after part of the gradient was added, or call the session."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kitchen.errors import DataError, RunFailed
from kitchen.types import Adam, Datum, Floats

if TYPE_CHECKING:
    from adapters.peft.session import PeftSession


class FailsAtTheSecondPart:
    group = 1

    def __init__(self) -> None:
        self.calls = 0

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats]
    ) -> tuple[float, list[Floats], dict[str, float]]:
        self.calls += 1
        if self.calls == 2:
            raise DataError("this row is not to be had")
        return 0.0, [np.ones_like(lp) for lp in logprobs], {}


def test_a_partial_gradient_is_never_applied(opened: Callable[..., PeftSession]) -> None:
    session: Any = opened(micro_batch_tokens=4)
    ids = np.arange(5, 10)
    data = [Datum(ids[:-1] + n, {"target_tokens": ids[1:] + n}) for n in range(3)]
    with pytest.raises(
        RunFailed, match="the loss failed during forward_backward: this row is not to be had"
    ):
        session.forward_backward(data, FailsAtTheSecondPart()).result()
    with pytest.raises(RunFailed, match="this row is not to be had"):
        session.optim_step(Adam()).result()


class AsksSomebody:
    def __init__(self, ask: Callable[[], Any]) -> None:
        self.ask = ask

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats]
    ) -> tuple[float, list[Floats], dict[str, float]]:
        self.ask().result()
        return 0.0, [np.zeros_like(lp) for lp in logprobs], {}


@pytest.mark.parametrize("whom", ["a sampler", "the session itself"])
def test_a_loss_that_calls_the_engine_fails(opened: Callable[..., PeftSession], whom: str) -> None:
    session: Any = opened()
    sampler, ids = session.snapshot().result(), np.arange(5, 10)
    ask = {
        "a sampler": lambda: sampler.logprobs(ids),
        "the session itself": lambda: session.snapshot(),
    }[whom]
    with pytest.raises(RunFailed, match="cannot call a local session or sampler"):
        session.forward_backward(
            [Datum(ids[:-1], {"target_tokens": ids[1:]})], AsksSomebody(ask)
        ).result(timeout=60)
    assert len(sampler.logprobs(ids).result()) == 5


@pytest.mark.parametrize("whom", ["a sampler", "another session"])
def test_a_loss_that_awaits_an_earlier_call_fails(
    opened: Callable[..., PeftSession], whom: str
) -> None:
    """Unless the answer is there."""
    session, other, ids = opened(), opened(), np.arange(5, 10)
    sampler, datum = session.snapshot().result(), Datum(ids[:-1], {"target_tokens": ids[1:]})
    ready = sampler.logprobs(ids)
    assert len(ready.result()) == 5
    session.forward_backward([datum], AsksSomebody(lambda: ready)).result(timeout=60)

    reached, tickets = threading.Event(), queue.SimpleQueue[Any]()

    def asked_by_others() -> Any:
        reached.set()
        return tickets.get(timeout=60)

    late = session.forward_backward([datum], AsksSomebody(asked_by_others))
    assert reached.wait(60)
    tickets.put(
        sampler.logprobs(ids) if whom == "a sampler" else other.forward([datum], "cross_entropy")
    )
    with pytest.raises(RunFailed, match="before the step"):
        late.result(timeout=60)
