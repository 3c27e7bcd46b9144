"""The gradient of a frozen head that overwrites its logits, against autograd in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from adapters.peft.batching.micro_batch import MicroBatch
from adapters.peft.batching.packed_layout import build_layout
from adapters.peft.model.frozen_head import (
    FrozenHeadScore,
    choose_score,
    sum_equal_targets,
)
from adapters.peft.model.logprob_head import score
from kitchen.types import Array
from tests.support.torch_kernels import TorchLogitKernels

CPU = torch.device("cpu")
VOCABULARY, WIDTH, STATES = 50, 6, 11
ROWS = {
    "each state once": np.arange(STATES),
    "some states not at all": np.array([1, 2, 5, 9]),
    "some states often": np.array([0, 0, 0, 3, 4, 4, 10]),
}


def head(dtype: torch.dtype = torch.float64, *, bias: bool = False) -> nn.Linear:
    torch.manual_seed(3)
    linear = nn.Linear(WIDTH, VOCABULARY, bias=bias, dtype=dtype)
    return linear.requires_grad_(False)


def batch_of(rows: Array, targets_per_position: int) -> MicroBatch:
    """Scored positions of some states; few different targets, so that some are equal."""
    generator = torch.Generator().manual_seed(4)
    shape = len(rows), targets_per_position
    targets = torch.randint(0, 3, shape, generator=generator)
    layout = build_layout([np.arange(3)], CPU)
    places = np.zeros(len(rows), np.int64)
    slots = torch.arange(STATES)
    return MicroBatch((0,), layout, slots, targets, torch.from_numpy(rows), places, places)


def loss_gradient(scored: slice, logprobs: Array) -> Array:
    """d loss / d logprob for a loss of sum of (i + 1) · logprob², where i counts positions."""
    return 2.0 * logprobs * (np.arange(scored.start, scored.stop)[:, None] + 1)


@pytest.mark.parametrize("targets_per_position", [1, 4])
@pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())
@pytest.mark.parametrize(("chunk_rows", "bias"), [(100, False), (4, True)])
def test_logprobs_and_gradients_match_autograd(
    rows: Array, targets_per_position: int, chunk_rows: int, bias: bool
) -> None:
    linear, batch = head(bias=bias), batch_of(rows, targets_per_position)
    states = torch.randn(STATES, WIDTH, dtype=torch.float64, requires_grad=True)
    logprobs = torch.log_softmax(linear(states), -1)
    expected = logprobs[torch.from_numpy(rows)[:, None], batch.targets]
    counts = torch.arange(1, len(rows) + 1)[:, None]
    [gradient] = torch.autograd.grad((counts * expected.square()).sum(), states)
    frozen = FrozenHeadScore(TorchLogitKernels(), chunk_rows)
    given: Any = linear, states.detach(), batch, torch.float64
    output = frozen(*given, loss_gradient)
    np.testing.assert_allclose(output.logprobs, expected.detach().numpy(), rtol=1e-12)
    assert output.dstates is not None
    torch.testing.assert_close(output.dstates, gradient, rtol=1e-11, atol=1e-12)
    assert output.dhead == ()
    assert frozen(*given).dstates is None


def test_a_probability_near_one_keeps_its_gradient() -> None:
    """In bfloat16, 1 - p would be 0 if it were computed after rounding."""
    linear = nn.Linear(1, 2, bias=False).requires_grad_(False).bfloat16()
    linear.weight.copy_(torch.tensor([[3.5], [-3.5]]))
    batch = batch_of(np.array([0]), 1)
    batch.targets.zero_()
    states = torch.ones(1, 1, dtype=torch.bfloat16)

    def ones(scored: slice, logprobs: Array) -> Array:
        return np.ones(logprobs.shape)

    output = FrozenHeadScore(TorchLogitKernels())(linear, states, batch, torch.float32, ones)
    assert output.dstates is not None
    exact = 7 * float(torch.sigmoid(torch.tensor(-7.0)))  # (1 - p) · (3.5 + 3.5)
    assert float(output.dstates) == pytest.approx(exact, rel=0.02)


def test_equal_targets_of_a_position_are_summed() -> None:
    rows, targets = np.array([0, 0, 1]), torch.tensor([[5, 5], [7, 5], [5, 6]])
    grads = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    sums = sum_equal_targets(rows, targets, grads)
    np.testing.assert_array_equal(sums, [[7.0, 7.0], [3.0, 7.0], [5.0, 6.0]])


def test_a_cpu_and_heads_in_training_use_the_general_score() -> None:
    assert choose_score(head()) is score
    assert choose_score(nn.Linear(2, 3)) is score
