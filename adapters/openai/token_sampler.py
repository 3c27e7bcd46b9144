"""A sampler of token ids: a server whose completions endpoint takes and returns them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, TypeVar

import numpy as np

from adapters.openai.checked_answers import Check
from adapters.openai.choices import ask_for_choices
from adapters.openai.connection import Connection, Request, Requester
from adapters.openai.request_fields import RequestFields
from adapters.openai.token_answers import (
    Asked,
    choices_of,
    completion,
    echoed_scores,
    prompt_scores,
)
from adapters.openai.token_server import COMPLETIONS, NEUTRAL, TokenServer, open_server
from kitchen.backend.sampling_checks import prompt_error, sampling_error
from kitchen.errors import BackendError, ConfigError, DataError
from kitchen.ports.future import Failed, Future
from kitchen.ports.sampling import Tokenizer
from kitchen.types import Floats, Sampled, Tokens

T = TypeVar("T")
MAX_ID = 2**31 - 1  # where the tokenizer does not say how many ids the model reads
# temperatures at which the log-probabilities of servers are those of sampling
_UNSCALED = (0.0, 1.0)
Scores = tuple[Floats, Tokens, Floats]


class TokenSampler:
    """Samples and scores token ids; the first request verifies the server's tokenizer."""

    def __init__(
        self,
        connection: Connection,
        model: str,
        tokenizer: Tokenizer,
        tokenizer_name: str,
        fields: RequestFields,
    ) -> None:
        self._connection = connection
        self._model = model
        self._tokenizer = tokenizer
        self._tokenizer_name = tokenizer_name
        self._fields = fields
        self._vocabulary = tokenizer.model_vocabulary or MAX_ID
        self._requester = Requester()
        self._opening: asyncio.Task[TokenServer] | None = None

    def logprobs(self, tokens: Tokens) -> Future[Floats]:
        if (problem := self._prompt_error(tokens)) is not None:
            return Failed(problem)
        request = self._request(tokens)
        return self._connection.submit(
            lambda: self._logprobs(request, np.asarray(tokens)), request.sent
        )

    def top_logprobs(self, tokens: Tokens, k: int) -> Future[tuple[Tokens, Floats]]:
        if (problem := self._prompt_error(tokens)) is not None:
            return Failed(problem)
        if not isinstance(k, Integral) or k < 1:
            return Failed(ConfigError(f"k is {k!r}, and must be a whole number of at least 1"))
        request = self._request(tokens)
        return self._connection.submit(
            lambda: self._top_logprobs(request, np.asarray(tokens), k), request.sent
        )

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
        problem = sampling_error(
            count=count,
            max_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            top_k=top_k,
            seed=seed,
            stop=stop,
        ) or self._prompt_error(prompt)
        if problem is not None:
            return Failed(problem)
        is_scored = float(temperature) in _UNSCALED
        request = self._request(
            prompt,
            max_tokens=int(max_tokens),
            temperature=float(temperature),
            top_p=float(top_p),
            top_k=int(top_k) or -1,
            stop=[text for text in stop if isinstance(text, str)] or None,
            stop_token_ids=[int(token) for token in stop if not isinstance(token, str)] or None,
            logprobs=0 if is_scored else None,
        )
        asked = Asked(np.asarray(prompt), int(max_tokens), self._vocabulary, is_scored)
        return self._connection.submit(
            lambda: self._sample(request, asked, count, seed), request.sent
        )

    def server(self) -> Future[TokenServer]:
        """Return the facts about the server, whose tokenizer is verified."""
        return self._connection.submit(self._server)

    def close(self) -> None:
        """Drop what was not sent yet."""
        self._requester.is_closed = True

    def _prompt_error(self, tokens: Tokens) -> Exception | None:
        return prompt_error(tokens, vocabulary=self._vocabulary, context=MAX_ID)

    def _request(self, prompt: Tokens, **settings: Any) -> Request:
        body = self._fields.body(
            {
                "model": self._model,
                "prompt": np.asarray(prompt).tolist(),
                "return_token_ids": True,
                **NEUTRAL,
                **settings,
            }
        )
        return Request(COMPLETIONS, body, self._requester)

    async def _server(self) -> TokenServer:
        """Return the facts about the server, found out once; a failure is tried again."""
        done = self._opening is not None and self._opening.done()
        if self._opening is None or (done and self._opening.exception()):
            self._opening = asyncio.create_task(
                open_server(
                    self._connection,
                    self._model,
                    self._tokenizer,
                    self._tokenizer_name,
                    self._requester,
                )
            )
        return await asyncio.shield(self._opening)

    async def _sample(
        self, request: Request, asked: Asked, count: int, seed: int
    ) -> Sequence[Sampled]:
        server = await self._server()
        self._check_room(server, len(asked.prompt) + 1)
        name = self._connection.name

        def check(answer: Any) -> Sequence[Sampled]:
            return [completion(choice, asked, name) for choice in choices_of(answer)]

        keyed = _keyed(request, server)
        return await ask_for_choices(self._connection, keyed, count, seed, check, self._fields)

    async def _logprobs(self, request: Request, tokens: Tokens) -> Floats:
        if len(tokens) == 1:
            return np.full(1, np.nan, np.float32)
        server = await self._server()
        if not server.echoes_scores:
            own, _, _ = await self._prompt_scores(request, tokens, 0, server)
            return own
        name = self._connection.name
        fields = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0.0}

        def check(answer: Any) -> Floats:
            return echoed_scores(choices_of(answer)[0], tokens, name)

        return await self._post(_keyed(request, server), fields, check)

    async def _top_logprobs(
        self, request: Request, tokens: Tokens, k: int
    ) -> tuple[Tokens, Floats]:
        server = await self._server()
        if server.echoes_scores:
            raise BackendError(
                f"{self._connection.name} ({server.kind}) gives the likeliest tokens of a prompt "
                "by their text only, which may be that of several tokens; vLLM and kitchen serve "
                "give their ids"
            )
        _, ids, top = await self._prompt_scores(request, tokens, k, server)
        return ids, top

    async def _prompt_scores(
        self, request: Request, tokens: Tokens, k: int, server: TokenServer
    ) -> Scores:
        name = self._connection.name
        added = 0 if server.scores_without_sampling else 1  # vLLM samples at least one
        self._check_room(server, len(tokens) + added)
        fields = {"prompt_logprobs": k, "max_tokens": added, "temperature": 0.0}

        def check(answer: Any) -> Scores:
            return prompt_scores(choices_of(answer)[0], tokens, k, self._vocabulary, name)

        return await self._post(_keyed(request, server), fields, check)

    def _check_room(self, server: TokenServer, needed: int) -> None:
        """Raise DataError for a prompt without room for the tokens that the server adds."""
        if server.context is not None and needed > server.context:
            raise DataError(
                f"{self._model} on {self._connection.name} reads {server.context} tokens, and the "
                f"prompt with the next token has {needed}"
            )

    async def _post(self, request: Request, fields: Mapping[str, Any], check: Check[T]) -> T:
        body = {**request.body, "n": 1, **fields}
        return await self._connection.post(replace(request, body=body), check)


def _keyed(request: Request, server: TokenServer) -> Request:
    """Return a request whose answer is kept if it is known which weights give it."""
    return replace(request, weights=server.weights or "", is_kept=server.weights is not None)
