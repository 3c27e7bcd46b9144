"""The parts of sampling, each against the plain way to do the same."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from adapters.peft.model.linear import FusedLinear
from adapters.peft.model.lora import LoraLinear
from adapters.peft.runtime import cpu as processor
from adapters.peft.runtime.lanes import Lanes
from adapters.peft.runtime.threads import default_threads
from adapters.peft.runtime.worker import COMPUTE_LOCK
from adapters.peft.sampling import frozen_linear as fixed
from adapters.peft.sampling import scheduler as decoding
from adapters.peft.sampling.batch import prompts_split_between, serve_batch
from adapters.peft.sampling.draw import Row, draw
from adapters.peft.sampling.frozen_linear import FrozenLinear
from adapters.peft.sampling.frozen_model import FrozenModel
from adapters.peft.sampling.fused_body import FusedBody
from adapters.peft.sampling.hf_body import HfBody
from adapters.peft.sampling.kv_grid import group_prompts, prompt_key
from adapters.peft.sampling.requests import SamplingRequest
from adapters.peft.sampling.scheduler import DecoderBody, Scheduler
from adapters.peft.session import PeftSession
from kitchen.types import Adam, Datum, Sampled, Tokens
from tests.adapters.peft.test_export import gpt2

RNG = np.random.default_rng(8)
PROMPTS = [RNG.integers(3, 300, length) for length in (40, 7, 40, 1, 22, 70)]


@pytest.fixture
def frozen(opened: Callable[..., PeftSession], weighted: list[Datum]) -> Iterator[FrozenModel]:
    session = opened()
    for _ in range(3):
        session.forward_backward(weighted)
        session.optim_step(Adam(0.02))
    sampler: Any = session.snapshot().result()
    yield sampler.model.result()
    sampler.close()


def asked(prompt: Tokens, seed: int, **how: Any) -> SamplingRequest:
    return SamplingRequest(
        **{
            "prompt": prompt,
            "count": 1,
            "max_tokens": 9,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "seed": seed,
            "stop": (),
            **how,
        }
    )


def rows_of(prompts: Sequence[Tokens], count: int = 3) -> list[Row]:
    """Of each prompt so many, of unlike lengths."""
    return [
        Row(asked(prompt, place), index, 1 + (7 * place + 5 * index) % 40, frozenset())
        for place, prompt in enumerate(prompts)
        for index in range(count)
    ]


def written(
    frozen: FrozenModel, body: DecoderBody, rows: Sequence[Row], most: int
) -> list[Sampled]:
    writing = Scheduler(body, rows, frozen.tokenizer.decode_with_special, torch.float32, most)
    while writing.advance(7):
        pass
    return [row.sampled() for row in rows]


def bodies(frozen: FrozenModel) -> dict[str, DecoderBody]:
    return {"by hand": frozen.decoder_body(64, {}), "modules": HfBody(frozen.network, 64)}


@pytest.mark.parametrize("name", ["by hand", "modules"])
@pytest.mark.parametrize("most", [1, 5, 100])
def test_rows_that_join_and_leave_are_as_they_would_be_alone(
    frozen: FrozenModel, name: str, most: int
) -> None:
    body = bodies(frozen)[name]
    together = written(frozen, body, rows_of(PROMPTS), most)
    for row, one in zip(rows_of(PROMPTS), together, strict=True):
        alone = written(frozen, bodies(frozen)["modules"], [row], 1)[0]
        assert one.tokens.tolist() == alone.tokens.tolist()
        assert len(one.tokens) == row.max_new_tokens
        np.testing.assert_allclose(one.logprobs, alone.logprobs, atol=1e-4)


def test_no_more_rows_than_allowed_are_alive_and_they_come_in_order(
    frozen: FrozenModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    body, came, alive = frozen.decoder_body(64, {}), list[bytes](), list[int]()
    read, step = body.prefill, body.step

    def reading(prompts: Sequence[Tokens], later: Collection[bytes]) -> torch.Tensor:
        came.extend(prompt.tobytes() for prompt in prompts)
        return read(prompts, later)

    def stepping(ids: torch.Tensor) -> torch.Tensor:
        alive.append(len(ids))
        return step(ids)

    monkeypatch.setattr(body, "prefill", reading)
    monkeypatch.setattr(body, "step", stepping)
    written(frozen, body, rows_of(PROMPTS), 5)
    assert came == [prompt.tobytes() for prompt in PROMPTS for _ in range(3)]
    assert max(alive) == 5
    assert sum(alive) == sum(row.max_new_tokens - 1 for row in rows_of(PROMPTS)), (
        "a row more is no row that has ended"
    )


def test_a_prompt_is_read_once_however_many_write_after_it(
    frozen: FrozenModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder: Any = frozen._frozen_layers[0]  # type: ignore[index]
    seen, embed = list[int](), decoder.embed

    def embedding(ids: torch.Tensor) -> torch.Tensor:
        seen.append(len(ids))
        found: torch.Tensor = embed(ids)
        return found

    monkeypatch.setattr(decoder, "embed", embedding)
    rows = rows_of([PROMPTS[0], PROMPTS[4]], 6)
    written(frozen, frozen.decoder_body(1024, {}), rows, 4)
    steps = sum(row.max_new_tokens - 1 for row in rows)
    assert sum(seen) - steps == len(PROMPTS[0]) + len(PROMPTS[4])


def test_a_prompt_that_is_held_is_not_read_and_its_completions_are_as_if_it_were(
    frozen: FrozenModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, alone = (rows_of([PROMPTS[0], PROMPTS[4]], 3) for _ in range(2))
    expected = written(frozen, frozen.decoder_body(64, {}), alone, 8)
    held = frozen.prefill_only([PROMPTS[0]], 64, {})
    read, plainly_read = list[bytes](), FusedBody._read

    def reading(self: FusedBody, places: dict[bytes, Any]) -> dict[bytes, torch.Tensor]:
        read.extend(places)
        return plainly_read(self, places)

    monkeypatch.setattr(FusedBody, "_read", reading)
    found = [
        *written(frozen, frozen.decoder_body(64, {}, held), rows[:2], 4),
        *written(frozen, frozen.decoder_body(64, {}, held), rows[2:], 4),
    ]
    assert read == [prompt_key(PROMPTS[4])]
    for one, other in zip(found, expected, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


@pytest.mark.parametrize("counts", [(8,), (2, 2), (3, 3, 3), (3, 3, 3, 1, 3), (1, 1, 1, 7)])
def test_each_prompt_is_read_once_whatever_lanes_there_are(
    client: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, counts: tuple[int, ...]
) -> None:
    """A row of each lane at a time, so that a prompt that is cut for them may be wanted long after
    it was read.
    """
    read, plainly_read = list[bytes](), FusedBody._read

    def reading(self: FusedBody, places: dict[bytes, Any]) -> dict[bytes, torch.Tensor]:
        read.extend(places)
        return plainly_read(self, places)

    monkeypatch.setattr(FusedBody, "_read", reading)
    sampler = client(threads=2, sample_batch=2).sampler("tiny")
    futures = [
        sampler.sample(PROMPTS[at], count=count, max_tokens=3) for at, count in enumerate(counts)
    ]
    assert [len(future.result()) for future in futures] == list(counts)
    sampler.close()
    wanted = sorted({prompt_key(PROMPTS[at]) for at in range(len(counts))})
    assert sorted(read) == wanted


def test_a_prompt_that_others_begin_like_is_read_with_them(frozen: FrozenModel) -> None:
    begun = np.arange(3, 33)
    prompts = [np.concatenate([begun, PROMPTS[at][:5]]) for at in (0, 2, 5)]
    rows = rows_of(prompts, 3)
    assert prompts_split_between([rows[:5], rows[5:]]) == []
    [cut] = prompts_split_between([rows[:1], rows[1:3], rows_of(PROMPTS[3:5])])
    assert np.array_equal(cut, prompts[0])


def test_lanes_change_nothing(client: Callable[..., Any]) -> None:
    def run(threads: int) -> list[Sampled]:
        sampler = client(threads=threads).sampler("tiny")
        futures = [sampler.sample(prompt, count=3, max_tokens=12, seed=4) for prompt in PROMPTS]
        scored = sampler.logprobs(PROMPTS[0]), [sampler.logprobs(prompt) for prompt in PROMPTS]
        np.testing.assert_array_equal(scored[0].result(), scored[1][0].result())
        found = [one for future in futures for one in future.result()]
        sampler.close()
        return found

    before = default_threads()
    pairs = list(zip(run(1), run(2), strict=True))
    assert default_threads() == before
    for one, other in pairs:
        assert one.tokens.tolist() == other.tokens.tolist()
        np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-4)


def test_learned_positions_do_not_run_out_beside_a_long_prompt(
    client: Callable[..., Any], tmp_path: Path
) -> None:
    """GPT-2 has no more positions than its context; a row that has ended needs none."""
    sampler = client().sampler(f"path:{gpt2(tmp_path)}")
    asked = [(np.arange(3, 3 + length), length) for length in (62, *range(5, 13))]
    together = [sampler.sample(prompt, max_tokens=40, seed=seed) for prompt, seed in asked]
    for (prompt, seed), future in zip(asked, together, strict=True):
        alone = sampler.sample(prompt, max_tokens=40, seed=seed).result()[0]
        assert future.result()[0].tokens.tolist() == alone.tokens.tolist()
    assert (
        len(together[0].result()[0].tokens)
        <= 2
        < max(len(future.result()[0].tokens) for future in together)
    )
    sampler.close()


def test_scores_alone_make_no_copy_of_the_weights(client: Callable[..., Any]) -> None:
    sampler = client().sampler("tiny")
    sampler.logprobs(PROMPTS[0]).result()
    frozen = sampler.model.result()
    assert "_frozen_layers" not in vars(frozen)
    sampler.sample(PROMPTS[0], max_tokens=1).result()
    assert "_frozen_layers" in vars(frozen)
    sampler.close()


@pytest.mark.parametrize("held_up", [True, False])
def test_four_hundred_threads_each_get_their_own_answer(
    client: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, held_up: bool
) -> None:
    """Those that come while another has its turn are served together."""
    sampler, batches = client(sample_batch=32).sampler("tiny"), list[int]()

    def counted(model: Any, requests: Sequence[Any], machine: Any) -> None:
        batches.append(len(requests))
        serve_batch(model, requests, machine)

    monkeypatch.setattr("adapters.peft.sampler.serve_batch", counted)
    found: dict[int, list[int]] = {}

    def ask(number: int) -> None:
        drawn = sampler.sample(PROMPTS[number % 6], max_tokens=5, seed=number).result(timeout=120)
        found[number] = drawn[0].tokens.tolist()

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(400)]
    sampler.sample(PROMPTS[0], max_tokens=1).result()
    with COMPUTE_LOCK if held_up else nullcontext():
        for thread in threads:
            thread.start()
        while held_up and len(sampler._next_batch or ()) < 400:
            time.sleep(0.001)
    for thread in threads:
        thread.join()
    assert len(found) == 400
    assert sum(batches) == 401
    assert batches == [1, 400] or not held_up
    for number in range(0, 400, 57):
        again = sampler.sample(PROMPTS[number % 6], max_tokens=5, seed=number).result()
        assert again[0].tokens.tolist() == found[number]
    sampler.close()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rows", [1, 2, 3, 20, 70])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("intel", [False, True])
def test_fixed_products_are_the_plain_ones(
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
    rows: int,
    bias: bool,
    lora: bool,
    intel: bool,
) -> None:
    monkeypatch.setattr(fixed, "is_intel", lambda: intel)
    torch.manual_seed(3)
    layers: list[Any] = [nn.Linear(48, size, bias, dtype=dtype) for size in (32, 16)]
    if lora:
        layers = [adapted(layer) for layer in layers]
    product, x, onto = (
        FusedLinear(layers),
        torch.randn(rows, 48).to(dtype),
        torch.randn(rows, 48).to(dtype),
    )
    with torch.inference_mode():
        copy, ways = FrozenLinear(product), [(None, None), (onto, onto.clone())]
        for mine, theirs in ways:
            expected = product.forward(x, theirs)[0]
            found = [
                copy.forward(x, None if mine is None else mine.clone())[0],
                *Lanes(2, 2).map(
                    lambda _, given: copy.forward(x, given)[0],
                    [None if mine is None else mine.clone() for _ in range(2)],
                ),
            ]
            for one in found:
                near = (
                    {"rtol": 0.02, "atol": 0.15}
                    if dtype == torch.bfloat16
                    else {"rtol": 1e-5, "atol": 2e-5}
                )
                torch.testing.assert_close(one, expected, **near)  # type: ignore[arg-type]
                assert one.is_contiguous()


@pytest.mark.parametrize("rows", [1, 20])
def test_fixed_products_in_float32_lose_no_small_update(
    monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Of weights in bfloat16, on a processor that does not multiply that quickly: as in training,
    rounded once.
    """
    monkeypatch.setattr(processor, "has_fast_bfloat16", lambda: False)
    torch.manual_seed(3)
    layer: Any = nn.Linear(48, 32, False, dtype=torch.bfloat16)
    weights = adapted(layer)
    with torch.no_grad():
        weights.b.mul_(1e-4)  # far below the spacing of numbers near those of the layer
    x = torch.randn(rows, 48).to(torch.bfloat16)
    with torch.inference_mode():
        found = (
            FrozenLinear(FusedLinear([weights])).forward(x.float())[0]
            - x.float() @ layer.weight.float().t()
        )
        torch.testing.assert_close(
            found, 0.5 * x.float() @ weights.a.t() @ weights.b.t(), rtol=1e-3, atol=3e-6
        )


def adapted(layer: Any) -> LoraLinear:
    found = LoraLinear(
        layer, layer.weight, 4, 0.5, torch.float32, (48, len(layer.weight)), layer.weight.device
    )
    nn.init.normal_(found.a)
    nn.init.normal_(found.b)
    return found


lengths = st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 40)), min_size=1, max_size=12)


@given(lengths)
def test_grids_hold_every_row_once_and_little_else(sizes: list[tuple[int, int]]) -> None:
    prompts = [
        np.full(length, number)
        for number, (length, count) in enumerate(sizes)
        for _ in range(count)
    ]
    order = np.random.default_rng(0).permutation(len(prompts))
    grids = group_prompts([prompts[place] for place in order])
    assert sorted(number for grid in grids for number in grid[grid >= 0]) == list(
        range(len(prompts))
    )
    for grid in grids:
        own = [len(prompts[order[first]]) for first in grid[:, 0]]
        assert len(own) * max(own) <= 1.3 * sum(own) + 1024
        for line in grid:
            assert len({prompts[order[number]].tobytes() for number in line[line >= 0]}) == 1


@pytest.mark.parametrize(
    "how",
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
)
@pytest.mark.parametrize("spread", [0.3, 6.0])
def test_what_is_drawn_is_the_inverse_of_the_sum(how: dict[str, Any], spread: float) -> None:
    """Over all the vocabulary, one number after the other; top-k first, then top-p of what is left."""
    logits = torch.from_numpy(np.random.default_rng(1).normal(0, spread, (60, 1000)))
    logits[:, 700:] = logits[:, :300]  # ties
    rows = [Row(asked(PROMPTS[0], seed, **how), 0, 9, frozenset()) for seed in range(60)]
    tokens, logprobs = draw(logits, rows, torch.float64)
    for place, row in enumerate(rows):
        token, logprob = plainly(logits[place].numpy(), Row(row.request, 0, 9, frozenset()))
        assert int(tokens[place]) == token
        assert float(logprobs[place]) == pytest.approx(logprob, abs=1e-10)


def plainly(logits: Any, row: Row) -> tuple[int, float]:
    how = row.request
    scaled = (logits - logits.max()) / (how.temperature or 1.0)
    logprobs = scaled - np.log(np.exp(scaled).sum())
    if how.temperature == 0:
        return int(logprobs.argmax()), float(logprobs.max())
    order = (
        np.argsort(-logprobs, kind="stable")
        if how.top_k or how.top_p < 1
        else np.arange(len(logprobs))
    )
    chances = np.exp(logprobs[order])
    if how.top_k:
        chances[how.top_k :] = 0
    chances /= chances.sum()
    if how.top_p < 1:
        chances[np.cumsum(chances) - chances >= how.top_p] = 0
    summed = np.cumsum(chances)
    token = int(order[np.searchsorted(summed, row.uniform() * summed[-1], side="right")])
    return token, float(logprobs[token])


def test_prompts_are_read_in_parts(frozen: FrozenModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if they had been read together, and none writes before all that fit have joined."""
    alone = written(frozen, frozen.decoder_body(64, {}), rows_of(PROMPTS), 100)
    for name, body in bodies(frozen).items():
        monkeypatch.setattr(decoding, "PREFILL_TOKENS", 20)
        rows = rows_of(PROMPTS)
        writing = Scheduler(body, rows, frozen.tokenizer.decode_with_special, torch.float32, 100)
        joins = 0
        while writing.advance(1):
            joins += not any(row.ids for row in rows)
        assert (joins > 2) == (name == "by hand")
        for one, row in zip(alone, rows, strict=True):
            assert row.sampled().tokens.tolist() == one.tokens.tolist()


def test_many_short_answers_let_others_have_their_turn(
    frozen: FrozenModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each prompt is all that there is room for, so that none waits to join."""
    monkeypatch.setattr(decoding, "PREFILL_TOKENS", 100)
    prompts = [RNG.integers(3, 300, 40) for _ in range(12)]
    rows = [Row(asked(prompt, place), 0, 1, frozenset()) for place, prompt in enumerate(prompts)]
    writing = Scheduler(
        frozen.decoder_body(64, {}), rows, frozen.tokenizer.decode_with_special, torch.float32, 1
    )
    done = []
    while writing.advance(100):
        done.append(sum(bool(row.ids) for row in rows))
    assert done == [2, 5, 8, 11], (
        "three are read in a turn, and the last of them writes in the next"
    )


@pytest.mark.parametrize(
    ("words", "quick"),
    [
        ("GenuineIntel avx512_bf16 amx_bf16", True),
        ("GenuineIntel avx512_bf16", False),
        ("AuthenticAMD avx512_bf16", True),
        ("AuthenticAMD avx2", False),
        ("", False),
    ],
)
def test_who_multiplies_bfloat16_quickly(
    monkeypatch: pytest.MonkeyPatch, words: str, quick: bool
) -> None:
    monkeypatch.setattr(processor, "_cpu_flags", lambda: frozenset(words.split()))
    assert processor.has_fast_bfloat16() is quick


def test_after_scores_in_two_lanes_a_sampler_still_writes(
    opened: Callable[..., PeftSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 with products in float32, the lanes share a head that each casts."""
    monkeypatch.setattr(processor, "has_fast_bfloat16", lambda: False)
    sampler = opened(dtype="bfloat16", threads=2, micro_batch_tokens=200).snapshot().result()
    for _ in range(20):
        found = [
            ticket.result()
            for ticket in [sampler.logprobs(PROMPTS[number % 6]) for number in range(24)]
        ]
        assert all(np.isfinite(one[1:]).all() for one in found)
    [one] = sampler.sample(PROMPTS[0], max_tokens=8, temperature=1.0, seed=1).result()
    again = sampler.logprobs(np.concatenate([PROMPTS[0], one.tokens])).result()[len(PROMPTS[0]) :]
    np.testing.assert_allclose(one.logprobs, again, atol=0.05)
