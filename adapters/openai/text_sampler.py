"""A sampler of text: a chat API that is asked for the next message of a conversation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Required, TypedDict, Unpack

import numpy as np
import structlog

from adapters.openai.chat_answers import EMPTY, ChatAnswer, chat_answers, check_length
from adapters.openai.choices import ask_for_choices, derived_seed, drawn_request
from adapters.openai.connection import Connection, Request, Requester
from adapters.openai.request_fields import RequestFields
from adapters.openai.streaming import StreamedAnswers
from kitchen.backend.sampling_checks import sampling_error
from kitchen.backend.text_tokens import TextTokenizer
from kitchen.errors import BackendError, ConfigError, DataError, KitchenError
from kitchen.ports.future import Failed, Future
from kitchen.types import Floats, Sampled, Tokens

log = structlog.get_logger("kitchen.openai")
CHAT = "chat/completions"
_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {"count": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "seed": 0, "stop": ()}
)
_INCOMPLETE = "answers count as incomplete"
_ADVICE = {
    EMPTY: "answers are empty and count as incomplete; hidden reasoning may have used up the "
    "maximum number of tokens"
}


class Settings(TypedDict, total=False):
    """The settings of a call of `Sampler.sample`."""

    count: int
    max_tokens: Required[int]
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop: Sequence[str] | Sequence[int]


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
        self._flaws: Counter[str] = Counter()  # of incomplete answers

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        return Failed(self._text_only("log-probabilities"))

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        return Failed(self._text_only("the likeliest tokens"))

    def sample(self, prompt: Tokens, **settings: Unpack[Settings]) -> Future[Sequence[Sampled]]:
        try:
            request, count, seed = self._request(prompt, settings)
        except KitchenError as error:
            return Failed(error)
        return self._connection.submit(lambda: self._sample(request, count, seed), request.sent)

    def stream(
        self,
        prompt: Tokens,
        on_token: Callable[[int, int], object],
        **settings: Unpack[Settings],
    ) -> Future[Sequence[Sampled]]:
        """Sample as `sample` does, and call `on_token` as text arrives; nothing is cached."""
        try:
            request, count, seed = self._request(prompt, settings)
        except KitchenError as error:
            return Failed(error)
        return self._connection.submit(
            lambda: self._stream(request, count, seed, on_token), request.sent
        )

    def close(self) -> None:
        """Drop what was not sent yet, and report answers that count as incomplete."""
        self._requester.is_closed = True
        for flaw, answers in self._flaws.items():
            log.warning(
                _ADVICE.get(flaw, _INCOMPLETE), model=self._model, answers=answers, why=flaw
            )
        self._flaws.clear()

    def _text_only(self, wanted: str) -> BackendError:
        return BackendError(
            f"openai:{self._model} gives text only, without {wanted}; if its server takes token "
            "ids (vLLM, SGLang, kitchen serve), set sampling.tokenizer to the model whose "
            "tokenizer it uses"
        )

    def _request(self, prompt: Tokens, given: Settings) -> tuple[Request, int, int]:
        """Return a request without `n` and `seed`, and these; raises ConfigError, DataError."""
        settings = {**_DEFAULTS, **given}
        body = self._body(prompt, **settings)
        return Request(CHAT, body, self._requester), settings["count"], settings["seed"]

    def _body(self, prompt: Tokens, **settings: Any) -> Mapping[str, Any]:
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
                "temperature": _unless_neutral(settings["temperature"]),
                "top_p": _unless_neutral(settings["top_p"]),
                "top_k": int(settings["top_k"]) or None,
                "stop": texts or None,
                self._fields.limit: int(settings["max_tokens"]),
            }
        )

    async def _sample(self, request: Request, count: int, seed: int) -> Sequence[Sampled]:
        def check(answer: Any) -> Sequence[ChatAnswer]:
            answers = chat_answers(answer)
            field, usage = self._fields.limit, answer.get("usage")
            check_length(answers, usage, request.body.get(field), field, self._tokenizer)
            return answers

        answers = await ask_for_choices(self._connection, request, count, seed, check, self._fields)
        pieces = [[self._tokenizer.encode(answer.text)] for answer in answers]
        return self._sampled(answers, pieces)

    async def _stream(
        self, request: Request, count: int, seed: int, on_token: Callable[[int, int], object]
    ) -> Sequence[Sampled]:
        drawn = drawn_request(request, self._fields, count, derived_seed(seed, 0))
        streamed = replace(drawn, body={**drawn.body, "stream": True})
        limit = self._fields.limit, drawn.body.get(self._fields.limit)
        arriving = StreamedAnswers(count, self._tokenizer, on_token, limit)
        return self._sampled(
            *await self._connection.stream(streamed, arriving.add, arriving.finish)
        )

    def _sampled(
        self, answers: Sequence[ChatAnswer], pieces: Sequence[Sequence[Tokens]]
    ) -> Sequence[Sampled]:
        """Return answers, each of the tokens of its pieces, and count those that have a flaw."""
        self._flaws.update(answer.flaw for answer in answers if answer.flaw)
        return [
            _as_sampled(answer, [*each, np.full(int(answer.is_complete), self._tokenizer.end_id)])
            for answer, each in zip(answers, pieces, strict=True)
        ]


def _unless_neutral(value: float) -> float | None:
    """Return a temperature or top_p, or None for 1: some models refuse even their default."""
    return None if value == 1 else float(value)


def _as_sampled(answer: ChatAnswer, pieces: Sequence[Tokens]) -> Sampled:
    tokens = np.concatenate(pieces).astype(np.int64)
    unknown = np.full(len(tokens), np.nan, np.float32)
    return Sampled(tokens, unknown, "stop" if answer.is_complete else "length")
