"""The sampler: completions and scores match transformers and training, however they are batched."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from adapters.peft.runtime.threads import default_threads
from adapters.peft.runtime.worker import COMPUTE_LOCK, Worker
from adapters.peft.sampling.batch import STEPS_PER_TURN
from adapters.peft.sampling.frozen_linear import FrozenLinear
from adapters.peft.session import PeftSession
from adapters.tokenizer import FolderTokenizer
from kitchen.errors import ConfigError, RunFailed
from kitchen.types import Adam, Datum, Floats, Sampled, Tokens
from tests.support.polling import wait_until
from tests.support.sampling import (
    DEVICE,
    prefilled,
    random_prompts,
    record_embedded,
    recording_sampler,
)
from tests.support.tiny_gpt2 import tiny_gpt2

PROMPTS = random_prompts(40, 7, 40, 1, 22, 70)
Opened = Callable[..., PeftSession]


def prompts(count: int = 9) -> list[Tokens]:
    rng = np.random.default_rng(3)
    return [rng.integers(3, 300, rng.integers(1, 30)) for _ in range(count)]


def same(one: Sampled, other: Sampled) -> bool:
    return one.tokens.tolist() == other.tokens.tolist() and np.allclose(
        one.logprobs, other.logprobs, atol=1e-4
    )


def completions_of(futures: Sequence[Any]) -> list[Sampled]:
    return [completion for future in futures for completion in future.result()]


def assert_same_bits(completions: Sequence[Sampled], expected: Sequence[Sampled]) -> None:
    for one, other in zip(completions, expected, strict=True):
        np.testing.assert_array_equal(one.tokens, other.tokens)
        np.testing.assert_array_equal(one.logprobs, other.logprobs)


def before_each_forward(sampler: Any, action: Callable[[], object]) -> None:
    """Call a function before each forward pass of the sampler from now on."""
    embeddings = sampler.model.result().network.model.get_input_embeddings()

    def call(module: object, inputs: object) -> None:
        action()

    embeddings.register_forward_pre_hook(call)


def trained_logprobs(session: PeftSession, prompt: Tokens, completion: Sampled) -> Floats:
    """Return the log-probabilities that training computes after the first token."""
    ids = np.concatenate([prompt, completion.tokens])
    datum = Datum(ids[:-1], {"target_tokens": ids[1:], "weights": np.ones(len(ids) - 1)})
    return session.forward([datum]).result().logprobs[0]


def test_greedy_completions_match_transformers(folder: Path, client: Callable[..., Any]) -> None:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    sampler = client(sample_batch=4).sampler("tiny")
    futures = [sampler.sample(prompt, max_tokens=25, temperature=0.0) for prompt in prompts()]
    for prompt, future in zip(prompts(), futures, strict=True):
        ids = model.generate(torch.from_numpy(prompt)[None], max_new_tokens=25, do_sample=False)
        assert future.result()[0].tokens.tolist() == ids[0, len(prompt) :].tolist()
    sampler.close()


def test_batched_requests_match_single_ones(sampler: Any) -> None:
    """Requests differ in length, limit, temperature and number of completions."""
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
    requests = list(zip(prompts(), settings, strict=True))
    futures = [sampler.sample(prompt, **chosen) for prompt, chosen in requests]
    for (prompt, chosen), future in zip(requests, futures, strict=True):
        alone = sampler.sample(prompt, **chosen).result()
        assert len(alone) == chosen["count"]
        assert all(same(*pair) for pair in zip(alone, future.result(), strict=True))


def test_the_same_requests_give_the_same_bits(session: PeftSession) -> None:
    def run() -> list[Sampled]:
        sampler = session.snapshot().result()
        futures = [sampler.sample(prompt, max_tokens=12, count=3, seed=4) for prompt in prompts()]
        completions = completions_of(futures)
        sampler.close()
        return completions

    assert_same_bits(run(), run())


@pytest.mark.skipif(DEVICE != "cpu", reason="counts tokens of the path without graphs")
def test_a_streamed_completion_is_the_sampled_one(sampler: Any) -> None:
    streamed: list[int] = []
    options = {"max_tokens": 12, "temperature": 0.9, "top_p": 0.95, "seed": 5}
    [expected] = sampler.sample(PROMPTS[0], **options).result()
    [completion] = sampler.stream(
        PROMPTS[0], lambda _, token: streamed.append(token), **options
    ).result()
    assert_same_bits([completion], [expected])
    assert streamed == expected.tokens.tolist()


def test_long_batches_let_other_workers_compute(sampler: Any) -> None:
    def run() -> list[Sampled]:
        futures = [
            sampler.sample(prompt, count=2, max_tokens=20 * place, seed=place)
            for place, prompt in enumerate(prompts(), 1)
        ]
        return completions_of(futures)

    undisturbed = run()
    embedded = record_embedded(sampler.model.result())
    other_worker = Worker("another worker")
    jobs = list[concurrent.futures.Future[int]]()

    def submit_once() -> None:
        if not jobs:
            jobs.append(other_worker.submit(lambda: len(embedded)))
            wait_until(lambda: COMPUTE_LOCK.waiting() > 0)

    before_each_forward(sampler, submit_once)
    assert_same_bits(run(), undisturbed)
    assert jobs[0].result() <= 1 + STEPS_PER_TURN < len(embedded)
    other_worker.close()


def test_cancelled_requests_are_decoded_no_further(sampler: Any) -> None:
    first, second = prompts()[:2]
    long = {"max_tokens": 200, "seed": 2, "count": 4}
    alone = sampler.sample(first, max_tokens=6, seed=1).result()
    lengths = [len(one.tokens) for one in sampler.sample(second, **long).result()]
    assert max(lengths) > 2 * STEPS_PER_TURN
    awaited = sampler.sample(first, max_tokens=6, seed=1)
    dropped = sampler.sample(second, **long)
    embedded = record_embedded(sampler.model.result())
    before_each_forward(sampler, lambda: len(embedded) == 3 and dropped.work.cancel())
    assert same(awaited.result()[0], alone[0])
    assert len(embedded) <= 1 + STEPS_PER_TURN
    with pytest.raises(concurrent.futures.CancelledError):
        dropped.result()


def test_unreadable_requests_fail_without_the_others(sampler: Any) -> None:
    first = prompts()[0]
    alone = sampler.sample(first, max_tokens=4).result()
    invalid: list[dict[str, Any]] = [{"stop": None}, {"stop": [None]}, {"top_p": "1"}]
    unreadable = [sampler.sample(first, max_tokens=4, **settings) for settings in invalid]
    valid = sampler.sample(first, max_tokens=4, stop=[np.int64(999)])
    for future in unreadable:
        with pytest.raises(ConfigError, match=r"stop is|cannot be read"):
            future.result()
    assert same(valid.result()[0], alone[0])


def test_a_task_cancelled_early_cancels_its_request(sampler: Any) -> None:
    async def cancel_before_the_batch_starts() -> bool:
        future = sampler.sample(prompts()[0], max_tokens=4)
        task = asyncio.ensure_future(future)
        await asyncio.sleep(0)  # let the task start
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        cancelled: bool = future.work.cancelled()
        return cancelled

    assert asyncio.run(cancel_before_the_batch_starts())


def test_weights_that_are_not_finite_are_an_error(session: PeftSession) -> None:
    def break_weights(trainer: Any) -> None:
        for parameter in trainer.adapter.named_parameters().values():
            parameter.data.fill_(float("nan"))

    session.submit(break_weights).result()
    broken = session.snapshot().result()
    with pytest.raises(RunFailed, match="not finite"):
        broken.sample(prompts()[0], max_tokens=4).result()
    broken.close()


def test_sampled_logprobs_match_training(session: PeftSession, sampler: Any) -> None:
    futures = [sampler.sample(prompt, max_tokens=30, seed=1) for prompt in prompts()]
    for prompt, completion in zip(prompts(), completions_of(futures), strict=True):
        trained = trained_logprobs(session, prompt, completion)
        np.testing.assert_allclose(completion.logprobs, trained[len(prompt) - 1 :], atol=1e-4)
        scored = sampler.logprobs(np.concatenate([prompt, completion.tokens])).result()
        np.testing.assert_allclose(scored[1:], trained, atol=1e-4)


def test_bfloat16_sampling_is_near_training(opened: Opened, weighted: list[Datum]) -> None:
    session = opened(dtype="bfloat16")
    session.forward_backward(weighted)
    session.optim_step(Adam(0.01))
    sampler = session.snapshot().result()
    futures = [sampler.sample(prompt, max_tokens=30, seed=1) for prompt in prompts()]
    differences = []
    for prompt, completion in zip(prompts(), completions_of(futures), strict=True):
        trained = trained_logprobs(session, prompt, completion)[len(prompt) - 1 :]
        differences.append(np.abs(trained - completion.logprobs))
    assert np.concatenate(differences).mean() < 2e-2
    sampler.close()


@pytest.mark.parametrize("cpu_flags", ["AuthenticAMD avx2"], indirect=True)
@pytest.mark.usefixtures("cpu_flags")
def test_two_lanes_share_a_bfloat16_head(opened: Opened) -> None:
    """Without fast bfloat16 each lane casts the head; after many scores, samples still work."""
    session = opened(dtype="bfloat16", threads=2, micro_batch_tokens=200)
    sampler: Any = session.snapshot().result()
    for _ in range(20):
        futures = [sampler.logprobs(PROMPTS[number % 6]) for number in range(24)]
        assert all(np.isfinite(future.result()[1:]).all() for future in futures)
    prompt = PROMPTS[0]
    [completion] = sampler.sample(prompt, max_tokens=8, temperature=1.0, seed=1).result()
    scored = sampler.logprobs(np.concatenate([prompt, completion.tokens])).result()
    np.testing.assert_allclose(completion.logprobs, scored[len(prompt) :], atol=0.05)
    sampler.close()


@pytest.mark.skipif(DEVICE != "cpu", reason="counts tokens of the path without graphs")
@pytest.mark.parametrize("counts", [(8,), (2, 2), (3, 3, 3), (3, 3, 3, 1, 3), (1, 1, 1, 7)])
def test_two_lanes_read_each_prompt_once(
    client: Callable[..., Any], counts: tuple[int, ...]
) -> None:
    """Each lane has one row at a time, so a split prompt is needed long after it was read."""
    sampler = client(threads=2, sample_batch=2).sampler("tiny")
    embedded = record_embedded(sampler.model.result())
    futures = [
        sampler.sample(prompt, count=count, max_tokens=3)
        for prompt, count in zip(PROMPTS, counts, strict=False)
    ]
    assert [len(future.result()) for future in futures] == list(counts)
    read = prefilled(embedded, completions_of(futures))
    assert read == sum(len(prompt) for prompt in PROMPTS[: len(counts)])
    sampler.close()


def test_two_lanes_match_one(client: Callable[..., Any]) -> None:
    def run(threads: int) -> list[Sampled]:
        sampler = client(threads=threads).sampler("tiny")
        futures = [sampler.sample(prompt, count=3, max_tokens=12, seed=4) for prompt in PROMPTS]
        repeated = sampler.logprobs(PROMPTS[0])
        scores = [sampler.logprobs(prompt) for prompt in PROMPTS]
        np.testing.assert_array_equal(repeated.result(), scores[0].result())
        completions = completions_of(futures)
        sampler.close()
        return completions

    threads_before = default_threads()
    pairs = list(zip(run(1), run(2), strict=True))
    assert default_threads() == threads_before
    assert all(same(*pair) for pair in pairs)


def test_learned_positions_beside_a_long_prompt(client: Callable[..., Any], tmp_path: Path) -> None:
    """GPT-2 has no positions beyond its context; finished rows need none."""
    sampler = client().sampler(f"path:{tiny_gpt2(tmp_path)}")
    requests = [(np.arange(3, 3 + length), length) for length in (62, *range(5, 13))]
    futures = [sampler.sample(prompt, max_tokens=40, seed=seed) for prompt, seed in requests]
    for (prompt, seed), future in zip(requests, futures, strict=True):
        alone = sampler.sample(prompt, max_tokens=40, seed=seed).result()[0]
        assert future.result()[0].tokens.tolist() == alone.tokens.tolist()
    lengths = [len(completion.tokens) for completion in completions_of(futures)]
    assert lengths[0] <= 2 < max(lengths)
    sampler.close()


def test_scoring_makes_no_copy_of_the_weights(client: Callable[..., Any]) -> None:
    before = frozen_layers()  # of other samplers
    sampler = client().sampler("tiny")
    sampler.logprobs(PROMPTS[0]).result()
    assert len(frozen_layers(before)) == 0
    sampler.sample(PROMPTS[0], max_tokens=1).result()
    assert len(frozen_layers(before)) > 0
    sampler.close()


def frozen_layers(known: Sequence[FrozenLinear] = ()) -> list[FrozenLinear]:
    """Return the copies of linear layers that are in memory, without those that are known."""
    ids = {id(layer) for layer in known}
    layers = [item for item in gc.get_objects() if type(item) is FrozenLinear]
    return [layer for layer in layers if id(layer) not in ids]


def test_a_batch_has_all_requests_made_before_it(folder: Path) -> None:
    """Tasks of one gather share it, whatever the order in which they are awaited."""
    sampler, batch_sizes = recording_sampler(folder)

    async def complete(prompt: Tokens) -> Sequence[Sampled]:
        return await sampler.sample(prompt, max_tokens=1)

    async def gather_twice() -> None:
        await asyncio.gather(*[complete(prompt) for prompt in prompts()])
        await asyncio.gather(*[complete(prompt) for prompt in prompts(4)])

    asyncio.run(gather_twice())
    assert batch_sizes == [9, 4]
    early = sampler.sample(prompts()[0], max_tokens=1)
    early.result()
    late = sampler.sample(prompts()[0], max_tokens=1)
    early.result()
    assert batch_sizes == [9, 4, 1], "a result that is available starts no batch"
    late.result()
    assert batch_sizes == [9, 4, 1, 1]
    sampler.close()


@pytest.mark.parametrize("busy", [True, False])
def test_each_of_400_threads_gets_its_own_answer(folder: Path, busy: bool) -> None:
    """Requests that threads make while another worker computes form one batch."""
    recorded: tuple[Any, list[int]] = recording_sampler(folder, sample_batch=32)
    sampler, batch_sizes = recorded
    answers: dict[int, list[int]] = {}
    started = threading.Semaphore(0)

    def complete(number: int) -> None:
        future = sampler.sample(PROMPTS[number % 6], max_tokens=5, seed=number)
        if busy:
            future.start(True)
            started.release()
        answers[number] = future.result(timeout=120)[0].tokens.tolist()

    threads = [threading.Thread(target=complete, args=(number,)) for number in range(400)]
    sampler.sample(PROMPTS[0], max_tokens=1).result()
    with COMPUTE_LOCK if busy else nullcontext():
        for thread in threads:
            thread.start()
        if busy:
            assert all(started.acquire(timeout=60) for _ in threads)
    for thread in threads:
        thread.join()
    assert len(answers) == 400
    assert sum(batch_sizes) == 401
    assert batch_sizes == [1, 400] or not busy
    for number in range(0, 400, 57):
        again = sampler.sample(PROMPTS[number % 6], max_tokens=5, seed=number).result()
        assert again[0].tokens.tolist() == answers[number]
    sampler.close()


def test_stop_strings_end_after_their_last_token(session: PeftSession, sampler: Any) -> None:
    tokenizer = session.tokenizer()
    request: dict[str, Any] = {"max_tokens": 40, "seed": 5}
    [unstopped] = sampler.sample(prompts()[0], **request).result()
    texts = [tokenizer.decode(unstopped.tokens[: end + 1]) for end in range(len(unstopped.tokens))]
    stop = texts[-1][8:11]
    assert len(stop) == 3
    last = next(end for end, text in enumerate(texts) if stop in text)
    [stopped] = sampler.sample(prompts()[0], stop=["never this", stop], **request).result()
    assert stopped.stop_reason == "stop"
    assert stopped.tokens.tolist() == unstopped.tokens[: last + 1].tolist()


def test_top_p_and_top_k_cut_the_tail(sampler: Any) -> None:
    prompt = prompts()[1]
    ids, logprobs = sampler.top_logprobs(np.append(prompt, 5), 300).result()
    probabilities = np.exp(logprobs[-1])
    nucleus = int(np.searchsorted(np.cumsum(probabilities), 0.3)) + 1
    assert 3 < nucleus < 60
    settings: list[tuple[dict[str, Any], int]] = [({"top_k": 3}, 3), ({"top_p": 0.3}, nucleus)]
    for chosen, allowed in settings:
        drawn = sampler.sample(prompt, max_tokens=1, count=20 * allowed, **chosen).result()
        assert {int(one.tokens[0]) for one in drawn} == set(ids[-1][:allowed].tolist())


def test_base_weights_are_shared(session: PeftSession, sampler: Any) -> None:
    trained = session.submit(lambda trainer: trainer).result().network.model
    sampled = sampler.model.result().network.model
    assert trained.lm_head.weight.data_ptr() == sampled.lm_head.weight.data_ptr()
    assert isinstance(session.tokenizer(), FolderTokenizer)


def test_a_prompt_may_fill_the_context(sampler: Any) -> None:
    prompt = np.full(254, 5)
    [drawn] = sampler.sample(prompt, max_tokens=10, seed=0).result()
    assert len(drawn.tokens) <= 2


def test_further_training_leaves_snapshots_alone(
    session: PeftSession, sampler: Any, weighted: list[Datum]
) -> None:
    before = sampler.logprobs(weighted[0].tokens).result()
    session.forward_backward(weighted)
    session.optim_step(Adam(0.1)).result()
    np.testing.assert_array_equal(sampler.logprobs(weighted[0].tokens).result(), before)


def test_requests_to_a_closed_sampler_fail(sampler: Any) -> None:
    waiting = sampler.sample(prompts()[0], max_tokens=3)
    sampler.close()
    with pytest.raises(RunFailed, match="closed"):
        waiting.result(timeout=60)
    with pytest.raises(RunFailed, match="closed"):
        sampler.logprobs(prompts()[0]).result(timeout=60)
