"""Completions: what batching may not change, where they stop, and what transformers would write."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.peft.sampling import batch as serving
from adapters.peft.sampling.batch import serve_batch
from adapters.peft.sampling.draw import Row, draw
from adapters.peft.sampling.requests import SamplingRequest
from adapters.peft.session import PeftSession
from adapters.tokenizer import FolderTokenizer
from kitchen.errors import ConfigError, RunFailed
from kitchen.types import Adam, Datum, Sampled, Tokens

Opened = Callable[..., PeftSession]


def prompts(count: int = 9) -> list[Tokens]:
    rng = np.random.default_rng(3)
    return [rng.integers(3, 300, rng.integers(1, 30)) for _ in range(count)]


def same(one: Sampled, other: Sampled) -> bool:
    return one.tokens.tolist() == other.tokens.tolist() and np.allclose(
        one.logprobs, other.logprobs, atol=1e-4
    )


def test_greedy_is_what_transformers_writes(folder: Path, client: Callable[..., Any]) -> None:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    sampler = client(sample_batch=4).sampler("tiny")
    futures = [sampler.sample(prompt, max_tokens=25, temperature=0.0) for prompt in prompts()]
    for prompt, future in zip(prompts(), futures, strict=True):
        ids = model.generate(torch.from_numpy(prompt)[None], max_new_tokens=25, do_sample=False)
        assert future.result()[0].tokens.tolist() == ids[0, len(prompt) :].tolist()
    sampler.close()


def test_company_changes_no_text(sampler: Any) -> None:
    """Rows of several lengths, limits and temperatures, several of one prompt: as each would be by
    itself.
    """
    settings: list[dict[str, Any]] = [
        {
            "max_tokens": 3 + 4 * place,
            "temperature": place % 3 / 2,
            "seed": place,
            "count": 1 + place % 2,
            "top_p": 1.0 if place % 4 else 0.7,
            "top_k": 0 if place % 5 else 9,
        }
        for place in range(9)
    ]
    together = [
        sampler.sample(prompt, **how) for prompt, how in zip(prompts(), settings, strict=True)
    ]
    for prompt, how, future in zip(prompts(), settings, together, strict=True):
        alone = sampler.sample(prompt, **how).result()
        assert len(alone) == how["count"]
        assert all(same(*pair) for pair in zip(alone, future.result(), strict=True))


@pytest.mark.parametrize("steps", [1, 5])
def test_pauses_change_no_bit(
    session: PeftSession, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    def run() -> list[Sampled]:
        sampler = session.snapshot().result()
        futures = [
            sampler.sample(prompt, count=2, max_tokens=4 + 5 * place, seed=place)
            for place, prompt in enumerate(prompts())
        ]
        found = [one for future in futures for one in future.result()]
        sampler.close()
        return found

    before, pauses = run(), list[int]()
    monkeypatch.setattr(serving, "STEPS_PER_TURN", steps)
    monkeypatch.setattr(serving, "yield_turn", lambda: pauses.append(1))
    for one, other in zip(before, run(), strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)
    assert len(pauses) >= max(len(one.tokens) for one in before) // steps - 1


def test_a_request_that_cannot_be_read_is_refused_and_its_company_answered(sampler: Any) -> None:
    first = prompts()[0]
    alone = sampler.sample(first, max_tokens=4).result()
    odd = [
        sampler.sample(first, max_tokens=4, **how)
        for how in ({"stop": None}, {"stop": [None]}, {"top_p": "1"})
    ]
    good = sampler.sample(first, max_tokens=4, stop=[np.int64(999)])
    for each in odd:
        with pytest.raises(ConfigError, match=r"stop is|cannot be read"):
            each.result()
    assert same(good.result()[0], alone[0])


def test_a_task_that_is_cancelled_before_it_asked_is_not_written_for(sampler: Any) -> None:
    async def go() -> Any:
        asked = sampler.sample(prompts()[0], max_tokens=4)
        task = asyncio.ensure_future(asked._arrive())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return asked.work.cancelled()

    assert asyncio.run(go())


def test_weights_that_are_no_numbers_are_an_error(session: PeftSession) -> None:
    session.submit(
        lambda trainer: [
            a.data.fill_(float("nan")) for a in trainer.adapter.named_parameters().values()
        ]
    ).result()
    broken = session.snapshot().result()
    with pytest.raises(RunFailed, match="logits of the model are not finite"):
        broken.sample(prompts()[0], max_tokens=4).result()
    broken.close()


def test_what_nobody_waits_for_any_more_is_written_no_further(
    sampler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = prompts()[:2]
    alone = sampler.sample(first, max_tokens=6, seed=1).result()
    kept, dropped = (
        sampler.sample(first, max_tokens=6, seed=1),
        sampler.sample(second, max_tokens=90, seed=2),
    )
    pauses: list[bool] = []
    monkeypatch.setattr(serving, "STEPS_PER_TURN", 2)
    monkeypatch.setattr(serving, "yield_turn", lambda: pauses.append(dropped.work.cancel()))
    assert same(kept.result()[0], alone[0])
    assert 1 <= len(pauses) <= 3
    with pytest.raises(concurrent.futures.CancelledError):
        dropped.result()


def test_the_same_requests_give_the_same_bits(session: PeftSession) -> None:
    def run() -> list[Sampled]:
        sampler = session.snapshot().result()
        futures = [sampler.sample(prompt, max_tokens=12, count=3, seed=4) for prompt in prompts()]
        found = [one for future in futures for one in future.result()]
        sampler.close()
        return found

    for one, other in zip(run(), run(), strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)


def test_logprobs_are_those_of_training(session: PeftSession, sampler: Any) -> None:
    drawn = [
        future.result()[0]
        for future in [sampler.sample(p, max_tokens=30, seed=1) for p in prompts()]
    ]
    for prompt, one in zip(prompts(), drawn, strict=True):
        ids = np.concatenate([prompt, one.tokens])
        datum = Datum(ids[:-1], {"target_tokens": ids[1:], "weights": np.ones(len(ids) - 1)})
        trained = session.forward([datum]).result().logprobs[0]
        np.testing.assert_allclose(one.logprobs, trained[len(prompt) - 1 :], atol=1e-4)
        np.testing.assert_allclose(sampler.logprobs(ids).result()[1:], trained, atol=1e-4)


def test_bfloat16_agrees_with_itself(opened: Opened, weighted: list[Datum]) -> None:
    session = opened(dtype="bfloat16")
    session.forward_backward(weighted)
    session.optim_step(Adam(0.01))
    sampler = session.snapshot().result()
    apart = []
    for prompt, future in [(p, sampler.sample(p, max_tokens=30, seed=1)) for p in prompts()]:
        ids = np.concatenate([prompt, future.result()[0].tokens])
        datum = Datum(ids[:-1], {"target_tokens": ids[1:], "weights": np.ones(len(ids) - 1)})
        trained = session.forward([datum]).result().logprobs[0][len(prompt) - 1 :]
        apart.append(np.abs(trained - future.result()[0].logprobs))
    assert np.concatenate(apart).mean() < 2e-2
    sampler.close()


def test_a_batch_is_what_was_asked_before_someone_wanted_an_answer(
    sampler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of one gather share it, whatever the order in which they come round to waiting."""
    served: list[int] = []

    def counted(model: Any, requests: Sequence[Any], machine: Any) -> None:
        served.append(len(requests))
        serve_batch(model, requests, machine)

    monkeypatch.setattr("adapters.peft.sampler.serve_batch", counted)

    async def one(prompt: Tokens) -> Sequence[Sampled]:
        found: Sequence[Sampled] = await sampler.sample(prompt, max_tokens=1)
        return found

    async def all_of_them() -> None:
        await asyncio.gather(*[one(prompt) for prompt in prompts()])
        await asyncio.gather(*[one(prompt) for prompt in prompts(4)])

    asyncio.run(all_of_them())
    assert served == [9, 4]
    early = sampler.sample(prompts()[0], max_tokens=1)
    early.result()
    late = sampler.sample(prompts()[0], max_tokens=1)
    early.result()
    assert served == [9, 4, 1], "an answer that is there already starts nothing"
    late.result()
    assert served == [9, 4, 1, 1]


def test_stop_strings_end_with_the_token_that_completes_them(
    session: PeftSession, sampler: Any
) -> None:
    tokenizer = session.tokenizer()
    [free] = sampler.sample(prompts()[0], max_tokens=40, seed=5).result()
    texts = [tokenizer.decode(free.tokens[: end + 1]) for end in range(len(free.tokens))]
    wanted = texts[-1][8:11]
    assert len(wanted) == 3
    first = next(end for end, text in enumerate(texts) if wanted in text)
    [stopped] = sampler.sample(
        prompts()[0], max_tokens=40, seed=5, stop=["never this", wanted]
    ).result()
    assert stopped.stop_reason == "stop"
    assert stopped.tokens.tolist() == free.tokens[: first + 1].tolist()


def test_a_prompt_as_long_as_the_context_leaves_room_for_nothing(sampler: Any) -> None:
    prompt = np.full(254, 5)
    [drawn] = sampler.sample(prompt, max_tokens=10, seed=0).result()
    assert len(drawn.tokens) <= 2


def test_top_p_and_top_k_cut_the_tail(sampler: Any) -> None:
    prompt = prompts()[1]
    ids, logprobs = sampler.top_logprobs(np.append(prompt, 5), 300).result()
    chances = np.exp(logprobs[-1])
    nucleus = int(np.searchsorted(np.cumsum(chances), 0.3)) + 1
    assert 3 < nucleus < 60
    for how, allowed in (({"top_k": 3}, 3), ({"top_p": 0.3}, nucleus)):
        drawn = sampler.sample(prompt, max_tokens=1, count=20 * allowed, **how).result()
        assert {int(one.tokens[0]) for one in drawn} == set(ids[-1][:allowed].tolist())


def test_a_draw_follows_the_distribution() -> None:
    chances = np.array([0.5, 0.0, 0.3, 0.2])
    rows = [
        Row(SamplingRequest(np.array([1]), 1, 1, 1.0, 1.0, 0, seed, ()), 0, 1, frozenset())
        for seed in range(4000)
    ]
    with np.errstate(divide="ignore"):
        logits = torch.from_numpy(np.log(chances)).repeat(len(rows), 1)
    tokens, logprobs = draw(logits, rows, torch.float64)
    found = np.bincount(tokens, minlength=4) / len(rows)
    np.testing.assert_allclose(found, chances, atol=0.025)
    assert found[1] == 0
    np.testing.assert_allclose(logprobs, np.log(chances[tokens]))


def test_training_on_does_not_move_a_snapshot(
    session: PeftSession, sampler: Any, weighted: list[Datum]
) -> None:
    before = sampler.logprobs(weighted[0].tokens).result()
    session.forward_backward(weighted)
    session.optim_step(Adam(0.1)).result()
    np.testing.assert_array_equal(sampler.logprobs(weighted[0].tokens).result(), before)


def test_a_closed_sampler_says_so(sampler: Any) -> None:
    waiting = sampler.sample(prompts()[0], max_tokens=3)
    sampler.close()
    with pytest.raises(RunFailed, match="closed"):
        waiting.result(timeout=60)
    with pytest.raises(RunFailed, match="closed"):
        sampler.logprobs(prompts()[0]).result(timeout=60)


def test_base_weights_are_shared(session: PeftSession, sampler: Any) -> None:
    trained, sampled = (
        session.submit(lambda trainer: trainer).result().network.model,
        sampler.model.result().network.model,
    )
    assert trained.lm_head.weight.data_ptr() == sampled.lm_head.weight.data_ptr()
    assert isinstance(session.tokenizer(), FolderTokenizer)
