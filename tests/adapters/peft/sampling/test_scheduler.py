"""The scheduler and its decoder bodies: which rows decode when, and which prompts are read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from adapters.peft.sampling.batch import prompts_split_between
from adapters.peft.sampling.conversation_cache import KV
from adapters.peft.sampling.draw import Drawn, Row
from adapters.peft.sampling.frozen_model import FrozenModel
from adapters.peft.sampling.hf_body import HfBody
from adapters.peft.sampling.scheduler import DecoderBody, Scheduler
from adapters.peft.session import PeftSession
from kitchen.types import Adam, Datum, Sampled, Tokens
from tests.support.sampling import (
    DEVICE,
    prefilled,
    random_prompts,
    record_embedded,
    sampling_request,
)

PROMPTS = random_prompts(40, 7, 40, 1, 22, 70)
MOST = 100  # rows at a time, more than any test has


@pytest.fixture
def frozen(opened: Callable[..., PeftSession], weighted: list[Datum]) -> Iterator[FrozenModel]:
    session = opened()
    for _ in range(3):
        session.forward_backward(weighted)
        session.optim_step(Adam(0.02))
    sampler: Any = session.snapshot().result()
    yield sampler.model.result()
    sampler.close()


class RecordingBody:
    """A decoder body that records the admitted prompts and the number of rows at each step."""

    def __init__(self, body: DecoderBody) -> None:
        self._body = body
        self.admitted = list[bytes]()
        self.row_counts = list[int]()

    @property
    def admit_below(self) -> float:
        return self._body.admit_below

    def draw(self, states: torch.Tensor, rows: Sequence[Row], accum_dtype: torch.dtype) -> Drawn:
        return self._body.draw(states, rows, accum_dtype)

    def prefill(self, prompts: Sequence[Tokens], needed_again: Collection[bytes]) -> torch.Tensor:
        self.admitted += [prompt.tobytes() for prompt in prompts]
        return self._body.prefill(prompts, needed_again)

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        self.row_counts.append(len(ids))
        return self._body.step(ids)

    def retain(self, rows: Sequence[int]) -> None:
        self._body.retain(rows)

    def sequence_kv(self, row: int) -> KV | None:
        return self._body.sequence_kv(row)


def rows_of(prompts: Sequence[Tokens], count: int = 3) -> list[Row]:
    """Return `count` rows of each prompt, of unequal lengths."""
    return [
        Row(sampling_request(prompt, place), index, 1 + (7 * place + 5 * index) % 40, frozenset())
        for place, prompt in enumerate(prompts)
        for index in range(count)
    ]


def scheduler(
    frozen: FrozenModel, body: DecoderBody, rows: Sequence[Row], most: int, **settings: int
) -> Scheduler:
    decode_text = partial(frozen.tokenizer.decode, special=True)
    return Scheduler(body, rows, decode_text, torch.float32, most, **settings)


def complete(
    frozen: FrozenModel, body: DecoderBody, rows: Sequence[Row], most: int = MOST, steps: int = 7
) -> list[Sampled]:
    """Decode rows to their end, `steps` tokens at a time, at most `most` rows together."""
    decoding = scheduler(frozen, body, rows, most)
    while decoding.advance(steps):
        pass
    return [row.sampled() for row in rows]


def fused_body(frozen: FrozenModel) -> DecoderBody:
    return frozen.decoder_body(64, {})


def hf_body(frozen: FrozenModel) -> DecoderBody:
    return HfBody(frozen.network, 64)


def assert_same_completions(completions: Sequence[Sampled], expected: Sequence[Sampled]) -> None:
    for one, other in zip(completions, expected, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_batched_rows_match_rows_decoded_alone(frozen: FrozenModel) -> None:
    alone = [complete(frozen, hf_body(frozen), [row])[0] for row in rows_of(PROMPTS)]
    for row, completion in zip(rows_of(PROMPTS), alone, strict=True):
        assert len(completion.tokens) == row.max_new_tokens
    for body in (fused_body, hf_body):
        for most in (1, 5, MOST):
            completions = complete(frozen, body(frozen), rows_of(PROMPTS), most)
            assert_same_completions(completions, alone)


def test_steps_per_turn_change_no_bit(frozen: FrozenModel) -> None:
    expected = complete(frozen, fused_body(frozen), rows_of(PROMPTS), 5, steps=64)
    for steps in (1, 5):
        completions = complete(frozen, fused_body(frozen), rows_of(PROMPTS), 5, steps=steps)
        for one, other in zip(completions, expected, strict=True):
            np.testing.assert_array_equal(one.tokens, other.tokens)
            np.testing.assert_array_equal(one.logprobs, other.logprobs)


def test_rows_are_admitted_in_order_within_the_limit(frozen: FrozenModel) -> None:
    body = RecordingBody(fused_body(frozen))
    complete(frozen, body, rows_of(PROMPTS), 5)
    assert body.admitted == [prompt.tobytes() for prompt in PROMPTS for _ in range(3)]
    assert max(body.row_counts) == 5
    steps = sum(row.max_new_tokens - 1 for row in rows_of(PROMPTS))
    assert sum(body.row_counts) == steps, "no row is decoded after its end"


@pytest.mark.skipif(DEVICE != "cpu", reason="counts tokens of the path without graphs")
def test_completions_share_one_read_of_their_prompt(frozen: FrozenModel) -> None:
    embedded = record_embedded(frozen)
    prompts = [PROMPTS[0], PROMPTS[4]]
    completions = complete(frozen, frozen.decoder_body(1024, {}), rows_of(prompts, 6), 4)
    assert prefilled(embedded, completions) == len(PROMPTS[0]) + len(PROMPTS[4])


@pytest.mark.skipif(DEVICE != "cpu", reason="counts tokens of the path without graphs")
def test_prefilled_prompts_are_not_read_again(frozen: FrozenModel) -> None:
    prompts = [PROMPTS[0], PROMPTS[4]]
    expected = complete(frozen, fused_body(frozen), rows_of(prompts), 8)
    prefilled_prompts = frozen.prefill_only([PROMPTS[0]], 64, {})
    rows, embedded = rows_of(prompts), record_embedded(frozen)
    completions = [
        *complete(frozen, frozen.decoder_body(64, {}, prefilled_prompts), rows[:2], 4),
        *complete(frozen, frozen.decoder_body(64, {}, prefilled_prompts), rows[2:], 4),
    ]
    assert prefilled(embedded, completions) == len(PROMPTS[4])
    assert_same_completions(completions, expected)


def test_prompts_with_a_common_prefix_are_not_split() -> None:
    prefix = np.arange(3, 33)
    prompts = [np.concatenate([prefix, PROMPTS[at][:5]]) for at in (0, 2, 5)]
    rows = rows_of(prompts)
    assert prompts_split_between([rows[:5], rows[5:]]) == []
    [split] = prompts_split_between([rows[:1], rows[1:3], rows_of(PROMPTS[3:5])])
    assert np.array_equal(split, prompts[0])


def test_prompts_are_prefilled_in_parts(frozen: FrozenModel) -> None:
    """Completions stay the same, and none starts before all rows that fit are admitted."""
    expected = complete(frozen, fused_body(frozen), rows_of(PROMPTS))
    for body, in_parts in ((fused_body(frozen), True), (hf_body(frozen), False)):
        rows = rows_of(PROMPTS)
        decoding = scheduler(frozen, body, rows, MOST, prefill_tokens=20)
        turns_before_first_token = 0
        while decoding.advance(1):
            turns_before_first_token += not any(row.ids for row in rows)
        assert (turns_before_first_token > 2) == in_parts
        tokens = [row.sampled().tokens.tolist() for row in rows]
        assert tokens == [completion.tokens.tolist() for completion in expected]


def test_a_turn_ends_after_enough_prompt_tokens(frozen: FrozenModel) -> None:
    """One row at a time, so that none waits to be admitted."""
    rows = [
        Row(sampling_request(prompt, place), 0, 1, frozenset())
        for place, prompt in enumerate(random_prompts(*[40] * 12))
    ]
    decoding = scheduler(frozen, fused_body(frozen), rows, 1, prefill_tokens=100)
    finished = []
    while decoding.advance(100):
        finished.append(sum(bool(row.ids) for row in rows))
    # each turn reads three prompts, and the last of them is completed in the next turn
    assert finished == [2, 5, 8, 11]
