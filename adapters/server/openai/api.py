"""The endpoints of the OpenAI API."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import product
from threading import Lock
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adapters.server.openai.chat import chat_body
from adapters.server.openai.completions import completion_choices
from adapters.server.openai.disconnect import unless_disconnected
from adapters.server.openai.errors import PREFIXES, with_openai_errors
from adapters.server.openai.fields import parse_fields
from adapters.server.openai.generation import Generated, Generation, GenerationQueue
from adapters.server.openai.prompts import (
    Prompt,
    chat_generation,
    completion_generation,
    completion_prompts,
)
from adapters.server.openai.requests import ChatRequest, CompletionRequest
from adapters.server.openai.weights import ListedModel, ServedWeights, WeightsNames
from adapters.server.sampler_scheduler import SamplerScheduler
from adapters.server.sessions import Sessions

ReadBody = Callable[[Request], Awaitable[bytes]]


class OpenAIApi:
    """Routes of the OpenAI API, over the samplers that the Tinker API uses too."""

    def __init__(
        self, sessions: Sessions, scheduler: SamplerScheduler, read_body: ReadBody
    ) -> None:
        self._weights = WeightsNames(sessions)
        self._queue = GenerationQueue(scheduler, sessions.limits)
        self._read_body = read_body
        self._tokenizing = Lock()  # tokenizers are not safe to use from several threads

    def routes(self) -> list[Route]:
        endpoints = [
            ("GET", "/models", self._models),
            ("GET", "/models/{name:path}", self._model),
            ("POST", "/chat/completions", self._chat),
            ("POST", "/completions", self._complete),
        ]
        return [
            Route(prefix + path, with_openai_errors(handler), methods=[method])
            for prefix, (method, path, handler) in product(PREFIXES, endpoints)
        ]

    async def _models(self, request: Request) -> Response:
        listed = await run_in_threadpool(lambda: list(self._weights.listed()))
        return JSONResponse({"object": "list", "data": [_model(model) for model in listed]})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        weights = await run_in_threadpool(self._weights.find, name)
        return JSONResponse(_model_object(name, weights.context, weights.base))

    async def _chat(self, http: Request) -> Response:
        request = parse_fields(ChatRequest, await self._read_body(http))
        weights, generation = await run_in_threadpool(self._chat_prompt, request)
        [generated] = await self._generate(http, weights, [generation])
        body = chat_body(request, weights, generation, generated)
        usage = _usage([generation], [generated])
        return _answer("chatcmpl", "chat.completion", request.model, body, usage)

    async def _complete(self, http: Request) -> Response:
        request = parse_fields(CompletionRequest, await self._read_body(http))
        weights, prompts, generations = await run_in_threadpool(self._prompts, request)
        generated = await self._generate(http, weights, generations)
        choices = completion_choices(request, weights, prompts, generated)
        usage = _usage(generations, generated)
        return _answer("cmpl", "text_completion", request.model, {"choices": choices}, usage)

    def _chat_prompt(self, request: ChatRequest) -> tuple[ServedWeights, Generation]:
        weights = self._weights.find(request.model)
        with self._tokenizing:
            return weights, chat_generation(request, weights)

    def _prompts(
        self, request: CompletionRequest
    ) -> tuple[ServedWeights, Sequence[Prompt], Sequence[Generation]]:
        weights = self._weights.find(request.model)
        with self._tokenizing:
            prompts = completion_prompts(request, weights)
        generations = [completion_generation(request, weights, one.tokens) for one in prompts]
        return weights, prompts, generations

    async def _generate(
        self, http: Request, weights: ServedWeights, generations: Sequence[Generation]
    ) -> Sequence[Generated]:
        """Return the completions; a client that leaves cancels them."""
        client = "" if http.client is None else http.client.host
        return await unless_disconnected(http, self._queue.run(weights, generations, client))


def _model(listed: ListedModel) -> Mapping[str, Any]:
    return _model_object(listed.name, listed.base.context, listed.base.name, listed.created)


def _model_object(name: str, context: int | None, base: str, created: int = 0) -> Mapping[str, Any]:
    """Return a model, with two fields that vLLM has too: its context and its base model."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "crucible-kitchen",
        "root": base,
        "max_model_len": context,
    }


def _answer(
    prefix: str, kind: str, model: str, body: Mapping[str, Any], usage: Mapping[str, Any]
) -> Response:
    head = {
        "id": f"{prefix}-{secrets.token_hex(12)}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }
    return JSONResponse({**head, **body, "usage": usage})


def _usage(generations: Sequence[Generation], generated: Sequence[Generated]) -> Mapping[str, int]:
    """Count the tokens of the prompts, each once, and of all completions."""
    of_prompts = sum(len(generation.prompt) for generation in generations)
    of_completions = 0
    for completions in generated:
        of_completions += sum(len(sampled.tokens) for sampled in completions.sampled)
    return {
        "prompt_tokens": of_prompts,
        "completion_tokens": of_completions,
        "total_tokens": of_prompts + of_completions,
    }
