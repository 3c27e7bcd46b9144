"""Answers in a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from adapters.server.openai.generation import Generated, Generation
from adapters.server.openai.logprobs import chat_logprobs, prompt_logprobs
from adapters.server.openai.requests import ChatRequest
from adapters.server.openai.text import CompletionText
from adapters.server.openai.tool_text import ToolText
from adapters.server.openai.weights import ServedWeights
from kitchen.types import Sampled


def chat_body(
    request: ChatRequest, weights: ServedWeights, generation: Generation, generated: Generated
) -> Mapping[str, Any]:
    """Return the choices of an answer, and vLLM's scores of the prompt if they are asked for."""
    choices = [
        chat_choice(request, weights, generated, index) for index in range(len(generated.sampled))
    ]
    if request.prompt_logprobs is None or generated.prompt_scores is None:
        return {"choices": choices}
    scores = prompt_logprobs(
        generation.prompt, generated.prompt_scores, weights.tokenizer, request.prompt_logprobs
    )
    return {"choices": choices, "prompt_logprobs": scores}


def chat_choice(
    request: ChatRequest, weights: ServedWeights, generated: Generated, index: int
) -> Mapping[str, Any]:
    sampled = generated.sampled[index]
    text = CompletionText(weights.tokenizer, request.stop_texts, request.stop_token_ids)
    content: str | None = text.whole(sampled.tokens)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    calls: Sequence[Mapping[str, Any]] = []
    if request.offered_tools:
        parts = ToolText()
        begin = parts.add(content or "")
        end, calls = parts.finish()
        message["content"] = begin + end
    if calls:
        message |= {"content": message["content"] or None, "tool_calls": calls}
    logprobs = None
    if request.logprobs:
        logprobs = chat_logprobs(
            sampled.tokens, generated.scores[index], weights.tokenizer, request.top_logprobs
        )
    reason = finish_reason(sampled, text, calls=bool(calls))
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}


def finish_reason(sampled: Sampled, text: CompletionText, *, calls: bool = False) -> str:
    if calls:
        return "tool_calls"
    return "stop" if text.is_stopped else sampled.stop_reason
