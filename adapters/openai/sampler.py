"""Samplers of chat models that read and write text."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from kitchen.backend.text_tokens import TextTokenizer
from kitchen.errors import BackendError, DataError
from kitchen.ports.future import Failed, Future, Pending
from kitchen.types import Floats, Sampled, Tokens


class TextSampler:
    """Sends conversations to a chat model; prompts and answers are tokens of TextTokenizer."""

    def __init__(self, client: Any, model: str, threads: Executor) -> None:
        self._client, self._model, self._threads = client, model, threads
        self._tokenizer = TextTokenizer()

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        return Failed(self._text_only())

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        return Failed(self._text_only())

    def sample(
        self,
        prompt: Tokens,
        *,
        count: int = 1,
        max_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        stop: Sequence[str] | Sequence[int] = (),
    ) -> Future[Sequence[Sampled]]:
        given = self._tokenizer.prompt_of(prompt)
        if not given.messages or given.text:
            return Failed(DataError("a chat model answers messages, and continues no other text"))
        request: dict[str, Any] = {
            "model": self._model,
            "messages": list(given.messages),
            "n": count,
            "max_completion_tokens": max_tokens,
            "temperature": temperature,
            "top_p": top_p,
            "seed": seed,
        }
        if given.tools:
            request["tools"] = list(given.tools)
        if stop:
            request["stop"] = list(stop)
        return Pending(self._threads.submit(self._ask, request))

    def close(self) -> None:
        """Do nothing: the connection belongs to the client."""

    def _ask(self, request: dict[str, Any]) -> Sequence[Sampled]:
        from openai import OpenAIError

        try:
            answer = self._client.chat.completions.create(**request)
        except OpenAIError as error:
            raise BackendError(f"openai:{self._model}: {error}") from error
        return [self._sampled(choice) for choice in answer.choices]

    def _sampled(self, choice: Any) -> Sampled:
        tokens = self._tokenizer.encode(choice.message.content or "")
        stopped = choice.finish_reason != "length"
        if stopped:
            tokens = np.append(tokens, self._tokenizer.end_id)
        logprobs = np.full(len(tokens), np.nan, np.float32)
        return Sampled(tokens, logprobs, "stop" if stopped else "length")

    def _text_only(self) -> BackendError:
        return BackendError(f"openai:{self._model} gives no log-probabilities of prompts")
