"""Fields of requests: neutral ones, those of the settings, and those that a model refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.openai.client import OpenAISampling
from kitchen.artifacts.completions import StreamingSampler
from kitchen.errors import ApiError, ConfigError
from tests.adapters.openai.conftest import Connect
from tests.adapters.openai.test_faults import ask, texts
from tests.support.openai_server import OpenAIServer

MODEL = "openai:clever-large"


class RefusingServer(OpenAIServer):
    """A server that refuses each request."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__()
        self._refusal = {"message": message, "param": param, "code": None}

    async def _whole(self, body: dict[str, Any], send: Any) -> None:
        headers = [(b"content-type", b"application/json")]
        data = json.dumps({"error": self._refusal}).encode()
        await send({"type": "http.response.start", "status": 400, "headers": headers})
        await send({"type": "http.response.body", "body": data})


def stream(adapter: OpenAISampling, **options: Any) -> None:
    sampler = adapter.sampler(MODEL)
    assert isinstance(sampler, StreamingSampler)
    prompt = adapter.tokenizer(MODEL).render([{"role": "user", "content": "hi"}], answer=True)
    sampler.stream(prompt, lambda *_: None, **options).result(30)


def test_neutral_values_are_not_sent(connect: Connect) -> None:
    server = OpenAIServer()
    adapter = connect(server)
    ask(adapter.sampler(MODEL), adapter).result(30)
    ask(adapter.sampler(MODEL), adapter, temperature=0.0, top_p=0.5).result(30)
    stream(adapter, max_tokens=4)
    sent = [(body.get("temperature"), body.get("top_p")) for body in server.bodies]
    assert sent == [(None, None), (0.0, 0.5), (None, None)]


def test_fields_of_the_settings_are_applied_last(connect: Connect) -> None:
    server = OpenAIServer()
    adapter = connect(server, fields={"seed": None, "temperature": 1, "max_completion_tokens": 7})
    ask(adapter.sampler(MODEL), adapter, temperature=0.3).result(30)
    stream(adapter, max_tokens=4)
    assert [body["n"] for body in server.bodies] == [1, 1]
    for body in server.bodies:
        assert "seed" not in body
        assert (body["temperature"], body["max_completion_tokens"]) == (1, 7)


@pytest.mark.parametrize("sent", [None, 5])
@pytest.mark.parametrize("cache", [True, False])
def test_each_seed_that_is_asked_for_has_its_own_answer(
    connect: Connect, sent: int | None, cache: bool
) -> None:
    numbers = iter(range(9))
    server = OpenAIServer(write=lambda *_: f"answer {next(numbers)}")
    adapter = connect(server, fields={"seed": sent}, cache=cache)
    sampler = adapter.sampler(MODEL)
    futures = [ask(sampler, adapter, seed=seed) for seed in (1, 2, 3)]
    answers = {texts(adapter, future.result(30))[0] for future in futures}
    assert answers == {"answer 0", "answer 1", "answer 2"}
    ask(sampler, adapter, seed=2).result(30)
    assert len(server.bodies) == (3 if cache else 4)
    assert [body.get("seed") for body in server.bodies] == [sent] * len(server.bodies)


def test_a_limit_that_is_left_out_is_not_checked(connect: Connect) -> None:
    adapter = connect(OpenAIServer("too_long"), fields={"max_completion_tokens": None})
    [sampled] = ask(adapter.sampler(MODEL), adapter).result(30)
    assert sampled.stop_reason == "stop"


@pytest.mark.parametrize("name", ["n", "stream", "model", "messages", "prompt"])
def test_fields_of_the_adapter_cannot_be_set(connect: Connect, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"sampling\.fields cannot set {name}: \w+"):
        connect(OpenAIServer(), fields={name: None})


@pytest.mark.parametrize(
    ("message", "param", "advice"),
    [
        ("Unsupported value: it does not support 0", "temperature", "{temperature: null}"),
        ("`top_p` cannot be specified here", None, "{top_p: null}"),
        ('Unknown name "seed": Cannot find field.', None, "{seed: null}"),
        ("Unsupported parameter: 'max_tokens'", None, "sampling.limit_field"),
    ],
)
def test_a_refused_field_has_its_setting_in_the_error(
    connect: Connect, message: str, param: str | None, advice: str
) -> None:
    adapter = connect(RefusingServer(message, param))
    with pytest.raises(ApiError) as caught:
        ask(adapter.sampler(MODEL), adapter).result(30)
    assert advice in str(caught.value)


def test_another_refusal_suggests_no_field(connect: Connect) -> None:
    adapter = connect(RefusingServer("stop: the context is too long"))
    with pytest.raises(ApiError, match=r"too long$"):
        ask(adapter.sampler(MODEL), adapter).result(30)
