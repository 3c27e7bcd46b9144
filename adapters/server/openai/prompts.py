"""From a request to the tokens of its prompts and the settings of sampling."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adapters.server.error_texts import public_text
from adapters.server.openai.errors import OpenAIError
from adapters.server.openai.generation import Generation, random_seed
from adapters.server.openai.requests import ChatRequest, CompletionRequest, SamplingFields
from adapters.server.openai.weights import ServedWeights
from adapters.server.sampling import DEFAULT_MAX_TOKENS, MAX_SAMPLES
from kitchen.backend.tool_calls import with_tools_in_system_prompt
from kitchen.errors import DataError, did_you_mean
from kitchen.ports.sampling import Tokenizer
from kitchen.safe_text import read_json
from kitchen.types import Tokens

ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True)
class Prompt:
    """A prompt, as text and as tokens."""

    text: str
    tokens: Tokens


def chat_generation(request: ChatRequest, weights: ServedWeights) -> Generation:
    """Render a conversation; raises OpenAIError."""
    if not weights.chat:
        raise OpenAIError(
            f"the model {weights.name!r} has no chat template, or was trained without it; use "
            "/v1/completions",
            param="model",
        )
    tools = request.offered_tools
    messages: list[Mapping[str, Any]] = [
        _message(message, place) for place, message in enumerate(request.messages)
    ]
    if not weights.tokenizer.tools:
        messages = [_with_calls_in_text(message) for message in messages]
        messages = with_tools_in_system_prompt(tools, messages) if tools else messages
        tools = ()
    options = {**weights.chat_template_kwargs, **request.chat_template_kwargs}
    try:
        tokens = _rendered(weights, messages, tools, options)
    except DataError as error:
        raise OpenAIError(public_text(str(error)), param="messages") from error
    if request.stream and request.prompt_logprobs is not None:
        raise OpenAIError("prompt_logprobs cannot be streamed", param="prompt_logprobs")
    scores = request.top_logprobs if request.logprobs else None
    if request.top_logprobs and not request.logprobs:
        raise OpenAIError("top_logprobs needs logprobs=true", param="top_logprobs")
    return _generation(request, weights, tokens, request.token_limit, scores)


def completion_prompts(request: CompletionRequest, weights: ServedWeights) -> Sequence[Prompt]:
    """Return the prompts; raises OpenAIError if the request has too many."""
    if len(request.prompts) * request.n > MAX_SAMPLES:
        raise OpenAIError(
            f"{len(request.prompts)} prompts with n={request.n} are more than the {MAX_SAMPLES} "
            "completions that one request may have",
            param="prompt",
        )
    prompts = []
    for prompt in request.prompts:
        if isinstance(prompt, str):
            _check_length(prompt, weights, "prompt")
            tokens = weights.tokenizer.encode(prompt, special=True)
            prompts.append(Prompt(prompt, tokens))
        else:
            tokens = _checked(prompt, weights.tokenizer)
            prompts.append(Prompt(weights.tokenizer.decode(tokens), tokens))
    return prompts


def completion_generation(
    request: CompletionRequest, weights: ServedWeights, tokens: Tokens
) -> Generation:
    """Return the settings of one prompt; raises OpenAIError if it is too long."""
    return _generation(
        request, weights, tokens, request.max_tokens, request.logprobs, echo=request.echo
    )


def _generation(
    request: SamplingFields,
    weights: ServedWeights,
    tokens: Tokens,
    max_tokens: int | None,
    top_logprobs: int | None,
    *,
    echo: bool = False,
) -> Generation:
    field = "messages" if isinstance(request, ChatRequest) else "prompt"
    room = _room(tokens, weights, field, needs_answer=max_tokens != 0)
    echoed = top_logprobs if echo else None
    of_prompt = [k for k in (echoed, request.prompt_logprobs) if k is not None]
    return Generation(
        tokens,
        request.n,
        room if max_tokens is None else min(max_tokens, room),
        float(request.temperature),
        float(request.top_p),
        max(request.top_k, 0),
        random_seed() if request.seed is None else _seed(request.seed),
        [*request.stop_texts] or [*request.stop_token_ids],
        top_logprobs,
        max(of_prompt) if of_prompt else None,
    )


def _seed(seed: int) -> int:
    """Return a seed as engines take it; negative ones stand for large ones."""
    return seed if seed >= 0 else seed % 2**63


def _rendered(
    weights: ServedWeights,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
) -> Tokens:
    """Render a conversation to tokens; the text of a long one is measured first."""
    given: dict[str, Any] = {"answer": True, "tools": tools, "chat_template_kwargs": options}
    longest = weights.longest_text
    if longest is not None and sum(len(message["content"]) for message in messages) > longest:
        _check_length(weights.tokenizer.render_text(messages, **given), weights, "messages")
    return weights.tokenizer.render(messages, **given)


def _check_length(text: str, weights: ServedWeights, field: str) -> None:
    """Raise OpenAIError for a text that is too long in any case, before it is encoded."""
    longest = weights.longest_text
    if longest is not None and len(text) > longest:
        raise OpenAIError(
            f"the prompt has {len(text):,} characters, which cannot fit into the context of the "
            f"model, {weights.context} tokens",
            param=field,
            code="context_length_exceeded",
        )


def _room(tokens: Tokens, weights: ServedWeights, field: str, *, needs_answer: bool) -> int:
    """Return how many tokens may follow a prompt; raises OpenAIError if it is empty or too long."""
    if not len(tokens):
        raise OpenAIError(
            "the prompt is empty, and the model has no beginning-of-sequence token", param=field
        )
    if weights.context is None:
        return DEFAULT_MAX_TOKENS
    room = weights.context - len(tokens)
    if room < needs_answer:
        raise OpenAIError(
            f"the prompt has {len(tokens)} tokens, and the context of the model is "
            f"{weights.context}, answer included",
            param=field,
            code="context_length_exceeded",
        )
    return room


def _checked(ids: Sequence[int], tokenizer: Tokenizer) -> Tokens:
    """Return token ids as an array; raises OpenAIError for one that the model does not have."""
    size = tokenizer.model_vocabulary or tokenizer.vocabulary
    for token in ids:
        if not 0 <= token < size:
            raise OpenAIError(
                f"the prompt has token {token}, outside the vocabulary of {size}", param="prompt"
            )
    return np.array(ids, np.int64)


def _message(message: Mapping[str, Any], place: int) -> dict[str, Any]:
    """Return a message as chat templates read it; raises OpenAIError for one they do not."""
    role = message.get("role")
    if role not in ROLES:
        raise OpenAIError(
            f"messages[{place}].role is {role!r:.80}; {did_you_mean(str(role)[:80], ROLES)}",
            param=f"messages[{place}].role",
        )
    read: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": _content(message.get("content"), f"messages[{place}].content"),
    }
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        field = f"messages[{place}].tool_calls"
        raise OpenAIError(f"{field} is {calls!r:.80}, and must be a list", param=field)
    if calls:
        read["tool_calls"] = [
            _call(call, f"messages[{place}].tool_calls[{index}]")
            for index, call in enumerate(calls)
        ]
    for name in ("name", "tool_call_id"):
        if message.get(name):
            read[name] = _text(message[name], f"messages[{place}].{name}")
    return read


def _text(value: Any, field: str) -> str:
    if not isinstance(value, str):
        raise OpenAIError(f"{field} is {value!r:.80}, and must be a text", param=field)
    return value


def _content(content: Any, field: str) -> str:
    """Return the text of a message, whose parts are joined; raises OpenAIError for other parts."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for place, part in enumerate(content if isinstance(content, list) else [content]):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            raise OpenAIError(
                f"{field}[{place}] is of type {kind!r:.80}; this server reads text only",
                param=f"{field}[{place}]",
                code="unsupported_content",
            )
        texts.append(part["text"])
    return "".join(texts)


def _call(call: Any, field: str) -> dict[str, Any]:
    """Return a call of an earlier answer, with its arguments as an object."""
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    try:
        arguments = read_json(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        arguments = None
    if not isinstance(function, dict) or not isinstance(arguments, dict):
        raise OpenAIError(
            f"{field} needs function.name, and function.arguments as the text of a JSON object",
            param=field,
        )
    return {
        "id": _text(call.get("id") or "", f"{field}.id"),
        "type": "function",
        "function": {"name": str(function.get("name", "")), "arguments": arguments},
    }


def _with_calls_in_text(message: Mapping[str, Any]) -> dict[str, Any]:
    """Write the calls of an answer into its text, for templates without a place for them."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    texts = [f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls]
    content = "\n".join([text for text in (message["content"], *texts) if text])
    return {"role": message["role"], "content": content}
