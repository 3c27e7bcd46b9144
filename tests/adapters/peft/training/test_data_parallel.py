"""Training on two processes: the results of one, to rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from adapters.peft.client import PeftTraining
from kitchen.errors import DataError, Diverged, RunFailed
from kitchen.types import Adam, Array, Datum, Floats, FullWeights, Lora
from tests.support.device_digests import weight_digests
from tests.support.peft_sessions import trained

if TYPE_CHECKING:
    from adapters.peft.session import PeftSession

pytest.importorskip("torch")

Opened = Callable[..., "PeftSession"]
TWO: Mapping[str, Any] = {"device": "cpu", "threads": 2, "devices": 2}
ONE: Mapping[str, Any] = {"device": "cpu", "threads": 2}


class Squared:
    """The square of the summed log-probability; of groups of two if `group` is 2."""

    def __init__(self, group: int = 0) -> None:
        self.group = group

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats]
    ) -> tuple[float, list[Array], dict[str, float]]:
        size = self.group or len(data)
        value, grads = 0.0, list[Array]()
        for first in range(0, len(data), size):
            part = logprobs[first : first + size]
            total = float(sum(lp.sum() for lp in part)) / 100
            value += total**2
            grads += [np.full(lp.shape, total / 50) for lp in part]
        return value, grads, {"datums:sum": float(len(data)), "always two": 2.0}


class Failing(Squared):
    def __call__(self, data: Sequence[Datum], logprobs: Sequence[Floats]) -> Any:
        raise ValueError("no such reward")


def losses(judged: list[Datum], weighted: list[Datum]) -> dict[str, tuple[list[Datum], Any]]:
    return {
        "cross_entropy": (weighted, "cross_entropy"),
        "importance_sampling": (judged, "importance_sampling"),
        "groups": (weighted, Squared(2)),
        "whole batch": (weighted, Squared()),
    }


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("loss", ["cross_entropy", "importance_sampling", "groups", "whole batch"])
def test_two_devices_compute_what_one_does(
    opened: Opened, judged: list[Datum], weighted: list[Datum], loss: str, dropout: float
) -> None:
    data, function = losses(judged, weighted)[loss]
    results = []
    for devices in (ONE, TWO):
        session = opened(Lora(rank=4, seed=3, dropout=dropout), **devices)
        steps = []
        for _ in range(2):
            session.forward_backward(data[:4], function).result()
            output = session.forward_backward(data, function).result()
            step = session.optim_step(Adam(0.01)).result()
            steps.append((output, step))
        results.append((steps, session.forward(data, function).result()))
    (of_one, last_of_one), (of_two, last_of_two) = results
    for one, two in [*zip(of_one, of_two, strict=True), ((last_of_one,), (last_of_two,))]:
        assert dict(two[0].metrics) == pytest.approx(dict(one[0].metrics), rel=1e-5)
        for ours, theirs in zip(two[0].logprobs, one[0].logprobs, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)
        for ours, theirs in zip(two[1:], one[1:], strict=True):
            assert dict(ours.metrics) == pytest.approx(dict(theirs.metrics), rel=1e-5)


def test_weights_are_the_same_on_all_devices(opened: Opened, weighted: list[Datum]) -> None:
    session = trained(opened(Lora(rank=4, seed=3), **TWO), weighted)
    first, second = weight_digests(session)
    assert first == second
    facts = session.facts()
    assert (facts["machine.devices"], facts["machine.threads"]) == ("2", "1")  # of each


def test_a_resumed_session_is_equal_to_the_bit(opened: Opened, weighted: list[Datum]) -> None:
    session = trained(opened(Lora(rank=4, seed=3, dropout=0.2), **TWO), weighted)
    checkpoint = session.save("middle").result()
    trained(session, weighted)
    resumed = opened(Lora(rank=4, seed=3, dropout=0.2), **TWO)
    resumed.load(checkpoint).result()
    trained(resumed, weighted)
    assert weight_digests(resumed) == weight_digests(session)


def test_invalid_data_is_refused_with_its_number(opened: Opened, weighted: list[Datum]) -> None:
    session = opened(Lora(rank=4, seed=3), **TWO)
    invalid = Datum(np.array([1, 100_000]), {"target_tokens": np.array([1, 2])})
    session.forward_backward(weighted)
    with pytest.raises(DataError, match="datum 6 of 7"):
        session.forward_backward([*weighted, invalid]).result()
    with pytest.raises(DataError, match="gradient of the others is discarded"):
        session.optim_step(Adam(0.01)).result()
    trained(session, weighted)
    assert weight_digests(session) == weight_digests(
        trained(opened(Lora(rank=4, seed=3), **TWO), weighted)
    )


def test_all_weights_train_on_two_devices(
    client: Callable[..., PeftTraining], weighted: list[Datum]
) -> None:
    scores = []
    for devices in (ONE, TWO):
        session: Any = client(**devices).open("tiny", FullWeights())
        trained(session, weighted)
        checkpoint = session.save("middle" + str(len(devices))).result()
        session.close()
        resumed: Any = client(**devices).open("tiny", FullWeights())
        resumed.load(checkpoint)
        trained(resumed, weighted)
        scores.append(np.concatenate(resumed.forward(weighted).result().logprobs))
        resumed.close()
    np.testing.assert_allclose(scores[1], scores[0], rtol=0, atol=1e-4)


def test_a_batch_smaller_than_the_devices(opened: Opened, weighted: list[Datum]) -> None:
    one, two = (opened(Lora(rank=4, seed=3), **devices) for devices in (ONE, TWO))
    ours, theirs = (session.forward_backward(weighted[:1]).result() for session in (two, one))
    assert ours.metrics["loss:sum"] == pytest.approx(theirs.metrics["loss:sum"], rel=1e-6)
    two.optim_step(Adam(0.01)).result()


@pytest.mark.parametrize("group", [0, 2])
def test_an_error_of_the_loss_ends_the_call(
    opened: Opened, weighted: list[Datum], group: int
) -> None:
    session = opened(Lora(rank=4, seed=3), **TWO)
    with pytest.raises(ValueError, match="no such reward"):
        session.forward(weighted, Failing(group)).result()
    session.forward(weighted).result()  # which changes nothing
    with pytest.raises(ValueError, match="no such reward"):
        session.forward_backward(weighted, Failing(group)).result()
    with pytest.raises(RunFailed, match="an earlier one failed"):
        session.forward(weighted).result()


def test_a_loss_that_is_not_finite_names_its_datum(opened: Opened, judged: list[Datum]) -> None:
    data = list(judged)
    inputs = {**data[3].loss_inputs, "logprobs": np.full(len(data[3].tokens), -1e5)}
    data[3] = Datum(data[3].tokens, inputs)
    with pytest.raises(Diverged, match="datum 3 of 6"):
        opened(Lora(rank=4, seed=3), **TWO).forward_backward(data, "importance_sampling").result()
