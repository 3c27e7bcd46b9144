"""Decoding by graphs: the completions of the fused body, whatever the rows, pages and graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.fake.blobs import FakeBlobs
from adapters.peft.client import PeftTraining
from adapters.peft.sampling.draw import Row
from adapters.peft.sampling.frozen_model import FrozenModel
from adapters.peft.sampling.fused_body import FusedBody
from adapters.peft.sampling.paged.body import PagedBody
from adapters.peft.sampling.paged.choice import paged_decoding_everywhere
from adapters.peft.sampling.paged.decoder import bucket
from adapters.peft.sampling.paged.kernels import PAGE
from adapters.peft.sampling.scheduler import DecoderBody, Scheduler
from kitchen.types import Adam, Datum, Lora, Sampled, Tokens
from tests.support.one_model import OneModel
from tests.support.sampling import DEVICE, random_prompts, sampling_request
from tests.support.tiny_model import tiny_model
from tests.support.tiny_qwen import tiny_qwen3

PROMPTS = random_prompts(40, 1, PAGE, PAGE + 1)
SETTINGS: list[dict[str, Any]] = [
    {"max_tokens": 70},
    {"max_tokens": 30, "temperature": 0.0},
    {"max_tokens": 5, "temperature": 0.7, "top_p": 0.8},
    {"max_tokens": PAGE, "top_k": 7},
]


CASES = {
    "lora": (tiny_model, Lora(rank=8, seed=1)),
    "dora": (tiny_model, Lora(rank=8, seed=1, kind="dora")),
    "head norms": (tiny_qwen3, Lora(rank=8, seed=1)),
}


@pytest.fixture(params=CASES)
def frozen(
    request: pytest.FixtureRequest, blobs: FakeBlobs, weighted: list[Datum], tmp_path: Path
) -> Iterator[FrozenModel]:
    write, lora = CASES[request.param]
    client = PeftTraining(OneModel(write(tmp_path)), blobs, device=DEVICE, dtype="float32")
    session = client.open("tiny", lora)
    session.forward_backward(weighted)
    session.optim_step(Adam(0.02))
    sampler: Any = session.snapshot().result()
    yield sampler.model.result()
    sampler.close()
    session.close()


def rows_of(prompts: Sequence[Tokens], count: int = 2) -> list[Row]:
    rows = []
    for place, prompt in enumerate(prompts):
        request = sampling_request(prompt, place, **SETTINGS[place % len(SETTINGS)])
        rows += [Row(request, index, request.max_tokens, frozenset()) for index in range(count)]
    return rows


def complete(
    frozen: FrozenModel, body: DecoderBody, rows: Sequence[Row], most: int
) -> list[Sampled]:
    decode_text = partial(frozen.tokenizer.decode, special=True)
    decoding = Scheduler(body, rows, decode_text, torch.float32, most)
    while decoding.advance(7):
        pass
    return [row.sampled() for row in rows]


@pytest.mark.skipif(DEVICE != "cpu", reason="compares with the path without graphs")
def test_completions_match_those_of_the_fused_body(frozen: FrozenModel) -> None:
    fused = frozen.decoder_body(64, {})
    assert isinstance(fused, FusedBody)
    expected = complete(frozen, fused, rows_of(PROMPTS), 100)
    with paged_decoding_everywhere():
        paged_model = FrozenModel(frozen.network, frozen.tokenizer, frozen.base)
        for most in (3, 100):  # rows are admitted while others run; all run together
            body = paged_model.decoder_body(64, {})
            assert isinstance(body, PagedBody)
            completions = complete(frozen, body, rows_of(PROMPTS), most)
            for one, other in zip(completions, expected, strict=True):
                assert one.tokens.tolist() == other.tokens.tolist()
                np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_reused_graphs_change_no_bit(frozen: FrozenModel) -> None:
    """The second batch finds graphs and used pages; a new model has neither."""
    with paged_decoding_everywhere():
        used, new = (FrozenModel(frozen.network, frozen.tokenizer, frozen.base) for _ in range(2))
        complete(frozen, used.decoder_body(64, {}), rows_of(PROMPTS[::-1]), 5)
        completions = complete(frozen, used.decoder_body(64, {}), rows_of(PROMPTS[:2]), 3)
        expected = complete(frozen, new.decoder_body(64, {}), rows_of(PROMPTS[:2]), 3)
    for one, other in zip(completions, expected, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)


@pytest.mark.parametrize(
    ("rows", "expected"), [(1, 1), (3, 4), (32, 32), (33, 64), (65, 128), (200, 256)]
)
def test_buckets_depend_on_the_number_of_rows(rows: int, expected: int) -> None:
    assert bucket(rows) == expected
