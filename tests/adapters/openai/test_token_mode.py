"""Token ids and log-probabilities, from our own server on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adapters.fake.blobs import FakeBlobs
from adapters.fake.hub import FakeHub
from adapters.fake.tokenizer import ByteTokenizer
from adapters.fake.training import FakeTraining
from adapters.openai.client import OpenAISampling
from kitchen.errors import BackendError
from kitchen.ports import Sampler, Tokenizer, TrainingClient, TrainingSession
from kitchen.testing.sampling import SamplingLaws
from kitchen.types import Array, Tokens
from tests.support.tinker_server import KEY, serving


class ByteOpenAI(OpenAISampling):
    """An adapter whose server has the fake's tokenizer, which reads bytes."""

    read_by: type[Tokenizer] = ByteTokenizer

    def tokenizer(self, model: str) -> Tokenizer:
        return self.read_by()


class ShiftedTokenizer(ByteTokenizer):
    """Encodes a text as other ids."""

    def encode(self, text: str, *, special: bool = False) -> Tokens:
        return super().encode(text, special=special)[::-1]


class OwnedBy:
    """An ASGI application whose list of models says that it is a server of another kind."""

    def __init__(self, app: Any, owner: str) -> None:
        self._app, self._owner = app, owner.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_renamed(message: Any) -> None:
            if message["type"] == "http.response.start":
                kept = [item for item in message["headers"] if item[0] != b"content-length"]
                message = {**message, "headers": kept}
            elif message["type"] == "http.response.body":
                body = message.get("body", b"").replace(b"crucible-kitchen", self._owner)
                message = {**message, "body": body}
            await send(message)

        is_list = scope.get("path", "").endswith("/models")
        await self._app(scope, receive, send_renamed if is_list else send)


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    blobs = FakeBlobs()
    with serving(FakeTraining(blobs), blobs) as server:
        yield f"{server.url}/v1"


def adapter(url: str, **settings: Any) -> ByteOpenAI:
    return ByteOpenAI(FakeHub(), base_url=url, tokenizer="tiny", retries=0, **settings)


class TestLaws(SamplingLaws):
    """The laws of samplers, on a base model of `kitchen serve` instead of a trained one."""

    def client(self, tmp_path: Path) -> TrainingClient:
        return FakeTraining(FakeBlobs())

    @pytest.fixture
    def sampler(self, url: str, session: TrainingSession) -> Iterator[Sampler]:
        with closing(adapter(url).sampler("openai:tiny")) as sampler:
            yield sampler

    def table(
        self, training: TrainingClient, session: TrainingSession, sampler: Sampler, tokens: Tokens
    ) -> Array:
        """Return the distribution of the model itself: a server gives at most 20 likeliest."""
        return super().table(training, session, training.sampler("tiny"), tokens)

    @pytest.mark.skip("servers return log-probabilities at temperature 1 only; others are NaN")
    def test_sampled_logprobs_are_scaled_by_temperature(self) -> None:  # type: ignore[override]
        pass

    def test_many_settings_are_greedy(self, sampler: Sampler, prompt: Tokens) -> None:
        [greedy] = sampler.sample(prompt, max_tokens=6, temperature=0.0).result()
        assert np.isfinite(greedy.logprobs).all()
        for setting in ({"top_k": 1}, {"top_p": 1e-6}, {"temperature": 1e-6}):
            [completion] = sampler.sample(prompt, max_tokens=6, **setting).result()
            assert completion.tokens.tolist() == greedy.tokens.tolist(), setting

    def test_top_logprobs_are_the_likeliest_in_order(
        self, training: TrainingClient, session: TrainingSession, sampler: Sampler, prompt: Tokens
    ) -> None:
        ids, values = sampler.top_logprobs(prompt, 3).result()
        expected = training.sampler("tiny").top_logprobs(prompt, 3).result()
        np.testing.assert_array_equal(ids, expected[0])
        np.testing.assert_array_equal(values, expected[1])


def test_scores_are_those_of_the_engine_to_the_bit(url: str) -> None:
    tokens = ByteTokenizer().encode("two cups of onions")
    engine = FakeTraining().sampler("tiny")
    with closing(adapter(url).sampler("openai:tiny")) as sampler:
        np.testing.assert_array_equal(
            sampler.logprobs(tokens).result(), engine.logprobs(tokens).result()
        )
        [sampled] = sampler.sample(tokens, max_tokens=9, seed=5).result()
        [expected] = engine.sample(tokens, max_tokens=9, seed=5).result()
        np.testing.assert_array_equal(sampled.tokens, expected.tokens)
        np.testing.assert_allclose(sampled.logprobs, expected.logprobs, rtol=1e-6)
        [cold] = sampler.sample(tokens, max_tokens=9, seed=5, temperature=0.5).result()
        assert np.isnan(cold.logprobs).all()


@pytest.mark.parametrize("owner", ["vllm", "sglang"])
def test_prompts_are_scored_as_each_kind_of_server_can(
    owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own server also has the forms in which vLLM and SGLang score a prompt."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    blobs = FakeBlobs()
    tokens = ByteTokenizer().encode("two cups of onions")
    engine = FakeTraining().sampler("tiny")
    with serving(FakeTraining(blobs), blobs, wrap=lambda app: OwnedBy(app, owner)) as server:
        sampler = adapter(f"{server.url}/v1").sampler("openai:tiny")
        np.testing.assert_allclose(
            sampler.logprobs(tokens).result(30), engine.logprobs(tokens).result(), rtol=1e-6
        )
        top = sampler.top_logprobs(tokens, 3)
        if owner == "vllm":
            np.testing.assert_array_equal(
                top.result(30)[0], engine.top_logprobs(tokens, 3).result()[0]
            )
            return
        with pytest.raises(BackendError, match="sglang"):
            top.result(30)


def test_a_server_with_another_tokenizer_is_refused(url: str) -> None:
    shifted = adapter(url)
    shifted.read_by = ShiftedTokenizer
    sampler = shifted.sampler("openai:tiny")
    tokens = ByteTokenizer().encode("hello")
    for future in (sampler.logprobs(tokens), sampler.sample(tokens, max_tokens=1)):
        with pytest.raises(BackendError, match="another tokenizer"):
            future.result(30)


def test_a_server_without_token_ids_is_refused(url: str) -> None:
    sampler = adapter(url, fields={"return_token_ids": None}).sampler("openai:tiny")
    with pytest.raises(BackendError, match="return_token_ids"):
        sampler.logprobs(ByteTokenizer().encode("hello")).result(30)


def test_capabilities_follow_the_tokenizer(url: str) -> None:
    assert {"prompt_logprobs", "top_logprobs"} <= adapter(url).capabilities
    assert not ByteOpenAI(FakeHub(), base_url=url).capabilities
