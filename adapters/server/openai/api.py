"""The endpoints of the OpenAI API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from adapters.server.openai.answers import Answer, usage
from adapters.server.openai.chat import chat_body
from adapters.server.openai.chunks import ChatStream, ChoiceStream, CompletionStream, streamed_parts
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
from adapters.server.openai.requests import ChatRequest, CompletionRequest, SamplingFields
from adapters.server.openai.streaming import stream_response
from adapters.server.openai.weights import ListedModel, ServedWeights, WeightsNames
from adapters.server.sampler_scheduler import SamplerScheduler
from adapters.server.sessions import Sessions

T = TypeVar("T")
ReadBody = Callable[[Request], Awaitable[bytes]]


class OpenAIApi:
    """Routes of the OpenAI API, over the samplers that the Tinker API uses too."""

    def __init__(
        self, sessions: Sessions, scheduler: SamplerScheduler, read_body: ReadBody
    ) -> None:
        self._weights = WeightsNames(sessions)
        self._queue = GenerationQueue(scheduler, sessions.futures, sessions.limits)
        self._read_body = read_body

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
        sha256 = await run_in_threadpool(self._weights.sha256, weights)
        described = _model_object(name, weights.context, weights.base)
        return JSONResponse({**described, "sha256": sha256})

    async def _chat(self, http: Request) -> Response:
        body = await self._read_body(http)
        request = parse_fields(ChatRequest, body)
        with self._queue.room(_client(http), 1, len(body)):
            weights, generation = await run_in_threadpool(self._chat_prompt, request)
        answer = Answer("chat.completion", "chatcmpl", request.model)
        if request.stream:
            streams = [ChatStream(request, weights, index) for index in range(request.n)]
            return await self._stream(http, request, answer, weights, [generation], streams)
        [generated] = await self._generate(http, weights, [generation])

        def write() -> Response:
            choices = chat_body(request, weights, generation, generated)
            return answer.whole(choices, usage([generation], [generated]))

        return await run_in_threadpool(_locked, weights, write)

    async def _complete(self, http: Request) -> Response:
        body = await self._read_body(http)
        request = parse_fields(CompletionRequest, body)
        with self._queue.room(_client(http), 1, len(body)):
            weights, prompts, generations = await run_in_threadpool(self._prompts, request)
        answer = Answer("text_completion", "cmpl", request.model)
        if request.stream:
            repeated = [prompts[place // request.n] for place in range(len(prompts) * request.n)]
            streams = [
                CompletionStream(request, weights, prompt, index)
                for index, prompt in enumerate(repeated)
            ]
            return await self._stream(http, request, answer, weights, generations, streams)
        generated = await self._generate(http, weights, generations)

        def write() -> Response:
            choices = completion_choices(request, weights, prompts, generated)
            return answer.whole({"choices": choices}, usage(generations, generated))

        return await run_in_threadpool(_locked, weights, write)

    def _chat_prompt(self, request: ChatRequest) -> tuple[ServedWeights, Generation]:
        weights = self._weights.find(request.model)
        with weights.tokenizing:
            return weights, chat_generation(request, weights)

    def _prompts(
        self, request: CompletionRequest
    ) -> tuple[ServedWeights, Sequence[Prompt], Sequence[Generation]]:
        weights = self._weights.find(request.model)
        with weights.tokenizing:
            prompts = completion_prompts(request, weights)
        generations = [completion_generation(request, weights, one.tokens) for one in prompts]
        return weights, prompts, generations

    async def _generate(
        self, http: Request, weights: ServedWeights, generations: Sequence[Generation]
    ) -> Sequence[Generated]:
        """Return the completions; a client that leaves cancels them."""
        work = self._queue.run(weights, generations, _client(http))
        return await unless_disconnected(http, work)

    async def _stream(
        self,
        http: Request,
        request: SamplingFields,
        answer: Answer,
        weights: ServedWeights,
        generations: Sequence[Generation],
        streams: Sequence[ChoiceStream],
    ) -> Response:
        """Return the answer as events; a client that leaves cancels it."""
        work = partial(self._queue.run, weights, generations, _client(http))
        parts = streamed_parts(streams, work, weights.tokenizing)
        counts = request.stream_options.include_usage
        return await stream_response(http, answer.chunks(parts, generations, counts=counts))


def _locked(weights: ServedWeights, write: Callable[[], T]) -> T:
    """Return an answer that is written on a thread, where a long one holds up no other request."""
    with weights.tokenizing:
        return write()


def _client(http: Request) -> str:
    return "" if http.client is None else http.client.host


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
