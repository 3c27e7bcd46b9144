"""A SamplingClient that answers by a function in place of a language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kitchen.backend.text_tokens import TextPrompt, TextTokenizer
from kitchen.errors import BackendError, ConfigError, did_you_mean
from kitchen.ports.future import Done, Failed, Future
from kitchen.ports.sampling import Sampler
from kitchen.types import Checkpoint, Floats, Sampled, Tokens

Answer = Callable[[TextPrompt, int], str]  # of a prompt and the seed of the completion


def _echo(prompt: TextPrompt, seed: int) -> str:
    """Repeat the last message."""
    return str(prompt.messages[-1]["content"])


class FakeSampling:
    """Answers of a function in place of a model's, for tests; openai:echo repeats the question."""

    def __init__(self, answers: Mapping[str, Answer] | None = None) -> None:
        """`answers` has a function of prompt and seed for each model."""
        self.models: Mapping[str, Answer] = {"echo": _echo} if answers is None else answers
        self.requests: list[TextPrompt] = []

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset()

    def find(self, model: str) -> None:
        """Raise BackendError for an unknown model."""
        name = model.partition(":")[2]
        if name not in self.models:
            raise BackendError(f"there is no model {model!r}; {did_you_mean(name, self.models)}")

    def sampler(self, weights: str | Checkpoint) -> Sampler:
        if not isinstance(weights, str):
            raise ConfigError("a checkpoint is opened by the training adapter that saved it")
        self.find(weights)
        return FakeTextSampler(self.models[weights.partition(":")[2]], self.requests.append)


class FakeTextSampler:
    """A sampler of texts by a function; each completion has a seed that follows from the call's."""

    def __init__(self, answer: Answer, on_request: Callable[[TextPrompt], object]) -> None:
        self._answer, self._on_request = answer, on_request
        self._tokenizer = TextTokenizer()

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        return Failed(BackendError("a fake model of texts has no log-probabilities"))

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        return Failed(BackendError("a fake model of texts has no log-probabilities"))

    def sample(
        self, prompt: Tokens, *, count: int = 1, max_tokens: int, seed: int = 0, **_: Any
    ) -> Future[Sequence[Sampled]]:
        given = self._tokenizer.prompt_of(prompt)
        self._on_request(given)
        texts = [self._answer(given, seed + index) for index in range(count)]
        return Done([self._sampled(text, max_tokens) for text in texts])

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def _sampled(self, text: str, max_tokens: int) -> Sampled:
        tokens = np.append(self._tokenizer.encode(text), self._tokenizer.end_id)[:max_tokens]
        is_whole = tokens[-1] == self._tokenizer.end_id
        logprobs = np.full(len(tokens), np.nan, np.float32)
        return Sampled(tokens, logprobs, "stop" if is_whole else "length")
