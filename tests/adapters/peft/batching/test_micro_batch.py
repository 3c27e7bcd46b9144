"""Packing into micro-batches, and that it changes no gradient."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.overrides import TorchFunctionMode

from adapters.peft.batching.micro_batch import build_micro_batch
from adapters.peft.batching.packing import NO_SHARING, pack, pack_padded, shared_prefix_length
from adapters.peft.model.logprob_head import score
from adapters.peft.runtime.worker import COMPUTE_LOCK
from adapters.peft.session import PeftSession
from kitchen.types import Adam, Array, Datum, Floats, Lora
from tests.support.polling import wait_until

Opened = Callable[..., PeftSession]


def random_sequences(count: int) -> list[Array]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 500, length) for length in rng.integers(1, 90, count)]


def test_micro_batches_stay_within_the_budget_and_lose_nothing() -> None:
    sequences = random_sequences(200)
    packed = pack(sequences, 400)
    assert sorted(index for batch in packed for index in batch) == list(range(200))
    tokens = [sum(len(sequences[index]) for index in batch) for batch in packed]
    assert max(tokens) <= 400
    assert len(packed) < 1.2 * sum(tokens) / 400
    assert max(tokens) < 1.5 * min(tokens)


def test_a_sequence_above_the_budget_is_alone() -> None:
    lengths = [3, 900, 4]
    packed = pack([np.full(length, token) for token, length in enumerate(lengths)], 100)
    assert (1,) in packed
    assert sorted(index for batch in packed for index in batch) == [0, 1, 2]


@given(st.lists(st.integers(1, 30), max_size=12), st.integers(1, 60))
def test_padding_counts_against_the_budget(lengths: list[int], budget: int) -> None:
    batches = pack_padded(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= budget


def test_groups_stay_together_and_in_order() -> None:
    batches = pack(random_sequences(24), 200, group=4)
    assert sorted(index for batch in batches for index in batch) == list(range(24))
    for batch in batches:
        assert [index % 4 for index in batch] == [0, 1, 2, 3] * (len(batch) // 4)
        assert all(
            batch[place] // 4 == batch[place - place % 4] // 4 for place in range(len(batch))
        )


def test_packing_no_sequences_gives_no_batches() -> None:
    assert pack([], 100) == []


def test_a_shared_prefix_counts_once() -> None:
    beginning = np.arange(300)
    sequences = [np.concatenate([beginning, np.full(50, token)]) for token in range(4)]
    mixed = [
        sequences[0],
        np.arange(400, 600),
        sequences[1],
        np.arange(600, 800),
        sequences[2],
        sequences[3],
    ]
    assert sorted(pack(mixed, 500)) == [(0, 2, 4, 5), (1, 3)]
    assert len(pack(mixed, 500, min_shared=NO_SHARING)) > 2


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("budget", [512, 640, 1024])
def test_groups_share_their_prompts_as_far_as_the_budget_goes(budget: int, lanes: int) -> None:
    """2 groups of 8 answers to prompts of 256 tokens, so that parts of a group share a batch."""
    prompts = [np.arange(group * 256, group * 256 + 256) for group in range(2)]
    sequences = [
        np.concatenate([prompts[index % 2], np.full(63, 1000 + index)]) for index in range(16)
    ]
    packed = pack(sequences, budget, lanes=lanes)
    most = min((budget - 256) // 63, 8)
    assert len(packed) == 2 * -(-8 // most)
    assert all(len({index % 2 for index in batch}) == 1 for batch in packed)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60)), min_size=1, max_size=20),
    st.integers(40, 300),
    st.sampled_from([1, 2]),
)
def test_packing_is_no_worse_than_filling_in_order(
    drawn: list[tuple[int, int]], budget: int, lanes: int
) -> None:
    """But for a batch a lane, for shares are to be even."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 1000, 20 * group) for group in range(4)]
    sequences = sorted(
        (np.concatenate([prompts[group], rng.integers(0, 1000, more)]) for group, more in drawn),
        key=lambda tokens: tokens.astype(">u4").tobytes(),
    )
    filled: list[list[Array]] = []
    for tokens in sequences:
        if filled and read([*filled[-1], tokens]) <= budget:
            filled[-1].append(tokens)
        else:
            filled.append([tokens])
    packed = [
        [sequences[index] for index in batch] for batch in pack(sequences, budget, lanes=lanes)
    ]
    assert sum(map(read, packed)) <= sum(map(read, filled)) + lanes * budget


def read(sequences: list[Array]) -> int:
    """Tokens, with what each begins with as the one before it counted once."""
    return sum(map(len, sequences)) - sum(
        shared_prefix_length(*pair) for pair in pairwise(sequences)
    )


def gradient(session: PeftSession, *calls: list[Datum]) -> dict[str, Array]:
    for data in calls:
        session.forward_backward(data)
    got: dict[str, Any] = session.submit(
        lambda trainer: {
            name: parameter.grad.clone()
            for name, parameter in trainer.adapter.named_parameters().items()
            if parameter.grad is not None
        }
    ).result()
    return {name: tensor.cpu().numpy() for name, tensor in got.items()}


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_micro_batching_changes_no_gradient(
    opened: Opened, weighted: list[Datum], dropout: float, checkpointing: bool
) -> None:
    lora = Lora(rank=4, seed=2, dropout=dropout)
    whole = gradient(opened(lora, dtype="float64"), weighted)
    cut = gradient(
        opened(lora, dtype="float64", micro_batch_tokens=1, checkpointing=checkpointing), weighted
    )
    assert whole.keys() == cut.keys()
    for name, expected in whole.items():
        np.testing.assert_allclose(cut[name], expected, rtol=0, atol=1e-9, err_msg=name)


def test_gradients_accumulate_over_calls(opened: Opened, weighted: list[Datum]) -> None:
    whole = gradient(opened(dtype="float64"), weighted)
    parts = gradient(opened(dtype="float64"), weighted[:1], weighted[1:4], weighted[4:])
    assert any(numbers.any() for numbers in whole.values())
    for name, expected in whole.items():
        np.testing.assert_allclose(parts[name], expected, rtol=0, atol=1e-9, err_msg=name)


def test_logprobs_are_in_datum_order(opened: Opened, weighted: list[Datum]) -> None:
    session = opened(micro_batch_tokens=40)
    together = session.forward(weighted).result().logprobs
    for datum, logprobs in zip(weighted, together, strict=True):
        np.testing.assert_allclose(
            session.forward([datum]).result().logprobs[0], logprobs, atol=1e-5
        )


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


def test_unscored_data_give_a_zero_gradient(opened: Opened, weighted: list[Datum]) -> None:
    idle = [
        Datum(d.tokens, {"target_tokens": d.targets, "weights": np.zeros(len(d.tokens))})
        for d in weighted
    ]
    session = opened()
    output = session.forward_backward(idle).result()
    assert all(
        (logprobs == 0).all() and not mask.any()
        for logprobs, mask in zip(output.logprobs, output.scored, strict=True)
    )
    assert session.optim_step(Adam()).result().metrics["grad_norm"] == 0


class SoftmaxRows(TorchFunctionMode):
    """Records the number of rows of every softmax."""

    def __init__(self) -> None:
        self.rows = list[int]()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.softmax:
            self.rows.append(len(args[0]))
        return function(*args, **(kwargs or {}))


def test_logits_are_computed_in_chunks() -> None:
    """A bounded number of positions at a time, the scored ones alone, and each once."""
    rng, data = np.random.default_rng(1), []
    for length in rng.integers(20, 60, 30):
        ids = rng.integers(3, 300, length + 1)
        data.append(Datum(ids[:-1], {"target_tokens": ids[1:]}))
    masks = [rng.random(len(datum.tokens)) < 0.6 for datum in data]
    batch = build_micro_batch(data, masks, tuple(range(len(data))), torch.device("cpu"))
    states = torch.randn(len(batch.scored_slots), 8)
    with SoftmaxRows() as softmax:
        score(torch.nn.Linear(8, 300), states, batch, torch.float32, lambda _, nats: nats)
    assert sum(softmax.rows) == sum(int(mask.sum()) for mask in masks)
    assert max(softmax.rows) == 256


def test_a_prefix_shared_by_several_datums_is_scored_once(weighted: list[Datum]) -> None:
    data = [weighted[0]] * 5
    everywhere = [np.ones(len(datum.tokens), bool) for datum in data]
    batch = build_micro_batch(data, everywhere, tuple(range(5)), torch.device("cpu"))
    assert len(batch.scored_slots) == len(weighted[0].tokens)


class Recorded:
    """The negative log-likelihood, which records whose micro-batch is computed."""

    group = 1

    def __init__(self, name: str, order: list[str], first: Callable[[], None]) -> None:
        self._name, self._order, self._first = name, order, first

    def __call__(
        self, data: Sequence[Datum], logprobs: Sequence[Floats]
    ) -> tuple[float, list[Floats], dict[str, float]]:
        if self._name not in self._order:
            self._first()
        self._order.append(self._name)
        return float(-sum(lp.sum() for lp in logprobs)), [-np.ones_like(lp) for lp in logprobs], {}


def test_yielding_to_another_session_changes_no_bits(opened: Opened, data: list[Datum]) -> None:
    plain = [Datum(datum.tokens, {"target_tokens": datum.targets}) for datum in data]
    order = list[str]()
    computing, submitted = threading.Event(), threading.Event()

    def wait_for_the_other() -> None:
        computing.set()
        assert submitted.wait(60)
        wait_until(lambda: COMPUTE_LOCK.waiting() > 0)

    session, other = opened(micro_batch_tokens=1), opened(micro_batch_tokens=1)
    other.facts()
    yielding = session.forward_backward(plain, Recorded("a", order, wait_for_the_other))
    assert computing.wait(60)
    meanwhile = other.forward_backward(plain, Recorded("b", order, lambda: None))
    submitted.set()
    yielding.result(), meanwhile.result()
    assert "".join(order) == "aaaabbbbaabb"
    ours, theirs = gradient(session), gradient(other)
    for name, numbers in ours.items():
        np.testing.assert_array_equal(theirs[name], numbers)
