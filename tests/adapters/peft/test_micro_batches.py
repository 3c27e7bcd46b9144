"""How a batch is cut, and that the cut changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from adapters.peft.packing import pack
from adapters.peft.session import PeftSession
from kitchen.types import Adam, Array, Datum, Lora

Opened = Callable[..., PeftSession]


def test_micro_batches_stay_within_the_budget_and_lose_nothing() -> None:
    lengths = np.random.default_rng(0).integers(1, 90, 200).tolist()
    packed = pack(lengths, 400)
    assert sorted(index for batch in packed for index in batch) == list(range(200))
    assert all(len(batch) * max(lengths[index] for index in batch) <= 400 for batch in packed)
    assert len(packed) < 2 * sum(lengths) / 400


def test_a_sequence_above_the_budget_goes_alone() -> None:
    assert pack([3, 900, 4], 100) == [(1,), (2, 0)]


def test_runs_stay_together_and_in_order() -> None:
    assert pack([5, 9, 30, 2, 8, 8], 60, group=2) == [(2, 3), (0, 1, 4, 5)]


def gradient(session: PeftSession, *calls: list[Datum]) -> dict[str, Array]:
    for data in calls:
        session.forward_backward(data)
    got: dict[str, Any] = session._ask(lambda trainer: {
        name: parameter.grad.clone() for name, parameter in trainer.adapter.named().items()
        if parameter.grad is not None}).result()
    return {name: tensor.numpy() for name, tensor in got.items()}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_neither_cut_nor_padding_nor_checkpointing_changes_a_gradient(
    opened: Opened, weighted: list[Datum], dropout: float, checkpointing: bool
) -> None:
    lora = Lora(rank=4, seed=2, dropout=dropout)
    whole = gradient(opened(lora, dtype="float64"), weighted)
    cut = gradient(opened(lora, dtype="float64", micro_batch_tokens=1, checkpointing=checkpointing), weighted)
    assert whole.keys() == cut.keys()
    for name, expected in whole.items():
        np.testing.assert_allclose(cut[name], expected, rtol=0, atol=1e-9, err_msg=name)


def test_calls_add_up(opened: Opened, weighted: list[Datum]) -> None:
    whole = gradient(opened(dtype="float64"), weighted)
    parts = gradient(opened(dtype="float64"), weighted[:1], weighted[1:4], weighted[4:])
    for name, expected in whole.items():
        np.testing.assert_allclose(parts[name], expected, rtol=0, atol=1e-9, err_msg=name)


def test_answers_come_in_the_order_of_the_data(opened: Opened, weighted: list[Datum]) -> None:
    session = opened(micro_batch_tokens=40)
    together = session.forward(weighted).result().logprobs
    for datum, logprobs in zip(weighted, together, strict=True):
        np.testing.assert_allclose(session.forward([datum]).result().logprobs[0], logprobs, atol=1e-5)


def test_dropout_drops_and_differs_between_calls(opened: Opened, weighted: list[Datum]) -> None:
    session = opened(Lora(rank=4, seed=2, dropout=0.5))

    def next_gradient() -> Array:
        got = gradient(session, weighted)
        session.optim_step(Adam(0.0)).result()
        return np.concatenate([got[name].ravel() for name in sorted(got)])

    first, second = next_gradient(), next_gradient()
    dry = gradient(opened(Lora(rank=4, seed=2)), weighted)
    assert not np.allclose(first, second)
    assert not np.allclose(first, np.concatenate([dry[name].ravel() for name in sorted(dry)]))


def test_idle_data_have_no_gradient_but_can_be_stepped_along(opened: Opened, weighted: list[Datum]) -> None:
    idle = [Datum(d.tokens, {"target_tokens": d.targets, "weights": np.zeros(len(d.tokens))}) for d in weighted]
    session = opened()
    output = session.forward_backward(idle).result()
    assert all((logprobs == 0).all() and not mask.any()
               for logprobs, mask in zip(output.logprobs, output.scored, strict=True))
    assert session.optim_step(Adam()).result().metrics["grad_norm"] == 0


def test_no_logits_of_a_whole_batch_exist(opened: Opened, weighted: list[Datum]) -> None:
    """The head is asked for a bounded number of positions at a time, and for scored ones alone."""
    session, asked = opened(), list[int]()
    session._ask(lambda trainer: trainer.network.head.register_forward_hook(
        lambda module, inputs, output: asked.append(output.shape[0]))).result()
    many = weighted * 20
    session.forward_backward(many).result()
    assert sum(asked) == sum(int((datum.loss_inputs["weights"] != 0).sum()) for datum in many)
    assert max(asked) == 256


@pytest.mark.parametrize(("checkpointing", "times"), [(False, 1), (True, 2)])
def test_checkpointing_computes_activations_again(
    opened: Opened, weighted: list[Datum], checkpointing: bool, times: int
) -> None:
    session, calls = opened(checkpointing=checkpointing), list[int]()
    session._ask(lambda trainer: trainer.network.model.model.layers[0].mlp.register_forward_pre_hook(
        lambda module, inputs: calls.append(1))).result()
    session.forward_backward(weighted).result()
    assert len(calls) == times
