"""Conversations in, text out: fields of requests, concurrency, order, streaming and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.hub import FakeHub
from adapters.fake.training import FakeTraining
from adapters.openai.client import OpenAISampling
from kitchen.artifacts.completions import StreamingSampler
from kitchen.backend.tool_calls import ToolCall, parse_tool_calls
from kitchen.errors import ApiError, BackendError, ConfigError, DataError
from kitchen.ports import SamplingClient
from kitchen.testing.text_sampling import TextSamplingLaws
from tests.adapters.openai.conftest import Connect
from tests.adapters.openai.test_faults import ask, texts
from tests.support.openai_server import KEY, OpenAIServer
from tests.support.polling import wait_until
from tests.support.tinker_server import KEY as SERVE_KEY
from tests.support.tinker_server import serving

MODEL = "openai:clever-large"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def test_a_request_has_the_fields_of_the_api(connect: Connect) -> None:
    server = OpenAIServer()
    adapter = connect(server, fields={"reasoning_effort": "low", "top_p": None})
    messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi"}]
    prompt = adapter.tokenizer(MODEL).render(messages, answer=True, tools=[TOOL])
    adapter.sampler(MODEL).sample(
        prompt, count=2, max_tokens=9, temperature=0.5, top_p=0.9, seed=2**40, stop=["END"]
    ).result(30)
    assert server.bodies == [
        {
            "model": "clever-large",
            "messages": messages,
            "tools": [TOOL],
            "n": 2,
            "seed": 2**40,
            "temperature": 0.5,
            "max_completion_tokens": 9,
            "stop": ["END"],
            "reasoning_effort": "low",
        }
    ]
    older = connect(server, limit_field="max_tokens")
    ask(older.sampler(MODEL), older, top_k=3).result(30)
    assert server.bodies[1]["max_tokens"] == 32
    assert server.bodies[1]["top_k"] == 3
    assert "max_completion_tokens" not in server.bodies[1]


def test_many_requests_keep_order_and_the_limit(connect: Connect) -> None:
    server = OpenAIServer(*["held"] * 8)
    adapter = connect(server, concurrency=8)
    sampler = adapter.sampler(MODEL)
    futures = [ask(sampler, adapter, f"question {at}", seed=at) for at in range(100)]
    wait_until(lambda: len(server.bodies) == 8)
    server.gate.set()
    answers = [texts(adapter, future.result(60)) for future in futures]
    assert answers == [
        [f"clever-large on 'question {at}' with seed {at}, choice 0"] for at in range(100)
    ]
    assert server.most_at_once == 8


def test_tool_calls_are_part_of_the_text(connect: Connect) -> None:
    adapter = connect(OpenAIServer("tool_call"))
    [text] = texts(adapter, ask(adapter.sampler(MODEL), adapter).result(30))
    assert parse_tool_calls(text) == [ToolCall("add", {"a": 1, "b": 2})]


def test_half_a_character_is_replaced(connect: Connect) -> None:
    adapter = connect(OpenAIServer(write=lambda *_: "so \ud83d and \U0001f600"))
    [text] = texts(adapter, ask(adapter.sampler(MODEL), adapter).result(30))
    assert text == "so \ufffd and \U0001f600"


def test_an_answer_arrives_in_pieces(connect: Connect) -> None:
    adapter = connect(OpenAIServer("busy"))
    sampler = adapter.sampler(MODEL)
    assert isinstance(sampler, StreamingSampler)
    tokenizer = adapter.tokenizer(MODEL)
    arrived: list[int] = []
    prompt = tokenizer.render([{"role": "user", "content": "hi"}], answer=True)
    future = sampler.stream(prompt, lambda _, token: arrived.append(token), max_tokens=9, seed=1)
    [sampled] = future.result(30)
    assert arrived == sampled.tokens[:-1].tolist()
    assert sampled.tokens[-1] == tokenizer.end_id
    assert tokenizer.decode(sampled.tokens).strip() == (
        "clever-large on 'hi' with seed 1, choice 0"
    )


def test_a_stream_that_breaks_off_is_an_error(connect: Connect) -> None:
    adapter = connect(OpenAIServer("broken_stream"))
    sampler = adapter.sampler(MODEL)
    assert isinstance(sampler, StreamingSampler)
    prompt = adapter.tokenizer(MODEL).render([{"role": "user", "content": "hi"}], answer=True)
    with pytest.raises(BackendError, match="middle of an answer"):
        sampler.stream(prompt, lambda *_: None, max_tokens=9).result(30)


def test_log_probabilities_of_text_are_refused(connect: Connect) -> None:
    adapter = connect(OpenAIServer())
    sampler, tokens = adapter.sampler(MODEL), adapter.tokenizer(MODEL).encode("hi")
    for future in (sampler.logprobs(tokens), sampler.top_logprobs(tokens, 2)):
        with pytest.raises(BackendError, match="text only"):
            future.result(30)
    assert not adapter.capabilities


def test_a_text_to_continue_is_refused(connect: Connect) -> None:
    adapter = connect(OpenAIServer())
    sampler, tokenizer = adapter.sampler(MODEL), adapter.tokenizer(MODEL)
    started = tokenizer.encode("Sure, ")
    question = tokenizer.render([{"role": "user", "content": "hi"}], answer=True)
    for prompt in (started, np.concatenate([question, started])):
        with pytest.raises(DataError, match="continues no text"):
            sampler.sample(prompt, max_tokens=3).result()


def test_a_cancelled_request_is_given_up(connect: Connect) -> None:
    server = OpenAIServer("held")
    adapter = connect(server)
    future = ask(adapter.sampler(MODEL), adapter)
    server.held.wait(30)
    future.cancel()
    with pytest.raises(Exception, match="cancelled"):
        future.result(30)


def test_a_missing_key_is_refused_before_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(BackendError, match="OPENAI_API_KEY"):
        OpenAISampling(FakeHub()).find("openai:m")
    OpenAISampling(FakeHub(), base_url="http://127.0.0.1:9/v1").find("openai:m")


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"key": "MY_SECRETIVE_VARIABLE"}, "sampling.key"),
        ({"concurrency": 0}, "concurrency"),
        ({"timeout": 0.0}, "timeout"),
        ({"retries": -1}, "retries"),
        ({"base_url": "gpu-box:8000/v1"}, "http://"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        OpenAISampling(FakeHub(), **settings).find("openai:m")


def test_the_key_may_have_another_variable(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTHER_API_KEY", "sk-another-one")
    server = OpenAIServer("no_key")
    adapter = connect(server, key="OTHER_API_KEY")
    with pytest.raises(ApiError, match="OTHER_API_KEY") as caught:
        ask(adapter.sampler(MODEL), adapter).result(30)
    assert server.keys == ["sk-another-one"]
    assert not {KEY, "sk-another-one"} & set(str(caught.value).split())


class TestLaws(TextSamplingLaws):
    """The laws of sampling clients, without a cache that would answer twice."""

    model, unknown_model = MODEL, "openai:clever-medium"

    @pytest.fixture
    def sampling(self, connect: Connect) -> SamplingClient:
        return connect(OpenAIServer(), cache=False)


class TestLawsOnKitchenServe(TextSamplingLaws):
    """The same laws on our own server, whose answers follow from the seed."""

    model, unknown_model = "openai:tiny", "openai:tinny"

    @pytest.fixture
    def sampling(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[SamplingClient]:
        monkeypatch.setenv("OPENAI_API_KEY", SERVE_KEY)
        blobs = FakeBlobs()
        with serving(FakeTraining(blobs), blobs) as server:
            yield OpenAISampling(FakeHub(), base_url=f"{server.url}/v1", cache=False)
