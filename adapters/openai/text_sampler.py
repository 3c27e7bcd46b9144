"""A sampler of text: a chat API that is asked for the next message of a conversation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import structlog

from adapters.openai.chat_answers import ChatAnswer, chat_answers, check_length
from adapters.openai.choices import ask_for_choices, derived_seed
from adapters.openai.connection import Connection, Request, Requester
from adapters.openai.request_fields import RequestFields
from adapters.openai.streaming import streamed
from kitchen.backend.sampling_checks import sampling_error
from kitchen.backend.text_tokens import TextTokenizer
from kitchen.errors import BackendError, ConfigError, DataError, KitchenError
from kitchen.ports.future import Failed, Future
from kitchen.types import Floats, Sampled, Tokens

log = structlog.get_logger("kitchen.openai")
CHAT = "chat/completions"


class TextSampler:
    """Samples text, whose tokens are those of a `TextTokenizer`; it knows no log-probabilities."""

    def __init__(
        self, connection: Connection, model: str, tokenizer: TextTokenizer, fields: RequestFields
    ) -> None:
        self._connection = connection
        self._model = model
        self._tokenizer = tokenizer
        self._fields = fields
        self._requester = Requester()
        self._refused = 0

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        return Failed(self._text_only("log-probabilities"))

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        return Failed(self._text_only("the likeliest tokens"))

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
        try:
            body = self._body(
                prompt,
                count=count,
                max_tokens=max_tokens,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                seed=seed,
                stop=stop,
            )
        except KitchenError as error:
            return Failed(error)
        request = Request(CHAT, body, self._requester)
        return self._connection.submit(lambda: self._sample(request, count, seed))

    def stream(
        self,
        prompt: Tokens,
        on_token: Callable[[int, int], object],
        *,
        count: int = 1,
        max_tokens: int,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        seed: int = 0,
        stop: Sequence[str] | Sequence[int] = (),
    ) -> Future[Sequence[Sampled]]:
        """Sample as `sample` does, and call `on_token` as text arrives; nothing is cached."""
        try:
            body = self._body(
                prompt,
                count=count,
                max_tokens=max_tokens,
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                seed=seed,
                stop=stop,
            )
        except KitchenError as error:
            return Failed(error)
        fields = {**body, "n": count, "seed": derived_seed(seed, 0), "stream": True}
        request = Request(CHAT, fields, self._requester)
        return self._connection.submit(
            lambda: streamed(self._connection, request, self._tokenizer, count, on_token)
        )

    def close(self) -> None:
        """Drop what was not sent yet, and report how many answers were refused."""
        self._requester.is_closed = True
        if self._refused:
            log.warning(
                "answers were refused or cut by a filter, and count as incomplete",
                model=self._model,
                answers=self._refused,
            )
            self._refused = 0

    def _text_only(self, wanted: str) -> BackendError:
        return BackendError(
            f"openai:{self._model} gives text only, without {wanted}; if its server takes token "
            "ids (vLLM, SGLang, kitchen serve), set sampling.tokenizer to the model whose "
            "tokenizer it uses"
        )

    def _body(self, prompt: Tokens, **settings: Any) -> Mapping[str, Any]:
        """Return the fields of a request but for `n` and `seed`; raises ConfigError, DataError."""
        if (problem := sampling_error(**settings)) is not None:
            raise problem
        texts = [text for text in settings["stop"] if isinstance(text, str)]
        ids = {int(token) for token in settings["stop"] if not isinstance(token, str)}
        if unknown := ids - set(self._tokenizer.stop_ids):
            raise ConfigError(
                f"stop={sorted(unknown)}: openai:{self._model} gives text only, so its answers "
                "end with texts and not with token ids"
            )
        given = self._tokenizer.prompt_of(prompt)
        if not given.messages or given.text:
            raise DataError(
                f"openai:{self._model} answers messages, and continues no text: neither a prompt "
                "without the chat template nor an answer that was started"
            )
        return self._fields.body(
            {
                "model": self._model,
                "messages": [dict(message) for message in given.messages],
                "tools": [dict(tool) for tool in given.tools] or None,
                "temperature": float(settings["temperature"]),
                "top_p": float(settings["top_p"]),
                "top_k": int(settings["top_k"]) or None,
                "stop": texts or None,
                self._fields.limit: int(settings["max_tokens"]),
            }
        )

    async def _sample(self, request: Request, count: int, seed: int) -> Sequence[Sampled]:
        def check(answer: Any) -> Sequence[ChatAnswer]:
            answers = chat_answers(answer)
            check_length(answer, request.body, self._fields.limit)
            return answers

        answers = await ask_for_choices(self._connection, request, count, seed, check)
        self._refused += sum(answer.is_refused for answer in answers)
        return [self._sampled(answer) for answer in answers]

    def _sampled(self, answer: ChatAnswer) -> Sampled:
        tokens = self._tokenizer.encode(answer.text)
        if answer.is_complete:
            tokens = np.append(tokens, self._tokenizer.end_id)
        unknown = np.full(len(tokens), np.nan, np.float32)
        return Sampled(tokens, unknown, "stop" if answer.is_complete else "length")
