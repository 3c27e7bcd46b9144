"""The chunks of streamed answers, in the forms of the two endpoints."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import chain
from threading import Lock
from typing import Any, Protocol

from starlette.concurrency import run_in_threadpool

from adapters.server.openai.chat import chat_choice, finish_reason
from adapters.server.openai.completions import completion_choice
from adapters.server.openai.generation import Generated
from adapters.server.openai.prompts import Prompt
from adapters.server.openai.requests import ChatRequest, CompletionRequest
from adapters.server.openai.streaming import DrawnToken, Work, drawn_tokens
from adapters.server.openai.text import CompletionText
from adapters.server.openai.tool_text import ToolText
from adapters.server.openai.weights import ServedWeights

Choice = Mapping[str, Any]


class ChoiceStream(Protocol):
    """One choice of a streamed answer."""

    def begin(self) -> Iterator[Choice]:
        """Yield the parts before the first token."""

    def add(self, token: int) -> Iterator[Choice]:
        """Yield the part that a token completes."""

    def finish(self, generated: Generated, index: int) -> Iterator[Choice]:
        """Yield the remaining parts of a completion, with the reason why it ended."""


async def streamed_parts(
    streams: Sequence[ChoiceStream], work: Work, tokenizing: Lock
) -> AsyncGenerator[Choice | Sequence[Generated], None]:
    """Yield the parts of the choices as tokens are drawn, and the complete result last.

    The remaining parts, which may be long, are written on another thread that holds the lock.
    """
    counts = [0] * len(streams)
    async with aclosing(drawn_tokens(work)) as drawn:
        event = await anext(drawn)
        for part in chain.from_iterable(stream.begin() for stream in streams):
            yield part
        while isinstance(event, DrawnToken):
            counts[event.choice] += 1
            for part in streams[event.choice].add(event.token):
                yield part
            event = await anext(drawn)
    results = event

    def remaining() -> Sequence[Choice]:
        with tokenizing:
            return list(_remaining(streams, counts, results))

    for part in await run_in_threadpool(remaining):
        yield part
    yield results


def _remaining(
    streams: Sequence[ChoiceStream], counts: Sequence[int], results: Sequence[Generated]
) -> Iterator[Choice]:
    """Yield the parts after the tokens that were streamed, which a sampler may have none of."""
    completions: list[tuple[Generated, int]] = []
    for generated in results:
        completions += [(generated, index) for index in range(len(generated.sampled))]
    for stream, count, (generated, index) in zip(streams, counts, completions, strict=True):
        for token in generated.sampled[index].tokens[count:].tolist():
            yield from stream.add(token)
        yield from stream.finish(generated, index)


class ChatStream:
    """A choice of a chat. With log-probabilities, it is sent in one part when it is complete."""

    def __init__(self, request: ChatRequest, weights: ServedWeights, index: int) -> None:
        self._request = request
        self._weights = weights
        self._index = index
        self._text = CompletionText(weights.tokenizer, request.stop_texts, request.stop_token_ids)
        self._tools = ToolText() if request.offered_tools else None

    def begin(self) -> Iterator[Choice]:
        yield self._part({"role": "assistant", "content": ""})

    def add(self, token: int) -> Iterator[Choice]:
        if not self._request.logprobs:
            yield from self._content(self._text.add(token))

    def finish(self, generated: Generated, index: int) -> Iterator[Choice]:
        if self._request.logprobs:
            whole = chat_choice(self._request, self._weights, generated, index)
            message = {key: value for key, value in whole["message"].items() if key != "role"}
            calls = message.pop("tool_calls", [])
            yield {**self._part(message), "logprobs": whole["logprobs"]}
            yield from self._calls(calls)
            yield self._part({}, whole["finish_reason"])
            return
        yield from self._content(self._text.finish())
        calls = []
        if self._tools is not None:
            rest, calls = self._tools.finish()
            if rest:
                yield self._part({"content": rest})
        yield from self._calls(calls)
        sampled = generated.sampled[index]
        yield self._part({}, finish_reason(sampled, self._text, calls=bool(calls)))

    def _content(self, piece: str) -> Iterator[Choice]:
        piece = piece if self._tools is None else self._tools.add(piece)
        if piece:
            yield self._part({"content": piece})

    def _calls(self, calls: Sequence[Mapping[str, Any]]) -> Iterator[Choice]:
        if calls:
            numbered = [{"index": index, **call} for index, call in enumerate(calls)]
            yield self._part({"tool_calls": numbered})

    def _part(self, delta: Mapping[str, Any], reason: str | None = None) -> Choice:
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": reason}


class CompletionStream:
    """A continuation. With log-probabilities or token ids, it is one part, sent at the end."""

    def __init__(
        self, request: CompletionRequest, weights: ServedWeights, prompt: Prompt, index: int
    ) -> None:
        self._request = request
        self._weights = weights
        self._prompt = prompt
        self._index = index
        self._text = CompletionText(weights.tokenizer, request.stop_texts, request.stop_token_ids)
        scores = (request.logprobs, request.prompt_logprobs)
        self._waits = request.return_token_ids or scores != (None, None)

    def begin(self) -> Iterator[Choice]:
        if self._request.echo and not self._waits:
            yield self._part(self._prompt.text)

    def add(self, token: int) -> Iterator[Choice]:
        piece = "" if self._waits else self._text.add(token)
        if piece:
            yield self._part(piece)

    def finish(self, generated: Generated, index: int) -> Iterator[Choice]:
        if self._waits:
            whole = completion_choice(self._request, self._weights, self._prompt, generated, index)
            yield {"index": self._index, **whole}
            return
        piece = self._text.finish()
        yield self._part(piece, finish_reason(generated.sampled[index], self._text))

    def _part(self, text: str, reason: str | None = None) -> Choice:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": reason}
