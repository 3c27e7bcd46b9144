"""The head's gradient, where many datums score the same positions with many targets each."""

from __future__ import annotations

import torch

from adapters.peft.model.logprob_head import add_in_order

SCORED, TARGETS = 1200, 64  # more gradients than torch adds with one thread


def added() -> torch.Tensor:
    """Gradients of which hundreds fall on each of a few logits."""
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(0, 4, (SCORED, 1), generator=generator)
    targets = torch.randint(0, 8, (SCORED, TARGETS), generator=generator)
    pushed = torch.zeros(256, 500)
    add_in_order(pushed, places, targets, torch.randn(SCORED, TARGETS, generator=generator))
    return pushed


def test_index_add_order_is_independent_of_threads() -> None:
    """torch adds as many numbers by index with all its threads, in no order."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = added()
        torch.set_num_threads(2)
        together = [added() for _ in range(5)]
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(alone, each) for each in together)
