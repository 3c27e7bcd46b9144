"""Continuations of text or tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from adapters.server.openai.chat import finish_reason
from adapters.server.openai.generation import Generated, Scores
from adapters.server.openai.logprobs import completion_logprobs, prompt_logprobs, text_offsets
from adapters.server.openai.prompts import Prompt
from adapters.server.openai.requests import CompletionRequest
from adapters.server.openai.text import CompletionText
from adapters.server.openai.weights import ServedWeights


def completion_choices(
    request: CompletionRequest,
    weights: ServedWeights,
    prompts: Sequence[Prompt],
    generated: Sequence[Generated],
) -> Sequence[Mapping[str, Any]]:
    """Return n choices of each prompt, in the order of the prompts."""
    choices: list[Mapping[str, Any]] = []
    for prompt, completions in zip(prompts, generated, strict=True):
        for index in range(request.n):
            choice = completion_choice(request, weights, prompt, completions, index)
            choices.append({"index": len(choices), **choice})
    return choices


def completion_choice(
    request: CompletionRequest,
    weights: ServedWeights,
    prompt: Prompt,
    generated: Generated,
    index: int,
) -> Mapping[str, Any]:
    sampled = generated.sampled[index]
    text = CompletionText(weights.tokenizer, request.stop_texts, request.stop_token_ids)
    written = text.whole(sampled.tokens)
    choice: dict[str, Any] = {
        "text": prompt.text + written if request.echo else written,
        "logprobs": None,
        "finish_reason": finish_reason(sampled, text),
    }
    if request.return_token_ids:
        choice["prompt_token_ids"] = prompt.tokens.tolist()
        choice["token_ids"] = sampled.tokens.tolist()
    if request.logprobs is not None:
        choice["logprobs"] = _logprobs(request, weights, prompt, generated, index)
    if request.prompt_logprobs is not None and generated.prompt_scores is not None:
        choice["prompt_logprobs"] = prompt_logprobs(
            prompt.tokens, generated.prompt_scores, weights.tokenizer, request.prompt_logprobs
        )
    return choice


def _logprobs(
    request: CompletionRequest,
    weights: ServedWeights,
    prompt: Prompt,
    generated: Generated,
    index: int,
) -> Mapping[str, Any]:
    tokens, scores = generated.sampled[index].tokens, generated.scores[index]
    start = len(prompt.text) if request.echo else 0
    offsets = text_offsets(tokens, weights.tokenizer, request.stop_token_ids, start=start)
    if request.echo and generated.prompt_scores is not None:
        offsets = [*text_offsets(prompt.tokens, weights.tokenizer), *offsets]
        tokens = np.concatenate([prompt.tokens, tokens])
        scores = _joined(generated.prompt_scores, scores)
    k = request.logprobs or 0
    return completion_logprobs(tokens.tolist(), scores, weights.tokenizer, k, offsets)


def _joined(first: Scores, second: Scores) -> Scores:
    """Join the scores of prompt and completion, each with its own number of likeliest tokens."""
    k = max(first.top_ids.shape[1], second.top_ids.shape[1])
    ids = [_padded(scores.top_ids, k, -1) for scores in (first, second)]
    nats = [_padded(scores.top_logprobs, k, np.nan) for scores in (first, second)]
    logprobs = np.concatenate([first.logprobs, second.logprobs])
    return Scores(logprobs, np.concatenate(ids), np.concatenate(nats))


def _padded(values: Any, k: int, filler: float) -> Any:
    missing = k - values.shape[1]
    return np.pad(values, ((0, 0), (0, missing)), constant_values=filler)
