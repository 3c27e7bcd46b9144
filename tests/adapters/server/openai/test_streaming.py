"""Streamed answers: the same as whole ones, token by token, until the client leaves."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip("uvicorn")

from adapters.fake.blobs import FakeBlobs
from adapters.fake.sampling import FakeSampler
from adapters.fake.training import FakeTraining
from adapters.server.futures import FutureStore
from adapters.server.limits import Limits
from adapters.server.openai.generation import Generation, GenerationQueue
from adapters.server.openai.weights import ServedWeights
from adapters.server.sampler_scheduler import SamplerScheduler
from kitchen.errors import RunFailed
from kitchen.ports.future import Future, Pending
from kitchen.ports.sampling import Sampler
from kitchen.types import Checkpoint, Sampled, Tokens
from tests.adapters.server.openai.conftest import OpenAIClient
from tests.support.polling import wait_until
from tests.support.tinker_server import KEY, application, serving

MESSAGES = [{"role": "user", "content": "hello"}]
OPTIONS: Sequence[dict[str, Any]] = [
    {},
    {"n": 3, "temperature": 0.5},
    {"max_tokens": 300, "stop": ["a", "b"]},
    {"logprobs": True, "top_logprobs": 2},
    {"tools": [{"type": "function", "function": {"name": "timer"}}]},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_streamed_chat_equals_the_whole_one(client: OpenAIClient, options: dict[str, Any]) -> None:
    whole = client.chat("hello", **options)
    usage = {"include_usage": True}
    *chunks, last = client.events(
        "chat/completions", messages=MESSAGES, stream_options=usage, **options
    )
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    for choice in whole["choices"]:
        parts = [part for chunk in chunks for part in chunk["choices"]]
        own = [part for part in parts if part["index"] == choice["index"]]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(part["delta"].get("content") or "" for part in own)
        assert text == choice["message"]["content"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        assert [part["finish_reason"] for part in own[:-1]] == [None] * (len(own) - 1)
        if choice["logprobs"]:
            assert choice["logprobs"] in [part["logprobs"] for part in own]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1


@pytest.mark.parametrize(
    "options", [{}, {"echo": True, "n": 2}, {"echo": True, "logprobs": 1}, {"prompt": ["a", "b"]}]
)
def test_streamed_text_equals_the_whole_one(client: OpenAIClient, options: dict[str, Any]) -> None:
    fields = {"prompt": "hello", **options}
    whole = client.complete(**fields)["choices"]
    chunks = client.events("completions", **fields)
    for choice in whole:
        parts = [part for chunk in chunks for part in chunk["choices"]]
        own = [part for part in parts if part["index"] == choice["index"]]
        assert "".join(part["text"] for part in own) == choice["text"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        assert own[-1]["logprobs"] == choice["logprobs"]


class Slow(FakeSampler):
    """A sampler that draws one token, and is then cancelled or fails."""

    def __init__(self, sampler: Any) -> None:
        super().__init__(sampler.model)
        self.work = concurrent.futures.Future[Sequence[Sampled]]()

    def sample(self, prompt: Tokens, **options: Any) -> Future[Sequence[Sampled]]:
        return Pending(self.work)

    def stream(
        self, prompt: Tokens, on_token: Callable[[int, int], object], **options: Any
    ) -> Future[Sequence[Sampled]]:
        on_token(0, ord("a"))
        return Pending(self.work)


class SlowTraining(FakeTraining):
    def __init__(self) -> None:
        super().__init__()
        self.opened = Slow(super().sampler("tiny"))

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        return self.opened


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_client_cancels_its_request(stream: bool) -> None:
    training = SlowTraining()
    body = {"model": "tiny", "prompt": "hello", "stream": stream}
    headers = {"authorization": f"Bearer {KEY}"}
    with serving(training, FakeBlobs()) as server, httpx.Client(headers=headers) as http:
        url = f"{server.url}/v1/completions"
        if stream:
            with http.stream("POST", url, json=body) as answer:
                assert '"text": "a"' in next(answer.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                http.post(url, json=body, timeout=0.2)
        wait_until(training.opened.work.cancelled)


def test_errors_have_their_own_status_or_are_the_last_event() -> None:
    training = SlowTraining()
    training.opened.work.set_exception(RunFailed("the weights are not finite"))
    blobs = FakeBlobs()
    client = OpenAIClient(application(training, blobs))
    with client.http:
        answer = client.post("completions", model="tiny", prompt="hello")
        assert answer.status_code == 503
        text = client.post("completions", model="tiny", prompt="hello", stream=True).text
    assert text.split("\n\n")[-2].startswith('data: {"error": {"message": "the weights are not')


def test_requests_in_progress_end_when_the_server_stops() -> None:
    training = SlowTraining()
    tokenizer = training.tokenizer("tiny")
    weights = ServedWeights("tiny", "tiny", tokenizer, "tiny", None, {}, chat=True)
    generation = Generation(np.array([1]), 1, 8, 1.0, 1.0, 0, 1, [])

    async def stop_in_between() -> None:
        futures = FutureStore()
        queue = GenerationQueue(SamplerScheduler(training.sampler), futures, Limits())
        drawn = asyncio.Event()
        work = queue.run(weights, [generation], "", lambda *_: drawn.set())
        task = asyncio.ensure_future(work)
        await drawn.wait()
        futures.stop_waiting()
        with pytest.raises(RunFailed, match="try again"):
            await task
        await asyncio.sleep(0)

    asyncio.run(stop_in_between())
    assert training.opened.work.cancelled()


def test_errors_before_the_first_token_have_a_status(client: OpenAIClient) -> None:
    answer = client.post("completions", model="tiny", prompt="x" * 5000, stream=True)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
