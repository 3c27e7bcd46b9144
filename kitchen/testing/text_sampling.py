"""The laws of sampling clients: subclass `TextSamplingLaws`, define `client`, and run pytest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from kitchen.backend.text_tokens import TextTokenizer
from kitchen.errors import BackendError, ConfigError
from kitchen.ports.sampling import Message, SamplingClient, Tokenizer
from kitchen.types import Sampled, Tokens

QUESTION: Sequence[Message] = [
    {"role": "system", "content": "Answer in one word."},
    {"role": "user", "content": "What falls from clouds?"},
]


class TextSamplingLaws:
    """A conversation has answers, which are the same if the request is the same."""

    model = "openai:tiny"  # one that the service has
    unknown_model = "openai:no-such-model"

    def client(self, tmp_path: Path) -> SamplingClient:
        """Return the adapter under test, which has `model`."""
        raise NotImplementedError(
            f"{type(self).__name__} must say which adapter the laws are for:\n"
            "    model = ...  # the name of a model that the service has\n"
            "    def client(self, tmp_path: Path) -> SamplingClient:\n"
            "        return MySampling(...)"
        )

    @pytest.fixture
    def sampling(self, tmp_path: Path) -> SamplingClient:
        return self.client(tmp_path)

    @pytest.fixture
    def tokenizer(self, sampling: SamplingClient) -> Tokenizer:
        return tokenizer_of(sampling, self.model)

    @pytest.fixture
    def prompt(self, tokenizer: Tokenizer) -> Tokens:
        return tokenizer.render(QUESTION, answer=True)

    def sample(
        self, sampling: SamplingClient, prompt: Tokens, count: int = 3, seed: int = 1
    ) -> Sequence[Sampled]:
        sampler = sampling.sampler(self.model)
        try:
            return sampler.sample(prompt, count=count, max_tokens=16, seed=seed).result()
        finally:
            sampler.close()

    def test_capabilities_are_names(self, sampling: SamplingClient) -> None:
        assert all(isinstance(name, str) for name in sampling.capabilities)

    def test_a_conversation_has_as_many_answers_as_asked_for(
        self, sampling: SamplingClient, tokenizer: Tokenizer, prompt: Tokens
    ) -> None:
        answers = self.sample(sampling, prompt)
        assert len(answers) == 3
        for answer in answers:
            assert answer.logprobs.shape == answer.tokens.shape
            assert answer.logprobs.dtype == np.float32
            assert isinstance(tokenizer.decode(answer.tokens), str)
            is_ended = len(answer.tokens) > 0 and answer.tokens[-1] in tokenizer.stop_ids
            assert is_ended == (answer.stop_reason == "stop")

    def test_the_same_request_has_the_same_answers(
        self, sampling: SamplingClient, prompt: Tokens
    ) -> None:
        first, second = (self.sample(sampling, prompt, seed=7) for _ in range(2))
        for answer, repeated in zip(first, second, strict=True):
            np.testing.assert_array_equal(answer.tokens, repeated.tokens)
            np.testing.assert_array_equal(answer.logprobs, repeated.logprobs)

    def test_many_requests_keep_their_answers(
        self, sampling: SamplingClient, tokenizer: Tokenizer
    ) -> None:
        """Greedy answers to different questions are those of asking one at a time."""
        questions = [[{"role": "user", "content": f"Repeat the number {n}."}] for n in range(8)]
        prompts = [tokenizer.render(question, answer=True) for question in questions]
        sampler = sampling.sampler(self.model)
        at_once = [sampler.sample(p, max_tokens=8, temperature=0.0) for p in prompts]
        for prompt, future in zip(prompts, at_once, strict=True):
            [alone] = sampler.sample(prompt, max_tokens=8, temperature=0.0).result()
            [answer] = future.result()
            assert answer.tokens.tolist() == alone.tokens.tolist()
        sampler.close()

    def test_prompts_are_scored_or_refused(self, sampling: SamplingClient, prompt: Tokens) -> None:
        scored = sampling.sampler(self.model).logprobs(prompt)
        if "prompt_logprobs" in sampling.capabilities:
            assert scored.result().shape == prompt.shape
            return
        with pytest.raises(BackendError):
            scored.result()

    def test_an_unknown_model_is_refused_by_name(
        self, sampling: SamplingClient, prompt: Tokens
    ) -> None:
        with pytest.raises((BackendError, ConfigError)) as caught:
            sampling.sampler(self.unknown_model).sample(prompt, max_tokens=1).result()
        assert self.unknown_model.partition(":")[2] in str(caught.value)


def tokenizer_of(sampling: SamplingClient, model: str) -> Tokenizer:
    """Return the tokenizer of a model, which is that of texts where the client has no other."""
    catalog = getattr(sampling, "tokenizer", None)
    return TextTokenizer() if catalog is None else catalog(model)
