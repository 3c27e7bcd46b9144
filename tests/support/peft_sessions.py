"""Sessions of the local engine that share prefixes, and what their steps compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from kitchen.types import Adam, Array, Datum, Lora, LossOutput

if TYPE_CHECKING:
    from adapters.peft.session import PeftSession
from adapters.peft.training.trainer import Trainer

Opened = Callable[..., "PeftSession"]
Step = tuple[LossOutput, dict[str, Array]]
LORA = Lora(rank=4, alpha=8.0, seed=2)
TOGETHER = {"micro_batch_tokens": 10_000}  # one micro-batch
APART = {"micro_batch_tokens": 1}  # one micro-batch per sequence


def with_nonzero_b(session: PeftSession) -> PeftSession:
    """Move B away from zero, so that A has a gradient too."""

    import torch

    def move(trainer: Any) -> None:
        for layer in trainer.adapter.layers.values():
            drawn = torch.randn(
                layer.b.shape, generator=torch.Generator().manual_seed(layer.b.shape[0])
            )
            layer.b.data.copy_(drawn * 0.05)

    session.submit(move).result()
    return session


def shared_and_alone(opened: Opened, **settings: Any) -> tuple[PeftSession, PeftSession]:
    """Return float64 sessions with the same weights: one shares prefixes, one has none to share."""
    shared, alone = (
        with_nonzero_b(opened(LORA, dtype="float64", **cut, **settings))
        for cut in (TOGETHER, APART)
    )
    return shared, alone


def record_token_counts(session: PeftSession) -> list[int]:
    """Return a list to which each forward pass from now on appends its number of tokens."""
    counts: list[int] = []
    session.submit(
        lambda trainer: trainer.network.model.get_input_embeddings().register_forward_hook(
            lambda module, inputs, output: counts.append(inputs[0].numel())
        )
    ).result()
    return counts


def step(session: PeftSession, data: Sequence[Datum], loss: Any = "cross_entropy") -> Step:
    """Return the output of a step and its gradient."""
    output = session.forward_backward(data, loss).result()
    return output, session.submit(_gradients).result()


def _gradients(trainer: Trainer) -> dict[str, Array]:
    """Copy the gradient of every trained parameter."""
    gradients = {}
    for name, parameter in trainer.weights.named_parameters().items():
        assert parameter.grad is not None
        gradients[name] = parameter.grad.cpu().numpy().copy()
    return gradients


def flat(gradient: dict[str, Array]) -> Array:
    return np.concatenate([gradient[name].ravel() for name in sorted(gradient)])


def count_distinct_prefixes(data: Sequence[Datum]) -> int:
    """Return the number of tokens of all datums, those of common prefixes counted once."""
    return len({d.tokens[: end + 1].tobytes() for d in data for end in range(len(d.tokens))})


def assert_same_step(one: Step, other: Step) -> None:
    assert one[0].metrics["loss:sum"] == pytest.approx(other[0].metrics["loss:sum"], rel=1e-10)
    for ours, theirs in zip(one[0].logprobs, other[0].logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-9)
    largest = np.abs(flat(other[1])).max()
    assert largest > 1e-3
    for name, gradient in other[1].items():
        np.testing.assert_allclose(
            one[1][name], gradient, rtol=0, atol=1e-10 * largest, err_msg=name
        )


def trained(session: PeftSession, data: Sequence[Datum]) -> PeftSession:
    """Train a session for three steps."""
    for _ in range(3):
        session.forward_backward(data)
        session.optim_step(Adam(0.01))
    return session
