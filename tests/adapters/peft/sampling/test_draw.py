"""Drawing tokens from logits, against inverse transform sampling over the whole vocabulary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from adapters.peft.sampling.draw import Row, draw
from kitchen.types import Array
from tests.support.sampling import sampling_request

PROMPT = np.array([1])


def rows_with(count: int, **settings: Any) -> list[Row]:
    """Return rows that differ in their seed only."""
    return [
        Row(sampling_request(PROMPT, seed, **settings), 0, 9, frozenset()) for seed in range(count)
    ]


def test_draws_follow_the_distribution() -> None:
    probabilities = np.array([0.5, 0.0, 0.3, 0.2])
    rows = rows_with(4000)
    with np.errstate(divide="ignore"):
        logits = torch.from_numpy(np.log(probabilities)).repeat(len(rows), 1)
    tokens, logprobs = draw(logits, rows, torch.float64)
    frequencies = np.bincount(tokens, minlength=4) / len(rows)
    np.testing.assert_allclose(frequencies, probabilities, atol=0.025)
    assert frequencies[1] == 0
    np.testing.assert_allclose(logprobs, np.log(probabilities[tokens]))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 5},
        {"top_k": 500},
        {"top_p": 0.5},
        {"top_p": 0.98},
        {"top_k": 40, "top_p": 0.7},
        {"temperature": 0.0},
        {"temperature": 1.7, "top_p": 0.2},
        {"top_k": 2**63},
        {"temperature": 1e-40},
        {"temperature": 1e-3, "top_k": 50},
    ],
    ids=str,
)
@pytest.mark.parametrize("spread", [0.3, 6.0])
def test_draws_match_inverse_transform_sampling(settings: dict[str, Any], spread: float) -> None:
    logits = torch.from_numpy(np.random.default_rng(1).normal(0, spread, (60, 1000)))
    logits[:, 700:] = logits[:, :300]  # ties
    tokens, logprobs = draw(logits, rows_with(60, **settings), torch.float64)
    for place, row in enumerate(rows_with(60, **settings)):
        token, logprob = draw_by_cumulative_sum(logits[place].numpy(), row)
        assert int(tokens[place]) == token
        assert float(logprobs[place]) == pytest.approx(logprob, abs=1e-10)


def draw_by_cumulative_sum(logits: Array, row: Row) -> tuple[int, float]:
    """Draw one token: top-k first, then top-p of what is left."""
    request = row.request
    scaled = (logits - logits.max()) / (request.temperature or 1.0)
    logprobs = scaled - np.log(np.exp(scaled).sum())
    if request.temperature == 0:
        return int(logprobs.argmax()), float(logprobs.max())
    order = np.arange(len(logprobs))
    if request.top_k or request.top_p < 1:
        order = np.argsort(-logprobs, kind="stable")
    probabilities = np.exp(logprobs[order])
    if request.top_k:
        probabilities[request.top_k :] = 0
    probabilities /= probabilities.sum()
    if request.top_p < 1:
        probabilities[np.cumsum(probabilities) - probabilities >= request.top_p] = 0
    cumulative = np.cumsum(probabilities)
    place = np.searchsorted(cumulative, row.uniform() * cumulative[-1], side="right")
    token = int(order[place])
    return token, float(logprobs[token])
